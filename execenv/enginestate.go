package execenv

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Container is what an engine says of a container.
type Container struct {
	ID     string
	Name   string
	Labels map[string]string
	Image  string // the id of its image
	State  ContainerState
	// ExitCode is nil while the container runs, and where it never did.
	ExitCode  *int
	OOMKilled bool
	Error     string // why it could not be started
	// PID is the host's pid of the container's first process, which with --init is the init; 0 where it does not run. Behind
	// a daemon in another pid namespace it is no pid of ours.
	PID       int
	Created   time.Time
	Started   time.Time // zero: never
	Finished  time.Time // zero: not yet, or not to be read, which counts as long ago
	LogDriver string
}

// ContainerState is the part of a container's life that matters.
type ContainerState string

// The states of a container, whatever the engine calls them.
const (
	ContainerCreated ContainerState = "created" // and never started
	ContainerRunning ContainerState = "running"
	ContainerExited  ContainerState = "exited"
)

// Labels of a worker's container.
const (
	LabelInstance    = "workerd.instance"
	LabelSlug        = "workerd.slug"
	LabelWorker      = "workerd.worker" // its number
	LabelFingerprint = "workerd.fingerprint"
	LabelGPUs        = "workerd.gpus"
	LabelAttempt     = "workerd.attempt"
	LabelKeep        = "workerd.keep" // "1": it is kept when its worker has failed
)

// Worker says which worker of an instance the container is, by its labels and its name together: images that were made from a
// worker's container carry its labels, and so does a stranger's container of such an image.
func (c Container) Worker(instance string) (slug string, n int64, ok bool) {
	slug = c.Labels[LabelSlug]
	n, err := strconv.ParseInt(c.Labels[LabelWorker], 10, 64)
	if err != nil || c.Labels[LabelInstance] != instance || c.Name != ContainerName(instance, slug, n) {
		return "", 0, false
	}
	return slug, n, true
}

// ContainerName is the name of a worker's container.
func ContainerName(instance, slug string, n int64) string {
	return "workerd-" + instance + "-" + slug + "-" + strconv.FormatInt(n, 10)
}

// Inspect says what a container is like now.
func (e *Engine) Inspect(ctx context.Context, id string) (Container, error) {
	out, err := e.command(ctx, "inspect", "container", "inspect", id)
	if err != nil {
		return Container{}, err
	}
	cs, err := parseContainers(out)
	if err != nil || len(cs) != 1 {
		return Container{}, &EngineError{Engine: e.kind, Verb: "inspect", Msg: "its answer cannot be read", Err: err}
	}
	return cs[0], nil
}

// List returns the containers, dead ones included, that carry all of some labels.
func (e *Engine) List(ctx context.Context, labels map[string]string) ([]Container, error) {
	args := []string{"container", "ls", "--all", "--no-trunc", "--format", "{{.ID}}"}
	for _, name := range sortedKeys(labels) {
		args = append(args, "--filter", "label="+name+"="+labels[name])
	}
	out, err := e.command(ctx, "ps", args...)
	if err != nil {
		return nil, err
	}
	ids := strings.Fields(string(out))
	if len(ids) == 0 {
		return nil, nil
	}
	out, err = e.command(ctx, "inspect", append([]string{"container", "inspect"}, ids...)...)
	// One that went in between is an error beside the answer about the others.
	if err != nil && !IsEngineError(err, EngineNoContainer) {
		return nil, err
	}
	cs, err := parseContainers(out)
	if err != nil {
		return nil, &EngineError{Engine: e.kind, Verb: "inspect", Msg: "its answer cannot be read", Err: err}
	}
	// The filter of some versions also takes a value's beginning.
	return slices.DeleteFunc(cs, func(c Container) bool {
		for name, v := range labels {
			if c.Labels[name] != v {
				return true
			}
		}
		return false
	}), nil
}

// engineContainer is the part of the engines' JSON that both have.
type engineContainer struct {
	ID, Name, Image string
	Created         string
	Config          struct{ Labels map[string]string }
	HostConfig      struct{ LogConfig struct{ Type string } }
	State           struct {
		Status                string
		Running, Paused       bool
		OOMKilled             bool
		Pid, ExitCode         int
		Error                 string
		StartedAt, FinishedAt string
	}
}

func parseContainers(out []byte) ([]Container, error) {
	var list []engineContainer
	if err := json.Unmarshal(out, &list); err != nil {
		return nil, err
	}
	cs := make([]Container, len(list))
	for i, c := range list {
		if c.ID == "" || c.State.Status == "" {
			return nil, fmt.Errorf("entry %d has no id or no state", i)
		}
		cs[i] = Container{
			ID: c.ID, Name: strings.TrimPrefix(c.Name, "/"), Labels: c.Config.Labels, Image: imageID(c.Image),
			OOMKilled: c.State.OOMKilled, Error: c.State.Error, LogDriver: c.HostConfig.LogConfig.Type,
			Created: engineTime(c.Created), Started: engineTime(c.State.StartedAt), Finished: engineTime(c.State.FinishedAt),
		}
		cs[i].settle(c)
	}
	return cs, nil
}

// settle sorts an engine's words into the three states. A running container has no exit code, and its finish time is the one of an
// earlier run.
func (c *Container) settle(from engineContainer) {
	switch strings.ToLower(from.State.Status) {
	case "created", "configured", "initialized":
		c.State = ContainerCreated
		c.Started, c.Finished = time.Time{}, time.Time{}
		return
	case "running", "paused", "restarting", "stopping", "pausing":
		c.State = ContainerRunning
		c.PID, c.Finished = from.State.Pid, time.Time{}
		return
	}
	// exited, stopped, dead, removing, unknown
	code := from.State.ExitCode
	c.State, c.ExitCode = ContainerExited, &code
}

// engineTime reads a time of an engine; zero for none. docker writes the year 1 where there is none, as does podman.
func engineTime(s string) time.Time {
	for _, layout := range []string{time.RFC3339Nano, "2006-01-02 15:04:05.999999999 -0700 MST"} {
		if t, err := time.Parse(layout, s); err == nil && t.Year() > 1970 {
			return t
		}
	}
	return time.Time{}
}

// Image is what an engine says of an image.
type Image struct {
	ID         string   // without "sha256:"
	Env        []string // NAME=value
	Entrypoint []string
	User       string
	OS         string
	Arch       string // as Go names it
	Volumes    []string
}

// ImageInspect says what an image is like.
func (e *Engine) ImageInspect(ctx context.Context, image string) (Image, error) {
	return e.images.of(image).get(ctx, imageHold, func(ctx context.Context) (Image, error) {
		out, err := e.command(ctx, "image inspect", "image", "inspect", image)
		if err != nil {
			return Image{}, err
		}
		im, err := parseImage(out)
		if err != nil {
			return Image{}, &EngineError{Engine: e.kind, Verb: "image inspect", Msg: "its answer cannot be read", Err: err}
		}
		return im, nil
	})
}

func parseImage(out []byte) (Image, error) {
	var list []struct {
		ID           string `json:"Id"`
		Os           string
		Architecture string
		Config       *struct {
			Env        []string
			Entrypoint []string
			User       string
			Volumes    map[string]any
		}
	}
	if err := json.Unmarshal(out, &list); err != nil {
		return Image{}, err
	}
	if len(list) != 1 || list[0].ID == "" {
		return Image{}, fmt.Errorf("%d images instead of one", len(list))
	}
	im := Image{ID: imageID(list[0].ID), OS: list[0].Os, Arch: list[0].Architecture}
	if c := list[0].Config; c != nil {
		im.Env, im.Entrypoint, im.User, im.Volumes = c.Env, c.Entrypoint, c.User, sortedKeys(c.Volumes)
	}
	return im, nil
}

func imageID(id string) string { return strings.TrimPrefix(id, "sha256:") }
