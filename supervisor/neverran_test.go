package supervisor

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"workerd/execenv"
	"workerd/protocol"
)

// fakeApptainer puts an Apptainer on PATH that counts its workers and ends each with some words and a status.
func fakeApptainer(t *testing.T, words, status string) (starts string) {
	t.Helper()
	dir := t.TempDir()
	starts = filepath.Join(dir, "starts")
	script := "#!/bin/sh\ncase \"$*\" in\n--version) echo apptainer version 1.4.5 ;;\n'exec --help') echo ' --no-eval --cwd ' ;;\n" +
		"*'/bin/sh -c'*) ;;\n*) echo x >>'" + starts + "'; echo '" + words + "' >&2; exit " + status + " ;;\nesac\n"
	require.NoError(t, os.WriteFile(filepath.Join(dir, "apptainer"), []byte(script), 0o755))
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	return starts
}

// What Apptainer says of a worker that it did not run is the reason, and what cannot pass is not tried again.
func TestNeverRan(t *testing.T) {
	for name, c := range map[string]struct {
		words, status string
		starts        int
		reason        string
	}{
		"no such program":       {"FATAL:   stat /no/such/python: no such file or directory", "255", 1, "env.container_python, or the first word of command"},
		"may not be executed":   {"FATAL:   permission denied", "255", 1, "program not executable"},
		"refused":               {"FATAL:   container creation failed: no room", "255", 3, "apptainer exec: refused (exit 255): container creation failed: no room"},
		"a path that has gone":  {"FATAL:   container creation failed: mount source /nope doesn" + `'"'"'` + "t exist", "255", 3, "a path is missing"},
		"a worker that says so": {"FATAL: no licence", "255", 3, "exited with code 255 before it was ready"},
	} {
		t.Run(name, func(t *testing.T) {
			starts := fakeApptainer(t, c.words, c.status)
			r := newRig(t)
			require.NoError(t, os.WriteFile(filepath.Join(r.dir, "x.sif"), []byte("sif"), 0o600))
			require.NoError(t, os.WriteFile(filepath.Join(r.dir, "bad.toml"), []byte("command = [\"python3\"]\n[env]\nkind = \"apptainer\"\nsif = \"x.sif\"\n"+
				"[start]\nwhen = \"request\"\n[restart]\nbackoff = \"1ms\"\nmax_crashes = 3\n"), 0o600))
			r.load()
			a := r.dial("bad").call("echo", `{}`)
			require.Equal(t, protocol.WorkerStartFailed, a.kind())
			require.Contains(t, a.Error.Message, c.reason)
			require.Len(t, lines(starts), c.starts)
			st := r.status("bad")
			require.Equal(t, "failed", st.State)
			require.NotNil(t, st.LastExit.Code)
			require.Contains(t, st.LastExit.Output, "FATAL:")
		})
	}
}

// The init of a container ends with a status that is never tried again; it is its words that say what to do.
func TestNeverRanInAContainer(t *testing.T) {
	log := filepath.Join(t.TempDir(), "1.log")
	require.NoError(t, os.WriteFile(log, []byte("[FATAL tini (7)] exec nosuch failed: No such file or directory\n"), 0o600))
	f := &life{spec: &spec{plan: &execenv.Plan{Kind: "docker", Engine: "docker"}}, paths: paths{log: log}}
	err := f.neverRan(ended{code: 127, known: true})
	require.NotNil(t, err)
	require.Equal(t, causePermanent, causeOfRun(err))
	require.Contains(t, err.Error(), "env.container_python")
	for what, change := range map[string]func(f *life){
		"it had connected":         func(f *life) { f.connected = true },
		"it ran under another one": func(f *life) { f.adopted = true },
		"workerd ended it":         func(f *life) { f.cause = causeAsked },
		"it ran on the host":       func(f *life) { f.spec = &spec{plan: &execenv.Plan{Kind: "venv"}} },
		"it said nothing":          func(f *life) { f.paths.log += ".none" },
	} {
		g := &life{spec: f.spec, paths: f.paths}
		change(g)
		require.Nil(t, g.neverRan(ended{code: 127, known: true}), what)
	}
}
