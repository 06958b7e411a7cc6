package supervisor

import (
	"fmt"
	"path/filepath"

	"workerd/execenv"
)

// places makes the places of a worker.
func (s *Supervisor) places(slug string, n int64) (paths, error) {
	socket, err := execenv.WorkerSocket(s.cfg.RuntimeDir, slug, n)
	if err != nil {
		return paths{}, err
	}
	tmp, err := s.cfg.Planner.NewTmp(n)
	if err != nil {
		return paths{}, err
	}
	return paths{socket: socket, tmp: tmp, log: filepath.Join(s.logDir(slug), fmt.Sprintf("%d.log", n))}, nil
}

func (s *Supervisor) logDir(slug string) string { return filepath.Join(s.cfg.StateDir, "logs", slug) }
