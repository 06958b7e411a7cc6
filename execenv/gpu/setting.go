package gpu

import (
	"errors"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// ParseDevices reads the setting gpu_devices: the NVIDIA devices there are where neither NVML nor nvidia-smi can say, and the
// memory of those of which they cannot say that. Each entry is NAME or NAME=SIZE:
//
//	GPU-5c1e9b8a-0d6f-4b7c-9f5e-2f1f4d1c7a60         a card by its whole UUID; its memory is unknown
//	GPU-5c1e9b8a-0d6f-4b7c-9f5e-2f1f4d1c7a60=24GiB   and how much memory can be allocated on it
//	MIG-c6d4f1ef-42e4-5de3-91c7-45d71c87eb3f=10GiB   a MIG device
//	0=24GiB                                          a card by its index, as nvidia-smi counts
//
// The error names every entry that is wrong; the devices are those of the others.
func ParseDevices(list []string) ([]Device, error) {
	var devices []Device
	var errs []error
	for _, entry := range list {
		d, err := parseDevice(entry)
		if err == nil && slices.ContainsFunc(devices, func(o Device) bool { return strings.EqualFold(o.UUID, d.UUID) }) {
			err = fmt.Errorf("%s: is named twice", d.UUID)
		}
		if err != nil {
			errs = append(errs, err)
			continue
		}
		devices = append(devices, d)
	}
	return devices, errors.Join(errs...)
}

// wholeUUID is what a UUID may look like. NVIDIA's are hexadecimal; MIG devices of old drivers are MIG-GPU-<uuid>/<gi>/<ci>.
var wholeUUID = regexp.MustCompile(`^(GPU|MIG)-[0-9A-Za-z][0-9A-Za-z/-]{0,90}$`)

func parseDevice(entry string) (Device, error) {
	name, size, sized := strings.Cut(entry, "=")
	d := Device{Index: -1, UUID: name, Vendor: NVIDIA}
	if index, ok := parseIndex(name); ok {
		d.Index, d.UUID = index, strconv.Itoa(index)
	} else if !wholeUUID.MatchString(name) {
		return d, fmt.Errorf("%q: write an index or a whole UUID, GPU-... or MIG-..., and =SIZE if its memory is known, such as %q", entry, "0=24GiB")
	}
	if sized {
		total, err := parseSize(size)
		if err != nil {
			return d, fmt.Errorf("%q: %w", entry, err)
		}
		d.Total = total
	}
	return d, nil
}

var (
	sizeForm  = regexp.MustCompile(`^(\d{1,9}(?:\.\d{1,9})?)([KMGT]i?B)$`)
	sizeUnits = map[string]float64{"KB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
)

func parseSize(s string) (int64, error) {
	m := sizeForm.FindStringSubmatch(s)
	if m == nil {
		return 0, fmt.Errorf("%q is not a size: write a number with a unit, such as 24GiB", s)
	}
	n, err := strconv.ParseFloat(m[1], 64)
	n *= sizeUnits[m[2]]
	if err != nil || n < 1 || n > math.MaxInt64/2 {
		return 0, fmt.Errorf("%q is not a size that a GPU can have", s)
	}
	return int64(n), nil
}

// complete gives devices whose memory is unknown what the setting says of it, and tells whether it did.
func complete(devices, setting []Device) bool {
	used := false
	for i := range devices {
		d := &devices[i]
		for _, s := range setting {
			same := strings.EqualFold(s.UUID, d.UUID) || s.Index >= 0 && d.Card == "" && s.Index == d.Index
			if d.Total == 0 && s.Total > 0 && same {
				d.Total = s.Total
				used = true
			}
		}
	}
	return used
}
