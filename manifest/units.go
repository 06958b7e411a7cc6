package manifest

import (
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// Duration is a time.Duration written as in Go: "200ms", "10m", "1h30m". "0s" means none.
type Duration time.Duration

// D returns d as a time.Duration.
func (d Duration) D() time.Duration { return time.Duration(d) }

// String formats d without the zero parts that Go appends: "10m", not "10m0s".
func (d Duration) String() string {
	s := time.Duration(d).String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

// MarshalText formats d as a manifest writes it.
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText parses what MarshalText wrote.
func (d *Duration) UnmarshalText(text []byte) error {
	v, err := parseDuration(string(text))
	*d = v
	return err
}

// Bytes is a size written with a unit: "64MiB", "24GiB", "8GB", "512B"; a bare integer is bytes.
type Bytes int64

// The units of Bytes, the largest first within binary and decimal ones.
var byteUnits = []struct {
	name string
	size int64
}{
	{"TiB", 1 << 40}, {"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10},
	{"TB", 1e12}, {"GB", 1e9}, {"MB", 1e6}, {"KB", 1e3}, {"kB", 1e3},
	{"B", 1},
}

// String formats b exactly, with the largest binary unit that divides it.
func (b Bytes) String() string {
	for _, u := range byteUnits[:4] {
		if b != 0 && int64(b)%u.size == 0 {
			return strconv.FormatInt(int64(b)/u.size, 10) + u.name
		}
	}
	return strconv.FormatInt(int64(b), 10) + "B"
}

// MarshalText formats b as a manifest writes it.
func (b Bytes) MarshalText() ([]byte, error) { return []byte(b.String()), nil }

// UnmarshalText parses what MarshalText wrote.
func (b *Bytes) UnmarshalText(text []byte) error {
	v, err := parseBytes(string(text))
	*b = v
	return err
}

const durationForm = `a number with a unit, such as "200ms", "30s", "10m" or "1h30m"; "0s" means none`

func parseDuration(s string) (Duration, error) {
	d, err := time.ParseDuration(s)
	if err != nil {
		hint := ""
		switch likely := likelyDuration(s); likely {
		case "":
		case s:
			return 0, fmt.Errorf("%q is too long: the longest duration is %dh", s, int64(math.MaxInt64/time.Hour))
		default:
			hint = fmt.Sprintf("; did you mean %q?", likely)
		}
		return 0, fmt.Errorf("%q is not a duration: write %s%s", s, durationForm, hint)
	}
	if d < 0 {
		return 0, fmt.Errorf("%q is negative: write a duration of 0s or more", s)
	}
	return Duration(d), nil
}

var wordyDuration = regexp.MustCompile(`^\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*$`)

// likelyDuration guesses what "10 minutes", "1 day" or "30" was to say, "" if it cannot.
func likelyDuration(s string) string {
	m := wordyDuration.FindStringSubmatch(s)
	if m == nil {
		return ""
	}
	switch unit := strings.ToLower(m[2]); unit {
	case "", "s", "sec", "secs", "second", "seconds":
		return m[1] + "s"
	case "m", "min", "mins", "minute", "minutes":
		return m[1] + "m"
	case "h", "hr", "hrs", "hour", "hours":
		return m[1] + "h"
	case "ms", "msec", "millis", "millisecond", "milliseconds":
		return m[1] + "ms"
	case "d", "day", "days":
		n, err := strconv.ParseFloat(m[1], 64)
		if err != nil || n > 10000 {
			return ""
		}
		return strconv.FormatFloat(n*24, 'f', -1, 64) + "h"
	}
	return ""
}

const bytesForm = `a number with a unit, such as "512MiB", "24GiB" or "8GB"; a bare integer is bytes`

var bytesPattern = regexp.MustCompile(`^(\d+(?:\.\d+)?)([A-Za-z]+)$`)

func parseBytes(s string) (Bytes, error) {
	if m := bytesPattern.FindStringSubmatch(s); m != nil {
		for _, u := range byteUnits {
			if u.name == m[2] {
				return scaleBytes(s, m[1], u.size)
			}
		}
	}
	if strings.HasPrefix(s, "-") {
		return 0, fmt.Errorf("%q is negative: write a size of 0 or more", s)
	}
	hint := ""
	if likely := likelyBytes(s); likely != "" {
		hint = fmt.Sprintf("; did you mean %s?", likely)
	}
	return 0, fmt.Errorf("%q is not a size: write %s%s", s, bytesForm, hint)
}

func scaleBytes(s, number string, unit int64) (Bytes, error) {
	tooLarge := fmt.Errorf("%q is too large: the largest size is %dTiB", s, int64(math.MaxInt64>>40))
	if n, err := strconv.ParseInt(number, 10, 64); err == nil {
		if n > math.MaxInt64/unit {
			return 0, tooLarge
		}
		return Bytes(n * unit), nil
	}
	f, err := strconv.ParseFloat(number, 64)
	if err != nil || f*float64(unit) >= math.MaxInt64 {
		return 0, tooLarge
	}
	return Bytes(f * float64(unit)), nil
}

var loosePattern = regexp.MustCompile(`^\s*(\d+(?:\.\d+)?)\s*([kKmMgGtT]?)([iI]?)[bB]?\s*$`)

// likelyBytes guesses what "64M", "24 gb" or "1024" was to say, "" if it cannot.
func likelyBytes(s string) string {
	m := loosePattern.FindStringSubmatch(s)
	switch {
	case m == nil:
		return ""
	case m[2] == "" && m[3] != "":
		return ""
	case m[2] == "":
		return strconv.Quote(m[1] + "B")
	}
	unit := strings.ToUpper(m[2])
	if m[3] != "" || !strings.HasSuffix(strings.ToLower(strings.TrimSpace(s)), "b") {
		return strconv.Quote(m[1] + unit + "iB")
	}
	return strconv.Quote(m[1] + unit + "B")
}
