package azure

import (
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/replicad/replicad/internal/durable/remote"
)

// byCode are codes that say more than the status does.
var byCode = map[string]remote.Class{
	"BlobNotFound": remote.Absent, "InvalidBlockList": remote.NoUpload,
	"BlobAlreadyExists": remote.Exists, "ConditionNotMet": remote.Exists, "TargetConditionNotMet": remote.Exists,
	"ServerBusy": remote.Busy, "OperationTimedOut": remote.Doubtful, "InternalError": remote.Doubtful,
	"Md5Mismatch": remote.Damaged, "InvalidAuthenticationInfo": remote.Expired,
	"ContainerNotFound": remote.Refused, "ContainerBeingDeleted": remote.Refused, "ContainerDisabled": remote.Refused,
	"BlobImmutableDueToPolicy": remote.Refused, "LeaseIdMissing": remote.Refused, "SnapshotsPresent": remote.Refused, "AccountIsDisabled": remote.Refused,
}

// remedies are what somebody must do about an answer, by its code.
var remedies = map[string]string{
	"ContainerNotFound":               "make the container, or name one that is there",
	"ContainerBeingDeleted":           "make the container anew once it is gone, or name one that is there",
	"AuthenticationFailed":            "the key or the signature is wrong or has expired, or this node's clock is wrong",
	"AuthorizationFailure":            "these credentials, or this network, may not do it: docs/stores.md has the role that is needed",
	"AuthorizationPermissionMismatch": "these credentials may not do it: docs/stores.md has the role that is needed",
	"InvalidAuthenticationInfo":       "the token is none that the server takes: is the tenant that of the account?",
	"BlobImmutableDueToPolicy":        "a policy keeps the object: replicad changes last.json and deletes generations",
	"LeaseIdMissing":                  "somebody holds a lease of the object: break it",
	"AccountIsDisabled":               "the account may do nothing any more: ask who pays for it",
	"InsufficientAccountPermissions":  "these credentials may not do it: docs/stores.md has the role that is needed",
}

// answered finds the code and the text of an answer that is an error.
func answered(a *remote.Answer) (code, message string) {
	var e struct {
		XMLName xml.Name `xml:"Error"`
		Code    string
		Message string
	}
	if code = a.Header.Get("X-Ms-Error-Code"); xml.Unmarshal(bare(a.Body), &e) == nil && e.Code != "" {
		code = e.Code
	}
	message, _, _ = strings.Cut(e.Message, "\n") // then come its numbers
	return code, message
}

// bare is a document without the mark that Azure puts before some.
func bare(b []byte) []byte { return []byte(strings.TrimPrefix(string(b), "\ufeff")) }

func judge(ctx context.Context, tr *remote.Trace, err error) *remote.Failure {
	return remote.Judge(ctx, err, func(err error) *remote.Failure {
		var a *remote.Answer
		if !errors.As(err, &a) {
			return nil
		}
		code, message := answered(a)
		return &remote.Failure{Class: classOf(a.Status, code), Code: code, Status: a.Status, Text: sentence(a.Status, code, message, tr), Err: a}
	})
}

// judge says of a key or a signature that the server does not take where it came from: one that has expired is answered as a wrong one is.
func (s *Store) judge(ctx context.Context, tr *remote.Trace, err error) *remote.Failure {
	f := judge(ctx, tr, err)
	if f != nil && f.Code == "AuthenticationFailed" && f.Class == remote.Refused {
		f.Advise(s.renew())
	}
	return f
}

// classOf judges an answer of a status other than success. A 404 without a code is a proxy's, and makes nothing absent.
func classOf(status int, code string) remote.Class {
	c, ok := byCode[code]
	switch {
	case ok && !(c == remote.Absent && status != http.StatusNotFound) && !(c == remote.Exists && status != http.StatusConflict && status != http.StatusPreconditionFailed):
		return c
	case status == http.StatusUnauthorized:
		return remote.Expired
	case status == http.StatusNotFound && code == "":
		return remote.Doubtful
	}
	return remote.ClassOf(status, remote.Busy)
}

// sentence has the code, what the server says, and what to do, in one line.
func sentence(status int, code, message string, tr *remote.Trace) string {
	var b strings.Builder
	fmt.Fprintf(&b, "HTTP %d", status)
	if code != "" {
		fmt.Fprintf(&b, " %s", remote.OneLine(code))
	}
	if message != "" {
		fmt.Fprintf(&b, ": %s", remote.OneLine(message))
	}
	if status/100 == 3 {
		b.WriteString(": it leads elsewhere, which a store does not: a portal, or a wrong endpoint?")
	}
	if skew := tr.Skew(); code == "AuthenticationFailed" && skew.Abs() > time.Minute {
		fmt.Fprintf(&b, " (the server's clock is %v from this node's)", skew.Round(time.Second))
	}
	if remedy := remedies[code]; remedy != "" {
		fmt.Fprintf(&b, ": %s", remedy)
	}
	return b.String()
}
