package supervisor

// boot starts the workers of a provider with start.when = "boot". Many providers share a gate, so that a boot with fifty of
// them does not execute fifty interpreters at once.
func (p *provider) boot() {
	if p.booting || !p.mayRun() || p.failure != nil || p.manifest.Start.When != "boot" {
		return
	}
	p.booting = true
	p.lives.Go(func() {
		select {
		case p.sup.gate <- struct{}{}:
		case <-p.ctx.Done():
			return
		case <-p.sup.ctx.Done():
			return
		}
		p.post(func() {
			p.gated = true
			if p.sup.ctx.Err() == nil && p.mayRun() && p.failure == nil {
				p.startSeats(p.manifest.Serve.Replicas, "boot", true)
			}
			if p.count(Starting) == 0 {
				p.bootDone()
			}
		})
	})
}

// bootDone lets the next provider through the gate: this one's workers have been executed and answer, or are gone.
func (p *provider) bootDone() {
	if p.gated {
		p.gated, p.booting = false, false
		select {
		case <-p.sup.gate:
		default:
		}
	}
}

func (p *provider) count(s State) int {
	n := 0
	for _, w := range p.workers {
		if w.state == s {
			n++
		}
	}
	return n
}
