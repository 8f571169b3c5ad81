// Package s3 is a store in a bucket of S3, or of a server that speaks as S3 does.
//
// The client library sends one request for one call: it repeats none, because a client that repeats a conditional put by itself turns its
// own success into a refusal. Repeating is this package's (retry.go): with backoff and jitter, within a bound, and after a doubtful answer
// to a conditional put only once it has read back. Digests are computed here and sent as headers, never as trailers, which several
// vendors' stores refuse.
//
// A request is given up when nothing of it moves, not after a time that a large part outgrows (transport.go).
//
// It must not import anything of this module but store.
package s3
