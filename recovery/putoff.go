package recovery

import (
	"strings"
	"time"

	"github.com/replicad/replicad/replica"
)

var (
	unreadClock   = replica.Clock{Kind: clockUnread}
	unreadMeasure = replica.Clock{Kind: measureUnread}
)

// unreadSaid is how long a durable write has to be put off for people to be told so.
const unreadSaid = 10 * time.Second

// Unread is since when so much of what a job wrote is not read back that its next durable write waits, under whatever leader. Where nothing has waited
// before, it begins now.
func (c *Clocks) Unread(now time.Duration) time.Duration { return c.Since(now, unreadClock) }

// SayUnread tells whether people are to be told now that the next durable write waits: after 10 s, and each time that has doubled.
func (c *Clocks) SayUnread(now time.Duration) bool {
	return c.Due(now, unreadClock, measureUnread, unreadSaid)
}

// NextUnread is when SayUnread may be true next.
func (c *Clocks) NextUnread(now time.Duration) time.Duration {
	return c.Unread(now) + unreadSaid<<min(c.Measure(unreadMeasure), 16)
}

// ReadBack ends that: enough was read back. waited: something has waited until now; told: people were told so.
func (c *Clocks) ReadBack() (waited, told bool) {
	if _, waited = c.At(unreadClock); waited {
		c.End(unreadClock)
	}
	if told = c.Measure(unreadMeasure) > 0; told {
		c.End(unreadMeasure)
	}
	return waited, told
}

// UnreadText says that a job's durable writes wait.
func UnreadText(steps string, since time.Duration) string {
	return strings.NewReplacer("{what}", steps, "{since}", since.Round(time.Second).String()).Replace(Waits[AwaitReadBack].Says)
}
