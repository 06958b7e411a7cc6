// Package prototest replays the transcripts of protocol/testdata over a real socket, for the tests of whoever speaks the
// protocol. The format is described in protocol/testdata/README.md; the Python tests of the SDK read the same files.
package prototest

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"time"
)

// lineTimeout is how long an expected line may take.
const lineTimeout = 30 * time.Second

// Step is one line of a transcript: one of its members is set, and besides Send perhaps Newline.
type Step struct {
	Note     string            `json:"note"`     // for the reader
	Send     json.RawMessage   `json:"send"`     // an object: sent as it stands here; a string: sent as text
	Newline  *bool             `json:"newline"`  // false: send without a newline
	Bytes    []byte            `json:"bytes"`    // sent as they are; base64 in the file
	Fill     int               `json:"fill"`     // so many letters x are sent
	Expect   json.RawMessage   `json:"expect"`   // the next line matches this pattern
	AnyOrder []json.RawMessage `json:"anyOrder"` // the next lines match these patterns, in whatever order
	Maybe    json.RawMessage   `json:"maybe"`    // from here on lines that match are skipped where they are not expected
	Do       string            `json:"do"`       // the named hook is called
	Close    string            `json:"close"`    // "write": this side's input ends; "both": this side hangs up
	End      bool              `json:"end"`      // the other side closes the connection without another line
}

// T is what is needed of a test.
type T interface {
	Helper()
	Fatal(args ...any)
	Fatalf(format string, args ...any)
}

// Hook is what a step "do" calls.
type Hook struct {
	Name string
	Func func()
}

// Load reads a transcript.
func Load(file string) ([]Step, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var steps []Step
	for n, line := range bytes.Split(bytes.TrimSuffix(text, []byte("\n")), []byte("\n")) {
		var s Step
		d := json.NewDecoder(bytes.NewReader(line))
		d.DisallowUnknownFields()
		if err := d.Decode(&s); err != nil {
			return nil, fmt.Errorf("%s:%d: %w", file, n+1, err)
		}
		steps = append(steps, s)
	}
	return steps, nil
}

// Replay plays one side of a transcript on conn, and fails the test where the other side does not answer as it should. A
// step "do" whose name no hook has fails it too. The connection is left as the transcript leaves it.
func Replay(t T, conn net.Conn, file string, hooks ...Hook) {
	t.Helper()
	steps, err := Load(file)
	if err != nil {
		t.Fatal(err)
	}
	r := replay{conn: conn, in: bufio.NewReader(conn), hooks: hooks}
	for n := range steps {
		if err := r.step(&steps[n]); err != nil {
			t.Fatalf("%s:%d: %v", file, n+1, err)
		}
	}
}

type replay struct {
	conn  net.Conn
	in    *bufio.Reader
	hooks []Hook
	maybe []json.RawMessage
}

func (r *replay) step(s *Step) error {
	switch {
	case s.Send != nil:
		text, err := s.text()
		if err != nil {
			return err
		}
		return r.write(text)
	case s.Bytes != nil:
		return r.write(s.Bytes)
	case s.Fill > 0:
		return r.write(bytes.Repeat([]byte("x"), s.Fill))
	case s.Expect != nil:
		return r.expect([]json.RawMessage{s.Expect})
	case s.AnyOrder != nil:
		return r.expect(s.AnyOrder)
	case s.Maybe != nil:
		r.maybe = append(r.maybe, s.Maybe)
	case s.Do != "":
		for _, h := range r.hooks {
			if h.Name == s.Do {
				h.Func()
				return nil
			}
		}
		return fmt.Errorf("no hook %q", s.Do)
	case s.Close != "":
		return r.close(s.Close)
	case s.End:
		line, err := r.line()
		for err == nil && r.skipped(line) {
			line, err = r.line()
		}
		if err == nil {
			return fmt.Errorf("want the end, got %s", line)
		}
		if !errors.Is(err, io.EOF) {
			return err
		}
	}
	return nil
}

// text is what the step sends.
func (s *Step) text() ([]byte, error) {
	text := []byte(s.Send)
	if text[0] == '"' {
		var line string
		if err := json.Unmarshal(s.Send, &line); err != nil {
			return nil, err
		}
		text = []byte(line)
	}
	if s.Newline == nil || *s.Newline {
		text = append(text, '\n')
	}
	return text, nil
}

func (r *replay) write(text []byte) error {
	if err := r.conn.SetWriteDeadline(time.Now().Add(lineTimeout)); err != nil {
		return err
	}
	_, err := r.conn.Write(text)
	return err
}

func (r *replay) close(how string) error {
	if how == "both" {
		return r.conn.Close()
	}
	half, ok := r.conn.(interface{ CloseWrite() error })
	if how != "write" || !ok {
		return fmt.Errorf("cannot close %q on a %T", how, r.conn)
	}
	return half.CloseWrite()
}

// line reads one line, without its newline.
func (r *replay) line() ([]byte, error) {
	if err := r.conn.SetReadDeadline(time.Now().Add(lineTimeout)); err != nil {
		return nil, err
	}
	line, err := r.in.ReadBytes('\n')
	if err != nil && len(line) > 0 {
		return nil, fmt.Errorf("half a line %q: %w", line, err)
	}
	return bytes.TrimSuffix(line, []byte("\n")), err
}

// expect reads as many lines as there are patterns, one for each.
func (r *replay) expect(patterns []json.RawMessage) error {
	left := patterns
	for len(left) > 0 {
		line, err := r.line()
		if err != nil {
			return fmt.Errorf("want %s: %w", left[0], err)
		}
		var whys []string
		rest := left[:0:0]
		found := false
		for _, p := range left {
			why := Match(p, line)
			if why == nil && !found {
				found = true
				continue
			}
			rest = append(rest, p)
			if why != nil {
				whys = append(whys, why.Error())
			}
		}
		switch {
		case found:
			left = rest
		case !r.skipped(line):
			return fmt.Errorf("want %s\ngot  %s\n%s", left[0], line, strings.Join(whys, "\n"))
		}
	}
	return nil
}

func (r *replay) skipped(line []byte) bool {
	for _, p := range r.maybe {
		if Match(p, line) == nil {
			return true
		}
	}
	return false
}
