package protocol

import (
	"bytes"
	"encoding/binary"
	"math/bits"
	"unicode/utf8"
)

// maxDepth bounds the nesting of a message. Python's own decoder gives up near 1000.
const maxDepth = 512

// peek returns the byte at i, 0 (which stands nowhere in JSON) past the end.
func (s *scanner) peek(i int) byte {
	if i < len(s.b) {
		return s.b[i]
	}
	return 0
}

// space returns the index of the first byte at or after i that is not JSON whitespace.
func (s *scanner) space(i int) int {
	for i < len(s.b) && s.b[i] <= ' ' && isSpace(s.b[i]) {
		i++
	}
	return i
}

func isSpace(c byte) bool { return c == ' ' || c == '\t' || c == '\r' || c == '\n' }

// unexpected notes what should have stood at i.
func (s *scanner) unexpected(i int, want string) int {
	switch {
	case i >= len(s.b):
		return s.fail(i, "the line ends where there should be "+want)
	case bytes.HasPrefix(s.b[i:], []byte("NaN")):
		return s.fail(i, "NaN is not JSON")
	case bytes.HasPrefix(bytes.TrimPrefix(s.b[i:], []byte("-")), []byte("Infinity")):
		return s.fail(i, "Infinity is not JSON")
	}
	return s.fail(i, "expected "+want)
}

// value reads the value that starts at i and returns the index after it, -1 where it is not JSON. depth counts the objects
// around it.
func (s *scanner) value(i, depth int) int {
	if c := s.peek(i); c != '{' && c != '[' {
		return s.scalar(i)
	}
	return s.composite(i, depth)
}

// nesting says for each open bracket whether it is that of an object.
type nesting [maxDepth / 64]uint64

func (n *nesting) set(depth int, object bool) {
	bit := uint64(1) << (depth % 64)
	n[depth/64] &^= bit
	if object {
		n[depth/64] |= bit
	}
}

func (n *nesting) object(depth int) bool { return n[depth/64]>>(depth%64)&1 != 0 }

// composite reads an object or array. What is open is kept in a bit field, so that a hostile line costs no stack.
func (s *scanner) composite(i, base int) int {
	var open nesting
	depth := base
	for {
		// A value starts at i.
		if c := s.peek(i); c == '{' || c == '[' {
			if depth == maxDepth {
				return s.fail(i, "nested too deep")
			}
			open.set(depth, c == '{')
			depth++
			i = s.space(i + 1)
			if s.peek(i) != c+2 { // ']' and '}' stand two after '[' and '{'
				if c == '{' {
					if _, i = s.key(i); i < 0 {
						return -1
					}
				}
				continue
			}
			i++
			depth--
		} else if i = s.scalar(i); i < 0 {
			return -1
		}
		// A value has ended before i.
		more := false
		if i, more = s.closing(i, base, &depth, &open); !more {
			return i
		}
	}
}

// closing closes what ends with the value before i. It returns the index of the next value and true, or the index after the
// outermost value (-1 after a failure) and false.
func (s *scanner) closing(i, base int, depth *int, open *nesting) (int, bool) {
	for *depth > base {
		i = s.space(i)
		object := open.object(*depth - 1)
		switch c := s.peek(i); {
		case c == ',':
			i = s.space(i + 1)
			if object {
				_, i = s.key(i)
			}
			return i, i >= 0
		case object && c == '}' || !object && c == ']':
			i++
			*depth--
		case object:
			return s.unexpected(i, "',' or '}' after a member"), false
		default:
			return s.unexpected(i, "',' or ']' after an element"), false
		}
	}
	return i, false
}

// key reads a member name at i and the colon after it; it returns the name, without its quotes, and the index of the value.
func (s *scanner) key(i int) (Span, int) {
	if s.peek(i) != '"' {
		return Span{}, s.unexpected(i, "a member name in double quotes")
	}
	end := s.str(i)
	if end < 0 {
		return Span{}, -1
	}
	name := Span{i + 1, end - 1}
	if i = s.space(end); s.peek(i) != ':' {
		return Span{}, s.unexpected(i, "':' after a member name")
	}
	return name, s.space(i + 1)
}

// scalar reads a string, number or literal.
func (s *scanner) scalar(i int) int {
	switch c := s.peek(i); {
	case c == '"':
		return s.str(i)
	case c == '-' || c >= '0' && c <= '9':
		return s.number(i)
	case c == 't':
		return s.literal(i, "true")
	case c == 'f':
		return s.literal(i, "false")
	case c == 'n':
		return s.literal(i, "null")
	}
	return s.unexpected(i, "a value")
}

func (s *scanner) literal(i int, want string) int {
	if end := i + len(want); end <= len(s.b) && string(s.b[i:end]) == want {
		return end
	}
	return s.unexpected(i, want)
}

func (s *scanner) digits(i int) int {
	for i < len(s.b) && s.b[i]-'0' <= 9 {
		i++
	}
	return i
}

func (s *scanner) number(i int) int {
	start := i
	if s.b[i] == '-' {
		i++
	}
	switch c := s.peek(i); {
	case c == '0':
		i++
	case c >= '1' && c <= '9':
		i = s.digits(i + 1)
	default:
		return s.unexpected(start, "a number")
	}
	if s.peek(i) == '.' {
		end := s.digits(i + 1)
		if end == i+1 {
			return s.unexpected(end, "a digit after the decimal point")
		}
		i = end
	}
	if s.peek(i)|0x20 == 'e' {
		i++
		if c := s.peek(i); c == '+' || c == '-' {
			i++
		}
		end := s.digits(i)
		if end == i {
			return s.unexpected(end, "a digit in the exponent")
		}
		i = end
	}
	return i
}

const (
	ones  = 0x0101010101010101
	highs = 0x8080808080808080
)

// str reads the string whose opening quote stands at i. Eight bytes at a time are looked at for one that is not plain ASCII
// text; of the bits this sets, the lowest is exact (a borrow only runs upwards).
func (s *scanner) str(i int) int {
	b := s.b
	for i++; ; {
		for i+8 <= len(b) {
			x := binary.LittleEndian.Uint64(b[i:])
			special := (x | (x - ones*' ') | ((x ^ ones*'"') - ones) | ((x ^ ones*'\\') - ones)) & highs
			if special != 0 {
				i += bits.TrailingZeros64(special) / 8
				break
			}
			i += 8
		}
		if i >= len(b) {
			return s.fail(i, "the line ends in a string")
		}
		switch c := b[i]; {
		case c == '"':
			return i + 1
		case c == '\\':
			if i = s.escape(i); i < 0 {
				return -1
			}
		case c < ' ':
			return s.fail(i, "a control character in a string must be escaped")
		case c < utf8.RuneSelf: // fewer than eight bytes are left
			i++
		default:
			for i < len(b) && b[i] >= utf8.RuneSelf {
				r, n := utf8.DecodeRune(b[i:])
				if r == utf8.RuneError && n <= 1 {
					return s.fail(i, "not UTF-8")
				}
				i += n
			}
		}
	}
}

// escape reads the escape sequence whose backslash stands at i. Lone surrogates pass: they are JSON, if not text.
func (s *scanner) escape(i int) int {
	switch s.peek(i + 1) {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		return i + 2
	case 'u':
		if i+6 <= len(s.b) && hex4(s.b[i+2:]) >= 0 {
			return i + 6
		}
	}
	return s.fail(i, "not an escape sequence of JSON")
}

// hex4 returns the value of the four hexadecimal digits that b begins with, -1 where it does not.
func hex4(b []byte) rune {
	var r rune
	for _, c := range b[:4] {
		switch {
		case c >= '0' && c <= '9':
			c -= '0'
		case c|0x20 >= 'a' && c|0x20 <= 'f':
			c = c | 0x20 - 'a' + 10
		default:
			return -1
		}
		r = r<<4 | rune(c)
	}
	return r
}

// appendUnescaped appends the text of a valid JSON string, given without its quotes. A lone surrogate is appended as the three
// bytes that its number would have, so that different strings stay different.
func appendUnescaped(dst, raw []byte) []byte {
	for {
		i := bytes.IndexByte(raw, '\\')
		if i < 0 {
			return append(dst, raw...)
		}
		dst = append(dst, raw[:i]...)
		c := raw[i+1]
		if c != 'u' {
			if k := bytes.IndexByte([]byte("bfnrt"), c); k >= 0 {
				c = "\b\f\n\r\t"[k]
			}
			dst, raw = append(dst, c), raw[i+2:]
			continue
		}
		r := hex4(raw[i+2:])
		raw = raw[i+6:]
		if r>>10 == 0xd800>>10 && len(raw) >= 6 && raw[0] == '\\' && raw[1] == 'u' {
			if low := hex4(raw[2:]); low>>10 == 0xdc00>>10 {
				r = 0x10000 + (r&0x3ff)<<10 + low&0x3ff
				raw = raw[6:]
			}
		}
		if r>>11 == 0xd800>>11 {
			dst = append(dst, 0xed, 0x80|byte(r>>6)&0x3f, 0x80|byte(r)&0x3f)
			continue
		}
		dst = utf8.AppendRune(dst, r)
	}
}
