package supervisor

import (
	"strconv"
	"time"

	"workerd/protocol"
)

// sendPing asks an idle or busy worker for a sign of life, and says since when an earlier ping is unanswered.
func (l *lane) sendPing() (unansweredSince time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.conn == nil {
		return time.Time{}
	}
	if l.ping != 0 {
		return l.pingAt
	}
	l.ping, l.pingAt, l.asked = l.life.number(), time.Now(), false
	line := append(l.out[:0], `{"jsonrpc":"2.0","id":`...)
	line = strconv.AppendUint(line, l.ping, 10)
	line = append(line, `,"method":"ping"}`+"\n"...)
	l.out = line
	_ = l.conn.Write(nil, line)
	return time.Time{}
}

// sendLoad tells a warm standby that its model is wanted.
func (l *lane) sendLoad() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.conn == nil {
		return // it is told when the connection is back
	}
	l.asked = false
	line := append(l.out[:0], `{"jsonrpc":"2.0","method":"`+protocol.NotifyLoad+`","params":{}}`+"\n"...)
	l.out = line
	_ = l.conn.Write(nil, line)
}
