package main

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"golang.org/x/term"

	"workerd/protocol"
)

func isTerminal(f *os.File) bool { return term.IsTerminal(int(f.Fd())) }

// The colours of terminals, as SGR parameters.
const (
	bold   = "1"
	dim    = "2"
	red    = "31"
	green  = "32"
	yellow = "33"
)

// paint colours text for stdout, paintErr for stderr.
func (a *app) paint(color, text string) string    { return sgr(a.outTTY && a.color, color, text) }
func (a *app) paintErr(color, text string) string { return sgr(a.errTTY && a.color, color, text) }

func sgr(on bool, color, text string) string {
	if !on || color == "" {
		return text
	}
	return "\x1b[" + color + "m" + text + "\x1b[0m"
}

func (a *app) printf(format string, args ...any) { fmt.Fprintf(a.out, format, args...) }
func (a *app) errorf(format string, args ...any) { fmt.Fprintf(a.err, format, args...) }

// writeJSON prints v indented and with its text as it is, for people and for jq.
func writeJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

// cell is one field of a table.
type cell struct {
	text  string
	color string
}

// printTable prints rows with aligned columns. The last column is not padded. (text/tabwriter would count colours as width.)
func (a *app) printTable(rows [][]cell) {
	var widths []int
	for _, row := range rows {
		for i, c := range row {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], utf8.RuneCountInString(c.text))
		}
	}
	for _, row := range rows {
		var b strings.Builder
		for i, c := range row {
			b.WriteString(a.paint(c.color, c.text))
			if i < len(row)-1 {
				b.WriteString(strings.Repeat(" ", widths[i]-utf8.RuneCountInString(c.text)+2))
			}
		}
		fmt.Fprintln(a.out, strings.TrimRight(b.String(), " "))
	}
}

// printIndented prints text below what it belongs to.
func printIndented(w io.Writer, indent, text string) {
	for line := range strings.Lines(strings.TrimRight(text, "\n")) {
		fmt.Fprint(w, indent, strings.TrimRight(line, "\n"), "\n")
	}
}

// printDetail shows what an error of a provider carries: a traceback, the last output, limits.
func (a *app) printDetail(e *protocol.Error) {
	switch d := e.Data.Detail.(type) {
	case nil:
	case string:
		printIndented(a.err, "  ", d)
	case map[string]any:
		for _, text := range []string{"traceback", "output"} {
			if s, ok := d[text].(string); ok && s != "" {
				if text == "output" {
					a.errorf("  last output of the worker:\n")
				}
				printIndented(a.err, "  ", s)
			}
		}
		// Of an exit the message has said the rest.
		if _, exit := d["oom_killed"]; !exit {
			d = maps.Clone(d)
			delete(d, "traceback")
			delete(d, "output")
			if len(d) > 0 {
				data, _ := json.Marshal(d)
				a.errorf("  %s\n", data)
			}
		}
	default:
		data, _ := json.Marshal(d)
		a.errorf("  %s\n", data)
	}
}

// liveLine is one line on stderr that is written over and over; off a terminal it shows nothing.
type liveLine struct {
	w  io.Writer
	on bool

	mu    sync.Mutex
	shown bool
}

func (a *app) liveLine() *liveLine { return &liveLine{w: a.err, on: a.errTTY} }

// show replaces the line's text, cut to what surely fits.
func (l *liveLine) show(text string) {
	if !l.on {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	width := 80
	if f, ok := l.w.(*os.File); ok {
		if w, _, err := term.GetSize(int(f.Fd())); err == nil && w > 0 {
			width = w
		}
	}
	if r := []rune(oneLine(text)); len(r) >= width {
		text = string(r[:width-1])
	} else {
		text = string(r)
	}
	fmt.Fprintf(l.w, "\r\x1b[K%s", text)
	l.shown = true
}

// clear takes the line away.
func (l *liveLine) clear() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.shown {
		fmt.Fprint(l.w, "\r\x1b[K")
		l.shown = false
	}
}

// oneLine replaces what would move the cursor.
func oneLine(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, s)
}

// progressText renders progress as "40% shard 2/4".
func progressText(p protocol.Progress) string {
	text := p.Message
	switch {
	case p.Total != nil && *p.Total > 0:
		text = fmt.Sprintf("%3.0f%% %s", 100*p.Progress / *p.Total, text)
	case text == "": // of no known whole a number says little; while a request waits it only counts the reports
		text = fmt.Sprintf("%g", p.Progress)
	}
	return strings.TrimSpace(text)
}

// age renders a duration as one or two units: 3s, 5m12s, 2h3m, 4d5h.
func age(d time.Duration) string {
	d = max(d, 0).Truncate(time.Second)
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%ds", d/time.Second)
	case d < time.Hour:
		return fmt.Sprintf("%dm%ds", d/time.Minute, d%time.Minute/time.Second)
	case d < 24*time.Hour:
		return fmt.Sprintf("%dh%dm", d/time.Hour, d%time.Hour/time.Minute)
	}
	return fmt.Sprintf("%dd%dh", d/(24*time.Hour), d%(24*time.Hour)/time.Hour)
}

// size renders bytes with a binary unit: 812 MiB.
func size(n int64) string {
	if n < 1024 {
		return fmt.Sprintf("%d B", n)
	}
	units := "KMGTPE"
	v := float64(n)
	i := -1
	for v >= 1024 && i < len(units)-1 {
		v /= 1024
		i++
	}
	if v < 10 {
		return fmt.Sprintf("%.1f %ciB", v, units[i])
	}
	return fmt.Sprintf("%.0f %ciB", v, units[i])
}
