package main

import (
	"bytes"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"workerd/protocol"
)

func TestTableAlignsByLettersNotBytesOrColours(t *testing.T) {
	var out bytes.Buffer
	a := &app{out: &out, outTTY: true, color: true}
	a.printTable([][]cell{{{"ä", red}, {"x", ""}}, {{"bbb", ""}, {"y", ""}}, {{"c", ""}, {"", ""}}})
	require.Equal(t, "\x1b[31mä\x1b[0m    x\nbbb  y\nc\n", out.String())
}

func TestColourOnlyOnATerminalAndNotWithNO_COLOR(t *testing.T) {
	require.Equal(t, "x", (&app{color: true}).paint(red, "x"))
	require.Equal(t, "x", (&app{outTTY: true}).paint(red, "x"))
	require.Equal(t, "\x1b[31mx\x1b[0m", (&app{outTTY: true, color: true}).paint(red, "x"))
	require.Equal(t, "x", (&app{outTTY: true, color: true}).paintErr(red, "x"), "stderr is asked for itself")
}

func TestLiveLine(t *testing.T) {
	var out bytes.Buffer
	off := &liveLine{w: &out}
	off.show("nothing")
	off.clear()
	require.Empty(t, out.String())

	l := &liveLine{w: &out, on: true}
	l.clear()
	require.Empty(t, out.String(), "nothing is shown yet")
	l.show("one\ntwo")
	l.show(string(bytes.Repeat([]byte("x"), 200)))
	l.clear()
	require.Equal(t, "\r\x1b[Kone two\r\x1b[K"+string(bytes.Repeat([]byte("x"), 79))+"\r\x1b[K", out.String())
}

func TestAgeAndSize(t *testing.T) {
	for d, want := range map[time.Duration]string{
		-time.Second: "0s", 900 * time.Millisecond: "0s", 59 * time.Second: "59s", 61 * time.Second: "1m1s",
		2*time.Hour + 3*time.Minute: "2h3m", 50 * time.Hour: "2d2h",
	} {
		require.Equal(t, want, age(d))
	}
	for n, want := range map[int64]string{0: "0 B", 1023: "1023 B", 1024: "1.0 KiB", 300 << 20: "300 MiB", 24 << 30: "24 GiB", 1536 << 20: "1.5 GiB"} {
		require.Equal(t, want, size(n))
	}
}

func TestProgressText(t *testing.T) {
	require.Equal(t, "40% page 2", progressText(protocol.Progress{Progress: 2, Total: ptr(5.0), Message: "page 2"}))
	require.Equal(t, "queued", progressText(protocol.Progress{Message: "queued"}))
	require.Equal(t, "starting", progressText(protocol.Progress{Progress: 1e-06, Message: "starting"}))
	require.Equal(t, "7", progressText(protocol.Progress{Progress: 7}))
}
