// Package remote is what stores across a network have in common: what an answer means, when a request is repeated, how a put in doubt is read
// back, and when a request that does not move is given up.
//
// One request is made for one attempt. A client that repeats a conditional put by itself turns its own success into a refusal, so all
// repeating is here (retry.go): with backoff and jitter, within a bound, and after a doubtful answer to a conditional put only once it has
// been read back (put.go). A request is given up when nothing of it moves, not after a time that a large part outgrows (transport.go).
//
// A store on top makes the requests, and judges the answers by their codes. It must not import anything of this module but store.
package remote
