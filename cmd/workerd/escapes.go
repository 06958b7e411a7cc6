package main

import "io"

// escapeFilter takes the escape sequences of terminals (ECMA-48: colours, cursor moves, titles) out of what passes through it, so
// that a file or a pipe gets the text alone. A sequence may be split over any writes. What follows an ESC that begins no sequence is kept.
type escapeFilter struct {
	w     io.Writer
	state escapeState
	out   []byte // scratch
}

type escapeState int

const (
	plainText    escapeState = iota
	afterEscape              // ESC
	inEscape                 // ESC and bytes from space to /, as of the ESC ( B of tput sgr0: to the final byte, 0 to ~
	inControl                // ESC [ : to the final byte, @ to ~
	inString                 // ESC ] or P X ^ _ : to BEL or ESC \
	stringEscape             // ESC within a string
)

// controlByte says whether a byte may stand within a control sequence.
func controlByte(c byte) bool { return c >= 0x20 && c <= 0x3f }

// Write implements io.Writer.
func (f *escapeFilter) Write(p []byte) (int, error) {
	f.out = f.out[:0]
	for _, c := range p {
		f.step(c)
	}
	if len(f.out) > 0 {
		if _, err := f.w.Write(f.out); err != nil {
			return 0, err
		}
	}
	return len(p), nil
}

func (f *escapeFilter) step(c byte) {
	switch f.state {
	case plainText:
		if c == 0x1b {
			f.state = afterEscape
			return
		}
		f.out = append(f.out, c)
	case afterEscape:
		switch c {
		case '[':
			f.state = inControl
		case ']', 'P', 'X', '^', '_':
			f.state = inString
		case 0x1b: // the one before began nothing
		case '\n':
			f.state = plainText
			f.out = append(f.out, c)
		default: // of two characters, such as ESC 7
			f.state = plainText
			if c >= 0x20 && c <= 0x2f {
				f.state = inEscape
			}
		}
	case inEscape:
		switch {
		case c >= 0x20 && c <= 0x2f:
		case c >= 0x30 && c <= 0x7e: // its end
			f.state = plainText
		case c == 0x1b:
			f.state = afterEscape
		default: // broken off: the text goes on
			f.state = plainText
			f.out = append(f.out, c)
		}
	case inControl:
		switch {
		case controlByte(c):
		case c >= 0x40 && c <= 0x7e: // its end
			f.state = plainText
		case c == 0x1b:
			f.state = afterEscape
		default: // broken off: the text goes on
			f.state = plainText
			f.out = append(f.out, c)
		}
	case inString:
		switch c {
		case 0x07:
			f.state = plainText
		case 0x1b:
			f.state = stringEscape
		case '\n': // no string has one: it was never ended
			f.state = plainText
			f.out = append(f.out, c)
		}
	case stringEscape:
		f.state = plainText
		if c != '\\' {
			f.state = afterEscape
			f.step(c)
		}
	}
}
