package supervisor

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
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

// awaitLines waits, without sleeping, until a file has n lines.
func awaitLines(b *testing.B, file string, n int) {
	b.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for {
		data, _ := os.ReadFile(file)
		if strings.Count(string(data), "\n") >= n {
			return
		}
		if time.Now().After(deadline) {
			b.Fatalf("no start %d in %s", n, file)
		}
	}
}

// BenchmarkCrashToExec compares the time from kill -9 of a ready worker to the exec of the next one with a loop that does
// nothing but cmd.Start as soon as cmd.Wait returns, in turns. Both execute the same program; it is executed when it has
// appended to a file.
func BenchmarkCrashToExec(b *testing.B) {
	mark := filepath.Join(b.TempDir(), "starts")
	r := newRig(b)
	r.serve("crash", "[restart]\nbackoff = \"0s\"\nmax_crashes = 1000000\n", "STARTS="+mark)
	r.state("crash", "ready")
	count := 1

	bareMark := filepath.Join(b.TempDir(), "bare")
	exe, err := os.Executable()
	require.NoError(b, err)
	start := func() *exec.Cmd {
		cmd := exec.Command(exe)
		cmd.Env = append(os.Environ(), helperVar+"=child", "CHILD_FILE="+bareMark)
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
	bareCount := 1
	awaitLines(b, bareMark, bareCount)

	var ours, bare []time.Duration
	b.ResetTimer()
	for range b.N {
		pid := r.until("crash", "ready", func(s protocol.ProviderStatus) bool {
			return s.State == "ready" && s.Workers[0].PID != 0
		}).Workers[0].PID
		begin := time.Now()
		_ = syscall.Kill(pid, syscall.SIGKILL)
		count++
		awaitLines(b, mark, count)
		ours = append(ours, time.Since(begin))
		r.until("crash", "respawned", func(s protocol.ProviderStatus) bool { return s.Workers[0].PID != pid })

		begin = time.Now()
		end(cmd)
		cmd = start()
		bareCount++
		awaitLines(b, bareMark, bareCount)
		bare = append(bare, time.Since(begin))
	}
	b.StopTimer()
	end(cmd)
	ms := func(d []time.Duration) float64 { return float64(median(d).Microseconds()) / 1e3 }
	b.ReportMetric(ms(ours), "workerd-ms")
	b.ReportMetric(ms(bare), "bare-ms")
	b.ReportMetric(ms(ours)/ms(bare), "x-bare")
	b.ReportMetric(0, "ns/op")
}
