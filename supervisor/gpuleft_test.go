package supervisor

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"workerd/execenv"
)

func TestHoldOfARecord(t *testing.T) {
	one, two := []string{"GPU-0"}, []string{"GPU-0", "GPU-1"}
	for name, c := range map[string]struct {
		record record
		want   hold
	}{
		"of an older workerd": {record{GPUs: one}, hold{devices: one, exclusive: true}},
		"exclusive":           {record{GPUs: one, GPUPolicy: "exclusive", GPUMemory: gib}, hold{devices: one, memory: gib, exclusive: true}},
		"shared":              {record{GPUs: two, GPUPolicy: "shared", GPUMemory: gib}, hold{devices: two, memory: gib}},
		"auto":                {record{GPUs: one, GPUPolicy: "auto"}, hold{devices: one, casual: true}},
		"auto with memory":    {record{GPUs: one, GPUPolicy: "auto", GPUMemory: gib}, hold{devices: one, memory: gib}},
	} {
		c.record.Slug, c.record.N = "x", 7
		c.want.id, c.want.slug, c.want.pinned = "x/7", "x", true
		require.Equal(t, c.want, c.record.hold(), name)
	}
	require.Empty(t, (&record{GPUs: one, GPUPolicy: "shared", Standby: warm}).hold().devices)
}

// Until its provider has planned, a worker of an earlier workerd keeps what it has, and what it has reserved and does not use yet.
func TestGPULeftByAnEarlierWorkerd(t *testing.T) {
	boot, err := execenv.BootID()
	require.NoError(t, err)
	for name, c := range map[string]struct {
		policy string
		memory int64
		asks   int64
		placed bool
	}{
		"exclusive":           {"exclusive", 0, gib, false},
		"not recorded":        {"", 0, gib, false},
		"shared, reserved":    {"shared", 20 * gib, 8 * gib, false},
		"shared, beside that": {"shared", 20 * gib, 2 * gib, true},
	} {
		t.Run(name, func(t *testing.T) {
			r, cards := newGPURig(t, cardOf(0, 24, 0))
			left := &record{
				Version: recordVersion, Instance: r.sup.cfg.Instance, BootID: boot, Slug: "x", N: 7,
				Socket: filepath.Join(r.run, "w", "x", "7.sock"), GPUs: []string{"GPU-0"}, GPUPolicy: c.policy, GPUMemory: c.memory,
			}
			left.PID = cards.stranger(t, "GPU-0", 1<<10, execenv.MarkerVar+"="+left.marker())
			eventually(t, func() bool { has, _ := execenv.HasMarker(left.PID, left.marker()); return has }, func() string { return "it runs" })
			st, err := execenv.ReadStat(left.PID)
			require.NoError(t, err)
			left.Start = st.Start
			require.NoError(t, os.MkdirAll(filepath.Dir(left.Socket), 0o700))
			require.NoError(t, left.save())
			r.sup.FindLeftovers()

			d := r.sup.GPUs(t.Context()).Devices[0]
			require.Len(t, d.Workers, 1)
			require.Equal(t, "x/7", d.Workers[0].ID)
			require.EqualValues(t, gib, d.Workers[0].UsedBytes)
			require.Empty(t, d.Others)
			verdicts := make(chan verdict, 1)
			r.sup.gpus.do(func() {
				app := applicant{id: "y/8", need: need{slug: "y", policy: "shared", count: 1, memory: c.asks, priority: 9}, turn: true}
				verdicts <- r.sup.gpus.books(time.Now()).arrange([]applicant{app})[0]
			})
			v := <-verdicts
			require.Equal(t, c.placed, v.placed, "%+v", v)
			require.Empty(t, v.leave)

			// It has no manifest: it is ended, and its device is free.
			r.gpuProvider(cards, "y", "policy = \"exclusive\"", 1<<10, onRequest)
			r.load()
			require.Equal(t, `"GPU-0"`, string(r.dial("y").call("env", `{"text":"CUDA_VISIBLE_DEVICES"}`).Result))
		})
	}
}

// What was entered for a worker of an earlier workerd makes way for what its provider knows of it.
func TestGPULeftIsTakenIn(t *testing.T) {
	r, cards := newGPURig(t, cardOf(0, 24, 0))
	r.gpuProvider(cards, "x", "policy = \"shared\"\nmemory = \"8GiB\"", 1<<10, "")
	r.load()
	r.state("x", "ready")
	p, g := r.sup.lookup("x"), r.sup.gpus
	require.NoError(t, p.ask(t.Context(), func() {
		w := p.workers[0]
		left := w.life.record(w.life.body)
		assert.Equal(t, "shared", left.GPUPolicy)
		assert.EqualValues(t, 8*gib, left.GPUMemory)
		g.leftBy([]*record{left})
		p.inheritGPUs(w, w.life, left)
	}))
	eventually(t, func() bool {
		n := make(chan int, 1)
		return g.do(func() { n <- len(g.left) }) && <-n == 0
	}, func() string { return "nothing is left" })
	require.EqualValues(t, 8*gib, r.sup.GPUs(t.Context()).Devices[0].ReservedBytes)
}
