// Package s3 is a store in a bucket of S3, or of a server that speaks as S3 does.
//
// The client library sends one request for one call, and repeats none: package remote does. Digests are computed here and sent as headers, never
// as trailers, which several vendors' stores refuse.
//
// It must not import anything of this module but remote and store.
package s3
