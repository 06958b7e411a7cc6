package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// write brings the unit file to a text. One that somebody has edited, or that is not from here, is left as it is unless force is
// set, and then kept under another name.
func (d *installed) write(text string, force bool) error {
	have, err := os.ReadFile(d.Unit)
	target, linkErr := os.Readlink(d.Unit)
	isLink := linkErr == nil
	switch {
	case isLink && target == os.DevNull:
		return &withHint{fmt.Errorf("%s is masked", d.Unit), "systemctl --user unmask workerd"}
	case errors.Is(err, fs.ErrNotExist) && !isLink:
		return d.replace(text)
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return err
	case string(have) == text:
		return nil
	case sealed(string(have)) && !isLink:
		return d.replace(text)
	case !force:
		what := "was edited"
		if isLink {
			what = "is a link to " + target
		}
		return &withHint{fmt.Errorf("%s %s, and is not what this would write:\n%s", d.Unit, what, diffLines(string(have), text)),
			"put your changes into `systemctl --user edit workerd`, and use --force, which keeps the file as .bak"}
	}
	if d.Backup, err = keepAside(d.Unit); err != nil {
		return err
	}
	return d.replace(text)
}

// replace writes the file whole or not at all.
func (d *installed) replace(text string) error {
	if err := os.MkdirAll(filepath.Dir(d.Unit), 0o755); err != nil {
		return err
	}
	temp := filepath.Join(filepath.Dir(d.Unit), "."+filepath.Base(d.Unit)+".new") // systemd reads no such name
	err := os.WriteFile(temp, []byte(text), 0o644)
	if err == nil {
		err = os.Rename(temp, d.Unit)
	}
	if err != nil {
		_ = os.Remove(temp)
		return fmt.Errorf("write unit: %w", err)
	}
	d.Written = true
	return nil
}

// keepAside renames a file to one ending in .bak, and replaces no earlier one.
func keepAside(path string) (string, error) {
	for n := 1; ; n++ {
		to := path + ".bak"
		if n > 1 {
			to += strconv.Itoa(n)
		}
		if _, err := os.Lstat(to); errors.Is(err, fs.ErrNotExist) {
			return to, os.Rename(path, to)
		} else if err != nil {
			return "", err
		}
	}
}

// diffLines shows what differs between two texts: lines of the old one alone with "-", of the new one alone with "+". Comments
// and blank lines are left out, as they change nothing.
func diffLines(before, after string) string {
	lines := func(text string) []string {
		return slices.DeleteFunc(strings.Split(text, "\n"), func(l string) bool { return l == "" || l[0] == '#' })
	}
	a, b := lines(before), lines(after)
	// common[i][j] is the length of the longest common subsequence of a[i:] and b[j:].
	common := make([][]int, len(a)+1)
	for i := range common {
		common[i] = make([]int, len(b)+1)
	}
	for i := len(a) - 1; i >= 0; i-- {
		for j := len(b) - 1; j >= 0; j-- {
			if a[i] == b[j] {
				common[i][j] = common[i+1][j+1] + 1
			} else {
				common[i][j] = max(common[i+1][j], common[i][j+1])
			}
		}
	}
	var out []string
	i, j := 0, 0
	for i < len(a) || j < len(b) {
		switch {
		case i < len(a) && j < len(b) && a[i] == b[j]:
			i, j = i+1, j+1
		case i < len(a) && (j == len(b) || common[i+1][j] >= common[i][j+1]):
			out = append(out, "- "+a[i])
			i++
		default:
			out = append(out, "+ "+b[j])
			j++
		}
	}
	if len(out) == 0 {
		return "  (comments only)"
	}
	return strings.Join(out, "\n")
}
