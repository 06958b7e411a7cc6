package supervisor

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"workerd/manifest"
)

// Doorman lets clients of other users in.
type Doorman interface {
	// Admit says why the peer of a front connection is refused. The caller and root never are.
	Admit(c *net.UnixConn, guests manifest.Guests) error
	// Open lets guests, and nobody else than the caller, get at a provider's folder or socket.
	Open(path string, guests manifest.Guests) error
}

// guestsOf looks up whom a manifest allows. Who is not known any more is not let in.
func (p *provider) guestsOf(m *manifest.Manifest) manifest.Guests {
	guests, err := m.Serve.Allow.Guests()
	if err != nil {
		p.log.Warn("not everybody can be let in", keyError, err)
	}
	return guests
}

// admit brings another serve.allow into force: for those who come, and for those who are there.
func (f *front) admit(guests manifest.Guests) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed || slices.Equal(f.guests.UIDs, guests.UIDs) && slices.Equal(f.guests.GIDs, guests.GIDs) {
		return
	}
	f.guests = guests
	// Those who are there first: whoever finds the socket shut can rely on nobody else being behind it.
	for _, uc := range f.clients {
		if err := f.refuses(uc); err != nil {
			f.log.Warn("connection ended: serve.allow has changed", keyError, err)
			_ = uc.Close()
		}
	}
	if err := f.open(f.path, guests); err != nil && !errors.Is(err, fs.ErrNotExist) { // deleted: it is made again soon
		f.log.Error("the front socket cannot be opened to others", keySocket, f.path, keyError, err)
	}
	f.openFolder(guests)
}

// refuses says why a peer may not connect. f.mu must be held.
func (f *front) refuses(uc *net.UnixConn) error {
	if d := f.p.sup.cfg.Doorman; d != nil {
		return d.Admit(uc, f.guests)
	}
	return nil
}

func (f *front) open(path string, guests manifest.Guests) error {
	if d := f.p.sup.cfg.Doorman; d != nil {
		return d.Open(path, guests)
	}
	return nil
}

// openFolder lets guests as far as the socket.
func (f *front) openFolder(guests manifest.Guests) {
	dir := filepath.Dir(f.path)
	err := f.open(dir, guests)
	if err == nil {
		err = f.p.sup.passage.let(f.p.slug, !guests.None())
	}
	if err != nil {
		f.log.Error("the folder of the front socket cannot be opened to others", keySocket, dir, keyError, err)
	}
}

// passage opens the folders that lie before those of all providers: others may pass them, not read them, while one provider has
// guests. What lies in them is for the caller alone, but for the folders of those providers.
type passage struct {
	dirs []string

	mu     sync.Mutex // guards what follows
	slugs  map[string]bool
	before map[string]fs.FileMode // of the folders that were opened
}

// let says whether a provider has guests.
func (p *passage) let(slug string, guests bool) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !guests {
		if delete(p.slugs, slug); len(p.slugs) == 0 {
			for dir, mode := range p.before {
				_ = os.Chmod(dir, mode) // it may be gone
			}
			p.before = nil
		}
		return nil
	}
	if p.slugs == nil {
		p.slugs = map[string]bool{}
	}
	p.slugs[slug] = true
	for _, dir := range p.dirs { // each time: somebody may have deleted them
		info, err := os.Stat(dir)
		if err != nil {
			return err
		}
		const pass = 0o011
		if info.Mode()&pass == pass {
			continue
		}
		if err := os.Chmod(dir, info.Mode()|pass); err != nil {
			return err
		}
		if p.before == nil {
			p.before = map[string]fs.FileMode{}
		}
		if _, known := p.before[dir]; !known {
			p.before[dir] = info.Mode()
		}
	}
	return nil
}
