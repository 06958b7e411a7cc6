// Package execenv turns a manifest into what is run.
//
// A Plan is that, as values: argv, environment, working directory, the paths that the worker is promised, who it runs as, and
// a fingerprint of all that the worker can see. A Planner makes one from a manifest, a Host (who runs workerd, and where its
// files are) and what probes find out: the interpreter, what conda, modules and a setup file change in the environment, the
// content of the worker script. Making a Plan starts no worker and creates nothing; Prepare makes the folders that the plan
// needs, NewTmp a worker's TMPDIR, and Command fills in what each worker has of its own. Secrets appear in a Command only.
//
// A Runtime is one kind of environment: one entry of the map in runtime.go. venv is a process; oci is a container of docker or
// podman, whose differences are a dialect; apptainer is a process that runs a container.
//
// An Error says by its kind whether another try can help. Diagnose says why a Command could not be executed,
// CheckSupported lists what this version refuses.
//
// Probes and the verbs of an Engine are the only commands that the package runs, each with a deadline, by a Runner. What engines say of
// themselves, of images and of image files is asked once for all who want to know it at a time, and holds for a while.
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
// # Containers
//
// Every path that the manifest names is mounted under its own name, less "//" and "..", and under what it resolves to. Paths go into mounts as
// fields of CSV, which all three engines read alike; a line break is refused.
//
// A worker inherits nothing of workerd's environment but what pass_env names. Its values stand in no argv. docker and podman
// get names, with the values in their client's environment; a variable that would change the client itself (HOME, PATH,
// proxies, DOCKER_HOST), and the marker, which must not be on what the client leaves running, go by its stdin as an env
// file. apptainer gets prefixed names in its environment, which --no-eval keeps from being shell code. setup and modules
// run on the host, from the image's variables.
//
// A worker is the caller: by number in docker, by keep-id in rootless podman, as the root of a rootless docker's user
// namespace, which is the caller outside, and by --userns=host where docker remaps ids. The identity files are named by
// their content, since running containers hold them.
//
// An Engine is docker or podman by its command line. What is behind a name is told by what it prints as its version. An
// EngineError is classed by exit status and text; its Class says what it means for the next try. Plan.RunFailure reads the
// output of a worker that ended before it connected, and says whether it was ever run.
//
// # Processes
//
// Children is the registry of all that this workerd forked, probes included: workerd is a child subreaper, and reaps what its
// workers orphan by telling it from its own children. KillTree ends all that is left of a worker, and nothing else. Stat,
// ChildPIDs, HasEnv and BootID read /proc.
//
// All types are safe for use from several goroutines; a Plan is immutable.
package execenv
