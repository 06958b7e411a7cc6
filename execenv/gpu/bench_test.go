package gpu

import "testing"

// BenchmarkSnapshotWithoutGPU is what it costs to ask a machine that has none, as each start of a worker does.
func BenchmarkSnapshotWithoutGPU(b *testing.B) {
	m := Open(Options{Health: true})
	defer m.Close()
	for b.Loop() {
		if _, err := m.Snapshot(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
}
