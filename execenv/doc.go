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
// # Processes
//
// Children is the registry of all that this workerd forked, probes included: workerd is a child subreaper, and reaps what its
// workers orphan by telling it from its own children. KillTree ends all that is left of a worker, and nothing else. Stat,
// ChildPIDs, HasEnv and BootID read /proc.
//
// All types are safe for use from several goroutines; a Plan is immutable.
package execenv
