package host

import (
	"fmt"
	"time"

	"github.com/replicad/replicad/internal/want"
	"github.com/replicad/replicad/replica"
)

// shortage is a want that this node has met.
type shortage struct {
	text  string
	until time.Time // the node counts as short; each time that it is met again that is later
	again time.Time // not before then is what met it tried again
	count int       // how often it was met in a row
}

// shortFor is how long a node counts as short after it has met a want. Who waits tries each second, and so keeps it up.
const (
	shortFor   = 3 * time.Second
	shortAgain = time.Second
)

// shortages are what this node is short of: for a job, by its name, or for everybody (""). A value that is told the time.
type shortages map[string]*shortage

// meets notes a want, and tells whether it is to be said: the first time, and each time that its count has doubled.
func (s shortages) meets(job string, kind want.Kind, why string, now time.Time) (text string, say bool) {
	is := s[job]
	if is == nil || now.After(is.until) {
		is = &shortage{}
		s[job] = is
	}
	is.text, is.until, is.again = fmt.Sprintf("%v (%s): %s", kind, why, kind.Remedy()), now.Add(shortFor), now.Add(shortAgain)
	is.count++
	return fmt.Sprintf("%s (met %d times)", is.text, is.count), is.count&(is.count-1) == 0
}

// of names what the node is short of for a job. Empty: nothing.
func (s shortages) of(job string, now time.Time) string {
	for _, name := range []string{job, ""} {
		if is := s[name]; is != nil && now.Before(is.until) {
			return is.text
		}
	}
	return ""
}

// waits tells whether it is too early to try again for a job.
func (s shortages) waits(job string, now time.Time) bool {
	is := s[job]
	return is != nil && now.Before(is.again)
}

// found forgets what a job was short of: it has got it.
func (s shortages) found(job string) { delete(s, job) }

// short notes a want that a rank of a job met on this node, and tells log, launchers and leader.
func (h *Host) short(lj *localJob, r replica.Rank, kind want.Kind, why string) {
	text, say := h.shortages.meets(lj.job.Name, kind, why, time.Now())
	if say {
		text = fmt.Sprintf("node %s is short of %s; the rank waits for it, or goes to another node that has a process for it", h.self.Name, text)
		h.log.RankNote(lj.job, r, "short", text)
		h.noteAll(lj, fmt.Sprintf("rank %d: %s", r, text))
	}
	h.report(lj)
}

// shortOfAll notes a want that met a connection of nobody knows which job.
func (h *Host) shortOfAll(err error) {
	text, say := h.shortages.meets("", want.Of(err), err.Error(), time.Now())
	for _, lj := range h.jobs {
		if say && lj.job.Phase != replica.Ended {
			h.noteAll(lj, fmt.Sprintf("node %s is short of %s; a process that can't reach the daemon for that tries again", h.self.Name, text))
		}
		h.report(lj)
	}
	if say {
		h.log.Failed("short", string(h.self.Name), text)
	}
}
