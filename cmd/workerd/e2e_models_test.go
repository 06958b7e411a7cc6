package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"workerd/protocol"
	"workerd/protocol/prototest"
)

// real copies a provider of this repository to where a running workerd finds it. The test is skipped where its Python
// package is missing, and fails where WORKERD_TEST_REQUIRE names it.
func (e *e2e) real(slug, module string) (file string) {
	e.t.Helper()
	if out, err := exec.Command("/usr/bin/python3", "-c", "import "+module).CombinedOutput(); err != nil {
		text := fmt.Sprintf("/usr/bin/python3 cannot import %s: %v\n%s", module, err, out)
		prototest.Needs(e.t, slug, text)
	}
	folder := filepath.Join(e.manifests(), slug)
	require.NoError(e.t, os.CopyFS(folder, os.DirFS(filepath.Join("../../providers", slug))))
	return filepath.Join(folder, "provider.toml")
}

// words are what a text says, however it is laid out.
func words(text string) string { return strings.Join(strings.Fields(text), " ") }

// The main job: text from page images by a resident Tesseract, across a crash and an edit.
func TestE2EReadsPages(t *testing.T) {
	e := newE2E(t)
	file := e.real("ocr", "tesserocr, PIL")
	pages := filepath.Join(filepath.Dir(file), "pages")
	e.start()
	require.Contains(t, e.ok("smoke", "ocr"), "ocr: passed")
	pid := e.ready("ocr")

	read := func(image, params string) (text string, worker int) {
		m, err := e.dial("ocr").try("recognize", fmt.Sprintf(`{"image":%q%s}`, filepath.Join(pages, image), params))
		require.NoError(t, err)
		require.Nil(t, m.Error)
		var got struct {
			Text  string  `json:"text"`
			Mean  float64 `json:"mean_confidence"`
			Words []struct {
				Text       string
				Confidence float64
				Box        [4]int
			}
			Width, Height int
		}
		require.NoError(t, json.Unmarshal(m.Result, &got))
		require.Greater(t, got.Mean, 80.0)
		require.NotEmpty(t, got.Words)
		for _, w := range got.Words {
			require.True(t, 0 <= w.Box[0] && w.Box[0] < w.Box[2] && w.Box[2] <= got.Width, w)
			require.True(t, 0 <= w.Box[1] && w.Box[1] < w.Box[3] && w.Box[3] <= got.Height, w)
		}
		return words(got.Text), e.status("ocr").Workers[0].PID
	}
	truth := func(name string) string { return words(string(mustRead(t, filepath.Join(pages, name)))) }

	for image, params := range map[string]string{"letter.png": "", "columns.png": "", "invoice.png": `,"layout":"block"`, "scan.png": "", "photo.jpg": ""} {
		text, worker := read(image, params)
		require.Equal(t, truth(strings.TrimSuffix(image, filepath.Ext(image))+".txt"), text, image)
		require.Equal(t, pid, worker, "the model is loaded once")
	}
	for page := 1; page <= 2; page++ {
		text, _ := read("fax.tif", fmt.Sprintf(`,"page":%d`, page))
		require.Equal(t, truth(fmt.Sprintf("fax.%d.txt", page)), text)
	}
	m, err := e.dial("ocr").try("recognize", `{"image":"/nothing/there.png"}`)
	require.NoError(t, err)
	require.Equal(t, protocol.InvalidParams, m.kind())

	require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
	text, next := read("letter.png", "")
	require.Equal(t, truth("letter.txt"), text, "across a crash")
	require.NotEqual(t, pid, next)

	// Across an edit, while somebody reads page after page.
	ctx, cancel := context.WithCancel(t.Context())
	reader := make(chan error, 1)
	go func() {
		w, err := connect(e.front("ocr"))
		for err == nil && ctx.Err() == nil {
			var m message
			if m, err = w.try("recognize", fmt.Sprintf(`{"image":%q}`, filepath.Join(pages, "../page.png"))); err == nil && m.Error != nil {
				err = m.Error
			}
		}
		reader <- err
	}()
	replace(t, file, strings.Replace(string(mustRead(t, file)), "[env.variables]", "[env.variables]\nEDITION = \"2\"", 1))
	e.until("the new version runs", func() bool {
		p := e.status("ocr")
		return p.State == "ready" && p.Workers[0].PID != next && len(p.Workers) == 1
	})
	cancel()
	require.NoError(t, <-reader)
	text, _ = read("letter.png", "")
	require.Equal(t, truth("letter.txt"), text, "across an edit")
	require.False(t, alive(next))
}

func TestE2EMolecules(t *testing.T) {
	e := newE2E(t)
	file := e.real("rdkit", "rdkit")
	e.start()
	require.Contains(t, e.ok("smoke", "rdkit"), "rdkit: passed")
	pid := e.ready("rdkit")
	check := func() {
		var d struct {
			Formula string
			Weight  float64 `json:"molecular_weight"`
			Donors  int     `json:"h_bond_donors"`
			Rings   int
		}
		require.NoError(t, json.Unmarshal([]byte(e.ok("call", "rdkit", "descriptors", "smiles=CC(=O)Oc1ccccc1C(=O)O")), &d))
		require.Equal(t, "C9H8O4", d.Formula)
		require.InDelta(t, 180.159, d.Weight, 0.01)
		require.Equal(t, 1, d.Donors)
		require.Equal(t, 1, d.Rings)
		var s struct {
			Hits []struct {
				Name       string
				Similarity float64
			}
		}
		require.NoError(t, json.Unmarshal([]byte(e.ok("call", "rdkit", "similarity", "smiles=CC(=O)Nc1ccc(O)cc1", "k=3")), &s))
		require.Len(t, s.Hits, 3)
		require.Equal(t, "acetaminophen", s.Hits[0].Name)
		require.InDelta(t, 1, s.Hits[0].Similarity, 1e-9)
		require.Less(t, s.Hits[1].Similarity, 1.0)
	}
	check()
	require.Equal(t, pid, e.ready("rdkit"))
	require.Contains(t, e.fails(exitFailed, "call", "rdkit", "descriptors", "smiles=C1CC"), "invalid_params")
	require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
	check()
	next := e.ready("rdkit")
	require.NotEqual(t, pid, next)
	replace(t, file, strings.Replace(string(mustRead(t, file)), "[gpu]", "[env.variables]\nEDITION = \"2\"\n[gpu]", 1))
	e.until("the new version runs", func() bool {
		p := e.status("rdkit")
		return p.State == "ready" && p.Workers[0].PID != next && len(p.Workers) == 1
	})
	check()
}
