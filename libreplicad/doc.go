// Package libreplicad is the Go binding of the C client of the same folder: what a training rank written in Go links.
//
// A [Session] belongs to one goroutine, the training loop's; [Session.Fenced], [Session.Fence], [Session.Committed] and
// [Session.Stats] may be asked from any. Attach starts two goroutines that Close waits for: the worker, which copies and hashes
// behind the next forward, and the watcher, which listens to the daemon and finds it again when it was away.
//
// Live state lies in [Memory], outside Go's heap: C keeps pointers to it for as long as the session lives.
// Invariant: nothing here waits for the daemon between StepEnter and the next StepEnter; a daemon that is away costs no step.
//
// It may import replica and x/sys, and nothing of the daemon.
package libreplicad
