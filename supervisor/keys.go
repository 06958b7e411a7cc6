package supervisor

// Keys of log attributes, so that every line names things alike.
const (
	keyProvider  = "provider"
	keyWorker    = "worker"
	keyState     = "state"
	keyFrom      = "from"
	keyReason    = "reason"
	keyPID       = "pid"
	keyContainer = "container"
	keyError     = "error"
	keySocket    = "socket"
	keyManifest  = "manifest"
)
