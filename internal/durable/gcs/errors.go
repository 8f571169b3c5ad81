package gcs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/replicad/replicad/internal/durable/remote"
)

// byReason are the reasons that say more than the status does.
var byReason = map[string]remote.Class{
	"rateLimitExceeded": remote.Slow, "userRateLimitExceeded": remote.Slow, "authError": remote.Expired,
	"backendError": remote.Doubtful, "internalError": remote.Doubtful, "conditionNotMet": remote.Exists,
}

// answerOf is the body of an error.
type answerOf struct {
	Error struct {
		Message string `json:"message"`
		Errors  []struct {
			Reason string `json:"reason"`
		} `json:"errors"`
	} `json:"error"`
}

func (s *Store) judge(ctx context.Context, tr *remote.Trace, err error) *remote.Failure {
	return remote.Judge(ctx, err, func(err error) *remote.Failure {
		var a *remote.Answer
		if !errors.As(err, &a) {
			return nil
		}
		var body answerOf
		_ = json.Unmarshal(a.Body, &body) // one that is no JSON has no reason
		reason := ""
		if len(body.Error.Errors) > 0 {
			reason = body.Error.Errors[0].Reason
		}
		f := &remote.Failure{Class: classOf(a.Status, reason, body.Error.Message), Code: reason, Status: a.Status, Err: a}
		f.Text = s.sentence(a.Status, reason, body.Error.Message, tr)
		return f
	})
}

// classOf judges an answer of a status other than success. No 404 makes an object absent: a listing does.
func classOf(status int, reason, message string) remote.Class {
	switch c, ok := byReason[reason]; {
	case status == http.StatusUnauthorized:
		return remote.Expired
	case status == http.StatusBadRequest && strings.Contains(message, "match calculated"):
		return remote.Damaged
	case status == http.StatusNotFound && reason == "":
		return remote.Doubtful // a proxy's
	case ok && (c != remote.Exists || status == http.StatusPreconditionFailed):
		return c
	}
	return remote.ClassOf(status, remote.Busy)
}

// remedies are what somebody must do about an answer, by its status.
var remedies = map[int]string{
	http.StatusForbidden:           "these credentials may not do it: docs/stores.md has the roles that are needed",
	http.StatusNotFound:            "make the bucket, or name one that is there",
	http.StatusMethodNotAllowed:    "what answers is no server of Google Cloud Storage, or a proxy before it allows too little",
	http.StatusInsufficientStorage: "the store is full: free space, or keep fewer generations",
}

// sentence has the reason, what the server says, and what to do, in one line.
func (s *Store) sentence(status int, reason, message string, tr *remote.Trace) string {
	var b strings.Builder
	fmt.Fprintf(&b, "HTTP %d", status)
	if reason != "" {
		fmt.Fprintf(&b, " %s", remote.OneLine(reason))
	}
	if message != "" {
		fmt.Fprintf(&b, ": %s", remote.OneLine(message))
	}
	if status/100 == 3 {
		b.WriteString(": it leads elsewhere, which a store does not: a portal, or a wrong endpoint?")
	}
	if skew := tr.Skew(); status == http.StatusUnauthorized && skew.Abs() > time.Minute {
		fmt.Fprintf(&b, " (the server's clock is %v from this node's: set it, best by NTP)", skew.Round(time.Second))
	}
	if remedy := remedies[status]; remedy != "" {
		fmt.Fprintf(&b, ": %s", remedy)
	}
	return b.String()
}
