package prototest

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestMatch(t *testing.T) {
	for _, each := range [][2]string{
		{`{"a":1}`, `{"a":1.0,"b":2}`},
		{`[1,"$more"]`, `[1]`},
		{`[1,"$more"]`, `[1,2,3]`},
		{`{"a":"$absent"}`, `{}`},
		{`"$any"`, `null`},
		{`"$integer"`, `12345678901234567890123`},
		{`"$matches b"`, `"abc"`},
		{`{"a":[{"b":null}]}`, `{"a":[{"b":null,"c":1}]}`},
	} {
		require.NoError(t, Match([]byte(each[0]), []byte(each[1])), "%v", each)
	}
	for _, each := range [][3]string{
		{`{"a":1}`, `{"a":2}`, `line\.a: want 1, got 2`},
		{`{"a":1}`, `{}`, `line\.a: is missing`},
		{`{"a":1}`, `{"a":true}`, `got true`},
		{`{"a":"1"}`, `{"a":1}`, `want "1", got 1`},
		{`[1]`, `[1,2]`, `want \[1\]`},
		{`[1,"$more"]`, `[2]`, `line\[0\]`},
		{`[1,"$more"]`, `[]`, `want \[1\]`},
		{`{"a":"$absent"}`, `{"a":null}`, `should not be there`},
		{`"$string"`, `1`, `want`},
		{`"$integer"`, `1.0`, `want`},
		{`"$matches ^b"`, `"ab"`, `want`},
		{`null`, `false`, `want null`},
		{`{}`, `{} {}`, `more than one`},
		{`{}`, `nonsense`, `not JSON`},
	} {
		err := Match([]byte(each[0]), []byte(each[1]))
		require.Error(t, err, "%v", each)
		require.Regexp(t, each[2], err.Error())
	}
}

// pair returns two ends of a connection.
func pair(t *testing.T) (net.Conn, net.Conn) {
	t.Helper()
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	var ends [2]net.Conn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "pair")
		ends[i], err = net.FileConn(f)
		require.NoError(t, err)
		require.NoError(t, f.Close())
		t.Cleanup(func() { _ = ends[i].Close() })
	}
	return ends[0], ends[1]
}

func TestReplay(t *testing.T) {
	file := filepath.Join(t.TempDir(), "t.jsonl")
	require.NoError(t, os.WriteFile(file, []byte(`{"note": "hello"}
{"send": {"z":1, "a":2}}
{"send": "x", "newline": false}
{"bytes": "/w=="}
{"fill": 3}
{"maybe": {"m":"$any"}}
{"expect": {"n":1}}
{"anyOrder": [{"n":2}, {"n":3}]}
{"do": "it"}
{"end": true}
`), 0o600))
	ours, theirs := pair(t)
	wrote := make(chan string)
	go func() {
		buf := make([]byte, 100)
		all := ""
		for len(all) < len("{\"z\":1, \"a\":2}\nx\xffxxx") {
			n, err := theirs.Read(buf)
			if err != nil {
				break
			}
			all += string(buf[:n])
		}
		_, _ = theirs.Write([]byte("{\"m\":0}\n{\"n\":1}\n{\"n\":3}\n{\"m\":1}\n{\"n\":2}\n"))
		_ = theirs.Close()
		wrote <- all
	}()
	did := 0
	Replay(t, ours, file, Hook{"it", func() { did++ }})
	require.Equal(t, 1, did)
	require.Equal(t, "{\"z\":1, \"a\":2}\nx\xffxxx", <-wrote)

	steps, err := Load(file)
	require.NoError(t, err)
	text, err := Render(steps)
	require.NoError(t, err)
	require.Equal(t, `# hello
-> {"z":1, "a":2}
-> x ...
-> "\xff"
-> ... 3 times x ...
<- perhaps {"m":"$any"}
<- {"n":1}
<- {"n":2}
<- {"n":3}
   (in any order)
   (it)
<- closes
`, text)
}

func TestLoadRefusesWhatIsNoStep(t *testing.T) {
	file := filepath.Join(t.TempDir(), "t.jsonl")
	require.NoError(t, os.WriteFile(file, []byte("{\"note\": \"x\"}\n{\"expct\": 1}\n"), 0o600))
	_, err := Load(file)
	require.ErrorContains(t, err, "t.jsonl:2")
}

// fakeT ends a failing Replay by a panic with its message.
type fakeT struct{}

func (fakeT) Helper()                           {}
func (fakeT) Fatal(args ...any)                 { panic(fmt.Sprint(args...)) }
func (fakeT) Fatalf(format string, args ...any) { panic(fmt.Sprintf(format, args...)) }

func TestReplayFails(t *testing.T) {
	for _, each := range []struct{ steps, says, wants string }{
		{`{"expect": {"id":1,"result":2}}`, "{\"id\":1,\"result\":3}\n", `t.jsonl:1: .*\n.*\nline\.result: want 2, got 3`},
		{`{"anyOrder": [{"id":1}, {"id":2}]}`, "{\"id\":1}\n{\"id\":1}\n", `line\.id: want 2, got 1`},
		{`{"expect": {"id":1}}`, "", `EOF`},
		{`{"expect": {"id":1}}`, `{"id":1}`, `half a line`},
		{`{"end": true}`, "{\"id\":1}\n", `want the end, got {"id":1}`},
		{`{"do": "that"}`, "", `no hook "that"`},
		{`{"close": "sideways"}`, "", `cannot close "sideways"`},
	} {
		file := filepath.Join(t.TempDir(), "t.jsonl")
		require.NoError(t, os.WriteFile(file, []byte(each.steps+"\n"), 0o600))
		ours, theirs := pair(t)
		_, err := theirs.Write([]byte(each.says))
		require.NoError(t, err)
		require.NoError(t, theirs.Close())
		require.Regexp(t, "(?s)"+each.wants, panicOf(func() { Replay(fakeT{}, ours, file) }))
	}
}

func panicOf(f func()) (said any) {
	defer func() { said = recover() }()
	f()
	return nil
}
