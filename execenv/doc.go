// Package execenv turns a manifest into what is run.
//
// A Plan is that, as values: argv, environment, working directory, the paths that the worker is promised, who it runs as, and
// a fingerprint of all that the worker can see. A Planner makes one from a manifest, a Host (who runs workerd, and where its
// files are) and what probes find out: the interpreter, what conda, modules and a setup file change in the environment, the
// content of the worker script. Making a Plan starts no worker and creates nothing; Prepare makes the folders that the plan
// needs, NewTmp a worker's TMPDIR, and Command fills in what each worker has of its own. Secrets appear in a Command only.
//
// A Runtime is one kind of environment: one file and one entry of the map in runtime.go. This version has venv.
//
// An Error says by its kind whether another try can help. Diagnose says why a Command could not be executed,
// CheckSupported lists what this version refuses.
//
// Probes are the only commands that the package runs, each with a deadline, by a Runner.
//
// # The environment of a venv worker
//
// From the weakest to the strongest: workerd's own environment less what belongs to another Python, to the service manager
// or to engines; the cache variables and Python's flags; what pass_env names; what modules, conda and setup change; the
// manifest's variables; what each worker has of its own; secrets. With these exceptions:
//
//   - A glob of pass_env only adds. A name that is written out there also overrides what workerd would set, as a variable of
//     the manifest does: TMPDIR and CUDA_VISIBLE_DEVICES too. Nothing overrides WORKERD_SOCKET and its like.
//   - The SDK's folder stands in front of PYTHONPATH, whoever set that.
//   - HOME stays the caller's own. The home in the cache is for containers, and for a workerd that has none.
//   - A variable that a secret is taken from is not handed on under its own name, and a setup sees neither.
//   - Of a secret's file exactly one newline at the end is taken off.
//
// Modules are loaded first, then a conda prefix is activated, then the setup file is sourced, all in one bash that reads no
// rc file. A setup file or module whose status is not zero is an error; an activation script's is a warning, since conda
// itself ignores it, but one that exits is an error too.
//
// # Processes
//
// Children is the registry of all that this workerd forked, probes included: workerd is a child subreaper, and reaps what its
// workers orphan by telling it from its own children. KillTree ends all that is left of a worker, and nothing else. Stat,
// ChildPIDs, HasEnv and BootID read /proc.
//
// All types are safe for use from several goroutines; a Plan is immutable.
package execenv
