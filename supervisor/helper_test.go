package supervisor

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// The test binary is its own worker: with this variable set it serves the worker protocol, and misbehaves as told.
const helperVar = "WDTEST_HELPER"

func TestMain(m *testing.M) {
	switch os.Getenv(helperVar) {
	case "worker":
		helperWorker()
		os.Exit(0)
	case "child":
		helperChild()
		os.Exit(0)
	case "eat":
		eat(os.Getenv("MIB"))
		os.Exit(0)
	case "load":
		helperLoad()
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

// helperChild is what a worker leaves behind: it sleeps until it is killed.
func helperChild() {
	signal.Ignore(syscall.SIGTERM, syscall.SIGHUP)
	if f := os.Getenv("CHILD_FILE"); f != "" {
		appendLine(f, strconv.Itoa(os.Getpid()))
	}
	time.Sleep(10 * time.Minute)
}

func appendLine(file, line string) {
	f, err := os.OpenFile(file, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return
	}
	defer func() { _ = f.Close() }()
	_, _ = f.WriteString(line + "\n")
}

// helper is one running helper worker. Its behaviour comes from variables:
//
//	STARTS   file that gets a line with the pid at each start
//	LOAD     how long it loads
//	MODE     never-bind, never-ready, ignore-term, exit-N, mismatch, no-ping
//	RUNS     file that gets a line for each request that ran
//	FAIL_IF  file that makes it fail at its start while it exists
//	GPU_DIR  where it says how much memory it takes of the devices that it was given: GPU_MIB
//
// As a warm standby it has preloaded at once.
type helper struct {
	mode  string
	mu    sync.Mutex
	first net.Conn
	ready bool
	warm  bool // waits before it loads
	load  time.Duration
}

func helperWorker() {
	h := &helper{mode: os.Getenv("MODE"), warm: os.Getenv("WORKERD_STANDBY") == "warm"}
	h.load, _ = time.ParseDuration(os.Getenv("LOAD"))
	if f := os.Getenv("STARTS"); f != "" {
		appendLine(f, strconv.Itoa(os.Getpid()))
	}
	fmt.Println("helper worker starts in mode", h.mode)
	if f := os.Getenv("FAIL_IF"); f != "" {
		if _, err := os.Stat(f); err == nil {
			fmt.Fprintln(os.Stderr, "out of memory for a second model")
			os.Exit(3)
		}
	}
	if dir := os.Getenv("GPU_DIR"); dir != "" {
		takeGPU(dir, os.Getpid(), strings.Split(os.Getenv("CUDA_VISIBLE_DEVICES"), ","), os.Getenv("GPU_MIB"))
	}
	if code, ok := strings.CutPrefix(h.mode, "exit-"); ok {
		n, _ := strconv.Atoi(code)
		fmt.Fprintln(os.Stderr, "no weights found")
		os.Exit(n)
	}
	term := make(chan os.Signal, 1)
	signal.Notify(term, syscall.SIGTERM)
	go func() {
		<-term
		if h.mode == "ignore-term" {
			return
		}
		fmt.Println("terminated")
		os.Exit(0)
	}()
	if h.mode == "never-bind" {
		select {}
	}
	l, err := net.Listen("unix", os.Getenv("WORKERD_SOCKET"))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	for {
		c, err := l.Accept()
		if err != nil {
			os.Exit(1)
		}
		go h.serve(c)
	}
}

type helperMessage struct {
	ID     json.RawMessage `json:"id"`
	Method string          `json:"method"`
	Params json.RawMessage `json:"params"`
}

func (h *helper) serve(c net.Conn) {
	defer func() { _ = c.Close() }()
	h.mu.Lock()
	first := h.first == nil
	if first {
		h.first = c
	}
	h.mu.Unlock()
	r := bufio.NewReaderSize(c, 1<<20)
	cancelled := make(chan struct{}, 16)
	for {
		line, err := r.ReadBytes('\n')
		if err != nil {
			return
		}
		var m helperMessage
		_ = json.Unmarshal(line, &m)
		switch m.Method {
		case "initialize":
			version := 1
			if h.mode == "mismatch" {
				version = 99
			}
			h.mu.Lock()
			state := "loading"
			switch {
			case h.warm:
				state = "preloaded"
			case h.ready || h.load == 0 && h.mode != "never-ready":
				h.ready, state = true, "ready"
			}
			h.mu.Unlock()
			_, _ = fmt.Fprintf(c, `{"jsonrpc":"2.0","id":%s,"result":{"protocol":%d,"worker":"helper","methods":[{"name":"echo"}],"state":%q}}`+"\n",
				m.ID, version, state)
			if first && state == "loading" && h.mode != "never-ready" {
				go h.loads(c)
			}
		case "ping":
			if h.mode != "no-ping" {
				_, _ = fmt.Fprintf(c, `{"jsonrpc":"2.0","id":%s,"result":{}}`+"\n", m.ID)
			}
		case "notifications/load":
			h.mu.Lock()
			wait := h.warm
			h.warm = false
			h.mu.Unlock()
			if wait && h.mode != "never-ready" {
				go h.loads(c)
			}
		case "notifications/cancelled":
			cancelled <- struct{}{}
		case "fast": // for benchmarks: from now on nothing but lines there and back
			h.fast(c, r, m)
			return
		default:
			go h.run(c, m, cancelled)
		}
	}
}

// fast answers every line with a result of the same size, parsing no more than the id.
func (h *helper) fast(c net.Conn, r *bufio.Reader, m helperMessage) {
	answer := func(id []byte, params []byte) {
		out := append([]byte(`{"jsonrpc":"2.0","id":`), id...)
		out = append(out, `,"result":`...)
		out = append(out, params...)
		_, _ = c.Write(append(out, '}', '\n'))
	}
	answer(m.ID, m.Params)
	for {
		line, err := r.ReadSlice('\n')
		if err != nil {
			return
		}
		i, j := bytes.Index(line, []byte(`"id":`))+5, bytes.Index(line, []byte(`,"method"`))
		k := bytes.Index(line, []byte(`"params":`)) + 9
		answer(line[i:j], line[k:len(line)-2])
	}
}

func (h *helper) loads(c net.Conn) {
	for i := range 4 {
		time.Sleep(h.load / 4)
		_, _ = fmt.Fprintf(c, `{"jsonrpc":"2.0","method":"notifications/progress","params":{"progress":%d,"total":4,"message":"shard %d/4"}}`+"\n", i+1, i+1)
	}
	h.mu.Lock()
	h.ready = true
	h.mu.Unlock()
	_, _ = fmt.Fprint(c, `{"jsonrpc":"2.0","method":"notifications/ready"}`+"\n")
}

type helperParams struct {
	Text  string  `json:"text"`
	Sec   float64 `json:"sec"`
	Code  int     `json:"code"`
	File  string  `json:"file"`
	Size  int     `json:"size"`
	Raw   string  `json:"raw"`
	Deaf  bool    `json:"deaf"` // does not hear cancel
	Steps int     `json:"steps"`
	Meta  struct {
		Token   json.RawMessage `json:"progressToken"`
		Timeout json.RawMessage `json:"timeoutMs"`
	} `json:"_meta"`
}

func (h *helper) run(c net.Conn, m helperMessage, cancelled <-chan struct{}) {
	var p helperParams
	_ = json.Unmarshal(m.Params, &p)
	if f := os.Getenv("RUNS"); f != "" {
		appendLine(f, m.Method+" "+p.Text)
	}
	answer := func(result any) {
		b, _ := json.Marshal(result)
		_, _ = fmt.Fprintf(c, `{"jsonrpc":"2.0","id":%s,"result":%s}`+"\n", m.ID, b)
	}
	switch m.Method {
	case "echo":
		answer(map[string]any{"text": p.Text, "pid": os.Getpid()})
	case "sleep":
		if p.Text != "" {
			fmt.Println(p.Text)
		}
		if p.Deaf {
			cancelled = nil
		}
		select {
		case <-time.After(time.Duration(p.Sec * float64(time.Second))):
			answer(map[string]any{"slept": p.Sec, "pid": os.Getpid()})
		case <-cancelled:
			if p.File != "" {
				appendLine(p.File, "cancelled")
			}
			_, _ = fmt.Fprintf(c, `{"jsonrpc":"2.0","id":%s,"error":{"code":-32022,"message":"cancelled","data":{"kind":"cancelled","retryable":false}}}`+"\n", m.ID)
		}
	case "progress":
		for i := range p.Steps {
			_, _ = fmt.Fprintf(c, `{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":%s,"progress":%d,"total":%d}}`+"\n", p.Meta.Token, i+1, p.Steps)
		}
		answer("done")
	case "crash":
		fmt.Fprintln(os.Stderr, "CUDA error: about to die")
		os.Exit(p.Code)
	case "die":
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {}
	case "big":
		answer(strings.Repeat("x", p.Size))
	case "raw": // whatever the test wants to see on the wire
		// in one write: workerd may send the next request before the end of a line that it drops
		_, _ = c.Write([]byte(strings.NewReplacer("$ID", string(m.ID), "$FF", "\xff", "$KIB", strings.Repeat("k", 20<<10)).Replace(p.Raw)))
	case "half":
		_, _ = fmt.Fprintf(c, `{"jsonrpc":"2.0","id":%s,"result":{"te`, m.ID)
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	case "hangup":
		_ = c.Close()
	case "fork":
		h.fork(p.File)
		answer("forked")
	case "hide": // a child that nothing tells to be the worker's: no marker, a session of its own
		cmd := exec.Command("/proc/self/exe")
		cmd.Env = []string{helperVar + "=child", "CHILD_FILE=" + p.File}
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		answer(cmd.Start() == nil)
	case "eat": // memory, itself
		eat(strconv.Itoa(p.Size))
		answer("eaten")
	case "eat-child":
		cmd := exec.Command("/proc/self/exe")
		cmd.Env = append(os.Environ(), helperVar+"=eat", "MIB="+strconv.Itoa(p.Size))
		answer(fmt.Sprint(cmd.Run()))
	case "crowd": // how many children it can have
		n := 0
		for range p.Size {
			cmd := exec.Command("/bin/sleep", "60")
			if cmd.Start() != nil {
				break
			}
			n++
		}
		answer(n)
	case "suicide": // the whole process group, as a library's clean-up might
		_ = syscall.Kill(0, syscall.SIGKILL)
	case "faulty": // once
		if os.Remove(os.Getenv("FAULTY")) == nil {
			_, _ = fmt.Fprintf(c, `{"jsonrpc":"2.0","id":%s,"error":{"code":-32000,"message":"I lost my way","data":{"kind":"worker_error"}}}`+"\n", m.ID)
			return
		}
		answer("well")
	case "print":
		fmt.Println(p.Text)
		answer("printed")
	case "take": // GPU memory
		takeGPU(os.Getenv("GPU_DIR"), os.Getpid(), strings.Split(os.Getenv("CUDA_VISIBLE_DEVICES"), ","), p.Text)
		answer("taken")
	case "timeout": // as it stood in the line
		answer(p.Meta.Timeout)
	case "env":
		answer(os.Getenv(p.Text))
	default:
		_, _ = fmt.Fprintf(c, `{"jsonrpc":"2.0","id":%s,"error":{"code":-32601,"message":"no such method","data":{"kind":"method_not_found","retryable":false}}}`+"\n", m.ID)
	}
}

// eat takes memory and uses it.
func eat(mib string) {
	n, _ := strconv.Atoi(mib)
	all := make([][]byte, 0, n)
	for range n {
		b := make([]byte, 1<<20)
		for i := 0; i < len(b); i += 4096 {
			b[i] = 1
		}
		all = append(all, b)
	}
	runtime.KeepAlive(all)
}

// fork leaves a plain child, one in a session of its own, and one that was forked twice. All hold stdout open.
func (h *helper) fork(file string) {
	for _, attr := range []*syscall.SysProcAttr{nil, {Setsid: true}, {Setpgid: true}} {
		cmd := exec.Command("/proc/self/exe")
		cmd.Env = append(os.Environ(), helperVar+"=child", "CHILD_FILE="+file)
		cmd.Stdout, cmd.Stderr, cmd.SysProcAttr = os.Stdout, os.Stderr, attr
		_ = cmd.Start()
	}
	exe, _ := os.Executable()
	cmd := exec.Command("/bin/sh", "-c", `(setsid "$0" >/dev/null 2>&1 &) `, exe)
	cmd.Env = append(os.Environ(), helperVar+"=child", "CHILD_FILE="+file)
	_ = cmd.Run()
}
