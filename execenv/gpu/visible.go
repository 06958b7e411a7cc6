package gpu

import (
	"slices"
	"strconv"
	"strings"
)

// restrict takes away what lies outside of the allocation that workerd runs in. The variables are those by which a scheduler or
// a caller says so:
//
//   - CUDA_VISIBLE_DEVICES: indices, UUIDs, unambiguous beginnings of UUIDs, MIG devices. As for CUDA, the list ends at the
//     first entry that is none of a device; set but empty, or -1, means no device at all. Indices count as NVML's.
//   - SLURM_STEP_GPUS, else SLURM_JOB_GPUS, where CUDA_VISIBLE_DEVICES is not set: indices of the whole machine.
//   - ROCR_VISIBLE_DEVICES, and of what that leaves HIP_VISIBLE_DEVICES, for AMD.
//
// notes say where a list names what there is not.
func restrict(devices []Device, environ []string) (visible, hidden []Device, notes []string) {
	env := lookup(environ)
	keep := make([]bool, len(devices))
	vendor := AMD
	for i, d := range devices {
		keep[i] = true
		if d.Vendor == NVIDIA {
			vendor = NVIDIA
		}
	}
	told := false // of AMD's
	for _, name := range []string{"ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"} {
		if list, set := env[name]; set {
			told = true
			notes = append(notes, narrow(devices, keep, AMD, name, list)...)
		}
	}
	// The other lists are about AMD where there is nothing else, and its own variables are not set, as for HIP.
	if vendor == NVIDIA || !told {
		if list, set := env["CUDA_VISIBLE_DEVICES"]; set {
			notes = append(notes, narrow(devices, keep, vendor, "CUDA_VISIBLE_DEVICES", list)...)
		} else if name, list := slurmList(env); list != "" {
			notes = append(notes, narrowSlurm(devices, keep, vendor, name, list)...)
		}
	}
	for i, d := range devices {
		if keep[i] {
			visible = append(visible, d)
		} else {
			hidden = append(hidden, d)
		}
	}
	return visible, hidden, notes
}

// lookup has the variables of an environment; the last of two with one name counts, as for exec.
func lookup(environ []string) map[string]string {
	env := map[string]string{}
	for _, pair := range environ {
		if name, value, ok := strings.Cut(pair, "="); ok {
			env[name] = value
		}
	}
	return env
}

// narrow keeps, of the devices of a vendor that are still kept, those that the list names.
func narrow(devices []Device, keep []bool, vendor Vendor, name, list string) []string {
	// What a list counts and names is what was kept so far.
	var among []Device
	var at []int
	for i, d := range devices {
		if keep[i] && d.Vendor == vendor {
			among, at = append(among, d), append(at, i)
			keep[i] = false
		}
	}
	if vendor == AMD && name == "HIP_VISIBLE_DEVICES" { // counts anew what ROCR_VISIBLE_DEVICES leaves
		for i := range among {
			among[i].Index = i
		}
	}
	for entry := range strings.SplitSeq(list, ",") {
		entry = strings.TrimSpace(entry)
		found := match(among, entry)
		if len(found) != 1 {
			if len(among) == 0 || slices.Contains([]string{"", "-1", "NoDevFiles", "void", "none"}, entry) {
				return nil
			}
			return []string{name + "=" + list + ": " + strconv.Quote(entry) + " is none of the GPUs here, and ends the list"}
		}
		for i, d := range among {
			// A card in MIG mode stands for its MIG devices, and is shown where one of them is.
			if d.UUID == found[0].UUID || d.Card != "" && d.Card == found[0].UUID || d.Split && d.UUID == found[0].Card {
				keep[at[i]] = true
			}
		}
	}
	return nil
}

// slurmList is the list of the step, else that of the job.
func slurmList(env map[string]string) (name, list string) {
	for _, name := range []string{"SLURM_STEP_GPUS", "SLURM_JOB_GPUS"} {
		if env[name] != "" {
			return name, env[name]
		}
	}
	return "", ""
}

// narrowSlurm keeps what Slurm gave. It counts the cards of the whole machine; where a cgroup shows the job no more than its own,
// they are counted anew, so that as many cards as were given are those that were given.
func narrowSlurm(devices []Device, keep []bool, vendor Vendor, name, list string) []string {
	indices := expandRanges(list)
	cards := 0
	for _, d := range devices {
		if d.Vendor == vendor && d.Card == "" {
			cards++
		}
	}
	if len(indices) == cards {
		return nil
	}
	return narrow(devices, keep, vendor, name, strings.Join(indices, ","))
}

// expandRanges writes 0-2,5 as 0 1 2 5. What is no range stays as it is.
func expandRanges(list string) []string {
	var out []string
	for entry := range strings.SplitSeq(list, ",") {
		first, last, isRange := strings.Cut(entry, "-")
		a, okA := parseIndex(first)
		b, okB := parseIndex(last)
		if !isRange || !okA || !okB || b < a || b-a > 1024 {
			out = append(out, entry)
			continue
		}
		for n := a; n <= b; n++ {
			out = append(out, strconv.Itoa(n))
		}
	}
	return out
}
