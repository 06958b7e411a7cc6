package protocol

// Version is the version of the protocol that this package speaks. A worker of another one is a failed start.
const Version = 1

// MaxFiles is the number of file descriptors that may travel with one line.
const MaxFiles = 16

// The methods and notifications that have a meaning of their own. All others are a worker's.
const (
	MethodInitialize = "initialize" // workerd to a worker, first on each connection
	MethodPing       = "ping"       // workerd to a worker; answered also while a request runs

	NotifyProgress  = "notifications/progress"  // while a request runs, or while a worker loads
	NotifyReady     = "notifications/ready"     // a worker that was loading or busy can take requests now
	NotifyPreloaded = "notifications/preloaded" // a warm standby has done what it can before its model is wanted
	NotifyLoad      = "notifications/load"      // workerd to a warm standby: the model is wanted
	NotifyCancelled = "notifications/cancelled" // the request with params.requestId is no longer wanted

	// ReservedPrefix begins the methods that workerd itself answers on a front socket.
	ReservedPrefix = "workerd."

	MethodStatus  = "workerd.status"
	MethodMethods = "workerd.methods"
	MethodPingd   = "workerd.ping"
)

// Initialize is the params of MethodInitialize.
type Initialize struct {
	Protocol    int   `json:"protocol"`
	Concurrency int   `json:"concurrency"`
	MaxMessage  int64 `json:"maxMessage"` // bytes of one line, its newline not counted
}

// InitializeResult is a worker's answer to MethodInitialize.
type InitializeResult struct {
	Protocol int          `json:"protocol"`
	Worker   string       `json:"worker"` // what the worker calls itself, for people
	Methods  []MethodInfo `json:"methods"`
	State    string       `json:"state"` // one of the States
}

// The values of InitializeResult.State.
const (
	StateLoading   = "loading" // NotifyReady follows on this connection
	StateReady     = "ready"
	StatePreloaded = "preloaded" // a warm standby that waits for NotifyLoad; NotifyReady follows when it has loaded then
	StateBusy      = "busy"      // still at a request of an earlier connection; NotifyReady follows when it is free
)
