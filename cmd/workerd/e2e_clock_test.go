package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Case 66, where the monotonic clock of one process does not help: the clock is set while no workerd runs. How long an adopted
// worker has been up is not taken from the time that its record holds.
func TestE2ECase66TheClockIsSetBetweenTwoWorkerds(t *testing.T) {
	e := newE2E(t)
	e.bare("x", "")
	begin := time.Now().Add(-time.Second) // the kernel counts starts in hundredths
	e.start()
	pid := e.ready("x")
	for _, jump := range []time.Duration{time.Hour, -time.Hour} {
		e.killsRecorded()
		file := mustGlob(t, filepath.Join(e.runtimeDir(), "w/x/*.json"))
		var record map[string]any
		require.NoError(t, json.Unmarshal(mustRead(t, file), &record))
		record["started"] = time.Now().Add(jump).UTC()
		text, err := json.Marshal(record)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(file, text, 0o600))
		e.start()
		require.Equal(t, pid, e.ready("x"), "adopted")
		since := e.status("x").Workers[0].ReadySince
		require.NotNil(t, since)
		require.WithinRange(t, *since, begin, time.Now())
	}
}
