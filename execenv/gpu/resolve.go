package gpu

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Resolve returns the device that a name of a manifest means: an index ("1"), a UUID, or an unambiguous beginning of one. A
// device outside the allocation is refused, and so is a card in MIG mode: its MIG devices have to be named.
func (s Snapshot) Resolve(name string) (Device, error) {
	found := match(s.Devices, name)
	if len(found) == 0 {
		if hidden := match(s.Hidden, name); len(hidden) > 0 {
			return Device{}, fmt.Errorf("%s: %s is outside of the allocation that workerd runs in, which has %s", name, hidden[0].label(), labels(usable(s.Devices)))
		}
		return Device{}, fmt.Errorf("%s: no such GPU; there is %s", name, labels(usable(s.Devices)))
	}
	if len(found) > 1 {
		return Device{}, fmt.Errorf("%s: is ambiguous: %s", name, labels(found))
	}
	d := found[0]
	if !d.Split {
		return d, nil
	}
	parts := slices.DeleteFunc(slices.Clone(s.Devices), func(p Device) bool { return p.Card != d.UUID })
	if len(parts) == 0 {
		return Device{}, fmt.Errorf("%s: %s is in MIG mode and has no MIG device to use", name, d.label())
	}
	return Device{}, fmt.Errorf("%s: %s is in MIG mode; name one of its MIG devices: %s", name, d.label(), labels(parts))
}

// match lists what a name may mean. A whole UUID means that device, even where it begins another's.
func match(devices []Device, name string) []Device {
	var found []Device
	for _, d := range devices {
		if strings.EqualFold(d.UUID, name) {
			return []Device{d}
		}
		if index, ok := parseIndex(name); ok {
			if d.Card == "" && d.Index == index {
				found = append(found, d)
			}
		} else if isUUID(name) && len(name) <= len(d.UUID) && strings.EqualFold(d.UUID[:len(name)], name) {
			found = append(found, d)
		}
	}
	return found
}

// parseIndex reads the index of a card. Signs are none.
func parseIndex(name string) (int, bool) {
	if name == "" || len(name) > 4 || strings.Trim(name, "0123456789") != "" {
		return 0, false
	}
	n, err := strconv.Atoi(name)
	return n, err == nil
}

// isUUID tells a UUID or its beginning from other words.
func isUUID(name string) bool {
	upper := strings.ToUpper(name)
	return strings.HasPrefix(upper, "GPU-") || strings.HasPrefix(upper, "MIG-")
}

// usable are the candidates among devices: cards in MIG mode are none.
func usable(devices []Device) []Device {
	return slices.DeleteFunc(slices.Clone(devices), func(d Device) bool { return d.Split })
}

// label names a device to a human.
func (d Device) label() string {
	if d.Card != "" || d.Index < 0 || d.UUID == strconv.Itoa(d.Index) {
		return d.UUID
	}
	return fmt.Sprintf("%d (%s)", d.Index, d.UUID)
}

// labels lists devices, at most eight.
func labels(devices []Device) string {
	var out []string
	for i, d := range devices {
		if i == 8 {
			out = append(out, fmt.Sprintf("%d more", len(devices)-i))
			break
		}
		out = append(out, d.label())
	}
	if len(out) == 0 {
		return "none"
	}
	return strings.Join(out, ", ")
}
