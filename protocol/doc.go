// Package protocol is what tool servers, workerd and workers say to each other: JSON-RPC 2.0, UTF-8, one message a line,
// over unix stream sockets. PROTOCOL.md beside this file is the same contract for authors in other languages.
//
// # Parts
//
//   - Scan reads one line in a single pass: it says what the line is (request, notification, answer), where its parts
//     stand, and what is wrong with it. It checks the JSON, so that nothing broken is ever relayed.
//   - Splice and IDKey are what a relay needs: replace the id and the progress token of a line, compare ids.
//   - Conn carries lines and file descriptors over a unix socket. It holds no buffer while the peer is silent, and its
//     Write never blocks.
//   - Error, Kind and the table behind them are the errors that travel in answers.
//   - Client calls the methods of a provider from Go.
//   - Initialize, InitializeResult and the method names are the handshake with a worker.
//
// # Concurrency
//
// Scan, Splice and IDKey are functions of their arguments. A Conn has one reader (Read and WaitHangup, one at a time) and any
// number of writers; Interrupt, Pending, Unread, WaitDrained and Close may be called from anywhere. A Client is safe for
// concurrent use: calls are pipelined on its one connection.
//
// # Memory
//
// The bytes of a Line belong to the caller. Spans index the line that was scanned and mean nothing without it.
package protocol
