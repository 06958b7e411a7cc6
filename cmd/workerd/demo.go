package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"workerd/manifest"
	"workerd/protocol"
	"workerd/protocol/control"
)

// ocrPackages are what the ocr provider needs of Debian.
const ocrPackages = "python3-tesserocr python3-pil tesseract-ocr-eng"

func (a *app) demoCommand() *cobra.Command {
	var install, keep bool
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Show what workerd does, on a real model",
		Long: `Run the main job in a temporary directory, step by step: a manifest becomes a running worker, requests
are answered, the worker is killed and comes back, an edit is followed without a pause.

With ./providers/ocr there and Tesseract installed it reads a page image; on Debian that takes
  apt-get install ` + ocrPackages + `
Else it uses a small Python worker, which needs python3 only.`,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.demo(cmd.Context(), install, keep) },
	}
	cmd.Flags().BoolVar(&install, "install", false, "as root on Debian, install what the ocr provider needs")
	cmd.Flags().BoolVar(&keep, "keep", false, "keep the temporary directory")
	return cmd
}

// demo is one run of the demonstration.
type demo struct {
	*app
	dir    string // temporary, all is below it
	slug   string
	method string
	params map[string]any
	// show renders a result for people.
	show func(result json.RawMessage) string

	client *control.Client
	line   *liveLine
	step   int
}

func (a *app) demo(ctx context.Context, install, keep bool) (err error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Minute)
	defer cancel()
	// In the system's own place, whatever TMPDIR says: sockets need a short path.
	dir, err := os.MkdirTemp(a.tmp, "workerd-demo-")
	if err != nil {
		return err
	}
	if keep {
		a.printf("directory: %s\n", dir)
	} else {
		defer os.RemoveAll(dir)
	}
	d := &demo{app: a, dir: dir, line: a.liveLine()}
	source, err := d.choose(ctx, install)
	if err != nil {
		return err
	}
	d.say("start workerd, with an empty directory of manifests")
	stop, err := d.serve(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop()) }()
	for _, step := range []func(context.Context, string) error{d.drop, d.answer, d.crash, d.edit, d.finish} {
		if err := step(ctx, source); err != nil {
			d.line.clear()
			return err
		}
	}
	return nil
}

// say begins a step.
func (d *demo) say(format string, args ...any) {
	d.line.clear()
	d.step++
	d.printf("%s %s\n", d.paint(bold, fmt.Sprintf("%d.", d.step)), fmt.Sprintf(format, args...))
}

func (d *demo) note(format string, args ...any) {
	d.line.clear()
	d.printf("   %s\n", fmt.Sprintf(format, args...))
}

// choose picks the provider that can run here, and makes its folder, not yet where it is served from.
func (d *demo) choose(ctx context.Context, install bool) (folder string, err error) {
	folder = filepath.Join(d.dir, "new")
	if install {
		if err := d.install(ctx); err != nil {
			return "", err
		}
	}
	b, err := d.bench()
	if err != nil {
		return "", err
	}
	const ocr = "providers/ocr"
	if _, err := os.Stat(ocr); err != nil {
		d.errorf("There is no ./providers/ocr here (it comes with workerd's sources): using a small Python worker.\n")
	} else if err := copyFolder(ocr, folder); err != nil {
		return "", err
	} else if err := usable(ctx, b, filepath.Join(folder, "provider.toml"), "import tesserocr, PIL"); err != nil {
		d.errorf("The ocr provider cannot run here: %v\nTo see it: apt-get install %s\nUsing a small Python worker instead.\n", err, ocrPackages)
		if err := os.RemoveAll(folder); err != nil {
			return "", err
		}
	} else {
		d.slug, d.method = "ocr", "recognize"
		d.params = map[string]any{"image": filepath.Join(d.dir, "providers", "ocr", "page.png")}
		d.show = showPage
		return folder, nil
	}
	d.slug, d.method = "words", "count"
	d.params = map[string]any{"text": "the quick brown fox jumps over the lazy dog"}
	d.show = func(result json.RawMessage) string { return string(result) }
	python, err := d.findPython(ctx)
	if err != nil {
		return "", err
	}
	if _, err := writeProvider(filepath.Join(d.dir, "made"), d.slug, venvEnvironment(python), b.options); err != nil {
		return "", err
	}
	return folder, os.Rename(filepath.Join(d.dir, "made", d.slug), folder)
}

func (d *demo) install(ctx context.Context) error {
	apt, err := exec.LookPath("apt-get")
	if err != nil || d.uid != 0 {
		return &withHint{errors.New("--install needs root and apt-get"), "apt-get install " + ocrPackages}
	}
	for _, args := range [][]string{{"update"}, append([]string{"install", "-y", "--no-install-recommends"}, strings.Fields(ocrPackages)...)} {
		cmd := exec.CommandContext(ctx, apt, args...)
		cmd.Env = append(d.environ, "DEBIAN_FRONTEND=noninteractive")
		cmd.Stdout, cmd.Stderr = d.err, d.err
		if err := cmd.Run(); err != nil {
			return fmt.Errorf("apt-get %s: %w", args[0], err)
		}
	}
	return nil
}

// usable says why a manifest cannot be used here, or its interpreter not import what it needs.
func usable(ctx context.Context, b *bench, file, script string) error {
	m, _, err := manifest.Load(file, b.options)
	if err != nil {
		return err
	}
	pl, err := b.planner.Plan(ctx, m)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, pl.Argv[0], "-c", script).CombinedOutput()
	if err != nil {
		lines := strings.Split(strings.TrimSpace(string(out)), "\n")
		return fmt.Errorf("%s: %s", pl.Argv[0], lines[len(lines)-1])
	}
	return nil
}

// copyFolder copies a folder so that only the caller can write to the copy, whatever his umask: others are not trusted.
func copyFolder(from, to string) error {
	if err := os.CopyFS(to, os.DirFS(from)); err != nil {
		return err
	}
	return filepath.WalkDir(to, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if e.IsDir() {
			return os.Chmod(path, 0o700)
		}
		return os.Chmod(path, 0o600)
	})
}

// serve runs a workerd over the directory of manifests.
func (d *demo) serve(ctx context.Context) (stop func() error, err error) {
	providers := filepath.Join(d.dir, "providers")
	if err := os.Mkdir(providers, 0o700); err != nil {
		return nil, err
	}
	s := *d.settings
	s.Providers = []string{providers}
	s.Defaults, s.data = nil, nil
	i := &instance{
		app: d.app, settings: &s,
		dirs: &dirs{runtime: filepath.Join(d.dir, "run"), state: filepath.Join(d.dir, "state"), cache: filepath.Join(d.dir, "cache")},
		log:  slog.New(slog.NewTextHandler(d.err, &slog.HandlerOptions{Level: slog.LevelError})),
	}
	d.client, stop, err = i.start(ctx)
	if err == nil {
		d.note("sockets below %s", i.dirs.runtime)
	}
	return stop, err
}

// drop puts the provider into the directory and waits until it is ready.
func (d *demo) drop(ctx context.Context, folder string) error {
	d.say("drop the manifest of %q into it", d.slug)
	run, err := d.client.Events(ctx, []string{d.slug})
	if err != nil {
		return err
	}
	begin := time.Now()
	if err := os.Rename(folder, filepath.Join(d.dir, "providers", d.slug)); err != nil {
		return err
	}
	err = run(func(e protocol.Event) error {
		switch {
		case e.Progress != nil:
			d.line.show("   loading " + progressText(*e.Progress))
		case e.State == "ready":
			return errDone
		case e.State == "failed" || e.State == "invalid":
			return fmt.Errorf("%s is %s: %s", d.slug, e.State, e.Reason)
		case e.State != "":
			d.line.show("   " + e.State)
		}
		return nil
	})
	if !errors.Is(err, errDone) {
		return err
	}
	p, err := d.client.Provider(ctx, d.slug)
	if err != nil {
		return err
	}
	d.note("ready after %.2f s, pid %d, on %s", time.Since(begin).Seconds(), pidOf(p), p.FrontSocket)
	return nil
}

var errDone = errors.New("done")

func pidOf(p protocol.ProviderStatus) int {
	for _, w := range p.Workers {
		if w.State == "ready" && w.Role == "" {
			return w.PID
		}
	}
	return 0
}

// request sends one request over the front socket, as a tool server does.
func (d *demo) request(ctx context.Context) (json.RawMessage, error) {
	c, err := protocol.Dial(ctx, filepath.Join(d.dir, "run", "front", d.slug, "sock"))
	if err != nil {
		return nil, err
	}
	defer func() { _ = c.Close() }()
	return c.Call(ctx, d.method, d.params)
}

func (d *demo) answer(ctx context.Context, _ string) error {
	params, _ := json.Marshal(d.params)
	d.say("call %s %s", d.method, params)
	begin := time.Now()
	result, err := d.request(ctx)
	if err != nil {
		return err
	}
	printIndented(d.out, "   | ", d.show(result))
	d.note("answered in %.2f s", time.Since(begin).Seconds())
	return nil
}

// showPage renders what the ocr provider read.
func showPage(result json.RawMessage) string {
	var page struct {
		Text       string `json:"text"`
		Confidence any    `json:"confidence"`
	}
	if json.Unmarshal(result, &page) != nil || page.Text == "" {
		return string(result)
	}
	lines := strings.Split(strings.TrimSpace(page.Text), "\n")
	const most = 12
	if len(lines) > most {
		lines = append(lines[:most], fmt.Sprintf("... (%d more lines)", len(lines)-most))
	}
	return strings.Join(lines, "\n")
}

// crash kills the worker and shows that the next request does not notice.
func (d *demo) crash(ctx context.Context, _ string) error {
	before, err := d.client.Provider(ctx, d.slug)
	if err != nil {
		return err
	}
	pid := pidOf(before)
	if pid <= 0 {
		return fmt.Errorf("%s is %s: %s", d.slug, before.State, before.Reason)
	}
	d.say("kill -9 %d, and send the next request at once", pid)
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		return fmt.Errorf("kill %d: %w", pid, err)
	}
	begin := time.Now()
	if _, err := d.request(ctx); err != nil {
		return err
	}
	took := time.Since(begin)
	after, err := d.client.Provider(ctx, d.slug)
	if err != nil {
		return err
	}
	d.note("answered in %.2f s by the new worker, pid %d", took.Seconds(), pidOf(after))
	if after.LastExit != nil {
		d.note("of the old one workerd says: %s", after.LastExit.Reason)
	}
	return nil
}

// edit changes what the worker sees and keeps sending requests until the new worker has taken over.
func (d *demo) edit(ctx context.Context, _ string) error {
	before, err := d.client.Provider(ctx, d.slug)
	if err != nil {
		return err
	}
	d.say("edit the manifest (a new variable), and go on sending requests")
	data, err := os.ReadFile(before.Manifest)
	if err != nil {
		return err
	}
	if err := os.WriteFile(before.Manifest, []byte(withVariable(string(data))), 0o600); err != nil {
		return err
	}
	begin := time.Now()
	old, requests := pidOf(before), 0
	for {
		if _, err := d.request(ctx); err != nil {
			return fmt.Errorf("request %d after the edit: %w", requests+1, err)
		}
		requests++
		p, err := d.client.Provider(ctx, d.slug)
		if err != nil {
			return err
		}
		if len(p.ManifestError) > 0 {
			return errors.New(problemLine(p.ManifestError[0]))
		}
		if pid := pidOf(p); pid > 0 && pid != old {
			d.note("pid %d took over from %d after %.2f s; %d requests meanwhile, all answered", pid, old, time.Since(begin).Seconds(), requests)
			return nil
		}
		d.line.show(fmt.Sprintf("   %d requests answered", requests))
	}
}

// withVariable adds a variable to a manifest.
func withVariable(text string) string {
	const table, line = "[env.variables]\n", "DEMO_EDIT = \"1\"\n"
	if strings.Contains(text, table) {
		return strings.Replace(text, table, table+line, 1)
	}
	return text + "\n" + table + line
}

// finish shows the status and stops the provider.
func (d *demo) finish(ctx context.Context, _ string) error {
	d.say("workerd status")
	s, err := d.client.Status(ctx)
	if err != nil {
		return err
	}
	d.printStatus(s, time.Now())
	d.say("stop it: the worker and all that it started are gone")
	if err := d.client.Stop(ctx, d.slug, true); err != nil {
		return err
	}
	d.note("done. Next: `workerd init SLUG` writes a provider to start from, `workerd serve` runs it")
	return nil
}
