package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"workerd/protocol"
)

// hit are the answers that a fault may bring to a request that did nothing for it.
var hit = []protocol.Kind{
	protocol.WorkerCrashed, protocol.DeadlineExceeded, protocol.WorkerStartFailed, protocol.EngineUnavailable,
}

// startTools starts the tool servers: for each provider some that behave, one that has the worker break the protocol, and
// some that break it themselves.
func (c *chaos) startTools(ctx context.Context, wg *sync.WaitGroup) {
	for i, v := range c.slugs {
		seed := c.random.Uint64()
		run := func(n int, f func(context.Context, *victim, *rand.Rand)) {
			random := rand.New(rand.NewPCG(seed, uint64(100*i+n)))
			wg.Go(func() {
				for ctx.Err() == nil {
					f(ctx, v, random)
				}
			})
		}
		for n := range 3 {
			run(n, c.steady)
		}
		run(10, c.flood)
		run(11, c.rude)
		if v.raw {
			run(12, c.misuse)
			run(13, c.misuse)
		}
	}
}

// lostOnPurpose is what the table calls a request whose connection ended with workerd, or with its provider's manifest.
const lostOnPurpose = "lost with what was taken away"

// excuse begins to watch whether workerd, or a provider's manifest, is taken away on purpose; the function that it returns says
// whether that has been so at any time since: then connections may be lost.
func (c *chaos) excuse(v *victim) func() bool {
	life, away := c.life.Load(), v.away.Load()
	return func() bool {
		return life%2 == 1 || c.life.Load() != life || away%2 == 1 || v.away.Load() != away
	}
}

// dialOut connects to a provider. Refused it may be only while workerd is down, and without a path for as long as it takes to
// restore a socket that was deleted. nil: the run is over.
func (c *chaos) dialOut(ctx context.Context, v *victim) *wire {
	for begin := time.Now(); ctx.Err() == nil; {
		excused := c.excuse(v)
		w, err := connect(c.front(v.slug))
		if err == nil {
			w.excused = excused
			return w
		}
		if excused() {
			begin = time.Now()
		} else if !errors.Is(err, syscall.ENOENT) || time.Since(begin) > 20*time.Second {
			c.fails("%s: not let in: %v", v.slug, err)
		}
		pause(ctx, 20*time.Millisecond)
	}
	return nil
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// asking is one request and what may come of it.
type asking struct {
	name   string // for the table
	method string
	params map[string]any
	ok     bool            // a result is right: the text that was sent
	kinds  []protocol.Kind // errors that are
}

// echo is the request that is answered with its own text.
func (v *victim) echo(name string) asking {
	text := fmt.Sprintf("request %d of all", serial.Add(1))
	a := asking{name: name, method: "echo", ok: true, kinds: hit, params: map[string]any{"text": text}}
	if !v.raw {
		a.method = "run"
		a.params["code"] = "answer = {'text': text}"
	}
	return a
}

func (a asking) line(id int) string {
	params, _ := json.Marshal(a.params)
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":%q,"params":%s}`, id, a.method, params)
}

// judge says what an answer is called in the table; an error where it may not be.
func (a asking) judge(m message) (string, error) {
	kind := m.kind()
	switch {
	case kind == "" && !a.ok:
		return "", fmt.Errorf("%s was answered %.200s", a.name, m.Result)
	case kind == "" && m.said().Text != a.params["text"]:
		return "", fmt.Errorf("%s of %q was answered %.200s", a.name, a.params["text"], m.Result)
	case kind == "":
		return "answered", nil
	case !slices.Contains(a.kinds, kind):
		return "", fmt.Errorf("%s was answered %+v", a.name, m.Error)
	}
	return string(kind), nil
}

// exchange makes requests at once over one connection and checks that each gets one answer. It reports how many were answered with a result, and
// whether the connection goes on.
func (c *chaos) exchange(v *victim, w *wire, all ...asking) (right int, goesOn bool) {
	excused, begin := w.excused, time.Now() // since the last answer: the connection may have been lost while nothing was asked
	lost := func(err error, left int) bool {
		if excused() {
			for range left {
				c.count(all[0].name, lostOnPurpose, 0)
			}
		} else {
			c.fails("%s: %d requests lost, the first %s: %v", v.slug, left, all[0].name, err)
		}
		return false
	}
	open := map[string]asking{}
	var lines strings.Builder
	for _, a := range all {
		w.n++
		open[fmt.Sprint(w.n)] = a
		lines.WriteString(a.line(w.n) + "\n")
	}
	sent := make(chan error, 1) // apart, since answers have to be read meanwhile
	go func() {
		_, err := w.conn.Write([]byte(lines.String()))
		sent <- err
	}()
	for len(open) > 0 {
		m, err := w.answer(nil)
		if err != nil {
			_ = w.conn.Close()
			<-sent
			return right, lost(err, len(open))
		}
		a, asked := open[string(m.ID)]
		delete(open, string(m.ID))
		if !asked {
			c.fails("%s: a second answer, or nobody's: %s %.200s", v.slug, m.ID, m.Result)
			continue
		}
		what, err := a.judge(m)
		if m.kind() == protocol.ProviderStopped && excused() {
			what, err = string(protocol.ProviderStopped), nil
		}
		if err != nil {
			c.fails("%s: %v", v.slug, err)
		}
		if what == "answered" {
			right++
		}
		c.count(a.name, what, time.Since(begin))
	}
	if err := <-sent; err != nil {
		return right, lost(err, 0)
	}
	w.excused = c.excuse(v)
	return right, true
}

// steady calls one request after the other.
func (c *chaos) steady(ctx context.Context, v *victim, random *rand.Rand) {
	w := c.dialOut(ctx, v)
	if w == nil {
		return
	}
	defer func() { _ = w.conn.Close() }()
	var ill time.Time // since when answers are errors
	for n := random.IntN(500); n >= 0 && ctx.Err() == nil; n-- {
		right, goesOn := c.exchange(v, w, v.echo("echo"))
		switch {
		case right == 0 && ill.IsZero():
			ill = time.Now()
		case right == 1 && !ill.IsZero():
			c.mu.Lock()
			c.recovery = append(c.recovery, time.Since(ill))
			c.mu.Unlock()
			ill = time.Time{}
		}
		if !goesOn {
			return
		}
		pause(ctx, time.Duration(random.IntN(20))*time.Millisecond)
	}
	if err := w.silent(); err != nil && strings.Contains(err.Error(), "too many") {
		c.fails("%s: %v", v.slug, err)
	}
}

// flood sends many at once, and then nothing for a while.
func (c *chaos) flood(ctx context.Context, v *victim, random *rand.Rand) {
	w := c.dialOut(ctx, v)
	if w == nil {
		return
	}
	defer func() { _ = w.conn.Close() }()
	var all []asking
	for range 200 {
		a := v.echo("flood")
		a.kinds = append([]protocol.Kind{protocol.QueueFull}, hit...)
		all = append(all, a)
	}
	c.exchange(v, w, all...)
	pause(ctx, time.Duration(500+random.IntN(2000))*time.Millisecond)
}

// rude breaks the protocol, or goes away, or takes its time.
func (c *chaos) rude(ctx context.Context, v *victim, random *rand.Rand) {
	w := c.dialOut(ctx, v)
	if w == nil {
		return
	}
	defer func() { _ = w.conn.Close() }()
	switch name := []string{"vanish", "stall", "slow", "malformed", "half a line"}[random.IntN(5)]; name {
	case "vanish":
		for id := range 1 + random.IntN(5) {
			_ = w.send(v.echo(name).line(id))
		}
		c.count(name, "gone", 0)
	case "stall":
		for id := range 20 {
			a := v.echo(name)
			a.params["do"] = "big"
			_ = w.conn.SetWriteDeadline(time.Now().Add(time.Second))
			_ = w.send(a.line(id))
		}
		pause(ctx, 2*time.Second)
		c.count(name, "gone", 0)
	case "slow":
		a := v.echo(name)
		excused := w.excused
		for _, b := range []byte(a.line(1) + "\n") {
			if _, err := w.conn.Write([]byte{b}); err != nil && !excused() {
				c.fails("%s: slow: %v", v.slug, err)
			}
			pause(ctx, time.Duration(random.IntN(4))*time.Millisecond)
		}
		m, err := w.answer(nil)
		switch {
		case err != nil && excused():
			c.count(name, lostOnPurpose, 0)
		case err == nil && m.kind() == protocol.ProviderStopped && excused():
			c.count(name, string(m.kind()), 0)
		case err != nil:
			c.fails("%s: slow: lost: %v", v.slug, err)
		default:
			what, err := a.judge(m)
			if err != nil {
				c.fails("%s: %v", v.slug, err)
			}
			c.count(name, what, 0)
		}
	case "malformed":
		excused := w.excused
		line := []string{"{", "[]", `{"jsonrpc":"1.0","id":1,"method":"echo"}`, "\xff\xfe", `{"jsonrpc":"2.0","id":1,"method":"echo","params":{"a":NaN}}`}[random.IntN(5)]
		err := w.send(line)
		var m message
		if err == nil {
			m, err = w.answer(nil)
		}
		switch {
		case err == nil && (m.kind() == protocol.ParseError || m.kind() == protocol.InvalidRequest):
			c.count(name, string(m.kind()), 0)
		case !excused():
			c.fails("%s: %q was answered %s %v %v", v.slug, line, m.Result, m.Error, err)
		}
	case "half a line":
		_, _ = w.conn.Write([]byte(`{"jsonrpc":"2.0","id":1,`))
		c.count(name, "gone", 0)
	}
	pause(ctx, time.Duration(random.IntN(300))*time.Millisecond)
}

// misuse has the worker of a raw provider break the protocol.
func (c *chaos) misuse(ctx context.Context, v *victim, random *rand.Rand) {
	w := c.dialOut(ctx, v)
	if w == nil {
		return
	}
	defer func() { _ = w.conn.Close() }()
	ways := []asking{
		{name: "twice", ok: true}, {name: "wrong id", kinds: []protocol.Kind{protocol.InvalidResponse}}, {name: "half"},
		{name: "garbage", kinds: []protocol.Kind{protocol.InvalidResponse}}, {name: "close"}, {name: "hang"}, {name: "exit"},
		{name: "abort"}, {name: "shout", ok: true}, {name: "spawn", ok: true}, {name: "storm", ok: true}, {name: "spin", ok: true}, {name: "deaf", ok: true},
		{name: "progress", ok: true}, {name: "big", ok: true},
	}
	if c.ends[v.kind] {
		ways = append(ways, asking{name: "leak"})
	}
	if random.IntN(10) == 0 { // 300 MB
		ways = append(ways[:0], asking{name: "roar", ok: true})
	}
	a := ways[random.IntN(len(ways))]
	a.method, a.kinds = "echo", append(a.kinds, hit...)
	a.params = map[string]any{"do": a.name, "text": fmt.Sprintf("request %d of all", serial.Add(1))}
	if a.name == "progress" {
		a.params["_meta"] = map[string]any{"progressToken": "t"}
	}
	c.exchange(v, w, a)
	pause(ctx, time.Duration(random.IntN(1500))*time.Millisecond)
}
