package manifest

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// only requires exactly one problem, of key, whose message holds text.
func only(t *testing.T, problems Problems, key, text string) {
	t.Helper()
	require.Len(t, problems, 1, "%v", problems)
	assert.Equal(t, key, problems[0].Key)
	assert.Contains(t, problems[0].Message, text)
}

func TestDefaults(t *testing.T) {
	dir := t.TempDir()
	m, warnings, problems := parse(t, dir, command(""), testOptions())
	require.Empty(t, problems)
	assert.Empty(t, warnings)
	want := defaults()
	want.File, want.Dir = filepath.Join(dir, "test.toml"), dir
	want.Slug, want.Command, want.Paths.Cwd, want.Restart.OnChange = "test", []string{"server"}, dir, "rolling"
	assert.Equal(t, &want, m)

	m, _, problems = parse(t, dir, command("gpu.policy = 'exclusive'\n"), testOptions())
	require.Empty(t, problems)
	assert.Equal(t, "stop-first", m.Restart.OnChange)
	m, _, problems = parse(t, dir, command("gpu.policy = 'exclusive'\nrestart.on_change = 'rolling'\n"), testOptions())
	require.Empty(t, problems)
	assert.Equal(t, "rolling", m.Restart.OnChange)
}

func TestHashIsOfTheMeaning(t *testing.T) {
	dir := t.TempDir()
	sum := func(text string) [32]byte {
		m, _, problems := parse(t, dir, text, testOptions("N", "64"))
		require.Empty(t, problems)
		return m.Hash()
	}
	base := sum("command = ['server']\n[serve]\nqueue = 64\n")
	assert.Equal(t, base, sum("# comment\nserve.queue   = 64\ncommand = [\n\"server\",]\nargs = []\nenv.variables = {}\nenv.kind = 'venv'\n"))
	assert.Equal(t, base, sum("command = ['server']\nslug = 'test'\nstart.timeout = '600s'\nserve.max_message = 67108864\n"))
	assert.NotEqual(t, base, sum("command = ['server']\nserve.queue = 65\n"))
	assert.NotEqual(t, base, sum("command = ['server']\ntitle = ''' '''\n"))
	assert.Equal(t, sum("command = ['server']\ntitle = '64'\n"), sum("command = ['server']\ntitle = '${N}'\n"))

	other, _, err := Parse([]byte("command = ['server']\npaths.cwd = '"+dir+"'\n"), "/elsewhere/test.toml", testOptions())
	require.NoError(t, err)
	assert.NotEqual(t, base, other.Hash(), "the folder of a manifest is seen by its worker")
}

func TestPythonOfAFolder(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "w.py"), "")
	const text = "worker = 'w.py'\nenv.python = 'venv'\n"
	venv := filepath.Join(dir, "venv")
	require.NoError(t, os.MkdirAll(filepath.Join(venv, "bin"), 0o755))
	_, _, problems := parse(t, dir, text, testOptions())
	only(t, problems, "env.python", "has no bin/python")

	real := writeProgram(t, filepath.Join(dir, "real/python3.11"))
	require.NoError(t, os.Symlink(real, filepath.Join(venv, "bin/python3")))
	m, _, problems := parse(t, dir, text, testOptions())
	require.Empty(t, problems)
	assert.Equal(t, venv+"/bin/python3", m.Env.Python, "a symlink is how Python finds its venv")

	require.NoError(t, os.Symlink("python3", filepath.Join(venv, "bin/python")))
	m, _, problems = parse(t, dir, strings.Replace(text, "venv'", "venv/'", 1), testOptions())
	require.Empty(t, problems)
	assert.Equal(t, venv+"/bin/python", m.Env.Python)

	require.NoError(t, os.Chmod(real, 0o644))
	_, _, problems = parse(t, dir, text, testOptions())
	only(t, problems, "env.python", "is not executable")
}

func TestCase80InterpreterSymlinkDangles(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "w.py"), "")
	bin := filepath.Join(dir, "venv/bin")
	require.NoError(t, os.MkdirAll(bin, 0o755))
	require.NoError(t, os.Symlink("python3", filepath.Join(bin, "python")))
	require.NoError(t, os.Symlink("/nonexistent/python3.11", filepath.Join(bin, "python3")))
	for _, python := range []string{"venv", "venv/bin/python"} {
		_, _, problems := parse(t, dir, fmt.Sprintf("worker = 'w.py'\nenv.python = %q\n", python), testOptions())
		only(t, problems, "env.python", "interpreter symlink points to missing /nonexistent/python3.11; re-create the venv")
	}
}

func TestWorkerAndProgramMustBeUsable(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "plain"), "")
	require.NoError(t, syscall.Mkfifo(filepath.Join(dir, "fifo"), 0o644))
	require.NoError(t, os.Symlink("gone", filepath.Join(dir, "dangling")))
	require.NoError(t, os.Symlink("loop", filepath.Join(dir, "loop")))
	python := writeProgram(t, filepath.Join(dir, "python"))
	for text, want := range map[string][2]string{
		"command = ['./plain']":    {"command[0]", "is not executable: chmod +x"},
		"command = ['./fifo']":     {"command[0]", "special file"},
		"command = ['/']":          {"command[0]", "a folder"},
		"command = ['./nope']":     {"command[0]", "does not exist"},
		"command = ['']":           {"command[0]", "is empty"},
		"worker = '.'":             {"worker", "is no regular file"},
		"worker = 'fifo'":          {"worker", "is no regular file"},
		"worker = 'dangling'":      {"worker", "is a symlink to " + dir + "/gone, which does not exist"},
		"worker = 'loop'":          {"worker", "leads back to itself"},
		"worker = 'plain/x'":       {"worker", "does not exist"},
		"worker = 'w\\u0000.py'":   {"worker", "does not exist"}, // a literal string: no escape
		"worker = \"w\\u0000.py\"": {"worker", "NUL"},
		"worker = \"w\\n.py\"":     {"worker", "newline"},
	} {
		_, _, problems := parse(t, dir, text+"\nenv.python = '"+python+"'\n", testOptions())
		only(t, problems, want[0], want[1])
	}
	// In a container a program is the image's own.
	_, _, problems := parse(t, dir, "command = ['/app/server']\nenv = { kind = 'docker', image = 'x' }\n", testOptions())
	assert.Empty(t, problems)
	_, _, problems = parse(t, dir, "command = ['./server']\nenv = { kind = 'docker', image = 'x' }\n", testOptions())
	only(t, problems, "command[0]", "does not exist")
}

func TestCase11SELinux(t *testing.T) {
	dir, opt := t.TempDir(), testOptions()
	opt.Home = t.TempDir()
	docker := func(keys string) string {
		return command("env = { kind = 'podman', image = 'x', selinux = 'private' }\n" + keys)
	}
	for _, bind := range []string{"/home", opt.Home, opt.Home + "/."} {
		_, _, problems := parse(t, dir, docker(fmt.Sprintf("paths.binds = [%q]\n", bind)), opt)
		only(t, problems, "env.selinux", "would relabel all of "+bind)
	}
	_, _, problems := parse(t, dir, docker(fmt.Sprintf("paths.work_root = %q\n", opt.Home)), opt)
	only(t, problems, "env.selinux", "would relabel")
	_, _, problems = parse(t, opt.Home, docker(""), opt) // the manifest's own folder is mounted too
	only(t, problems, "env.selinux", "would relabel")
	_, _, problems = parse(t, dir, docker("paths.binds = ['/usr']\n"), opt)
	assert.Len(t, problems, 2, "relabelled, and hides the image's own")

	below := filepath.Join(opt.Home, "data")
	require.NoError(t, os.Mkdir(below, 0o755))
	_, warnings, problems := parse(t, dir, docker(fmt.Sprintf("paths.binds = [%q]\n", below)), opt)
	assert.Empty(t, problems)
	assert.Empty(t, warnings)
	_, warnings, problems = parse(t, dir, strings.Replace(docker("paths.binds = ['/home']\n"), "private", "shared", 1), opt)
	assert.Empty(t, problems)
	assert.Len(t, warnings, 1)
}

func TestMountsThatHideTheSystem(t *testing.T) {
	dir := t.TempDir()
	link := filepath.Join(dir, "link")
	require.NoError(t, os.Symlink("/usr", link))
	for bind, refused := range map[string]bool{
		"/": true, "/usr": true, "/etc/": true, "/usr/./lib": true, "/proc": true, "/sys": true, "/dev": true, link: true, "/usr/bin": true,
		"/usr/share": false, "/dev/null": false, "/tmp": false, "/var": false,
	} {
		text := fmt.Sprintf("paths.binds = [%q]\n", bind)
		_, _, problems := parse(t, dir, command("env = { kind = 'apptainer', sif = '/tmp' }\n"+text), testOptions())
		assert.Equal(t, refused, len(problems) == 1, "%s: %v", bind, problems)
		_, _, problems = parse(t, dir, command(text), testOptions())
		assert.Empty(t, problems, "a venv worker sees the system as it is")
	}
}

func TestCwdThatIsToBeMade(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.Symlink("gone", filepath.Join(dir, "dangling")))
	for text, refused := range map[string]bool{
		"work_root = 'new'\ncwd = 'new'":                            false,
		"work_root = 'new'\ncwd = 'new/'":                           false,
		"binds = [{ path = 'new', create = true }]\ncwd = './/new'": false,
		"cwd = 'new'":                                                  true,
		"work_root = 'new'\ncwd = 'newer'":                             true,
		"work_root = 'new'\ncwd = 'new/below'":                         true,
		"work_root = 'dangling'\ncwd = 'dangling'":                     true,
		"binds = [{ path = 'new', create = true }]\ncwd = 'new/below'": true,
	} {
		_, _, problems := parse(t, dir, command("[paths]\n"+text+"\n"), testOptions())
		if refused {
			only(t, problems, "paths.cwd", "does not exist")
		} else {
			assert.Empty(t, problems, text)
		}
	}
	write(t, filepath.Join(dir, "fill.py"), "")
	_, _, problems := parse(t, dir, command("weights = { root = 'w', prepare = ['fill.py'] }\npaths.cwd = 'w'\n"), testOptions())
	assert.Empty(t, problems)
	write(t, filepath.Join(dir, "new"), "")
	_, _, problems = parse(t, dir, command("paths.cwd = 'new'\npaths.binds = [{ path = 'new', create = true }]\n"), testOptions())
	only(t, problems, "paths.cwd", "is no folder")
}

func TestCase10AndCase14Binds(t *testing.T) {
	dir := t.TempDir()
	missing := filepath.Join(dir, "nope")
	_, _, problems := parse(t, dir, command(fmt.Sprintf("paths.binds = [%q]\n", missing)), testOptions())
	only(t, problems, "paths.binds[0]", missing+" does not exist")
	m, _, problems := parse(t, dir, command(fmt.Sprintf("paths.binds = [{ path = %q, create = true }]\n", missing)), testOptions())
	require.Empty(t, problems)
	assert.Equal(t, []Bind{{Path: missing, Mode: "ro", Create: true}}, m.Paths.Binds)
	assert.NoFileExists(t, missing, "checking creates nothing")
	require.NoError(t, os.Symlink("gone", filepath.Join(dir, "dangling")))
	_, _, problems = parse(t, dir, command("paths.binds = [{ path = 'dangling', create = true }]\n"), testOptions())
	only(t, problems, "paths.binds[0]", "symlink")

	_, _, problems = parse(t, dir, command("paths.binds = ['/tmp/a,source=/var/run/docker.sock']\n"), testOptions())
	only(t, problems, "paths.binds[0]", "/tmp/a,source=/var/run/docker.sock does not exist")
	_, _, problems = parse(t, dir, command("paths.binds = [\"/tmp\\n/x\", \"/tmp\\u0000\"]\n"), testOptions())
	require.Len(t, problems, 2)
	assert.Contains(t, problems[0].Message, "newline")
	assert.Contains(t, problems[1].Message, "NUL")
}

func TestSocketPathLength(t *testing.T) {
	opt := testOptions()
	slug := strings.Repeat("a", 40)
	load := func(length int) Problems {
		opt.RuntimeDir = "/" + strings.Repeat("r", length-1)
		_, _, problems := parse(t, t.TempDir(), command("slug = '"+slug+"'\n"), opt)
		return problems
	}
	// <dir>/w/<40>/<12>.sock has 61 bytes after the directory.
	assert.Empty(t, load(46))
	only(t, load(47), "slug", "/w/"+slug+"/999999999999.sock would have 108 bytes, the kernel's limit is 107")
	only(t, load(120), "slug", "/front/"+slug+"/sock would have 172 bytes")
}

func TestWarnings(t *testing.T) {
	dir := t.TempDir()
	opt := testOptions("XDG_RUNTIME_DIR", "/run/user/7")
	opt.RuntimeDir = "/run/user/7/workerd"
	_, warnings, problems := parse(t, dir, command(`
env.network = "none"
env.image = "x"
gpu = { policy = "none", memory = "1GiB" }
serve.allow.users = ["alice"]
serve.http.port = 80
`), opt)
	require.Empty(t, problems)
	text := strings.Join(warnings, "\n")
	assert.Len(t, warnings, 5, text)
	for _, want := range []string{
		":3:5: env.network: has no effect: a worker of kind \"venv\" shares the host's network",
		":4:5: env.image: has no effect", ":5:26: gpu.memory: has no effect", ":6:7: serve.allow: others cannot pass /run/user/7",
		":7:12: serve.http.port: has no effect",
	} {
		assert.Contains(t, text, want)
	}
	opt.RuntimeDir = "/run/user/77"
	_, warnings, _ = parse(t, dir, command("serve.allow.users = ['alice']\n"), opt)
	assert.Empty(t, warnings)
}

func TestSiteDefaults(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "w.py"), "")
	python := writeProgram(t, filepath.Join(dir, "python"))
	opt := testOptions("SET", "1")
	opt.DefaultsFile, opt.DefaultsTable = "/etc/workerd.toml", "defaults"
	opt.Defaults = []byte(`listen = "x"
[defaults]
worker = "w.py"
args = ["-v"]
[defaults.env]
python = "` + python + `"
network = "host"
variables = { A = "site", B = "site" }
secrets = { S = { file = "/nonexistent" } }
[defaults.serve]
queue = 7
allow.groups = ["lab"]
`)
	require.NoError(t, CheckDefaults(opt))
	m, warnings, problems := parse(t, dir, "env.variables.A = 'own'\nenv.secrets.S.env = 'SET'\nserve.replicas = 2\n", opt)
	require.Empty(t, problems)
	assert.Empty(t, warnings, "a site's defaults are for several kinds")
	assert.Equal(t, map[string]string{"A": "own", "B": "site"}, m.Env.Variables)
	assert.Equal(t, map[string]Secret{"S": {Env: "SET"}}, m.Env.Secrets)
	assert.Equal(t, filepath.Join(dir, "w.py"), m.Worker)
	assert.Equal(t, []string{"-v"}, m.Args)
	assert.Equal(t, 7, m.Serve.Queue)
	assert.Equal(t, 2, m.Serve.Replicas)
	assert.Equal(t, []string{"lab"}, m.Serve.Allow.Groups)

	// The manifest's own choice of a program.
	m, _, problems = parse(t, dir, "command = ['server']\nenv.secrets.S.env = 'SET'\n", opt)
	require.Empty(t, problems)
	assert.Empty(t, m.Worker)
	assert.Empty(t, m.Args)

	// Problems have the place where the wrong value stands.
	opt.Defaults = []byte("[defaults]\nslug = 'x'\n[defaults.serve]\nqueue = -1\nquue = 1\n[defaults.env]\nkind = 'vm'\n")
	_, _, problems = parse(t, dir, "serve.replicas = 0\nenv = { kind = 'venv', python = 'python' }\nworker = 'w.py'\n", opt)
	var lines []string
	for _, p := range problems {
		lines = append(lines, strings.SplitAfterN(p.Error(), ": ", 3)[0]+p.Key)
	}
	assert.Equal(t, []string{
		"/etc/workerd.toml:2:1: defaults.slug", "/etc/workerd.toml:4:1: defaults.serve.queue", "/etc/workerd.toml:5:1: defaults.serve.quue",
		filepath.Join(dir, "test.toml") + ":1:7: serve.replicas",
	}, lines)
	err := CheckDefaults(opt)
	require.IsType(t, Problems{}, err)
	assert.Len(t, err, 4)

	opt.Defaults = []byte("[defaults\n")
	_, _, problems = parse(t, dir, command(""), opt)
	require.Len(t, problems, 1)
	assert.Equal(t, "/etc/workerd.toml", problems[0].File)
	assert.Error(t, CheckDefaults(opt))
}

func TestFragmentAlone(t *testing.T) {
	opt := testOptions()
	opt.Defaults, opt.DefaultsFile = []byte("serve.queue = 3\n"), "fragment"
	m, _, problems := parse(t, t.TempDir(), command(""), opt)
	require.Empty(t, problems)
	assert.Equal(t, 3, m.Serve.Queue)
	assert.NoError(t, CheckDefaults(opt))
	assert.NoError(t, CheckDefaults(testOptions()))
}

func TestReadSmoke(t *testing.T) {
	dir := t.TempDir()
	for text, want := range map[string]string{
		`{"method": "m", "params": {"a": 1}, "expect": {"b": [2]}}`: "",
		`{"method": "m"}`:               "",
		``:                              "smoke.json:1:1: the JSON ends too early",
		"{\n  \"method\": }":            "smoke.json:2:13: invalid character",
		`{"method": "m", "parms": {}}`:  `unknown field "parms"`,
		`{"params": {}}`:                "method is missing",
		`{"method": "m", "params": []}`: "params must be an object",
		`{"method": "m", "expect": 3}`:  "expect cannot be a JSON number",
		`{"method": "m"} {}`:            "something follows",
	} {
		s, err := ReadSmoke(write(t, filepath.Join(dir, "smoke.json"), text))
		if want == "" {
			require.NoError(t, err, text)
			assert.Equal(t, "m", s.Method)
			continue
		}
		require.Error(t, err, text)
		assert.Contains(t, err.Error(), want)
	}
	_, err := ReadSmoke(filepath.Join(dir, "nope.json"))
	assert.ErrorContains(t, err, "does not exist")
}
