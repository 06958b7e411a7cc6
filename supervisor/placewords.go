package supervisor

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"workerd/execenv/gpu"
)

// holders names who has what a worker waits for.
func (b *books) holders(n need, cards []*gpu.Device) []string {
	var out []string
	for _, d := range cards {
		for i := range b.holds {
			if h := &b.holds[i]; h.on(d.UUID) {
				words := h.id
				if bytes := h.takes(d.UUID); bytes > 0 {
					words += " (" + sizeWords(bytes) + ")"
				}
				out = append(out, words)
			}
		}
		if bytes, processes := b.strangers(d); bytes > strangerFloor {
			out = append(out, b.strangerWords(d, bytes, processes))
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// strangerFloor is what a driver takes without any process: it is nobody's.
const strangerFloor = 64 << 20

// strangerWords names the largest of the processes that are of no living worker.
func (b *books) strangerWords(d *gpu.Device, bytes int64, ps []gpu.Process) string {
	if len(ps) == 0 {
		return fmt.Sprintf("%s on %s of processes that cannot be told", sizeWords(bytes), deviceName(d))
	}
	ps = slices.Clone(ps)
	slices.SortStableFunc(ps, func(a, b gpu.Process) int { return cmp.Compare(b.Memory, a.Memory) })
	var out []string
	for _, p := range ps[:min(3, len(ps))] {
		words := "pid " + strconv.Itoa(p.PID)
		if id := b.owners[p.PID]; id != "" {
			words += " of " + id + ", which has ended,"
		}
		words += " on " + deviceName(d)
		if p.Memory >= 0 {
			words += " (" + sizeWords(p.Memory) + ")"
		}
		out = append(out, words)
	}
	return strings.Join(out, ", ")
}

func (n need) words() string {
	words := fmt.Sprintf("%d GPU", n.count)
	if n.count > 1 {
		words += "s"
	}
	if n.memory > 0 {
		words += " with " + sizeWords(n.memory)
		if n.count > 1 {
			words += " each"
		}
	}
	return words
}

func haveWords(n int) string {
	if n == 0 {
		return "none here has"
	}
	return fmt.Sprintf("only %d here can be", n)
}

func deviceName(d *gpu.Device) string {
	if d.Card != "" {
		return d.UUID
	}
	return fmt.Sprintf("GPU %d (%s)", d.Index, d.UUID)
}

// sizeWords writes bytes as manifests do, in GiB or MiB.
func sizeWords(n int64) string {
	if n >= 1<<30 {
		return strings.TrimSuffix(fmt.Sprintf("%.1f", float64(n)/(1<<30)), ".0") + " GiB"
	}
	return fmt.Sprintf("%d MiB", n>>20)
}
