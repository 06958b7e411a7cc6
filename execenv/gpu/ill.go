package gpu

import "fmt"

// What Device.Ill says.
const (
	illLost  = "the card is lost (it has fallen off the bus): reboot the machine"
	illReset = "the card has to be reset: nvidia-smi --gpu-reset, or reboot"
)

func eccIll(n uint64) string {
	return fmt.Sprintf("%d uncorrectable ECC errors since the driver was loaded", n)
}

// xidMeaning are the common ones of NVIDIA's list.
var xidMeaning = map[uint64]string{
	48: "double-bit ECC error", 61: "internal micro-controller breakpoint", 62: "internal micro-controller halt", 64: "row remapping failed",
	74: "NVLink error", 79: "the card has fallen off the bus", 95: "uncontained ECC error", 119: "GSP does not answer", 120: "GSP error",
	140: "ECC error that could not be repaired", 143: "initialisation failed",
}

// xidHarmless are those that a program brought about by itself, or that end the program and leave the card as it was.
var xidHarmless = map[uint64]bool{
	13:  true, // graphics engine exception: out-of-bounds, illegal instruction
	31:  true, // memory page fault
	43:  true, // a channel was stopped
	45:  true, // preemptive cleanup, after another error or a kill
	63:  true, // a row is remapped at the next reset
	68:  true, // video processor exception
	92:  true, // many single-bit errors, all corrected
	94:  true, // contained ECC error: whoever used the memory is ended
	109: true, // context switch timeout
}

// xidIll is why a card should not be used after such an event, "" where it may be.
func xidIll(code uint64) string {
	if xidHarmless[code] {
		return ""
	}
	text := fmt.Sprintf("XID %d", code)
	if meaning := xidMeaning[code]; meaning != "" {
		text += ": " + meaning
	}
	return text
}
