// Package control is the operator API of workerd: HTTP and JSON on the unix socket workerd.sock, its server and its one client.
//
// The server knows the supervisor only as a Backend, which it declares itself. What goes wrong is answered as an RFC 9457
// problem document with the kind of the error; the client gives it back as the error that the supervisor returned, so
// that callers match both with errors.Is and errors.As.
package control
