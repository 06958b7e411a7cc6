package main

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestEscapesAreTakenOut(t *testing.T) {
	for in, want := range map[string]string{
		"plain ü \t\r\n":                             "plain ü \t\r\n",
		"\x1b[1;31mred\x1b[0m\n":                     "red\n",
		"\r\x1b[K 10%|\x1b[32m##\x1b[39m  |\n":       "\r 10%|##  |\n",
		"\x1b]0;title\x07text\n":                     "text\n",
		"\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\\n": "link\n",
		"\x1b7saved\x1b8\n":                          "saved\n",
		"\x1b[1mbold\x1b(B\x1b[m\n":                  "bold\n", // tput bold, sgr0
		"\x1b#8\x1b %Gx\x1b([y\n":                    "xy\n",
		"broken \x1b(\nB \x1b(\x1b[mü\n":             "broken \nB ü\n",
		"\x1b\x1b[31mtwo\n":                          "two\n",
		"half \x1b[31":                               "half ",
		"broken \x1b[3\nnext\n":                      "broken \nnext\n",
		"never ended \x1b]0;t\nnext\n":               "never ended \nnext\n",
		"lone \x1b\nnext\n":                          "lone \nnext\n",
	} {
		for split := range len(in) + 1 { // wherever a write ends
			var out bytes.Buffer
			f := &escapeFilter{w: &out}
			for _, part := range []string{in[:split], in[split:]} {
				n, err := f.Write([]byte(part))
				require.NoError(t, err)
				require.Equal(t, len(part), n)
			}
			require.Equal(t, want, out.String(), "%q split at %d", in, split)
		}
	}
}

func FuzzEscapes(f *testing.F) {
	f.Add([]byte("\x1b[1;31mred\x1b[0m\n"), 3)
	f.Add([]byte("\x1b]8;;http://x\x1b\\link\n"), 10)
	f.Fuzz(func(t *testing.T, data []byte, split int) {
		split = max(0, min(split, len(data)))
		var whole, parts bytes.Buffer
		_, _ = (&escapeFilter{w: &whole}).Write(data)
		g := &escapeFilter{w: &parts}
		_, _ = g.Write(data[:split])
		_, _ = g.Write(data[split:])
		require.Equal(t, whole.Bytes(), parts.Bytes())
		require.NotContains(t, whole.String(), "\x1b")
		require.Equal(t, bytes.Count(data, []byte{'\n'}), bytes.Count(whole.Bytes(), []byte{'\n'}), "no line is lost")
	})
}
