package s3

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/minio/minio-go/v7"

	"github.com/replicad/replicad/internal/durable/store"
)

// class is what an answer means for what comes next.
type class int

const (
	fine      class = iota
	absent          // there is no such object
	noUpload        // there is no such upload
	exists          // the condition does not hold
	contended       // another request for the key is on its way
	slow            // fewer requests are asked for: it was not carried out
	doubtful        // nobody knows whether it was carried out
	damaged         // the bytes that arrived are not those that were sent
	expired         // the credentials are no longer valid
	refused         // it will be so the next time too
	over            // the caller's context has ended
)

// repeats tells whether an answer of this class may be another one the next time.
func (c class) repeats() bool {
	switch c {
	case contended, slow, doubtful, damaged, expired:
		return true
	case fine, absent, noUpload, exists, refused, over:
	}
	return false
}

// byCode are the codes of S3 and of servers like it; what is not here is judged by its status.
var byCode = map[string]class{
	"NoSuchKey": absent, "NoSuchUpload": noUpload,
	"PreconditionFailed":         exists,
	"ConditionalRequestConflict": contended, "OperationAborted": contended, "Conflict": contended,
	"SlowDown": slow, "SlowDownRead": slow, "SlowDownWrite": slow, "Throttling": slow, "ThrottlingException": slow, "RequestLimitExceeded": slow,
	"RequestThrottled": slow, "TooManyRequests": slow, "TooManyRequestsException": slow, "BandwidthLimitExceeded": slow, "ServerBusy": slow, "Busy": slow,
	"InternalError": doubtful, "ServiceUnavailable": doubtful, "RequestTimeout": doubtful, "IncompleteBody": doubtful,
	"BadDigest": damaged, "XAmzContentSHA256Mismatch": damaged, "XAmzContentChecksumMismatch": damaged, "InvalidDigest": damaged,
	"ExpiredToken": expired, "ExpiredTokenException": expired, "TokenRefreshRequired": expired, "InvalidToken": expired,
}

// remedies are what somebody must do about an answer, by its code.
var remedies = map[string]string{
	"NoSuchBucket":                   "make the bucket, or name one that is there",
	"AccessDenied":                   "these credentials may not do it: docs/stores.md has the policy that is needed",
	"AllAccessDisabled":              "the account may do nothing any more: ask who pays for it",
	"InvalidAccessKeyId":             "the server does not know the access key: is it of this endpoint?",
	"SignatureDoesNotMatch":          "the secret key is wrong, or a proxy changes requests",
	"RequestTimeTooSkewed":           "this node's clock is wrong: set it, best by NTP",
	"AuthorizationHeaderMalformed":   "set the region that the server names",
	"InvalidRegion":                  "set the region that the server names",
	"PermanentRedirect":              "the bucket is elsewhere: set its endpoint and region on this node",
	"TemporaryRedirect":              "the bucket is elsewhere: set its endpoint and region on this node",
	"QuotaExceeded":                  "the quota is used up: free space, raise it, or keep fewer generations",
	"XMinioStorageFull":              "the store is full: free space, or keep fewer generations",
	"XMinioAdminBucketQuotaExceeded": "the quota is used up: free space, raise it, or keep fewer generations",
	"EntityTooLarge":                 "the server takes no object or part of this size",
	"NotImplemented":                 "the server cannot do it: checksum: md5 or none may help, or another store",
	"InvalidArgument":                "the server cannot do it: checksum: md5 or none may help, or another store",
	"MethodNotAllowed":               "what answers is no S3 server, or a proxy before it allows too little",
}

// failure is what one request came to.
type failure struct {
	class  class
	code   string // of the server; empty: it has not answered
	status int
	text   string // a sentence
	err    error
}

func (f *failure) Error() string { return f.text }

// Unwrap names the store's word for it, and what it was.
func (f *failure) Unwrap() []error {
	is := map[class]error{absent: store.ErrAbsent, noUpload: store.ErrAbsent, exists: store.ErrExists, contended: store.ErrDoubtful, slow: store.ErrSlowDown, doubtful: store.ErrDoubtful, damaged: store.ErrCorrupt, expired: store.ErrRefused, refused: store.ErrRefused}[f.class]
	if is == nil {
		return []error{f.err}
	}
	return []error{is, f.err}
}

// judge says what an error of the library means; nil of nil.
func judge(ctx context.Context, tr *trace, err error) *failure {
	if err == nil {
		return nil
	}
	var known *failure
	if errors.As(err, &known) {
		return known
	}
	if ctx.Err() != nil {
		cause := context.Cause(ctx)
		return &failure{class: over, text: cause.Error(), err: errors.Join(ctx.Err(), cause)}
	}
	if errors.Is(err, errCredentials) {
		return &failure{class: refused, code: "no credentials", text: oneLine(err.Error()), err: errCredentials}
	}
	var r minio.ErrorResponse
	if errors.As(err, &r) && r.StatusCode != 0 {
		return answered(r, tr)
	}
	// It may have been sent: no answer was read. What the library refuses before it sends anything is a bug of this package.
	return &failure{class: doubtful, text: "no answer: " + oneLine(err.Error()), err: err}
}

func answered(r minio.ErrorResponse, tr *trace) *failure {
	f := &failure{class: classOf(r.Code, r.StatusCode), code: r.Code, status: r.StatusCode, err: r}
	f.text = sentence(r, tr)
	return f
}

// classOf judges an answer of a status other than success.
func classOf(code string, status int) class {
	if c, ok := byCode[code]; ok && !(c == absent && status != http.StatusNotFound) {
		return c
	}
	switch {
	case status < 300: // an answer of success that is none
		return doubtful
	case status == http.StatusTooManyRequests || status == http.StatusServiceUnavailable:
		return slow
	case status == http.StatusRequestTimeout || status == http.StatusTooEarly || status == 499 || status >= 500 && status != http.StatusNotImplemented && status != http.StatusInsufficientStorage:
		return doubtful
	case status == http.StatusPreconditionFailed:
		return exists
	case status == http.StatusConflict:
		return contended
	}
	return refused
}

// sentence has the code, what the server says, and what to do. What comes from a server is capped, and is one line of printable text.
func sentence(r minio.ErrorResponse, tr *trace) string {
	var b strings.Builder
	code := strings.TrimPrefix(oneLine(r.Code), fmt.Sprintf("%d ", r.StatusCode)) // the library's own has the status line
	fmt.Fprintf(&b, "HTTP %d", r.StatusCode)
	if code != "" {
		fmt.Fprintf(&b, " %s", code)
	}
	if text := oneLine(r.Message); text != "" && text != code && text != oneLine(r.Code) {
		fmt.Fprintf(&b, ": %s", text)
	}
	if r.Region != "" && (strings.Contains(r.Code, "Region") || strings.Contains(r.Code, "Redirect") || strings.Contains(r.Code, "Authorization")) {
		fmt.Fprintf(&b, " (its region is %s)", oneLine(r.Region))
	}
	if r.Code == "RequestTimeTooSkewed" && tr.date {
		fmt.Fprintf(&b, " (the server's clock is %v from this node's)", tr.skew.Round(time.Second))
	}
	if remedy := remedies[r.Code]; remedy != "" {
		fmt.Fprintf(&b, ": %s", remedy)
	}
	return b.String()
}

const maxText = 200

// oneLine makes foreign text fit for a log.
func oneLine(s string) string {
	s = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || 0x80 <= r && r < 0xa0 || r == '\ufffd' {
			return ' '
		}
		return r
	}, s)
	s = strings.Join(strings.Fields(s), " ")
	if len(s) > maxText {
		s = strings.ToValidUTF8(s[:maxText], "") + "..."
	}
	return s
}
