package main

import (
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// goPackage is a part of what `go list -json` says.
type goPackage struct {
	ImportPath string
	Imports    []string
	Deps       []string
	Standard   bool
}

// mayImport is the direction of imports among the packages of the module: what each may import of ours.
var mayImport = map[string][]string{
	"workerd/manifest":            {},
	"workerd/identity":            {},
	"workerd/protocol":            {},
	"workerd/protocol/pysdk":      {},
	"workerd/protocol/prototest":  {}, // for tests only
	"workerd/protocol/control":    {"workerd/protocol"},
	"workerd/execenv/gpu":         {},
	"workerd/execenv/gpu/gputest": {"workerd/execenv/gpu", "workerd/protocol/prototest"}, // for tests only
	"workerd/execenv":             {"workerd/manifest", "workerd/identity", "workerd/execenv/gpu"},
	"workerd/supervisor":          {"workerd/execenv", "workerd/execenv/gpu", "workerd/manifest", "workerd/protocol"},
	"workerd/cmd/workerd":         nil, // everything
}

func TestImportDirections(t *testing.T) {
	for _, p := range goList(t) {
		if p.Standard || !ours(p.ImportPath) {
			continue
		}
		allowed, known := mayImport[p.ImportPath]
		require.True(t, known, "%s is a new package: say here what it may import", p.ImportPath)
		for _, i := range p.Imports {
			if ours(i) && allowed != nil {
				require.Contains(t, allowed, i, "%s must not import %s", p.ImportPath, i)
			}
		}
	}
}

func TestOnlyCmdHasTheCommandLineAndMetrics(t *testing.T) {
	for _, p := range goList(t) {
		if !ours(p.ImportPath) || p.ImportPath == "workerd/cmd/workerd" {
			continue
		}
		for _, dep := range p.Deps {
			for _, only := range []string{"github.com/spf13/", "github.com/prometheus/", "github.com/coreos/go-systemd/", "golang.org/x/term"} {
				require.False(t, strings.HasPrefix(dep, only), "%s depends on %s", p.ImportPath, dep)
			}
		}
	}
}

// Packages whose names end in test are for tests: they may import testing, and nothing else may import them.
func TestNoTestingInProduction(t *testing.T) {
	var reasons []string
	for _, p := range goList(t) {
		if ours(p.ImportPath) && strings.HasSuffix(p.ImportPath, "test") {
			continue
		}
		for _, i := range p.Imports {
			if i == "testing" || strings.HasPrefix(i, "testing/") || ours(i) && strings.HasSuffix(i, "test") || strings.HasPrefix(i, "github.com/stretchr/") {
				reasons = append(reasons, p.ImportPath+" imports "+i)
			}
		}
	}
	require.Empty(t, reasons)
}

func ours(path string) bool { return path == "workerd" || strings.HasPrefix(path, "workerd/") }

// goList lists what the binary is built of, and all packages of the module.
func goList(t *testing.T) []goPackage {
	t.Helper()
	cmd := exec.Command("go", "list", "-deps", "-json=ImportPath,Imports,Deps,Standard", "workerd/...")
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	require.NoError(t, err, stderr.String())
	var all []goPackage
	for d := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p goPackage
		err := d.Decode(&p)
		if errors.Is(err, io.EOF) {
			break
		}
		require.NoError(t, err)
		all = append(all, p)
	}
	require.True(t, slices.ContainsFunc(all, func(p goPackage) bool { return p.ImportPath == "workerd/supervisor" }))
	return all
}
