package supervisor

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"workerd/manifest"
	"workerd/protocol"
)

// benchLine is a request of about 200 bytes; %d is its id.
var benchLine = `{"jsonrpc":"2.0","id":%d,"method":"fast","params":{"image":"` + strings.Repeat("p", 120) + `"}}` + "\n"

// helperLoad is a tool server in a process of its own, as tool servers are. It reads lines "socket connections trips", makes
// that many round trips on each of the connections at once, and prints what each took, in nanoseconds.
func helperLoad() {
	conns := map[string][]net.Conn{}
	in := bufio.NewScanner(os.Stdin)
	out := bufio.NewWriter(os.Stdout)
	for in.Scan() {
		var path string
		var n, trips int
		if _, err := fmt.Sscan(in.Text(), &path, &n, &trips); err != nil {
			os.Exit(2)
		}
		for len(conns[path]) < n {
			c, err := net.Dial("unix", path)
			if err != nil {
				fmt.Fprintln(os.Stderr, err)
				os.Exit(1)
			}
			conns[path] = append(conns[path], c)
		}
		all := make([][]time.Duration, n)
		var wg sync.WaitGroup
		for i, c := range conns[path] {
			wg.Go(func() { all[i] = roundTrips(c, trips) })
		}
		wg.Wait()
		for _, d := range slices.Concat(all...) {
			fmt.Fprint(out, d.Nanoseconds(), " ")
		}
		fmt.Fprintln(out)
		_ = out.Flush()
	}
}

func roundTrips(c net.Conn, n int) []time.Duration {
	r := bufio.NewReader(c)
	took := make([]time.Duration, 0, n)
	for id := range n {
		line := fmt.Appendf(nil, benchLine, id+1)
		begin := time.Now()
		_, err := c.Write(line)
		if err == nil {
			line, err = r.ReadSlice('\n')
		}
		took = append(took, time.Since(begin))
		if err != nil || len(line) < 100 || bytes.Contains(line, []byte(`"error"`)) {
			fmt.Fprintf(os.Stderr, "%v %s\n", err, line)
			os.Exit(1)
		}
	}
	return took
}

// toolServer drives a helperLoad.
type toolServer struct {
	b   *testing.B
	in  io.Writer
	out *bufio.Reader
}

func startLoad(b *testing.B) *toolServer {
	exe, err := os.Executable()
	require.NoError(b, err)
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), helperVar+"=load")
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	require.NoError(b, err)
	out, err := cmd.StdoutPipe()
	require.NoError(b, err)
	require.NoError(b, cmd.Start())
	b.Cleanup(func() { _ = in.Close(); _ = cmd.Wait() })
	return &toolServer{b, in, bufio.NewReaderSize(out, 1<<20)}
}

func (l *toolServer) trips(path string, conns, n int) []time.Duration {
	_, err := fmt.Fprintln(l.in, path, conns, n)
	require.NoError(l.b, err)
	line, err := l.out.ReadString('\n')
	require.NoError(l.b, err, "the tool server died")
	var took []time.Duration
	for _, f := range strings.Fields(line) {
		ns, err := strconv.ParseInt(f, 10, 64)
		require.NoError(l.b, err)
		took = append(took, time.Duration(ns))
	}
	return took
}

func median(d []time.Duration) time.Duration {
	slices.Sort(d)
	return d[len(d)/2]
}

// copyRelay is the floor: two io.Copy for each connection, which neither reads a line nor knows what a request is.
func copyRelay(b *testing.B, to string) string {
	path := filepath.Join(filepath.Dir(filepath.Dir(filepath.Dir(to))), "copy")
	l, err := net.Listen("unix", path)
	require.NoError(b, err)
	b.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("unix", to)
			if err != nil {
				return
			}
			// plain reads and writes: io.Copy between two sockets would splice in the kernel, which no relay that
			// looks at its lines can do; that is measured too
			go func() { _, _ = io.Copy(struct{ io.Writer }{out}, struct{ io.Reader }{in}); _ = out.Close() }()
			go func() { _, _ = io.Copy(struct{ io.Writer }{in}, struct{ io.Reader }{out}); _ = in.Close() }()
		}
	}()
	return path
}

// BenchmarkRelay compares, in one run and in turns, a request through workerd, through a bare io.Copy relay, and straight to
// the worker. Tool server, relay and worker are a process each; both relays are in the same one. The figures are medians in microseconds, and workerd's over the bare relay's.
func BenchmarkRelay(b *testing.B) {
	for _, n := range []int{1, 8} {
		b.Run(fmt.Sprintf("conns=%d", n), func(b *testing.B) {
			r := newRig(b)
			r.serve("fast", fmt.Sprintf("[serve]\nconcurrency = %d\n", n))
			r.state("fast", "ready")
			worker, err := filepath.Glob(filepath.Join(r.run, "w", "fast", "*.sock"))
			require.NoError(b, err)
			require.Len(b, worker, 1)
			server := startLoad(b)
			paths := map[string]string{
				"direct":  worker[0],
				"copy":    copyRelay(b, worker[0]),
				"workerd": filepath.Join(r.run, "front", "fast", "sock"),
			}
			took := map[string][]time.Duration{}
			const turn = 200
			for _, path := range paths {
				server.trips(path, n, turn) // warm up
			}
			b.ResetTimer()
			for done := 0; done < b.N; done += turn * n {
				for name, path := range paths {
					took[name] = append(took[name], server.trips(path, n, turn)...)
				}
			}
			b.StopTimer()
			us := func(name string) float64 { return float64(median(took[name]).Nanoseconds()) / 1e3 }
			b.ReportMetric(us("direct"), "direct-us")
			b.ReportMetric(us("copy"), "copy-us")
			b.ReportMetric(us("workerd"), "workerd-us")
			b.ReportMetric(us("workerd")/us("copy"), "x-copy")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// starts is a FIFO into which processes write a line as soon as they run: reading it costs nothing while they do not.
type starts struct {
	path string
	r    *bufio.Reader
}

func newStarts(b *testing.B) *starts {
	s := &starts{path: filepath.Join(b.TempDir(), "starts")}
	require.NoError(b, syscall.Mkfifo(s.path, 0o600))
	f, err := os.OpenFile(s.path, os.O_RDWR, 0)
	require.NoError(b, err)
	b.Cleanup(func() { _ = f.Close() })
	s.r = bufio.NewReader(f)
	return s
}

func (s *starts) await(b *testing.B) {
	b.Helper()
	_, err := s.r.ReadString('\n')
	require.NoError(b, err)
}

// BenchmarkCrashToExec compares the time from kill -9 of a ready worker to the exec of the next one with a loop that does
// nothing but cmd.Start as soon as cmd.Wait returns, in turns. Both execute the same program; it is executed when it has
// written to a pipe.
func BenchmarkCrashToExec(b *testing.B) {
	r := newRig(b)
	ours, floor := newStarts(b), newStarts(b)
	r.serve("crash", "[restart]\nbackoff = \"0s\"\nmax_crashes = 1000000\n", "STARTS="+ours.path)
	ours.await(b)
	exe, err := os.Executable()
	require.NoError(b, err)
	start := func() *exec.Cmd {
		cmd := exec.Command(exe)
		cmd.Env = append(os.Environ(), helperVar+"=child", "CHILD_FILE="+floor.path)
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		_, err := r.sup.children.Start(func() (int, error) { // or workerd would take it for an orphan of a worker
			err := cmd.Start()
			return cmd.Process.Pid, err
		})
		require.NoError(b, err)
		return cmd
	}
	end := func(cmd *exec.Cmd) {
		_ = cmd.Process.Kill()
		r.sup.children.Done(cmd.Process.Pid, func() { _ = cmd.Wait() })
	}
	cmd := start()
	floor.await(b)

	var took, bare []time.Duration
	b.ResetTimer()
	for range b.N {
		pid := r.state("crash", "ready").Workers[0].PID
		begin := time.Now()
		_ = syscall.Kill(pid, syscall.SIGKILL)
		ours.await(b)
		took = append(took, time.Since(begin))
		r.until("crash", "respawned", func(s protocol.ProviderStatus) bool { return s.Workers[0].PID != pid })

		begin = time.Now()
		end(cmd)
		cmd = start()
		floor.await(b)
		bare = append(bare, time.Since(begin))
	}
	b.StopTimer()
	end(cmd)
	ms := func(d []time.Duration) float64 { return float64(median(d).Microseconds()) / 1e3 }
	b.ReportMetric(ms(took), "workerd-ms")
	b.ReportMetric(ms(bare), "bare-ms")
	b.ReportMetric(ms(took)/ms(bare), "x-bare")
	b.ReportMetric(0, "ns/op")
}

// BenchmarkEditToRunning measures from the rename of an edited manifest over the old one to the start of the new worker, as the
// worker tells it, beside the bare start of the same program.
func BenchmarkEditToRunning(b *testing.B) {
	r := newRig(b)
	begun := newStarts(b)
	body := "[restart]\nmax_crashes = 1000000\n"
	r.provider("edit", body, "STARTS="+begun.path)
	w := manifest.NewWatcher(manifest.WatchConfig{Dirs: []string{r.dir}, Options: r.opt, Log: slog.New(slog.DiscardHandler)})
	ctx, cancel := context.WithCancel(b.Context())
	var wg sync.WaitGroup
	wg.Go(func() { _ = w.Run(ctx) })
	wg.Go(func() {
		for {
			select {
			case set := <-w.Sets():
				r.sup.Apply(set)
			case <-ctx.Done():
				return
			}
		}
	})
	b.Cleanup(func() { cancel(); wg.Wait() })
	begun.await(b)
	exe, err := os.Executable()
	require.NoError(b, err)

	var took, bare []time.Duration
	b.ResetTimer()
	for i := range b.N {
		r.until("edit", "settled", func(s protocol.ProviderStatus) bool { return s.State == "ready" && len(s.Workers) == 1 })
		<-time.After(1100 * time.Millisecond) // the pace of a person: edits within a second of each other are gathered first
		next := filepath.Join(r.dir, ".edit.new")
		require.NoError(b, os.WriteFile(next, []byte(helperManifest(body, "STARTS="+begun.path, fmt.Sprintf("V=%d", i))), 0o600))
		begin := time.Now()
		require.NoError(b, os.Rename(next, filepath.Join(r.dir, "edit.toml")))
		begun.await(b)
		took = append(took, time.Since(begin))

		cmd := exec.Command(exe)
		cmd.Env = append(os.Environ(), helperVar+"=child", "CHILD_FILE="+begun.path)
		begin = time.Now()
		_, err := r.sup.children.Start(func() (int, error) { err := cmd.Start(); return cmd.Process.Pid, err })
		require.NoError(b, err)
		begun.await(b)
		bare = append(bare, time.Since(begin))
		_ = cmd.Process.Kill()
		r.sup.children.Done(cmd.Process.Pid, func() { _ = cmd.Wait() })
	}
	b.StopTimer()
	ms := func(d []time.Duration) float64 { return float64(median(d).Microseconds()) / 1e3 }
	b.ReportMetric(ms(took), "workerd-ms")
	b.ReportMetric(ms(bare), "bare-ms")
	b.ReportMetric(ms(took)/ms(bare), "x-bare")
	b.ReportMetric(0, "ns/op")
}
