package manifest

import "time"

// Defaults of the keys that have one. Keys that are not here are unset, empty or false by default; on_change depends on
// gpu.policy and is filled in by normalise, as is paths.cwd.
const (
	DefaultKind            = Venv
	DefaultPull            = "missing"
	DefaultPullTimeout     = time.Hour
	DefaultContainerPython = "python3"
	DefaultEntrypoint      = "replace"
	DefaultNetwork         = "none"
	DefaultSELinux         = "disable"

	DefaultPrepareTimeout = 6 * time.Hour
	DefaultBindMode       = "ro"

	DefaultGPUPolicy = "auto"
	DefaultGPUCount  = 1
	DefaultGPUWait   = 60 * time.Second

	DefaultPids    = 4096
	DefaultShmSize = Bytes(8 << 30)

	DefaultStartWhen   = "boot"
	DefaultStart       = 10 * time.Minute
	DefaultIdleTimeout = time.Duration(0)
	DefaultStopTimeout = 30 * time.Second

	DefaultRestartPolicy     = "always"
	DefaultBackoff           = 200 * time.Millisecond
	DefaultMaxBackoff        = time.Minute
	DefaultMaxCrashes        = 5
	DefaultWindow            = 5 * time.Minute
	DefaultOnChange          = "rolling"
	DefaultOnChangeExclusive = "stop-first" // two workers cannot hold an exclusive GPU

	DefaultReplicas       = 1
	DefaultConcurrency    = 1
	DefaultQueue          = 64
	DefaultRequestTimeout = time.Hour
	DefaultMaxMessage     = Bytes(64 << 20)
	DefaultCancelGrace    = 30 * time.Second
	DefaultOnDisconnect   = "cancel"
	DefaultStandby        = "none"
	DefaultProtocol       = "jsonrpc"

	DefaultHealthInterval    = 10 * time.Second
	DefaultHealthTimeout     = 30 * time.Second
	DefaultHealthBusyTimeout = time.Duration(0)
)

// defaults returns a manifest that says nothing.
func defaults() Manifest {
	return Manifest{
		Env: Env{
			Kind:            DefaultKind,
			Pull:            DefaultPull,
			PullTimeout:     Duration(DefaultPullTimeout),
			ContainerPython: DefaultContainerPython,
			Entrypoint:      DefaultEntrypoint,
			Network:         DefaultNetwork,
			SELinux:         DefaultSELinux,
		},
		Weights: Weights{PrepareTimeout: Duration(DefaultPrepareTimeout)},
		GPU:     GPU{Policy: DefaultGPUPolicy, Count: DefaultGPUCount, Wait: Duration(DefaultGPUWait)},
		Limits:  Limits{Pids: DefaultPids, ShmSize: DefaultShmSize},
		Start: Start{
			When:        DefaultStartWhen,
			Timeout:     Duration(DefaultStart),
			IdleTimeout: Duration(DefaultIdleTimeout),
			StopTimeout: Duration(DefaultStopTimeout),
		},
		Restart: Restart{
			Policy:     DefaultRestartPolicy,
			Backoff:    Duration(DefaultBackoff),
			MaxBackoff: Duration(DefaultMaxBackoff),
			MaxCrashes: DefaultMaxCrashes,
			Window:     Duration(DefaultWindow),
		},
		Serve: Serve{
			Replicas:       DefaultReplicas,
			Concurrency:    DefaultConcurrency,
			Queue:          DefaultQueue,
			RequestTimeout: Duration(DefaultRequestTimeout),
			MaxMessage:     DefaultMaxMessage,
			CancelGrace:    Duration(DefaultCancelGrace),
			OnDisconnect:   DefaultOnDisconnect,
			Standby:        DefaultStandby,
			Protocol:       DefaultProtocol,
		},
		Health: Health{
			Interval:    Duration(DefaultHealthInterval),
			Timeout:     Duration(DefaultHealthTimeout),
			BusyTimeout: Duration(DefaultHealthBusyTimeout),
		},
	}
}
