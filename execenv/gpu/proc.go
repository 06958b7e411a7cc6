package gpu

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// procDriver is what the NVIDIA driver says of itself below /proc, without any library.
const procDriver = "proc/driver/nvidia"

// driverLoaded tells whether the NVIDIA driver is. A container sees that of its host, whether it may use it or not.
func driverLoaded(root string) bool { return exists(root, procDriver) }

// driverReachable tells whether the driver can be used from here, as far as that shows without doing so.
func driverReachable(root string) bool { return driverLoaded(root) && exists(root, "dev/nvidiactl") }

func exists(root, path string) bool {
	_, err := os.Stat(filepath.Join(root, path))
	return err == nil
}

// procCards lists the cards that the driver has, without figures, and those of them that have a device node here. The driver
// counts cards by PCI address, as NVML does. A card whose UUID the driver has not read yet has its index instead.
func procCards(root string) (all, here []Device) {
	files, _ := filepath.Glob(filepath.Join(root, procDriver, "gpus/*/information"))
	slices.Sort(files) // the folders are the PCI addresses
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		d := Device{Index: len(all), Vendor: NVIDIA}
		excluded, minor := false, ""
		for line := range strings.Lines(string(text)) {
			key, value, _ := strings.Cut(line, ":")
			value = strings.TrimSpace(value)
			switch strings.TrimSpace(key) {
			case "Model":
				d.Name = value
			case "GPU UUID":
				d.UUID = value
			case "Device Minor":
				minor = value
			case "GPU Excluded":
				excluded = value == "Yes" // such a card NVML does not count
			}
		}
		if excluded {
			continue
		}
		if !wholeUUID.MatchString(d.UUID) {
			d.UUID = strconv.Itoa(d.Index)
		}
		all = append(all, d)
		if minor != "" && exists(root, "dev/nvidia"+minor) {
			here = append(here, d)
		}
	}
	return all, here
}

// procVersion is the version of the loaded driver, "" where it cannot be read.
func procVersion(root string) string {
	text, err := os.ReadFile(filepath.Join(root, procDriver, "version"))
	if err != nil {
		return ""
	}
	// NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 22:23:56 UTC 2024
	line, _, _ := strings.Cut(string(text), "\n")
	for word := range strings.FieldsSeq(line) {
		if strings.Count(word, ".") > 0 && strings.Trim(word, "0123456789.") == "" {
			return word
		}
	}
	return ""
}

// nvidiaOnBus tells whether there is a display device of NVIDIA on the PCI bus, be there a driver or not.
func nvidiaOnBus(root string) bool {
	files, _ := filepath.Glob(filepath.Join(root, "sys/bus/pci/devices/*/vendor"))
	return slices.ContainsFunc(files, func(file string) bool {
		return readWord(file) == "0x10de" && strings.HasPrefix(readWord(filepath.Join(filepath.Dir(file), "class")), "0x03")
	})
}

// readWord returns the content of a file of one line, "" where it cannot be read.
func readWord(path string) string {
	text, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(text))
}
