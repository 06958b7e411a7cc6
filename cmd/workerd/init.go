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

// initOptions are what `init` is told of the new provider's environment.
type initOptions struct {
	kind, image, sif string
}

func (a *app) initCommand() *cobra.Command {
	var o initOptions
	var dir string
	cmd := &cobra.Command{
		Use:   "init SLUG",
		Short: "Write a provider to start from",
		Long: `Write a provider's folder with a manifest, a worker and a smoke test that passes, into the first of the
configured directories, where a running workerd picks it up. Nothing is overwritten.

The worker runs with the python3 of PATH, or with --kind docker, podman or apptainer in an image, which
has to have a python3 (3.7 or later) and nothing of workerd:

  workerd init mine
  workerd init mine --kind docker --image lab/mine:1
  workerd init mine --kind apptainer --sif /images/mine.sif`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.init(cmd.Context(), args[0], o, dir)
		},
	}
	cmd.Flags().StringVar(&o.kind, "kind", manifest.Venv, "`kind` of environment: venv, docker, podman or apptainer")
	cmd.Flags().StringVar(&o.image, "image", "", "`image` of kind docker or podman")
	cmd.Flags().StringVar(&o.sif, "sif", "", "image `file`, or sandbox directory, of kind apptainer")
	cmd.Flags().StringVar(&dir, "dir", "", "`directory` to make the folder in")
	a.flags.register(cmd.Flags(), "providers", "trusted_groups")
	return cmd
}

var slugPattern = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,39}$`)

func (a *app) init(ctx context.Context, slug string, o initOptions, dir string) error {
	if !slugPattern.MatchString(slug) || slug == "workerd" {
		return &usageError{fmt.Errorf("slug %q: use up to 40 of a-z, 0-9 and -, not beginning with -, and not \"workerd\"", slug)}
	}
	if err := o.check(); err != nil {
		return &usageError{err}
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
	env, err := a.environment(ctx, o)
	if err != nil {
		return err
	}
	folder, err := writeProvider(dir, slug, env, b.options)
	if err != nil {
		return err
	}
	a.printf("%s\n", folder)
	a.errorf("\nNext:\n  workerd smoke %s       run its smoke test\n  workerd call %s count text='hello world'\n  edit %s\n",
		folder, slug, filepath.Join(folder, "worker.py"))
	return nil
}

// check refuses flags that do not go together.
func (o initOptions) check() error {
	oci := o.kind == manifest.Docker || o.kind == manifest.Podman
	switch {
	case !oci && o.kind != manifest.Venv && o.kind != manifest.Apptainer:
		return fmt.Errorf("unknown kind %q: must be venv, docker, podman or apptainer", o.kind)
	case oci && o.image == "":
		return fmt.Errorf("kind %q needs an image with python3 in it: --image IMAGE", o.kind)
	case !oci && o.image != "":
		return fmt.Errorf("--image is for kinds docker and podman, not %q", o.kind)
	case o.kind == manifest.Apptainer && o.sif == "":
		return errors.New(`kind "apptainer" needs an image file with python3 in it: --sif FILE`)
	case o.kind != manifest.Apptainer && o.sif != "":
		return fmt.Errorf("--sif is for kind apptainer, not %q", o.kind)
	}
	return nil
}

// environment returns the lines of [env].
func (a *app) environment(ctx context.Context, o initOptions) (string, error) {
	switch o.kind {
	case manifest.Venv:
		python, err := a.findPython(ctx)
		return venvEnvironment(python), err
	case manifest.Apptainer:
		sif, err := filepath.Abs(a.tilde(o.sif))
		return fmt.Sprintf("kind = \"apptainer\"\nsif  = %s        # an image file or a sandbox directory; python3 is all that it needs", tomlString(sif)), err
	}
	return fmt.Sprintf("kind  = %q\nimage = %s          # python3 is all that it needs; it is pulled where it is missing", o.kind, tomlString(o.image)), nil
}

func venvEnvironment(python string) string {
	return fmt.Sprintf("kind   = \"venv\"\npython = %s            # an interpreter, or the directory of a venv", tomlString(python))
}

// writeProvider makes a provider's folder in dir. It appears whole, by rename: a running workerd watches the directory.
func writeProvider(dir, slug, env string, opt manifest.Options) (folder string, err error) {
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
	replace := strings.NewReplacer("{{slug}}", slug, "{{env}}", env)
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
