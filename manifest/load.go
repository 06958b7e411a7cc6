package manifest

import (
	"errors"
	"os"
	"path/filepath"
)

// Options are what loading needs to know besides the files.
type Options struct {
	// Defaults is TOML that is laid under every manifest: a site's [defaults]. With DefaultsTable it is a whole file, such
	// as workerd's settings, in which the table of that name is meant; problems then have their place in that file.
	// DefaultsFile is its name for problems.
	Defaults      []byte
	DefaultsTable string
	DefaultsFile  string
	// PullTimeout is a site's default of env.pull_timeout, below that of Defaults; nil: DefaultPullTimeout.
	PullTimeout *Duration

	// LookupEnv finds the variables that ${NAME} stands for; os.LookupEnv if nil.
	LookupEnv func(string) (string, bool)
	// Home is what ~ stands for; $HOME if empty.
	Home string

	// UID is the caller: what he and root own is trusted. TrustedGroups are the groups, by name or number, that may write.
	UID           int
	TrustedGroups []string

	// LookupUser and LookupGroup find the id of a name, or of a number as it stands; those of this machine if nil.
	LookupUser, LookupGroup func(name string) (int, error)

	// RuntimeDir is where the sockets will be. If set, socket paths that would be too long are problems.
	RuntimeDir string
}

// loader loads manifests with one set of options.
type loader struct {
	opt      Options
	trust    *truster
	defaults *document
	broken   Problems // of the defaults: of their syntax, so that nothing can be laid under a manifest
}

func newLoader(opt Options) *loader {
	if opt.LookupEnv == nil {
		opt.LookupEnv = os.LookupEnv
	}
	if opt.Home == "" {
		opt.Home, _ = opt.LookupEnv("HOME")
	}
	if opt.LookupUser == nil {
		opt.LookupUser = lookupUser
	}
	if opt.LookupGroup == nil {
		opt.LookupGroup = lookupGroup
	}
	l := &loader{opt: opt, trust: newTruster(&opt)}
	if len(opt.Defaults) > 0 {
		l.defaults, l.broken = parseDocument(opt.Defaults, opt.DefaultsFile)
		if l.defaults != nil && opt.DefaultsTable != "" {
			l.defaults = l.defaults.table(opt.DefaultsTable)
		}
	}
	return l
}

func (l *loader) layers(doc *document) layers {
	return layers{manifest: doc, defaults: l.defaults, pullTimeout: l.opt.PullTimeout}
}

// Load reads and checks the manifest in file. Its error is of type Problems and holds everything that is wrong; the strings
// are warnings, each with its place.
func Load(file string, opt Options) (*Manifest, []string, error) {
	file, err := filepath.Abs(file)
	if err != nil {
		return nil, nil, Problems{{File: file, Message: err.Error()}}
	}
	l := newLoader(opt)
	read, problems := l.read(file)
	if problems != nil {
		return nil, nil, problems
	}
	doc, problems := parseDocument(read.data, file)
	if problems != nil {
		return nil, nil, problems
	}
	return l.result(doc, file, l.trust)
}

// Parse checks a manifest whose text is data, as if it lay at file: all that Load does but for who may write to the files.
func Parse(data []byte, file string, opt Options) (*Manifest, []string, error) {
	file, err := filepath.Abs(file)
	if err != nil {
		return nil, nil, Problems{{File: file, Message: err.Error()}}
	}
	doc, problems := parseDocument(data, file)
	if problems != nil {
		return nil, nil, problems
	}
	return newLoader(opt).result(doc, file, nil)
}

// CheckDefaults checks the fragment that opt.Defaults is, as far as it can be checked without a manifest: syntax, keys,
// types and words. Its error is of type Problems.
func CheckDefaults(opt Options) error {
	l := newLoader(opt)
	if l.broken != nil || l.defaults == nil {
		return l.broken.err()
	}
	c := checker{layers: layers{manifest: l.defaults}, bad: map[string]bool{}}
	c.m, c.schemas = c.layers.decode(c.report, c.distrust)
	if l.defaults.keys["slug"] {
		c.report("slug", slugInDefaults)
	}
	return c.problems.sorted().err()
}

func (l *loader) result(doc *document, file string, trust *truster) (*Manifest, []string, error) {
	if l.broken != nil {
		return nil, nil, l.broken
	}
	c := evaluate(l.layers(doc), file, &l.opt, trust)
	if len(c.problems) > 0 {
		return nil, texts(c.warnings), c.problems
	}
	return c.m, texts(c.warnings), nil
}

// read returns the text of a manifest that may be trusted.
func (l *loader) read(file string) (contents, Problems) {
	if err := l.trust.folder(filepath.Dir(file)); err != nil {
		return contents{}, Problems{{File: file, Message: "not trusted: " + err.Error()}}
	}
	c, err := readRegular(file, maxManifest)
	if err != nil {
		return contents{}, Problems{{File: file, Message: unreadable(file, err)}}
	}
	if err := l.trust.owned(file, c.info); err != nil {
		return contents{stamp: c.stamp}, Problems{{File: file, Message: "not trusted: " + err.Error()}}
	}
	return c, nil
}

// unreadable says why a manifest could not be read; the problem names the file already.
func unreadable(file string, err error) string {
	if errors.Is(err, os.ErrNotExist) && danglingTarget(file) == "" {
		return "does not exist"
	}
	return whyUnusable(file, err)
}

func texts(problems Problems) []string {
	var out []string
	for _, p := range problems {
		out = append(out, p.Error())
	}
	return out
}
