// Package pysdk holds the Python SDK, one file of the standard library's Python: the worker side (Worker), and the
// callers (Client, AsyncClient). workerd writes it to a folder of its cache and puts that in front of a worker's PYTHONPATH.
package pysdk

import _ "embed" // for Source

// Source is the SDK's text.
//
//go:embed workerd.py
var Source []byte

// Filename is the name under which Python imports it.
const Filename = "workerd.py"
