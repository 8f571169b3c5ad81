package launchers

import (
	"fmt"
	"time"

	"github.com/replicad/replicad/internal/want"
)

// shortage is a want that this node has met.
type shortage struct {
	text  string
	until time.Time // the node counts as short; each time that it is met again that is later
	again time.Time // not before then is what met it tried again
	count int       // how often it was met in a row
}

// shortFor is how long a node counts as short after it has met a want. Processes that wait try each second, and so keep it up.
const (
	shortFor   = 3 * time.Second
	shortAgain = time.Second
)

// shortages are what this node is short of: for a job, by its name, or for everybody (""). A value that is given the time.
type shortages map[string]*shortage

// meets notes a want, and reports whether to notify of it: the first time, and each time that its count has doubled.
func (s shortages) meets(job string, kind want.Kind, why string, now time.Time) (text string, due bool) {
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

// waits reports whether it is too early to try again for a job.
func (s shortages) waits(job string, now time.Time) bool {
	is := s[job]
	return is != nil && now.Before(is.again)
}

// found forgets what a job was short of: it has got it.
func (s shortages) found(job string) { delete(s, job) }
