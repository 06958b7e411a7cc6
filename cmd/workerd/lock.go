package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// lockRuntimeDir takes the lock of a runtime directory, or says who holds it. It lasts until the file is closed or the process
// ends; the file itself stays, since another one may be opening it.
func lockRuntimeDir(dir string) (*os.File, error) {
	path := filepath.Join(dir, "lock")
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	err = flockSoon(f)
	if errors.Is(err, unix.EWOULDBLOCK) {
		holder := "another workerd"
		if data, readErr := io.ReadAll(io.LimitReader(f, 32)); readErr == nil && len(data) > 0 {
			holder += " (pid " + strings.TrimSpace(string(data)) + ")"
		}
		f.Close()
		return nil, &withHint{fmt.Errorf("%s serves %s already", holder, dir), "stop it first, or name another directory with --runtime-dir"}
	}
	if err == nil {
		err = f.Truncate(0)
	}
	if err == nil {
		_, err = f.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	return f, nil
}

// lockPatience is how long the lock may still be held by a workerd that has just been killed and is on its way out.
const lockPatience = time.Second

func flockSoon(f *os.File) error {
	deadline := time.Now().Add(lockPatience)
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if !errors.Is(err, unix.EWOULDBLOCK) || time.Now().After(deadline) {
			return err
		}
		time.Sleep(20 * time.Millisecond)
	}
}
