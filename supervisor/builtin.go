package supervisor

import (
	"encoding/json"
	"io"

	"workerd/protocol"
)

// errEnd is the end of a client's input.
var errEnd = io.EOF

// builtin answers a method of workerd's own. True: the request is to be submitted after all, to be answered when a worker
// is up.
func (c *client) builtin(r *request, method string) bool {
	switch method {
	case protocol.MethodPingd:
		r.reply(struct{}{})
	case protocol.MethodStatus:
		r.reply(c.p.status())
	case protocol.MethodMethods:
		var params struct {
			Wait bool `json:"wait"`
		}
		if !r.msg.Params.Empty() {
			if err := json.Unmarshal(r.msg.Params.Of(r.line), &params); err != nil {
				r.fail(protocol.Errorf(protocol.InvalidParams, "%s takes {\"wait\": true|false}: %s", method, err).From(c.p.slug, ""))
				return false
			}
		}
		methods := c.p.pool.knownMethods()
		if methods == nil && params.Wait {
			r.local = true
			return true
		}
		r.reply(methodsAnswer{Methods: nonNil(methods)})
	default:
		r.fail(protocol.Errorf(protocol.MethodNotFound,
			"workerd has no method %q; it has workerd.ping, workerd.status and workerd.methods", method).From(c.p.slug, ""))
	}
	return false
}

// methodsAnswer is the result of workerd.methods.
type methodsAnswer struct {
	Methods []protocol.MethodInfo `json:"methods"`
}

func nonNil(m []protocol.MethodInfo) []protocol.MethodInfo {
	if m == nil {
		return []protocol.MethodInfo{}
	}
	return m
}

// answerMethods answers a local request that waited for a worker.
func (p *provider) answerMethods(r *request) {
	r.reply(methodsAnswer{Methods: nonNil(p.pool.knownMethods())})
}

// reply answers a request with a result of workerd's own.
func (r *request) reply(result any) {
	for a := r.take(); a != nil; a = r.take() {
		a.conn.answerResult(a, result)
	}
	r.end()
}

// setMethods keeps what the newest worker says it can do.
func (p *pool) setMethods(m []protocol.MethodInfo) {
	p.mu.Lock()
	p.methods = nonNil(m)
	p.mu.Unlock()
}

func (p *pool) knownMethods() []protocol.MethodInfo {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.methods
}

// busyLanes says how many requests a worker runs.
func (p *pool) busyLanes(f *life) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return f.busy
}
