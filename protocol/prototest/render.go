package prototest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
)

// Render writes a transcript for readers, as PROTOCOL.md shows it: what is sent after "->", what is expected after "<-".
func Render(steps []Step) (string, error) {
	var b strings.Builder
	for i := range steps {
		s := &steps[i]
		switch {
		case s.Note != "":
			fmt.Fprintf(&b, "# %s\n", s.Note)
		case s.Send != nil:
			text, err := s.text()
			if err != nil {
				return "", err
			}
			line, whole := bytes.CutSuffix(text, []byte("\n"))
			fmt.Fprintf(&b, "-> %s", line)
			if !whole {
				b.WriteString(" ...") // no newline yet
			}
			b.WriteByte('\n')
		case s.Bytes != nil:
			fmt.Fprintf(&b, "-> %+q\n", s.Bytes)
		case s.Fill > 0:
			fmt.Fprintf(&b, "-> ... %d times x ...\n", s.Fill)
		case s.Expect != nil:
			pattern(&b, "<- ", s.Expect)
		case s.AnyOrder != nil:
			for _, p := range s.AnyOrder {
				pattern(&b, "<- ", p)
			}
			b.WriteString("   (in any order)\n")
		case s.Maybe != nil:
			pattern(&b, "<- perhaps ", s.Maybe)
		case s.Do != "":
			fmt.Fprintf(&b, "   (%s)\n", s.Do)
		case s.Close == "write":
			b.WriteString("-> end of input\n")
		case s.Close != "":
			b.WriteString("-> hangs up\n")
		case s.End:
			b.WriteString("<- closes\n")
		}
	}
	return b.String(), nil
}

func pattern(b *strings.Builder, prefix string, p json.RawMessage) {
	fmt.Fprintf(b, "%s%s\n", prefix, p)
}
