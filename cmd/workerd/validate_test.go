package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"workerd/manifest"
)

// python returns the interpreter that tests use.
func python(t *testing.T) string {
	t.Helper()
	path, err := exec.LookPath("python3")
	require.NoError(t, err, "the tests need python3 in PATH")
	return path
}

// provider writes a provider into the default directory; more is appended to its manifest.
func (r *rig) provider(slug, more string) (file string) {
	r.t.Helper()
	dir := filepath.Join(".config/workerd/providers", slug)
	r.write(filepath.Join(dir, "worker.py"), "print('a worker')\n")
	file = r.write(filepath.Join(dir, "provider.toml"), "worker = \"worker.py\"\n"+more+"\n[env]\nkind = \"venv\"\npython = \""+python(r.t)+"\"\n")
	// What the umask leaves may be writable for the group.
	for p := file; p != r.dir; p = filepath.Dir(p) {
		require.NoError(r.t, os.Chmod(p, 0o755))
	}
	return file
}

func TestValidate(t *testing.T) {
	r := newRig(t)
	require.Contains(t, r.ok("validate"), "no manifests in "+filepath.Join(r.dir, ".config/workerd/providers"))
	good := r.provider("good", "")
	require.Equal(t, "ok: good ("+good+")\n", r.ok("validate"))
	require.Equal(t, "ok: good ("+good+")\n", r.ok("validate", good), "a file")
	require.Equal(t, "ok: good ("+good+")\n", r.ok("validate", filepath.Dir(good)), "a provider's folder")
	require.Equal(t, "ok: good ("+good+")\n", r.ok("validate", filepath.Dir(filepath.Dir(good))), "a directory of them")

	bad := r.provider("bad", "wroker = \"x\"\ntitle = 3\n")
	require.Equal(t, exitFailed, r.run("validate"))
	require.Contains(t, r.out.String(), bad+":2:1: wroker: ")
	require.Contains(t, r.out.String(), bad+":3:", "every problem is shown")
	require.Contains(t, r.err.String(), "2 problems")

	require.Equal(t, exitFailed, r.run("validate", "--json"))
	var got struct {
		Providers []map[string]string
		Problems  []map[string]any
		Warnings  []string
	}
	require.NoError(t, json.Unmarshal([]byte(r.out.String()), &got))
	require.Equal(t, []map[string]string{{"slug": "good", "manifest": good}}, got.Providers)
	require.Len(t, got.Problems, 2)
	require.Equal(t, "wroker", got.Problems[0]["key"])
	require.NotNil(t, got.Warnings)
}

func TestValidateSaysWhatThisVersionCannotDo(t *testing.T) {
	r := newRig(t)
	file := r.provider("d", "[serve]\nprotocol = \"http\"\n")
	require.Equal(t, exitFailed, r.run("validate", file))
	require.Contains(t, r.out.String(), "serve.protocol: this version")
	require.Contains(t, r.fails(exitFailed, "explain", file), "serve.protocol")
	require.Contains(t, r.out.String(), `protocol = "http"`, "its keys are shown all the same")
}

func TestValidateWarnsWithoutGPU(t *testing.T) {
	r := newRig(t)
	require.Contains(t, r.ok("validate", r.provider("d", "[gpu]\npolicy = \"exclusive\"\n")), `gpu.policy: no GPU is found here, so with "exclusive" requests are answered with no_gpu`)
}

func TestCase52ValidateRefusesASocketPathThatIsTooLong(t *testing.T) {
	r := newRig(t)
	r.env["WORKERD_RUNTIME_DIR"] = "/tmp/" + strings.Repeat("r", 70)
	r.provider("short", "")
	r.ok("validate")
	r.provider(strings.Repeat("l", 40), "")
	require.Equal(t, exitFailed, r.run("validate"))
	require.Contains(t, r.out.String(), "107")
}

func TestExplain(t *testing.T) {
	r := newRig(t)
	r.env["TOKEN_SOURCE"] = "s3cret-value"
	file := r.provider("one", "args = [\"two words\", \"it's\"]\n[env.secrets]\nHF_TOKEN = { env = \"TOKEN_SOURCE\" }\n[env.variables]\nA = \"b\"\n")
	// [env] follows what was appended, so the tables are opened by their own headers.
	out := r.ok("explain", "one")
	require.Contains(t, out, `worker.py 'two words' 'it'\''s'`)
	require.Contains(t, out, "  A=b\n")
	require.Contains(t, out, "  HF_TOKEN=***\n")
	require.NotContains(t, out, "s3cret-value")
	require.Contains(t, out, "WORKERD_SOCKET="+filepath.Join(r.dir, "run/w/one/<n>.sock"))
	require.Contains(t, out, "queue = 64")
	require.Contains(t, out, file)

	text := r.ok("explain", filepath.Dir(file), "--json")
	require.NotContains(t, text, "s3cret-value")
	var got map[string]any
	require.NoError(t, json.Unmarshal([]byte(text), &got))
	for _, key := range []string{"slug", "kind", "argv", "env", "secrets", "cwd", "binds", "user", "gpu", "fingerprint", "manifest"} {
		require.Contains(t, got, key)
	}
	require.Equal(t, []any{"HF_TOKEN"}, got["secrets"])
	require.Equal(t, filepath.Dir(file), got["cwd"])

	require.Contains(t, r.fails(exitFailed, "explain", "tow"), "there are: one")
	require.Contains(t, r.fails(exitUsage, "explain", filepath.Dir(filepath.Dir(file))), "no provider.toml")
	r.provider("broken", "nonsense = 1\n")
	require.Contains(t, r.fails(exitFailed, "explain", "broken"), "provider.toml:2:1: nonsense")
}

// An engine's client is a script here, which knows one image.
func TestExplainAContainer(t *testing.T) {
	r := newRig(t)
	script(t, filepath.Join(r.dir, "bin"), "docker", `case "$1 $2" in
"--version "*) echo "Docker version 24.0.1" ;;
"info "*) echo '`+dockerInfo+`]}' ;;
"image inspect") echo '[{"Id":"sha256:abc123","Config":{"Env":["PATH=/usr/bin:/bin"]}}]' ;;
*) exit 125 ;;
esac`)
	r.env["PATH"] = filepath.Join(r.dir, "bin")
	r.env["TOKEN_SOURCE"], r.env["HF_TOKEN"] = "s3cret-value", "s3cret-too"
	r.write(".config/workerd/workerd.toml", "log_max_size = \"3MiB\"\n")
	file := r.provider("boxed", "")
	data := strings.Replace(string(mustRead(t, file)), `kind = "venv"`, `kind = "docker"
image = "lab/x:1"
pass_env = ["*"]
variables = { A = "shown", B = "two words" }
secrets = { HF_TOKEN = { env = "TOKEN_SOURCE" } }`, 1)
	require.NoError(t, os.WriteFile(file, []byte(data), 0o644))

	out := r.ok("explain", "boxed")
	require.Regexp(t, `(?m)^image +lab/x:1 abc123$`, out)
	require.Regexp(t, `(?m)^argv +/.*/bin/docker run --detach .* \\$`, out)
	require.Regexp(t, `(?m)^ +lab/x:1 `+filepath.Dir(file)+`/worker.py$`, out, "the image begins the last line")
	require.Contains(t, out, "  A=shown\n")
	require.Contains(t, out, "  HF_TOKEN=***\n")
	require.Contains(t, out, "--log-opt max-size=3145728")
	for line := range strings.Lines(out) {
		if strings.HasSuffix(line, "\\\n") && strings.Count(line, " --") > 1 {
			require.LessOrEqual(t, len(strings.TrimSpace(line)), argvWidth+len("argv         "), line)
		}
	}
	require.NotContains(t, out, "s3cret")

	text := r.ok("explain", "boxed", "--json")
	require.NotContains(t, text, "s3cret")
	var got struct {
		Slug, Kind, Cwd, Fingerprint, Image string
		Argv, Secrets                       []string
		Env                                 map[string]string
		Binds                               []struct{ Source, Target, Mode string }
		User                                struct {
			UID, GID *int
			Groups   []int
		}
		GPU map[string]any
	}
	require.NoError(t, json.Unmarshal([]byte(text), &got))
	require.Equal(t, []string{"boxed", "docker", filepath.Dir(file), "lab/x:1"}, []string{got.Slug, got.Kind, got.Cwd, got.Image})
	require.Equal(t, []string{"HF_TOKEN"}, got.Secrets)
	require.Equal(t, "shown", got.Env["A"])
	require.NotContains(t, strings.Join(got.Argv, " "), "shown", "values never stand in argv")
	require.NotEmpty(t, got.Binds)
	require.NotNil(t, got.User.UID)
	require.NotNil(t, got.User.Groups)
	require.Len(t, got.Fingerprint, 64)
	require.Contains(t, got.GPU, "policy")
}

func TestWrapArgs(t *testing.T) {
	require.Equal(t, []string{"python3 'a b'"}, wrapArgs([]string{"python3", "a b"}, ""))
	long := "--mount=" + strings.Repeat("x", 90)
	require.Equal(t, []string{`/bin/e run \`, "  " + long + ` \`, `  -v x --y 'a b' \`, "  img prog -x"},
		wrapArgs([]string{"/bin/e", "run", long, "-v", "x", "--y", "a b", "img", "prog", "-x"}, "img"))
}

func TestQuoteArgs(t *testing.T) {
	require.Equal(t, `/a/b-c=d '' 'x y' 'it'\''s' '$HOME' 'ü'`, quoteArgs([]string{"/a/b-c=d", "", "x y", "it's", "$HOME", "ü"}))
}

func TestSchemaIsJSON(t *testing.T) {
	r := newRig(t)
	var got map[string]any
	require.NoError(t, json.Unmarshal([]byte(r.ok("schema")), &got))
	require.Contains(t, got["properties"], "serve")
}

func TestSDKIsWrittenForOthersToRead(t *testing.T) {
	r := newRig(t)
	dir := filepath.Join(r.dir, "new/env")
	file := filepath.Join(dir, "workerd.py")
	require.Equal(t, file+"\n", r.ok("sdk", dir))
	fi, err := os.Stat(file)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o644), fi.Mode().Perm())
	out, err := exec.Command(python(t), "-c", "import sys; sys.path.insert(0, sys.argv[1]); import workerd; workerd.Client; workerd.Worker", dir).CombinedOutput()
	require.NoError(t, err, string(out))
}

func TestVersion(t *testing.T) {
	r := newRig(t)
	require.Regexp(t, `(?s)^workerd .*protocol 1, go1\.`, r.ok("version"))
	var v versionInfo
	require.NoError(t, json.Unmarshal([]byte(r.ok("version", "--json")), &v))
	require.Equal(t, 1, v.Protocol)
}

func TestInitWritesAProviderThatValidates(t *testing.T) {
	r := newRig(t)
	folder := filepath.Join(r.dir, ".config/workerd/providers/mine")
	require.Equal(t, folder+"\n", r.ok("init", "mine"))
	require.Contains(t, r.err.String(), "workerd smoke "+folder)
	require.Contains(t, r.ok("validate"), "ok: mine")
	entries, err := os.ReadDir(filepath.Dir(folder))
	require.NoError(t, err)
	require.Len(t, entries, 1, "nothing else is left")

	before, err := os.ReadFile(filepath.Join(folder, "worker.py"))
	require.NoError(t, err)
	require.Contains(t, r.fails(exitFailed, "init", "mine"), "exists already")
	after, err := os.ReadFile(filepath.Join(folder, "worker.py"))
	require.NoError(t, err)
	require.Equal(t, before, after)

	r.write("other/taken.toml", "")
	require.Contains(t, r.fails(exitFailed, "init", "taken", "--dir", filepath.Join(r.dir, "other")), "taken.toml exists already")

	r.env["PATH"] = "/nonexistent"
	t.Setenv("PATH", "/nonexistent")
	require.Contains(t, r.fails(exitFailed, "init", "none"), "no Python found")
}

func TestInitForAnImage(t *testing.T) {
	r := newRig(t)
	for _, args := range [][]string{
		{"docker", "--image", "lab/x:1"}, {"podman", "--image", `quay.io/a$b"c`}, {"apptainer", "--sif", r.write("an \"image\".sif", "")},
	} {
		folder := strings.TrimSpace(r.ok("init", args[0], "--kind", args[0], args[1], args[2]))
		b, err := r.app().bench()
		require.NoError(t, err)
		m, warnings, err := manifest.Load(filepath.Join(folder, "provider.toml"), b.options)
		require.NoError(t, err)
		require.Empty(t, warnings)
		require.Equal(t, args[0], m.Env.Kind)
		require.Equal(t, args[2], m.Env.Image+m.Env.SIF)
	}
	t.Setenv("PATH", "/nonexistent")
	r.ok("init", "nopython", "--kind", "docker", "--image", "x") // none is needed out here
}

func TestInitIntoADirectoryThatIsNotTrusted(t *testing.T) {
	r := newRig(t)
	dir := filepath.Join(r.dir, "open")
	require.NoError(t, os.Mkdir(dir, 0o700))
	require.NoError(t, os.Chmod(dir, 0o777))
	require.Contains(t, r.fails(exitFailed, "init", "mine", "--dir", dir), "trusted")
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, entries)
}

func TestTOMLString(t *testing.T) {
	require.Equal(t, `"/a b/\"q\"\\\u000aé$${X}"`, tomlString("/a b/\"q\"\\\né${X}"))
}

func TestDoctor(t *testing.T) {
	r := newRig(t)
	r.provider("bad", "nonsense = 1\n")
	r.write(".config/workerd/workerd.toml", "log_level = \"debug\"\n")
	var got struct{ Findings []finding }
	require.NoError(t, json.Unmarshal([]byte(r.ok("doctor", "--json")), &got))
	byCheck := map[string][]string{}
	for _, f := range got.Findings {
		byCheck[f.Check] = append(byCheck[f.Check], f.Status+" "+f.Message+" "+f.Do)
	}
	for _, check := range []string{"settings", "runtime directory", "state directory", "cache directory", "workerd", "manifests", "python", "kernel", "pidfd", "inotify", "open files", "cgroup"} {
		require.Contains(t, byCheck, check)
	}
	require.Contains(t, strings.Join(byCheck["manifests"], "\n"), "1 of 1 manifests cannot be used `workerd validate")
	require.Contains(t, byCheck["workerd"][0], "workerd serve")

	require.Equal(t, exitFailed, r.run("doctor", "--providers", r.write("file", "")))
	require.Regexp(t, `problem +manifests +.*/file`, r.out.String())

	r.env["WORKERD_RUNTIME_DIR"] = "/tmp/" + strings.Repeat("x", 100)
	require.Equal(t, exitFailed, r.run("doctor"))
	require.Contains(t, r.out.String(), "--runtime-dir")
}

func TestCase57DoctorSaysWhatLogoutMeans(t *testing.T) {
	r := newRig(t)
	for linger, says := range map[string]string{"no": "enable-linger", "yes": "Linger=yes"} {
		bin := filepath.Join(r.dir, "bin"+linger)
		require.NoError(t, os.Mkdir(bin, 0o755))
		writeProgram(t, filepath.Join(bin, "loginctl"), "#!/bin/sh\necho "+linger+"\n")
		writeProgram(t, filepath.Join(bin, "systemctl"), "#!/bin/sh\necho not-found\n")
		t.Setenv("PATH", bin)
		text := ""
		for _, f := range checkSession(t.Context(), 1000) {
			text += f.Status + " " + f.Message + " " + f.Do + "\n"
		}
		require.Contains(t, text, says)
		require.Contains(t, text, "no user unit")
	}
	t.Setenv("PATH", "/nonexistent")
	require.Empty(t, checkSession(t.Context(), 1000), "no loginctl is no error")
}
