package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"workerd/protocol"
)

// venv makes a virtual environment with a module of its own.
func (e *e2e) venv(dir string) {
	e.t.Helper()
	out, err := exec.Command(interpreter(e.t), "-m", "venv", "--without-pip", dir).CombinedOutput()
	require.NoError(e.t, err, "%s", out)
	site, err := filepath.Glob(filepath.Join(dir, "lib/python3*/site-packages"))
	require.NoError(e.t, err)
	require.Len(e.t, site, 1)
	require.NoError(e.t, os.WriteFile(filepath.Join(site[0], "only_here.py"), nil, 0o600))
}

// with writes a provider that runs the SDK worker with an interpreter.
func (e *e2e) with(slug, python, toml string) string {
	e.t.Helper()
	return e.write(slug, "worker.py", e.manifest(`worker = "worker.py"`, fmt.Sprintf("python = %q", python), toml))
}

// Case 81: Python finds its venv by the path that it is run by, so that is not resolved.
func TestE2ECase81AVenvIsFound(t *testing.T) {
	e := newE2E(t)
	dir := filepath.Join(e.dir, "venv")
	e.venv(dir)
	link := filepath.Join(e.dir, "link")
	require.NoError(t, os.Symlink(dir, link))
	e.with("file", filepath.Join(dir, "bin/python"), "")
	e.with("folder", dir, "")
	e.with("linked", filepath.Join(link, "bin/python"), "")
	e.start()
	for slug, prefix := range map[string]string{"file": dir, "folder": dir, "linked": link} {
		pid := e.ready(slug)
		require.Equal(t, prefix, e.environment(slug).Prefix, slug)
		m, err := e.dial(slug).try("imports", `{"name":"only_here"}`)
		require.NoError(t, err)
		require.Equal(t, "true", string(m.Result), slug)
		command := strings.Split(string(mustRead(t, fmt.Sprintf("/proc/%d/cmdline", pid))), "\x00")
		require.True(t, strings.HasPrefix(command[0], prefix+"/bin/python"), command[0])
	}
}

// Case 80: a venv whose interpreter is gone is said to be so, and works again when it is made anew: nobody touches the manifest.
func TestE2ECase80AnInterpreterThatIsGone(t *testing.T) {
	e := newE2E(t)
	dir := filepath.Join(e.dir, "venv")
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "bin"), 0o700))
	python := filepath.Join(dir, "bin/python")
	require.NoError(t, os.Symlink("/nonexistent/python3.99", python))
	e.with("x", python, "")
	e.start()
	said := e.cli("validate")
	require.Equal(t, exitFailed, said.code)
	require.Contains(t, said.out+said.err, "/nonexistent/python3.99")
	require.Contains(t, []string{"failed", "invalid"}, e.status("x").State)
	require.Empty(t, e.marked(""), "nothing is tried again and again")

	require.NoError(t, os.Remove(python))
	e.venv(dir)
	e.ready("x")
	require.Equal(t, dir, e.environment("x").Prefix)
}

// Case 83: a conda environment gets what its activation scripts set.
func TestE2ECase83CondaActivation(t *testing.T) {
	e := newE2E(t)
	conda := func(name, script string) (prefix string) {
		prefix = filepath.Join(e.dir, name)
		for _, dir := range []string{"bin", "conda-meta", "etc/conda/activate.d"} {
			require.NoError(t, os.MkdirAll(filepath.Join(prefix, dir), 0o700))
		}
		require.NoError(t, os.Symlink(interpreter(t), filepath.Join(prefix, "bin/python")))
		require.NoError(t, os.WriteFile(filepath.Join(prefix, "etc/conda/activate.d/x.sh"), []byte(script), 0o600))
		return prefix
	}
	prefix := conda("conda", "export FOO=\"bar baz\"\nexport LD_LIBRARY_PATH=\"$CONDA_PREFIX/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}\"\n")
	require.NoError(t, os.WriteFile(filepath.Join(e.env["HOME"], ".bashrc"), []byte("export FROM_BASHRC=1\n"), 0o600))
	e.env["LD_LIBRARY_PATH"] = "/some/lib"
	e.with("x", prefix, "")
	e.start()
	env := e.environment("x").Env
	require.Equal(t, "bar baz", env["FOO"])
	require.Equal(t, prefix, env["CONDA_PREFIX"])
	require.Equal(t, prefix+"/lib:/some/lib", env["LD_LIBRARY_PATH"])
	require.True(t, strings.HasPrefix(env["PATH"], prefix+"/bin:"), env["PATH"])
	require.NotContains(t, env, "FROM_BASHRC")

	// A script that fails is reported; the neighbours do not notice.
	e.with("bad", conda("bad", "echo cannot find the license >&2\nexit 3\n"), "")
	p := e.state("bad", "failed")
	require.Contains(t, p.Reason, "cannot find the license")
	e.call(e.dial("x"), "echo", "{}")
}

// Case 82: a program that the kernel cannot execute.
func TestE2ECase82AScriptWhoseInterpreterIsMissing(t *testing.T) {
	e := newE2E(t)
	script := filepath.Join(e.dir, "server")
	require.NoError(t, os.WriteFile(script, []byte("#!/moved/venv/bin/python3\nprint('never')\n"), 0o700))
	e.write("x", "bare.py", e.manifest(fmt.Sprintf("command = [%q]", script), "", ""))
	e.start()
	p := e.status("x")
	e.until("it is given up", func() bool { p = e.status("x"); return p.State == "failed" || p.State == "invalid" })
	said := p.Reason
	for _, problem := range p.ManifestError {
		said += problem.Message
	}
	require.Contains(t, said, "/moved/venv/bin/python3")
	require.NotContains(t, e.log.String(), "state=backoff", "at once")
}

// Cases 76 and 77: the time to load is not the time to answer, and one that is never ready does not end in silence.
func TestE2ECase76LoadingHasATimeOfItsOwn(t *testing.T) {
	long(t)
	e := newE2E(t)
	e.provider("x", "[env.variables]\nLOAD_SECONDS = \"4\"\n[start]\nwhen = \"request\"\n[serve]\nrequest_timeout = \"3s\"\n")
	e.provider("never", "[env.variables]\nLOAD_SECONDS = \"600\"\n[start]\nwhen = \"request\"\ntimeout = \"1s\"\n[restart]\nmax_crashes = 2\nbackoff = \"10ms\"\n")
	e.start()
	e.call(e.dial("x"), "echo", "{}")
	w := e.dial("x")
	begin := time.Now()
	m, err := w.try("sleep", `{"seconds":60}`)
	require.NoError(t, err)
	require.Equal(t, protocol.DeadlineExceeded, m.kind())
	require.Less(t, time.Since(begin), 3*time.Second+soon(time.Second))

	m, err = e.dial("never").try("echo", "{}")
	require.NoError(t, err)
	require.Equal(t, protocol.WorkerStartFailed, m.kind())
	p := e.status("never")
	require.Equal(t, "failed", p.State)
	require.Contains(t, p.Reason, "start.timeout")
	m, err = e.dial("never").try("echo", "{}")
	require.NoError(t, err)
	require.Equal(t, protocol.ProviderFailed, m.kind())
}

// Case 67: who fails in the same way again and again is given up, with the reason; an edit gives another chance.
func TestE2ECase67GivenUp(t *testing.T) {
	e := newE2E(t)
	starts := filepath.Join(e.dir, "starts")
	toml := fmt.Sprintf("[env.variables]\nSTARTS = %q\nLOAD_EXIT = \"%%d\"\n[restart]\nmax_crashes = 3\nbackoff = \"10ms\"\n", starts)
	file := e.provider("x", fmt.Sprintf(toml, 4))
	e.start()
	p := e.state("x", "failed")
	require.Contains(t, p.Reason, "code 4")
	require.Contains(t, p.LastExit.Output, "no weights found")
	require.Equal(t, 3, strings.Count(string(mustRead(t, starts)), "\n"))
	require.Contains(t, e.fails(exitFailed, "call", "x", "echo"), "no weights found")

	text := string(mustRead(t, file))
	replace(t, file, strings.Replace(text, `LOAD_EXIT = "4"`, `LOAD_EXIT = "126"`, 1))
	e.until("126 is final at once", func() bool { p = e.status("x"); return p.State == "failed" && strings.Contains(p.Reason, "126") })
	require.Equal(t, 4, strings.Count(string(mustRead(t, starts)), "\n"))

	replace(t, file, strings.Replace(text, `LOAD_EXIT = "4"`, "", 1))
	e.ready("x")
	e.call(e.dial("x"), "echo", "{}")
}
