package manifest

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/google/jsonschema-go/jsonschema"
)

func (c *checker) checkWeights() {
	w := &c.m.Weights
	prepared := len(w.Prepare) > 0
	if prepared {
		script := indexKey("weights.prepare", 0)
		switch {
		case !c.ok("weights.prepare", script, "weights.root"):
		case w.Root == "":
			c.report("weights.prepare", "needs weights.root: the folder that it fills")
		case w.Prepare[0] == "":
			c.report(script, "is empty: name a script")
		case c.file(script, w.Prepare[0]):
			c.trusted(script, w.Prepare[0])
		}
	}
	if w.Root != "" && !prepared && c.ok("weights.root") {
		c.stat("weights.root", w.Root)
	}
	for i, extra := range w.Extra {
		key := indexKey("weights.extra", i)
		if extra == "" {
			c.report(key, "is empty: name a folder")
		} else if c.ok(key) {
			c.stat(key, extra)
		}
	}
}

func (c *checker) checkPaths() {
	p := &c.m.Paths
	if p.WorkRoot != "" && c.ok("paths.work_root") {
		if info, err := os.Stat(p.WorkRoot); err == nil && !info.IsDir() {
			c.report("paths.work_root", "%s is no folder", p.WorkRoot)
		} else if err != nil && !errors.Is(err, fs.ErrNotExist) {
			c.missing("paths.work_root", p.WorkRoot, err, "")
		}
	}
	for i := range p.Binds {
		c.checkBind(i)
	}
	// A container's working directory may be a folder of the image.
	if c.kind(Venv) && c.ok("paths.cwd") && !c.toBeMade(p.Cwd) {
		if info := c.stat("paths.cwd", p.Cwd); info != nil && !info.IsDir() {
			c.report("paths.cwd", "%s is no folder", p.Cwd)
		}
	}
}

// toBeMade reports whether a missing folder is one that workerd makes before it starts a worker.
func (c *checker) toBeMade(folder string) bool {
	m := c.m
	made := []string{m.Paths.WorkRoot}
	if len(m.Weights.Prepare) > 0 {
		made = append(made, m.Weights.Root)
	}
	for _, b := range m.Paths.Binds {
		if b.Create {
			made = append(made, b.Path)
		}
	}
	_, err := os.Stat(folder)
	return errors.Is(err, fs.ErrNotExist) && danglingTarget(folder) == "" && slices.ContainsFunc(made, func(path string) bool {
		return path != "" && filepath.Clean(path) == filepath.Clean(folder)
	})
}

func (c *checker) checkBind(i int) {
	b, key := c.m.Paths.Binds[i], indexKey("paths.binds", i)
	if !c.ok(key, key+".path") {
		return
	}
	if b.Path == "" {
		c.report(key, "has no path")
		return
	}
	_, err := os.Stat(b.Path)
	if err == nil || b.Create && errors.Is(err, fs.ErrNotExist) && danglingTarget(b.Path) == "" {
		return
	}
	hint := "; create it, or let workerd do so: { path = \"...\", create = true }"
	if !errors.Is(err, fs.ErrNotExist) {
		hint = ""
	} else if at := strings.LastIndexByte(b.Path, ':'); at >= 0 && !c.given(key+".path") {
		switch tail := b.Path[at+1:]; {
		case strings.HasPrefix(tail, "/"):
			hint = "; a bind has the same path on both sides, so no target can be given"
		case len(tail) <= 8 && !strings.Contains(tail, "/"):
			hint = "; the modes are :ro and :rw, SELinux labels are env.selinux"
		}
	}
	c.missing(key, b.Path, err, hint)
}

var devicePattern = regexp.MustCompile(`^(\d+|GPU-[0-9A-Za-z-]+|MIG-[0-9A-Za-z/-]+)$`)

func (c *checker) checkGPU() {
	g := &c.m.GPU
	seen := map[string]bool{}
	for i, device := range g.Devices {
		key := indexKey("gpu.devices", i)
		switch {
		case !c.ok(key):
		case !devicePattern.MatchString(device):
			c.report(key, `%q is no device: write an index such as "0" or a UUID that begins with GPU- or MIG-`, device)
		case seen[device]:
			c.report(key, "%q is named twice", device)
		}
		seen[device] = true
	}
	for i, pattern := range g.FaultPatterns {
		key := indexKey("gpu.fault_patterns", i)
		if !c.ok(key) {
			continue
		}
		switch re, err := regexp.Compile(pattern); {
		case err != nil:
			c.report(key, "%v: write a regular expression as Go has them (RE2)", err)
		case re.MatchString(""):
			c.report(key, "%q matches every line, so that every worker would be replaced: say what a lost GPU looks like", pattern)
		}
	}
	if len(g.Devices) > 0 && c.ok("gpu.devices", "gpu.count") && g.Count > len(g.Devices) {
		c.report("gpu.count", "%d of %d devices cannot be had: lower count or name more devices", g.Count, len(g.Devices))
	}
}

// checkNumbers checks figures that depend on each other or may not be zero.
func (c *checker) checkNumbers() {
	r := &c.m.Restart
	if c.ok("restart.backoff", "restart.max_backoff") && r.Backoff > r.MaxBackoff {
		key := "restart.max_backoff"
		if !c.given(key) {
			key = "restart.backoff"
		}
		c.report(key, "backoff (%s) is longer than max_backoff (%s)", r.Backoff, r.MaxBackoff)
	}
	if c.ok("restart.window") && r.Window == 0 {
		c.report("restart.window", "must be longer than 0s: it is the time in which crashes are counted")
	}
	if c.ok("limits.shm_size") && c.m.Limits.ShmSize == 0 {
		c.report("limits.shm_size", "must be larger than 0")
	}
	if c.ok("serve.max_message") && c.m.Serve.MaxMessage < 1<<10 {
		c.report("serve.max_message", "%s is too small: write 1KiB or more", c.m.Serve.MaxMessage)
	}
}

var toolPattern = regexp.MustCompile(`^[A-Za-z0-9_.-]{1,128}$`)

func (c *checker) checkTools() {
	seen := map[string]bool{}
	for i := range c.m.Tools {
		t, key := &c.m.Tools[i], indexKey("tools", i)
		name, method := key+".name", key+".method"
		switch {
		case !c.ok(key, name):
		case t.Name == "":
			c.report(name, "missing: what the tool is called")
		case !toolPattern.MatchString(t.Name):
			c.report(name, "%q is no name of a tool: write 1 to 128 of letters, digits, _, - and .", t.Name)
		case seen[t.Name]:
			c.report(name, "%q is the name of another tool of this provider", t.Name)
		}
		seen[t.Name] = true
		switch {
		case !c.ok(key, method):
		case t.Method == "":
			c.report(method, "missing: the worker's method that the tool calls")
		case strings.HasPrefix(t.Method, "workerd."):
			c.report(method, "%q: methods that begin with workerd. are workerd's own", t.Method)
		}
		c.checkSchema(t, key+".input_schema")
	}
}

// checkSchema reads an input_schema that is a file and makes sure that parameters can be checked against it.
func (c *checker) checkSchema(t *Tool, key string) {
	file, isFile := c.schemas[key]
	if !c.ok(key) || !isFile && t.InputSchema == nil {
		return
	}
	place := "the table"
	var data []byte
	if isFile {
		place = file
		read, err := readRegular(file, maxJSON)
		if err != nil {
			c.missing(key, file, err, "")
			return
		}
		c.reads = append(c.reads, dep{file, read.stamp})
		data = read.data
	} else {
		var err error
		if data, err = json.Marshal(t.InputSchema); err != nil {
			c.report(key, "is no JSON Schema: %v", err)
			return
		}
	}
	// An inline table takes this way too, so that its numbers are of the type that a file's are.
	var schema map[string]any
	if err := decodeJSON(data, place, &schema); err != nil {
		c.report(key, "is no JSON object: %v", err)
		return
	}
	if err := validSchema(data, schema); err != nil {
		c.report(key, "%s is no JSON Schema of a tool's input: %v", place, err)
		return
	}
	t.InputSchema = schema
}

func validSchema(data []byte, schema map[string]any) error {
	if kind, ok := schema["type"]; ok && kind != "object" {
		return fmt.Errorf(`type must be "object": parameters have names`)
	}
	parsed := &jsonschema.Schema{}
	if err := json.Unmarshal(data, parsed); err != nil {
		var wrongType *json.UnmarshalTypeError
		if errors.As(err, &wrongType) {
			field := wrongType.Field[strings.LastIndexByte(wrongType.Field, '.')+1:]
			return fmt.Errorf("%s cannot be a JSON %s", field, wrongType.Value)
		}
		return err
	}
	_, err := parsed.Resolve(nil)
	return err
}

func (c *checker) checkSmoke() {
	if c.m.Smoke == "" || !c.ok("smoke") || !c.file("smoke", c.m.Smoke) {
		return
	}
	c.reads = append(c.reads, dep{c.m.Smoke, stampFile(c.m.Smoke)})
	if _, err := ReadSmoke(c.m.Smoke); err != nil {
		c.report("smoke", "%v", err)
	}
}
