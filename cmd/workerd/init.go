package main

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"workerd/manifest"
)

//go:embed template
var templates embed.FS

func (a *app) initCommand() *cobra.Command {
	var kind, dir string
	cmd := &cobra.Command{
		Use:   "init SLUG",
		Short: "Write a provider to start from",
		Long: `Write a provider's folder with a manifest, a worker and a smoke test that passes, into the first of the
configured directories, where a running workerd picks it up. Nothing is overwritten.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.init(cmd.Context(), args[0], kind, dir)
		},
	}
	cmd.Flags().StringVar(&kind, "kind", manifest.Venv, "`kind` of environment: venv")
	cmd.Flags().StringVar(&dir, "dir", "", "`directory` to make the folder in")
	a.flags.register(cmd.Flags(), "providers", "trusted_groups")
	return cmd
}

var slugPattern = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,39}$`)

func (a *app) init(ctx context.Context, slug, kind, dir string) error {
	switch {
	case !slugPattern.MatchString(slug) || slug == "workerd":
		return &usageError{fmt.Errorf("slug %q: use up to 40 of a-z, 0-9 and -, not beginning with -, and not \"workerd\"", slug)}
	case kind == manifest.Docker || kind == manifest.Podman || kind == manifest.Apptainer:
		return fmt.Errorf("this version of workerd cannot run kind %q, only %q", kind, manifest.Venv)
	case kind != manifest.Venv:
		return &usageError{fmt.Errorf("unknown kind %q: this version knows %q", kind, manifest.Venv)}
	}
	b, err := a.bench()
	if err != nil {
		return err
	}
	if dir == "" {
		dir = b.settings.Providers[0]
	}
	if dir, err = filepath.Abs(dir); err != nil {
		return err
	}
	python, err := a.findPython(ctx)
	if err != nil {
		return err
	}
	folder, err := writeProvider(dir, slug, python, b.options)
	if err != nil {
		return err
	}
	a.printf("%s\n", folder)
	a.errorf("\nNext:\n  workerd smoke %s       run its smoke test\n  workerd call %s count text='hello world'\n  edit %s\n",
		folder, slug, filepath.Join(folder, "worker.py"))
	return nil
}

// writeProvider makes a provider's folder in dir. It appears whole, by rename: a running workerd watches the directory.
func writeProvider(dir, slug, python string, opt manifest.Options) (folder string, err error) {
	folder = filepath.Join(dir, slug)
	for _, taken := range []string{folder, folder + ".toml"} {
		if _, err := os.Lstat(taken); !errors.Is(err, fs.ErrNotExist) {
			return "", &withHint{fmt.Errorf("%s exists already", taken), "choose another slug, or another --dir"}
		}
	}
	// Not more than 0755: a directory that a group or others can write into is not trusted.
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	temp, err := os.MkdirTemp(dir, "."+slug+"-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(temp)
	if err := os.Chmod(temp, 0o755); err != nil {
		return "", err
	}
	replace := strings.NewReplacer("{{slug}}", slug, "{{python}}", tomlString(python))
	for _, name := range []string{"provider.toml", "worker.py", "smoke.json"} {
		data, err := templates.ReadFile("template/" + name)
		if err != nil {
			return "", err
		}
		if err := os.WriteFile(filepath.Join(temp, name), []byte(replace.Replace(string(data))), 0o644); err != nil {
			return "", err
		}
	}
	if _, _, err := manifest.Load(filepath.Join(temp, "provider.toml"), opt); err != nil {
		return "", errors.New(strings.ReplaceAll(err.Error(), temp, folder))
	}
	return folder, os.Rename(temp, folder)
}

// tomlString writes s as a TOML string; a path may hold anything but a zero byte.
func tomlString(s string) string {
	var b strings.Builder
	b.WriteByte('"')
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			b.WriteByte('\\')
			b.WriteRune(r)
		case r < ' ' || r == 0x7f:
			fmt.Fprintf(&b, "\\u%04x", r)
		default:
			b.WriteRune(r)
		}
	}
	b.WriteByte('"')
	return strings.ReplaceAll(b.String(), "${", "$${")
}

// findPython returns the interpreter that python3 in PATH stands for, its own path rather than that of a version manager's
// wrapper. The symlink of a venv's interpreter is kept: that is how Python finds the venv.
func (a *app) findPython(ctx context.Context) (string, error) {
	const script = "import sys; print(sys.executable if sys.version_info >= (3, 7) else '')"
	for _, name := range []string{"python3", "python"} {
		path, err := exec.LookPath(name)
		if err != nil {
			continue
		}
		ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
		cmd := exec.CommandContext(ctx, path, "-c", script)
		cmd.WaitDelay = time.Second
		out, err := cmd.Output()
		cancel()
		if exe := strings.TrimRight(string(out), "\n"); err == nil && filepath.IsAbs(exe) {
			return exe, nil
		}
	}
	return "", errNoPython
}

var errNoPython = errors.New("no Python found: install python3 (3.7 or later), or put one into PATH")
