package gpu

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// amdCards lists AMD's cards by sysfs. Without /dev/kfd there is nothing that computes on them, so they do not count. Who holds
// their memory is not said there.
func amdCards(root string) (devices []Device, notes []string) {
	if _, err := os.Stat(filepath.Join(root, "dev/kfd")); err != nil {
		return nil, nil
	}
	type card struct{ address, dir string }
	var cards []card
	links, _ := filepath.Glob(filepath.Join(root, "sys/class/drm/card[0-9]*"))
	for _, link := range links {
		if strings.Contains(filepath.Base(link), "-") { // card0-HDMI-A-1: a connector
			continue
		}
		dir := filepath.Join(link, "device")
		if readWord(filepath.Join(dir, "vendor")) != "0x1002" {
			continue
		}
		real, err := filepath.EvalSymlinks(dir)
		if err != nil {
			real = dir
		}
		cards = append(cards, card{filepath.Base(real), dir})
	}
	slices.SortFunc(cards, func(a, b card) int { return strings.Compare(a.address, b.address) })
	for _, c := range cards {
		d, err := amdCard(c.dir, len(devices))
		if errors.Is(err, fs.ErrNotExist) {
			continue // another driver than amdgpu has it
		}
		if err != nil {
			notes = append(notes, "AMD "+c.address+": "+err.Error())
		}
		devices = append(devices, d)
	}
	return devices, notes
}

func amdCard(dir string, index int) (Device, error) {
	d := Device{Index: index, UUID: amdUUID(readWord(filepath.Join(dir, "unique_id"))), Name: readWord(filepath.Join(dir, "product_name")), Vendor: AMD}
	if d.UUID == "" {
		d.UUID = strconv.Itoa(index)
	}
	if d.Name == "" {
		d.Name = "AMD " + strings.TrimPrefix(readWord(filepath.Join(dir, "device")), "0x")
	}
	if nodes, _ := filepath.Glob(filepath.Join(dir, "drm/renderD*")); len(nodes) > 0 {
		d.Render = "/dev/dri/" + filepath.Base(nodes[0])
	}
	total, err := readBytes(filepath.Join(dir, "mem_info_vram_total"))
	if err != nil {
		return d, err
	}
	used, err := readBytes(filepath.Join(dir, "mem_info_vram_used"))
	if err != nil {
		return d, err
	}
	d.Total, d.Used = total, used
	return d, nil
}

// amdUUID is how ROCR_VISIBLE_DEVICES names a card: GPU- and sixteen hexadecimal digits. Cards without one have 0 or no file.
func amdUUID(id string) string {
	n, err := strconv.ParseUint(strings.TrimPrefix(id, "0x"), 16, 64)
	if err != nil || n == 0 {
		return ""
	}
	text := strconv.FormatUint(n, 16)
	return "GPU-" + strings.Repeat("0", 16-len(text)) + text
}

func readBytes(path string) (int64, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	if err == nil && n < 0 {
		err = strconv.ErrRange
	}
	if err != nil {
		return 0, &fs.PathError{Op: "parse", Path: path, Err: err}
	}
	return n, nil
}

// amdVersion is that of the driver, "" where it came with the kernel.
func amdVersion(root string) string {
	return readWord(filepath.Join(root, "sys/module/amdgpu/version"))
}
