package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"workerd/protocol"
	"workerd/protocol/control"
)

func (a *app) callCommand() *cobra.Command {
	var opt callOptions
	cmd := &cobra.Command{
		Use:   "call SLUG METHOD [JSON|@FILE|-|KEY=VALUE...]",
		Short: "Call a method of a provider",
		Long: `Call a method of a provider over its front socket, as a tool server does, and print the result as JSON
on stdout. Progress and errors go to stderr. Interrupting cancels the request.

Parameters are one JSON object, the one in a file (@FILE) or on stdin (-), or KEY=VALUE pairs. The
method's schema says what a VALUE is; where it does not, it is JSON if it parses as such, else a string.`,
		Example: `  workerd call ocr recognize image=/data/page.png
  workerd call ocr recognize '{"image": "/data/page.png", "lang": "eng"}' --timeout 30s
  workerd call ocr recognize @request.json --progress`,
		Args:              cobra.MinimumNArgs(2),
		ValidArgsFunction: a.completeCall,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.call(cmd.Context(), args[0], args[1], args[2:], opt)
		},
	}
	cmd.Flags().DurationVar(&opt.timeout, "timeout", 0, "give up after this `time`, waiting and a cold start included (default none)")
	cmd.Flags().BoolVar(&opt.progress, "progress", false, "print each progress report on stderr")
	a.jsonFlag(cmd)
	cmd.Flags().Lookup("json").Usage = "print errors as JSON too"
	return cmd
}

type callOptions struct {
	timeout  time.Duration
	progress bool
}

func (a *app) call(ctx context.Context, slug, method string, args []string, opt callOptions) error {
	if opt.timeout < 0 {
		return &usageError{errors.New("--timeout: must not be negative")}
	}
	given, err := a.readArgs(ctx, args)
	if err != nil {
		return err
	}
	client, err := a.dialFront(ctx, slug)
	if err != nil {
		return err
	}
	defer func() { _ = client.Close() }()

	line := a.liveLine()
	defer line.clear()
	report := func(p protocol.Progress) {
		text := progressText(p)
		if opt.progress {
			line.clear()
			a.errorf("%s\n", oneLine(text))
		} else {
			line.show(text)
		}
	}
	// The time of looking up the schema, which may be that of a cold start, is time of the call.
	var deadline time.Time
	if opt.timeout > 0 {
		deadline = time.Now().Add(opt.timeout)
	}
	params, err := given.params(func() (json.RawMessage, error) { return methodSchema(ctx, client, method, deadline, report) })
	if err != nil {
		return err
	}
	result, err := client.Call(ctx, method, params, callOpts(deadline, report)...)
	line.clear()
	if err != nil {
		return fromProvider(err, slug)
	}
	return a.printResult(result)
}

// printResult prints a result for who reads it: a person, or a program.
func (a *app) printResult(result json.RawMessage) error {
	var b bytes.Buffer
	var err error
	if a.outTTY {
		err = json.Indent(&b, result, "", "  ")
	} else {
		err = json.Compact(&b, result)
	}
	if err != nil {
		return err
	}
	b.WriteByte('\n')
	_, err = a.out.Write(b.Bytes())
	return err
}

func callOpts(deadline time.Time, report func(protocol.Progress)) []protocol.CallOption {
	opts := []protocol.CallOption{protocol.WithProgress(report)}
	if !deadline.IsZero() {
		opts = append(opts, protocol.WithTimeout(max(time.Until(deadline), time.Millisecond)))
	}
	return opts
}

// fromProvider names the provider in an error that does not, so that the hint can.
func fromProvider(err error, slug string) error {
	if e, ok := errors.AsType[*protocol.Error](err); ok && e.Data.Provider == "" {
		e.Data.Provider = slug
	}
	return err
}

// dialFront connects to a provider's front socket. Where that is not there, workerd itself says why.
func (a *app) dialFront(ctx context.Context, slug string) (*protocol.Client, error) {
	operator, err := a.client()
	if err != nil {
		return nil, err
	}
	err = fs.ErrNotExist // what is no slug names no file either
	if slugPattern.MatchString(slug) {
		var c *protocol.Client
		c, err = protocol.Dial(ctx, filepath.Join(filepath.Dir(operator.Socket()), "front", slug, "sock"))
		if err == nil || !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ECONNREFUSED) {
			return c, err
		}
	}
	p, perr := operator.Provider(ctx, slug)
	if perr != nil {
		return nil, perr
	}
	if p.State == "invalid" {
		text := p.Reason
		if len(p.ManifestError) > 0 {
			text = problemLine(p.ManifestError[0])
		}
		return nil, &withHint{fmt.Errorf("%w of %s: %s", protocol.ErrInvalidManifest, slug, text), "`workerd validate` shows all of its problems"}
	}
	return nil, err
}

// methodSchema asks for the schema of a method's parameters, nil where there is none. It waits for a worker where none has
// said yet what it can do.
func methodSchema(ctx context.Context, client *protocol.Client, method string, deadline time.Time, report func(protocol.Progress)) (json.RawMessage, error) {
	answer, err := client.Call(ctx, protocol.MethodMethods, map[string]bool{"wait": true}, callOpts(deadline, report)...)
	if err != nil {
		return nil, err
	}
	var known struct {
		Methods []protocol.MethodInfo `json:"methods"`
	}
	if err := json.Unmarshal(answer, &known); err != nil {
		return nil, fmt.Errorf("%s: %w", protocol.MethodMethods, err)
	}
	for _, m := range known.Methods {
		if m.Name == method {
			return m.InputSchema, nil
		}
	}
	return nil, nil
}

// arguments are the parameters as the command line gives them: one object, or pairs.
type arguments struct {
	object json.RawMessage
	pairs  []string
}

// readArgs reads the parameters without judging the pairs' values, so that a mistake is said before anything starts.
func (a *app) readArgs(ctx context.Context, args []string) (arguments, error) {
	if len(args) == 0 {
		return arguments{object: json.RawMessage("{}")}, nil
	}
	first := args[0]
	if len(args) > 1 || strings.Contains(first, "=") && first[0] != '{' && first[0] != '@' {
		for _, arg := range args {
			if key, _, ok := strings.Cut(arg, "="); !ok || key == "" {
				return arguments{}, &usageError{fmt.Errorf("%q: several parameters must all be KEY=VALUE", arg)}
			}
		}
		return arguments{pairs: args}, nil
	}
	var data []byte
	var err error
	switch {
	case first == "-":
		data, err = readUntil(ctx, func() ([]byte, error) { return io.ReadAll(a.in) })
	case strings.HasPrefix(first, "@"):
		data, err = readUntil(ctx, func() ([]byte, error) { return os.ReadFile(first[1:]) })
	default:
		data = []byte(first)
	}
	if ctx.Err() != nil {
		return arguments{}, ctx.Err()
	}
	if err != nil {
		return arguments{}, &usageError{fmt.Errorf("parameters: %w", err)}
	}
	data = bytes.TrimSpace(data)
	if !json.Valid(data) || data[0] != '{' {
		return arguments{}, &usageError{errors.New("parameters: want one JSON object, @FILE, - or KEY=VALUE pairs")}
	}
	return arguments{object: data}, nil
}

// readUntil reads what may never end, a terminal or a pipe, until ctx ends. The read itself is left to the end of the process.
func readUntil(ctx context.Context, read func() ([]byte, error)) ([]byte, error) {
	type result struct {
		data []byte
		err  error
	}
	done := make(chan result, 1)
	go func() {
		data, err := read()
		done <- result{data, err}
	}()
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case r := <-done:
		return r.data, r.err
	}
}

// params makes the parameters. schema is asked for only where there are pairs.
func (g arguments) params(schema func() (json.RawMessage, error)) (json.RawMessage, error) {
	if g.pairs == nil {
		return g.object, nil
	}
	s, err := schema()
	if err != nil {
		return nil, err
	}
	types := propertyTypes(s)
	object := map[string]json.RawMessage{}
	for _, pair := range g.pairs {
		key, text, _ := strings.Cut(pair, "=")
		if _, twice := object[key]; twice {
			return nil, &usageError{fmt.Errorf("%s: given twice", key)}
		}
		value, err := typedValue(text, types[key])
		if err != nil {
			return nil, &usageError{fmt.Errorf("%s: %w", key, err)}
		}
		object[key] = value
	}
	return json.Marshal(object)
}

// completeCall offers providers, then the methods of the provider.
func (a *app) completeCall(cmd *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
	if len(args) == 0 {
		return a.completeSlugs(cmd, args, typed)
	}
	if len(args) > 1 {
		return nil, cobra.ShellCompDirectiveDefault
	}
	var names []string
	a.complete(cmd, func(ctx context.Context, c *control.Client) error {
		p, err := c.Provider(ctx, args[0])
		for _, m := range p.Methods {
			names = append(names, m.Name)
		}
		return err
	})
	return names, cobra.ShellCompDirectiveNoFileComp
}
