package s3

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/minio/minio-go/v7"

	"github.com/replicad/replicad/internal/durable/remote"
)

// byCode are the codes of S3 and of servers like it; what is not here is judged by its status.
var byCode = map[string]remote.Class{
	"NoSuchKey": remote.Absent, "NoSuchUpload": remote.NoUpload,
	"PreconditionFailed":         remote.Exists,
	"ConditionalRequestConflict": remote.Contended, "OperationAborted": remote.Contended, "Conflict": remote.Contended,
	"SlowDown": remote.Slow, "SlowDownRead": remote.Slow, "SlowDownWrite": remote.Slow, "Throttling": remote.Slow, "ThrottlingException": remote.Slow, "RequestLimitExceeded": remote.Slow,
	"RequestThrottled": remote.Slow, "TooManyRequests": remote.Slow, "TooManyRequestsException": remote.Slow, "BandwidthLimitExceeded": remote.Slow, "ServerBusy": remote.Slow, "Busy": remote.Slow,
	"InternalError": remote.Doubtful, "ServiceUnavailable": remote.Doubtful, "RequestTimeout": remote.Doubtful, "IncompleteBody": remote.Doubtful,
	"BadDigest": remote.Damaged, "XAmzContentSHA256Mismatch": remote.Damaged, "XAmzContentChecksumMismatch": remote.Damaged, "InvalidDigest": remote.Damaged,
	"ExpiredToken": remote.Expired, "ExpiredTokenException": remote.Expired, "TokenRefreshRequired": remote.Expired, "InvalidToken": remote.Expired,
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

// judge says what an error of the library means; nil of nil.
func judge(ctx context.Context, tr *remote.Trace, err error) *remote.Failure {
	return remote.Judge(ctx, err, func(err error) *remote.Failure {
		if errors.Is(err, errCredentials) {
			return &remote.Failure{Class: remote.Refused, Code: "no credentials", Text: remote.OneLine(err.Error()), Err: errCredentials}
		}
		var r minio.ErrorResponse
		if errors.As(err, &r) && r.StatusCode != 0 {
			return answered(r, tr)
		}
		return nil
	})
}

func answered(r minio.ErrorResponse, tr *remote.Trace) *remote.Failure {
	return &remote.Failure{Class: classOf(r.Code, r.StatusCode), Code: r.Code, Status: r.StatusCode, Text: sentence(r, tr), Err: r}
}

// classOf judges an answer of a status other than success.
func classOf(code string, status int) remote.Class {
	if c, ok := byCode[code]; ok && !(c == remote.Absent && status != http.StatusNotFound) {
		return c
	}
	return remote.ClassOf(status, remote.Slow)
}

// sentence has the code, what the server says, and what to do. What comes from a server is capped, and is one line of printable text.
func sentence(r minio.ErrorResponse, tr *remote.Trace) string {
	var b strings.Builder
	code := strings.TrimPrefix(remote.OneLine(r.Code), fmt.Sprintf("%d ", r.StatusCode)) // the library's own has the status line
	fmt.Fprintf(&b, "HTTP %d", r.StatusCode)
	if code != "" {
		fmt.Fprintf(&b, " %s", code)
	}
	if text := remote.OneLine(r.Message); text != "" && text != code && text != remote.OneLine(r.Code) {
		fmt.Fprintf(&b, ": %s", text)
	}
	if r.Region != "" && (strings.Contains(r.Code, "Region") || strings.Contains(r.Code, "Redirect") || strings.Contains(r.Code, "Authorization")) {
		fmt.Fprintf(&b, " (its region is %s)", remote.OneLine(r.Region))
	}
	if skew := tr.Skew(); r.Code == "RequestTimeTooSkewed" && skew != 0 {
		fmt.Fprintf(&b, " (the server's clock is %v from this node's)", skew.Round(time.Second))
	}
	if remedy := remedies[r.Code]; remedy != "" {
		fmt.Fprintf(&b, ": %s", remedy)
	}
	return b.String()
}
