package protocol

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
)

func benchmarkLines() map[string][]byte {
	const head = `{"jsonrpc":"2.0","id":12345,"method":"recognize","params":{"_meta":{"progressToken":1},"image":"/data/pages/p-000123.png",`
	text := func(n int) []byte { return []byte(head + `"text":"` + strings.Repeat("plain words ", n/12) + `"}}`) }
	numbers := func(n int) []byte {
		return []byte(head + `"vector":[` + strings.Repeat("-0.123456789,1.5e-07, ", n/22) + `0]}}`)
	}
	return map[string][]byte{"200B": text(70), "64KiB": text(64 << 10), "64KiB-numbers": numbers(64 << 10)}
}

// BenchmarkScan shows Scan beside json.Valid, which checks less and finds nothing.
func BenchmarkScan(b *testing.B) {
	for _, name := range []string{"200B", "64KiB", "64KiB-numbers"} {
		line := benchmarkLines()[name]
		b.Run(fmt.Sprintf("Scan/%s", name), func(b *testing.B) {
			b.SetBytes(int64(len(line)))
			b.ReportAllocs()
			var m Message
			for b.Loop() {
				if err := Scan(line, &m); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(fmt.Sprintf("json.Valid/%s", name), func(b *testing.B) {
			b.SetBytes(int64(len(line)))
			b.ReportAllocs()
			for b.Loop() {
				if !json.Valid(line) {
					b.Fatal("not valid")
				}
			}
		})
	}
}

// BenchmarkConnRoundTrip is one line there and back between two Conns of this process.
func BenchmarkConnRoundTrip(b *testing.B) {
	newline := []byte{'\n'}
	for _, size := range []int{200, 64 << 10} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			left, right := pair(b)
			c, peer := NewConn(left, 1<<20), NewConn(right, 1<<20)
			done := make(chan struct{})
			go func() {
				defer close(done)
				for {
					line, err := peer.Read()
					if err != nil || peer.Write(nil, line.Bytes, newline) != nil {
						return
					}
				}
			}()
			line := []byte(strings.Repeat("x", size-1) + "\n")
			b.SetBytes(int64(2 * size))
			b.ReportAllocs()
			for b.Loop() {
				if c.Write(nil, line) != nil {
					b.Fatal("write")
				}
				if _, err := c.Read(); err != nil {
					b.Fatal(err)
				}
			}
			c.Close()
			<-done
			peer.Close()
		})
	}
}
