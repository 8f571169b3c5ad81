package session

import (
	"fmt"
	"net"
	"time"

	"github.com/replicad/replicad/internal/unixsock"
	"github.com/replicad/replicad/internal/want"
	"github.com/replicad/replicad/internal/wire"
)

// TurnedAway says that somebody was refused before the daemon had anything to do with them: a user who may not use the socket, a wrong token,
// a message that is none. Of one user and code no more than one comes each saysTurned; the next one counts the others.
type TurnedAway struct {
	UID, PID int
	Code     int32
	Why      string
	Others   int // since the one that came before
}

func (TurnedAway) event() {}

const (
	saysTurned = 30 * time.Second
	maxTurned  = 1024 // that are counted one by one; beyond that all as one
)

// turned counts what was refused to users, so that nobody's attempts fill the daemon's log: the rule, without a clock or a lock of its own.
type turned map[refusal]*tries

// refusal tells kinds of them apart.
type refusal struct {
	uid  int
	code int32
}

type tries struct {
	said   time.Time
	others int
}

// say tells whether one more refusal of a user is to be said, and how many were not since the one before.
func (t turned) say(of refusal, now time.Time) (others int, due bool) {
	if t[of] == nil && len(t) >= maxTurned {
		of = refusal{}
	}
	is := t[of]
	if is == nil {
		is = &tries{}
		t[of] = is
	}
	if !is.said.IsZero() && now.Sub(is.said) < saysTurned {
		is.others++
		return 0, false
	}
	others, is.said, is.others = is.others, now, 0
	return others, true
}

// turnAway tells the daemon of a refusal, whose answer is the caller's.
func (s *Server) turnAway(uid, pid int, code int32, why error) {
	s.mu.Lock()
	others, due := s.turned.say(refusal{uid, code}, time.Now())
	s.mu.Unlock()
	if due {
		s.emit(TurnedAway{UID: uid, PID: pid, Code: code, Why: why.Error(), Others: others})
	}
}

// refuse turns a connection away that gets no session, and says why to it. What it sends meanwhile is not read, so the client finds its
// connection reset: it reads on after that, and finds the reason.
func (s *Server) refuse(c *net.UnixConn, code int32, why error) {
	_ = c.SetWriteDeadline(time.Now().Add(farewell))
	_, _ = c.Write(wire.AppendRank(nil, wire.RankHeader{Type: wire.MRefused}, wire.Refused{Code: code, Text: fmt.Sprintf("session: %v", why)}.Append(nil)))
	if want.Of(why) == want.Nothing { // a want is said as one
		cred, err := unixsock.Peer(c)
		if err == nil {
			s.turnAway(int(cred.Uid), int(cred.Pid), code, why)
		}
	}
	_ = c.Close()
}

// partedBy is whether the end of a session is a refusal, and not what happens to honest peers.
func partedBy(f *fault) bool { return f.code != wire.CodeAgain && f.code != wire.CodeTimeout }
