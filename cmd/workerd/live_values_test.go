package main

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"workerd/manifest"
)

// oddValues are what shells, env files, comma lists and templates each would change.
var oddValues = map[string]string{
	"V_LINES":     "l1\nl2=x,y \"q\" 'r'\n\n  indented\n",
	"V_SHELL":     "$(touch /tmp/run-by-a-shell) `id` $HOME ${HOME} $$ \\$HOME ; | & > <",
	"V_BACKSLASH": `ends in a backslash \`,
	"V_ESCAPES":   `\n \t \x41 \" \\ %s %h {{.ID}}`,
	"V_COMMAS":    "--a=1,--b=2",
	"V_EQUALS":    "=a==b=",
	"V_QUOTED":    `"quoted" and 'quoted'`,
	"V_SPACES":    "  around\t ",
	"V_HASH":      "# no comment",
	"V_EMPTY":     "",
	"V_UNICODE":   "Größe 蛋白质 \u2028",
	"V_CR":        "a\rb\n\r",
	"V_LONG":      strings.Repeat("long,'\"$`\\\n", 9_000),
	"NO_PROXY":    "a,b=c",
	"TZ":          "UTC",
}

// Cases 16 and 27: a value arrives as it stands in the manifest.
func TestLiveCase16ValuesKeepTheirBytes(t *testing.T) {
	eachKind(t, allKinds, func(t *testing.T, l *live) {
		var toml strings.Builder
		toml.WriteString("[env.variables]\n")
		for name, v := range oddValues {
			fmt.Fprintf(&toml, "%s = %s\n", name, tomlBasic(v))
		}
		l.add("x", toml.String())
		l.add("crlf", "[env.variables]\nV = \"a\\r\\nb\"\n")
		l.start()
		if l.kind == manifest.Apptainer { // which would change it
			require.Contains(t, l.state("crlf", "failed").Reason, "V: Apptainer takes the carriage return out")
		} else {
			require.Equal(t, "a\r\nb", l.environmentOf("crlf")["V"])
		}
		env := l.environmentOf("x")
		for name, want := range oddValues {
			got, ok := env[name]
			require.True(t, ok, name)
			require.Equal(t, want, got, name)
		}
		require.NotContains(t, env, "--b")
		require.NoFileExists(t, "/tmp/run-by-a-shell")
	})
}

// Case 17: a secret reaches the worker, and is to be seen nowhere else.
func TestLiveCase17SecretsAreSeenNowhere(t *testing.T) {
	eachKind(t, allKinds, func(t *testing.T, l *live) {
		const fromFile, fromEnv = "s3cr3t-one $(id) 'x' \"y\"\nsecond, line", "s3cr3t-two"
		file := filepath.Join(l.env["WORKERD_STATE_DIR"], "../../token")
		require.NoError(t, os.WriteFile(file, []byte(fromFile+"\n"), 0o600))
		l.env["LAB_TOKEN"] = fromEnv
		l.add("x", fmt.Sprintf("[env.secrets]\nA = { file = %q }\nB = { env = \"LAB_TOKEN\" }\n", file))
		l.add("fails", fmt.Sprintf("[env]\nextra_args = [\"--no-such-flag\"]\n[env.secrets]\nA = { file = %q }\nB = { env = \"LAB_TOKEN\" }\n", file))
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		seen := make(chan string, 1)
		go func() {
			found := ""
			for ctx.Err() == nil {
				dirs, _ := filepath.Glob("/proc/[0-9]*/cmdline")
				for _, dir := range dirs {
					if data, err := os.ReadFile(dir); err == nil && strings.Contains(string(data), "s3cr3t") {
						found = dir + ": " + string(data)
					}
				}
			}
			seen <- found
		}()
		l.start("--log-level", "debug")
		env := l.environmentOf("x")
		require.Equal(t, fromFile, env["A"])
		require.Equal(t, fromEnv, env["B"])
		require.NotContains(t, env, "LAB_TOKEN")
		for _, args := range [][]string{
			{"status"}, {"status", "--json"}, {"explain", "x"}, {"explain", "x", "--json"}, {"explain", "fails"}, {"validate"}, {"logs", "x"}, {"logs", "fails"},
			{"call", "fails", "count"}, {"restart", "x"}, {"reload"}, {"stop", "x"}, {"start", "x"},
		} {
			r := l.cli(args...)
			require.NotContains(t, r.out+r.err, "s3cr3t", args)
		}
		require.Contains(t, l.ok("explain", "x"), "A=***")
		l.stop()
		cancel()
		require.Empty(t, <-seen)
		require.NotContains(t, l.log.String(), "s3cr3t")
		for _, dir := range []string{"state", "cache", "run"} {
			require.NoError(t, filepath.WalkDir(filepath.Join(l.dir, dir), func(path string, d fs.DirEntry, err error) error {
				if err == nil && d.Type().IsRegular() {
					require.NotContains(t, string(mustRead(t, path)), "s3cr3t", path)
				}
				return err
			}))
		}
	})
}
