package execenv

import (
	"bytes"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"

	"workerd/manifest"
)

// secretLimit bounds a secret's value: the kernel takes 128 KiB for one variable with its name.
const secretLimit = 128<<10 - 1

// readSecret returns the value of a secret. Of a file's content exactly one newline at the end is taken off, as editors and
// echo put it there; a secret that ends in one is written with two.
func readSecret(name string, s manifest.Secret, own environ) (string, error) {
	key := "env.secrets." + name
	if s.File == "" {
		v, ok := own[s.Env]
		if !ok {
			return "", permanent(key, "the variable %s is not set in workerd's environment", s.Env)
		}
		return v, nil
	}
	f, err := os.Open(s.File)
	if err != nil {
		return "", &Error{Key: key, Msg: s.File, Err: errCause(err), Watch: []string{s.File}}
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, secretLimit+1))
	if err != nil {
		return "", &Error{Key: key, Msg: s.File, Err: errCause(err), Watch: []string{s.File}}
	}
	data = bytes.TrimSuffix(data, []byte("\n"))
	switch {
	case len(data) >= secretLimit:
		err = permanent(key, "%s is larger than a variable can be (%d bytes)", s.File, secretLimit)
	case bytes.IndexByte(data, 0) >= 0:
		err = permanent(key, "%s holds a NUL byte, which no variable can", s.File)
	default:
		return string(data), nil
	}
	return "", err
}

// secretSums returns for each secret its HMAC under this state directory's key, so that a fingerprint, which is shown and
// kept, can notice a change of a secret and gives nothing to guess it by. Without secrets no key is made.
func secretSums(h Host, m *manifest.Manifest, own environ) (map[string]string, error) {
	if len(m.Env.Secrets) == 0 {
		return nil, nil
	}
	key, err := fingerprintKey(h.StateDir)
	if err != nil {
		return nil, err
	}
	sums := make(map[string]string, len(m.Env.Secrets))
	for name, s := range m.Env.Secrets {
		v, err := readSecret(name, s, own)
		if err != nil {
			return nil, err
		}
		mac := hmac.New(sha256.New, key)
		mac.Write([]byte(v))
		sums[name] = hex.EncodeToString(mac.Sum(nil))
	}
	return sums, nil
}

const keySize = 32

// fingerprintKey reads the key below a state directory, or makes it. Of several processes that make it at once one wins and
// all use its key: the file appears whole under its name, by link, or not at all.
func fingerprintKey(stateDir string) ([]byte, error) {
	path := filepath.Join(stateDir, "fingerprint.key")
	if err := os.MkdirAll(stateDir, 0o700); err != nil {
		return nil, &Error{Kind: Transient, Msg: "state directory " + stateDir, Err: errCause(err)}
	}
	if _, err := os.Lstat(path); errors.Is(err, os.ErrNotExist) {
		if err := makeKey(path); err != nil {
			return nil, &Error{Kind: Transient, Msg: "key file " + path, Err: errCause(err)}
		}
	}
	return readKey(path)
}

func readKey(path string) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, &Error{Msg: "key file " + path, Err: errCause(err)}
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		return nil, &Error{Msg: "key file " + path, Err: errCause(err)}
	}
	if st, ok := fi.Sys().(*syscall.Stat_t); !ok || int(st.Uid) != os.Geteuid() || fi.Mode().Perm()&0o077 != 0 {
		return nil, &Error{Msg: fmt.Sprintf("key file %s must be a file of your own with mode 0600%s", path, ownership(path))}
	}
	key, err := io.ReadAll(io.LimitReader(f, keySize+1))
	if err != nil {
		return nil, &Error{Msg: "key file " + path, Err: errCause(err)}
	}
	if len(key) != keySize {
		return nil, &Error{Msg: fmt.Sprintf("key file %s is damaged (%d bytes instead of %d): remove it, and a new one is made", path, len(key), keySize)}
	}
	return key, nil
}

func makeKey(path string) error {
	key := make([]byte, keySize)
	_, _ = rand.Read(key) // never fails
	tmp, err := os.CreateTemp(filepath.Dir(path), ".fingerprint.key-*")
	if err != nil {
		return err
	}
	defer os.Remove(tmp.Name())
	_, err = tmp.Write(key)
	if err = errors.Join(err, tmp.Sync(), tmp.Close()); err != nil {
		return err
	}
	err = os.Link(tmp.Name(), path)
	if err != nil && !errors.Is(err, os.ErrExist) {
		// A file system without hard links.
		err = unix.Renameat2(unix.AT_FDCWD, tmp.Name(), unix.AT_FDCWD, path, unix.RENAME_NOREPLACE)
	}
	if errors.Is(err, os.ErrExist) {
		return nil
	}
	return err
}
