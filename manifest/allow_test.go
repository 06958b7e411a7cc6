package manifest

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestAllowUnknownNames(t *testing.T) {
	opt := testOptions()
	_, _, problems := parse(t, t.TempDir(), command("[serve.allow]\nusers = [\n  'alice', 'nobdy',\n  '']\ngroups = ['lab', 'staff']\n"), opt)
	var got []string
	for _, p := range problems {
		got = append(got, filepath.Base(p.File)+p.Error()[len(p.File):])
	}
	require.Len(t, got, 3, got)
	assert.Contains(t, got[0], ":4:12: serve.allow.users[1]: this machine knows no user \"nobdy\": write the name or the number of one")
	assert.Contains(t, got[1], ":5:3: serve.allow.users[2]: ")
	assert.Contains(t, got[2], ":6:18: serve.allow.groups[1]: this machine knows no group \"staff\"")

	opt.LookupUser, opt.LookupGroup = nil, nil // this machine's
	m, _, problems := parse(t, t.TempDir(), command("serve.allow = { users = ['root', '4242'], groups = ['root', '77'] }\n"), opt)
	require.Empty(t, problems)
	guests, err := m.Serve.Allow.Guests()
	require.NoError(t, err)
	assert.Equal(t, Guests{UIDs: []int{0, 4242}, GIDs: []int{0, 77}}, guests)
	assert.False(t, guests.None())

	guests, err = Allow{Users: []string{"no such user", "5"}, Groups: []string{"4294967295"}}.Guests()
	require.ErrorContains(t, err, `serve.allow: this machine knows no user "no such user", no group "4294967295"`)
	assert.Equal(t, Guests{UIDs: []int{5}}, guests, "the others are let in")
	assert.True(t, Guests{}.None())
}

// Who is allowed and cannot get as far as the runtime directory is warned of.
func TestAllowPassable(t *testing.T) {
	dir := t.TempDir()
	locked := filepath.Join(dir, "locked")
	opt := testOptions()
	opt.RuntimeDir = filepath.Join(locked, "r", "workerd")
	require.NoError(t, os.MkdirAll(filepath.Dir(opt.RuntimeDir), 0o711))
	for _, d := range []string{dir, filepath.Dir(dir)} {
		require.NoError(t, os.Chmod(d, 0o711))
	}
	warned := func(allow string) []string {
		_, warnings, problems := parse(t, dir, command(allow), opt)
		require.Empty(t, problems)
		return warnings
	}
	const allow = "serve.allow.groups = ['lab']\n"
	require.NoError(t, os.Chmod(locked, 0o700))
	require.Len(t, warned(allow), 1)
	assert.Contains(t, warned(allow)[0], "serve.allow: others cannot pass "+locked+", so nobody else can connect")
	assert.Empty(t, warned(""))
	require.NoError(t, os.Chmod(locked, 0o710))
	assert.Empty(t, warned(allow), "a group, or a list, lets some pass")
}
