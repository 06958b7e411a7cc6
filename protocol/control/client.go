package control

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"syscall"

	"workerd/protocol"
)

// ErrNotRunning is wrapped by every error of a client whose socket nobody listens on.
var ErrNotRunning = errors.New("workerd is not running")

// maxAnswer bounds what the client reads of one answer.
const maxAnswer = 1 << 30

// Client uses the operator API of one workerd. Its errors are *Problem where workerd answered, and wrap ErrNotRunning
// where it does not run.
type Client struct {
	socket string
	http   *http.Client
}

// NewClient makes a client of the control socket at path. It connects with the first request.
func NewClient(path string) *Client {
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		c, err := new(net.Dialer).DialContext(ctx, "unix", path)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED) {
			return nil, fmt.Errorf("%w (nobody listens on %s)", ErrNotRunning, path)
		}
		return c, err
	}
	// No kept connection: one that went stale over a restart of workerd would fail an order that is not sent twice.
	return &Client{socket: path, http: &http.Client{Transport: &http.Transport{DialContext: dial, DisableKeepAlives: true, DisableCompression: true}}}
}

// Socket returns the path of the control socket.
func (c *Client) Socket() string { return c.socket }

// Status returns all providers.
func (c *Client) Status(ctx context.Context) (protocol.Status, error) {
	var s protocol.Status
	return s, c.do(ctx, http.MethodGet, "/v1/providers", nil, &s)
}

// Provider returns one provider.
func (c *Client) Provider(ctx context.Context, slug string) (protocol.ProviderStatus, error) {
	var p protocol.ProviderStatus
	return p, c.do(ctx, http.MethodGet, providerPath(slug, ""), nil, &p)
}

// Start starts a provider; with wait it returns when a worker is ready.
func (c *Client) Start(ctx context.Context, slug string, wait bool) error {
	return c.order(ctx, slug, "start", wait)
}

// Stop stops a provider; with wait it returns when nothing of it is left.
func (c *Client) Stop(ctx context.Context, slug string, wait bool) error {
	return c.order(ctx, slug, "stop", wait)
}

// Restart restarts a provider; with wait it returns when the new worker is ready and the old one gone.
func (c *Client) Restart(ctx context.Context, slug string, wait bool) error {
	return c.order(ctx, slug, "restart", wait)
}

func (c *Client) order(ctx context.Context, slug, verb string, wait bool) error {
	path := providerPath(slug, verb)
	if !wait {
		path += "?wait=0"
	}
	return c.do(ctx, http.MethodPost, path, nil, nil)
}

// Smoke runs a provider's smoke test.
func (c *Client) Smoke(ctx context.Context, slug string) (SmokeResult, error) {
	var r SmokeResult
	return r, c.do(ctx, http.MethodPost, providerPath(slug, "smoke"), nil, &r)
}

// Call calls a method of a provider.
func (c *Client) Call(ctx context.Context, slug, method string, params json.RawMessage) (json.RawMessage, error) {
	var a callAnswer
	err := c.do(ctx, http.MethodPost, providerPath(slug, "call"), callRequest{Method: method, Params: params}, &a)
	return a.Result, err
}

// Reload makes workerd read its manifest directories again; it returns what they led to.
func (c *Client) Reload(ctx context.Context) (protocol.Status, error) {
	var s protocol.Status
	return s, c.do(ctx, http.MethodPost, "/v1/reload", nil, &s)
}

// GPUs returns what is known of the GPUs, who has them and who waits for one.
func (c *Client) GPUs(ctx context.Context) (protocol.GPUs, error) {
	var g protocol.GPUs
	return g, c.do(ctx, http.MethodGet, "/v1/gpus", nil, &g)
}

// Health returns nil where workerd runs and answers.
func (c *Client) Health(ctx context.Context) error {
	return c.do(ctx, http.MethodGet, "/healthz", nil, nil)
}

// Logs copies the last lines of a provider's output to w, and with follow what comes, until ctx ends.
func (c *Client) Logs(ctx context.Context, slug string, lines int, follow bool, w io.Writer) error {
	query := url.Values{"lines": {strconv.Itoa(lines)}}
	if follow {
		query.Set("follow", "1")
	}
	resp, err := c.send(ctx, http.MethodGet, providerPath(slug, "logs")+"?"+query.Encode(), nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if _, err := io.Copy(w, resp.Body); err != nil {
		return fmt.Errorf("logs of %s: %w", slug, err)
	}
	return nil
}

// Events subscribes to what happens to the providers named, to all where there are none. It returns when the subscription
// stands; handle is then called by the returned function, which blocks until ctx ends or the stream does (io.EOF: workerd
// stops), or handle returns an error.
func (c *Client) Events(ctx context.Context, slugs []string) (run func(handle func(protocol.Event) error) error, err error) {
	path := "/v1/events"
	if len(slugs) > 0 {
		path += "?" + url.Values{"provider": slugs}.Encode()
	}
	resp, err := c.send(ctx, http.MethodGet, path, nil)
	if err != nil {
		return nil, err
	}
	r := bufio.NewReader(resp.Body)
	if _, err := r.ReadString('\n'); err != nil {
		resp.Body.Close()
		return nil, fmt.Errorf("events: %w", err)
	}
	return func(handle func(protocol.Event) error) error {
		defer resp.Body.Close()
		return readEvents(r, handle)
	}, nil
}

// readEvents reads the events that Server.events writes: each one's data stands in one line.
func readEvents(r *bufio.Reader, handle func(protocol.Event) error) error {
	for {
		line, err := r.ReadString('\n')
		if err != nil {
			return err
		}
		data, ok := strings.CutPrefix(line, "data: ")
		if !ok {
			continue
		}
		var e protocol.Event
		if err := json.Unmarshal([]byte(data), &e); err != nil {
			return fmt.Errorf("event: %w", err)
		}
		if err := handle(e); err != nil {
			return err
		}
	}
}

func providerPath(slug, verb string) string {
	path := "/v1/providers/" + url.PathEscape(slug)
	if verb != "" {
		path += "/" + verb
	}
	return path
}

// do sends one request and decodes the answer into out (nil: not wanted).
func (c *Client) do(ctx context.Context, method, path string, in, out any) error {
	resp, err := c.send(ctx, method, path, in)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return fmt.Errorf("answer of workerd: %w", err)
	}
	if out == nil {
		return nil
	}
	if err := json.Unmarshal(data, out); err != nil {
		return fmt.Errorf("answer of workerd: %w", err)
	}
	return nil
}

// send returns the response to a request that succeeded, else the problem that it was answered with.
func (c *Client) send(ctx context.Context, method, path string, in any) (*http.Response, error) {
	var body io.Reader
	if in != nil {
		data, err := json.Marshal(in)
		if err != nil {
			return nil, err
		}
		body = bytes.NewReader(data)
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://workerd"+path, body)
	if err != nil {
		return nil, err
	}
	if in != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, c.explain(err)
	}
	if resp.StatusCode < 300 {
		return resp, nil
	}
	defer resp.Body.Close()
	data, _ := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	p := new(Problem)
	if json.Unmarshal(data, p) != nil || p.Kind == "" {
		return nil, fmt.Errorf("%s answered %s: %s", c.socket, resp.Status, bytes.TrimSpace(data))
	}
	return nil, p
}

// explain takes off what net/http says about a URL that nobody typed.
func (c *Client) explain(err error) error {
	if u, ok := errors.AsType[*url.Error](err); ok {
		err = u.Err
	}
	if errors.Is(err, ErrNotRunning) || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return fmt.Errorf("control socket %s: %w", c.socket, err)
}
