// Package pysdk holds the Python SDK, one file of the standard library's Python: the worker side (Worker), and the
// callers (Client, AsyncClient). workerd writes it to a folder of its cache and puts that in front of a worker's PYTHONPATH.
package pysdk

import "embed"

// Source is the SDK's text.
//
//go:embed workerd.py
var Source []byte

// Files is the same as a file system of one file.
//
//go:embed workerd.py
var Files embed.FS

// Filename is the name under which Python imports it.
const Filename = "workerd.py"
