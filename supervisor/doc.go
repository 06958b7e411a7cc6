// Package supervisor turns manifests into running workers and relays requests to them.
//
// # Who owns what
//
// A provider is one goroutine (provider.run). It alone decides over the provider's workers: starts, restarts, reloads,
// stops. Everything else that happens to a worker (its process ended, it became ready, a timer fired, an operator asked)
// reaches it as a closure posted to its inbox. Decisions are pure functions beside it: next (state.go), decide
// (restart.go), reconcile (reconcile.go).
//
// Requests never pass through that goroutine. A front connection's reader scans a line and submits it to the
// provider's pool; the pool, under one mutex, either hands it to an idle lane or lets it wait. A lane is one connection to
// one worker and carries one request at a time; the lane's reader delivers the answer straight to the front connection.
// So a request costs two goroutine switches, as in a bare relay. Of those that wait, one of each front connection runs in turn
// (turns.go), and none of a connection that does not read its answers.
//
// # Exactly one answer
//
// A request has one or more askers (more than one when an idempotency key joined them). An asker is answered by whoever
// first marks it done: the worker's answer, a deadline, a cancel, a crash. All others find it done and write nothing.
//
// # Death
//
// A worker is dead when its pidfd says so. A lost connection only hints at it. When the process is gone each of its lanes
// reads what had arrived by then, and what it leaves unanswered is judged: never read by the worker (ECONNRESET, a
// short write, unread bytes in the socket) goes to the next worker, the rest is answered with worker_crashed.
//
// # Standby
//
// A standby is a worker whose lanes are parked in the pool: they get no requests. When the process of a seat is dead the two change
// places (takeover.go), before it is known why it died; the dead one's place is then where the next standby is raised
// (decideStandby, standby.go).
//
// # GPUs
//
// One goroutine (gpus.run) owns what workers hold of the GPUs and who waits for them. A worker that needs one is executed by a
// goroutine of its own, which first waits there (acquire). The decisions are pure (place.go): books of one moment in, verdicts out.
// It posts to providers (onWaits, onEvict) and never waits for one; providers tell it things and never wait for it.
// What the workers of an earlier workerd have is entered before the first provider plans, and stays theirs until they are taken in or ended.
//
// # Locks
//
// Lock order: pool.mu, then lane.mu, then request.mu, then front connection. No lock is held while a provider's
// inbox is posted to.
//
//	Stopped --start--> Starting --connected--> Loading --ready--> Ready --drain--> Draining --exited--> Stopped
//	Starting|Loading|Ready --died--> Starting (at once), Backoff (later), Stopped (policy) or Failed (limit, permanent)
//	Backoff --timer--> Starting;  Failed --edit, restart, start--> Starting
package supervisor
