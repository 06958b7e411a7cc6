package gpu

import (
	"fmt"
	"iter"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// smiFields are asked of nvidia-smi; the first smiLeast of any version, the others only of later ones. The name is last, as it
// is the one that may hold a comma.
var smiFields = []string{"index", "uuid", "memory.total", "memory.used", "memory.free", "driver_version", "mig.mode.current", "ecc.errors.uncorrected.volatile.total", "name"}

const smiLeast = 6

// smiQuery is the argument that asks for the cards.
func smiQuery(all bool) []string {
	fields := smiFields
	if !all {
		fields = append(slices.Clone(fields[:smiLeast]), "name")
	}
	return []string{"--query-gpu=" + strings.Join(fields, ","), "--format=csv,noheader,nounits"}
}

// parseCards reads the answer to smiQuery. Anything that is not exactly of its form is an error.
func parseCards(out string, all, health bool) (devices []Device, driver string, err error) {
	n := smiLeast + 1
	if all {
		n = len(smiFields)
	}
	for line := range smiLines(out) {
		fields := strings.SplitN(line, ", ", n)
		if len(fields) != n {
			return nil, "", fmt.Errorf("line %q: there must be %d fields", clip(line), n)
		}
		index, ok := parseIndex(fields[0])
		if !ok || slices.ContainsFunc(devices, func(d Device) bool { return d.Index == index || d.UUID == fields[1] }) {
			return nil, "", fmt.Errorf("line %q: index or UUID is wrong or there twice", clip(line))
		}
		if !strings.HasPrefix(fields[1], "GPU-") || !wholeUUID.MatchString(fields[1]) {
			return nil, "", fmt.Errorf("line %q: %q is no UUID", clip(line), clip(fields[1]))
		}
		d := Device{Index: index, UUID: fields[1], Name: fields[n-1], Vendor: NVIDIA}
		var figures [3]int64
		for i, text := range fields[2:5] {
			if figures[i], err = parseMiB(text); err != nil {
				return nil, "", fmt.Errorf("line %q: %s: %w", clip(line), smiFields[2+i], err)
			}
			d.Ill = orElse(d.Ill, smiIll(text))
		}
		d.setMemory(figures[0], figures[1], figures[2])
		if !unknown(fields[5]) {
			driver = fields[5]
		}
		if all {
			d.Split = fields[6] == "Enabled"
			if n, err := strconv.ParseUint(fields[7], 10, 64); err == nil && n > 0 && health {
				d.Ill = orElse(d.Ill, eccIll(n))
			}
		}
		devices = append(devices, d)
	}
	return devices, driver, nil
}

// smiLines are the lines of an answer, without warnings.
func smiLines(out string) iter.Seq[string] {
	return func(yield func(string) bool) {
		for line := range strings.Lines(out) {
			line = strings.TrimRight(line, "\r\n")
			if !strings.HasPrefix(line, "WARNING: ") && !yield(line) {
				return
			}
		}
	}
}

// setMemory takes figures of which -1 is unknown. Later versions count what the driver keeps for itself to the total, and neither
// to what is used nor to what is free.
func (d *Device) setMemory(total, used, free int64) {
	switch {
	case used >= 0 && free >= 0:
		d.Total, d.Used = used+free, used
	case total >= 0 && used >= 0:
		d.Total, d.Used = max(total, used), used
	case total >= 0:
		d.Total = total
	}
}

// parseMiB returns bytes, -1 where nvidia-smi cannot say.
func parseMiB(text string) (int64, error) {
	if unknown(text) {
		return -1, nil
	}
	n, err := strconv.ParseUint(text, 10, 31)
	if err != nil {
		return 0, fmt.Errorf("%q is no number", clip(text))
	}
	return int64(n) << 20, nil
}

// unknown tells the words that nvidia-smi has instead of a value: N/A, [N/A], [Not Supported], [GPU is lost].
func unknown(text string) bool {
	return text == "N/A" || strings.HasPrefix(text, "[") && strings.HasSuffix(text, "]")
}

// smiIll is the illness that nvidia-smi prints in the place of a value.
func smiIll(text string) string {
	switch strings.ToLower(strings.Trim(text, "[]")) {
	case "gpu is lost":
		return illLost
	case "gpu requires reset", "reset required":
		return illReset
	}
	return ""
}

var smiApps = []string{"--query-compute-apps=gpu_uuid,pid,used_memory", "--format=csv,noheader,nounits"}

// parseApps reads the answer to smiApps into the devices. The memory of a pid is said once for each of its contexts, so the
// largest counts. Devices in MIG mode have other UUIDs there than cards, or none: such lines are nobody's.
func parseApps(out string, devices []Device) error {
	found := map[string]map[int]int64{}
	for line := range smiLines(out) {
		fields := strings.Split(line, ", ")
		if len(fields) != 3 {
			return fmt.Errorf("line %q: there must be 3 fields", clip(line))
		}
		pid, err := strconv.ParseUint(fields[1], 10, 31)
		if err != nil {
			return fmt.Errorf("line %q: %q is no pid", clip(line), clip(fields[1]))
		}
		memory, err := parseMiB(fields[2])
		if err != nil {
			return fmt.Errorf("line %q: %w", clip(line), err)
		}
		hold(found, fields[0], int(pid), memory)
	}
	for i := range devices {
		if d := &devices[i]; d.Card == "" && !d.Split {
			d.Processes, d.ProcessesKnown = processes(found[d.UUID]), true
		}
	}
	return nil
}

func hold(found map[string]map[int]int64, uuid string, pid int, memory int64) {
	if found[uuid] == nil {
		found[uuid] = map[int]int64{}
	}
	if had, ok := found[uuid][pid]; !ok || memory > had {
		found[uuid][pid] = memory
	}
}

// processes lists them by pid.
func processes(memory map[int]int64) []Process {
	var all []Process
	for pid, bytes := range memory {
		all = append(all, Process{pid, bytes})
	}
	slices.SortFunc(all, func(a, b Process) int { return a.PID - b.PID })
	return all
}

var (
	smiCardLine = regexp.MustCompile(`^GPU (\d{1,4}): (.*) \(UUID: (GPU-[0-9A-Za-z-]{1,90})\)$`)
	smiMIGLine  = regexp.MustCompile(`^ +MIG (\S{1,40}) +Device +(\d{1,4}): \(UUID: (MIG-[0-9A-Za-z][0-9A-Za-z/-]{0,89})\)$`)
)

// parseList reads `nvidia-smi -L`, for the MIG devices of cards in MIG mode. It says nothing about their memory.
func parseList(out string, cards []Device) ([]Device, error) {
	var parts []Device
	var card *Device
	for line := range smiLines(out) {
		if m := smiCardLine.FindStringSubmatch(line); m != nil {
			card = nil
			for i := range cards {
				if cards[i].UUID == m[3] {
					card = &cards[i]
				}
			}
			continue
		}
		m := smiMIGLine.FindStringSubmatch(line)
		if m == nil {
			return nil, fmt.Errorf("line %q: names neither a card nor a MIG device", clip(line))
		}
		if slices.ContainsFunc(parts, func(d Device) bool { return d.UUID == m[3] }) {
			return nil, fmt.Errorf("line %q: the device is there twice", clip(line))
		}
		if card != nil && card.Split {
			parts = append(parts, Device{Index: card.Index, UUID: m[3], Name: card.Name + " MIG " + m[1], Vendor: NVIDIA, Card: card.UUID, Ill: card.Ill})
		}
	}
	return parts, nil
}

// clip shortens what a program printed to what fits a message.
func clip(text string) string {
	const most = 200
	text = strings.ToValidUTF8(text, "?")
	if len(text) > most {
		text = strings.ToValidUTF8(text[:most], "") + "..."
	}
	return text
}

func orElse(text, other string) string {
	if text == "" {
		return other
	}
	return text
}
