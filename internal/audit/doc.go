// Package audit is a log of who did what to the cluster: lines of JSON, each with the digest of the one before, so that a line which is
// changed, taken out or put in between shows (Verify). Who may write the file may write a whole new chain, or cut off its end: the digest
// of the last line, kept elsewhere, shows that too.
//
// A Log has one goroutine, which alone writes; Append hands it a line and never waits: where its queue is full the line is dropped, and
// the next one says how many were. A disk that takes no lines costs lines, never a step. A nil Log keeps nothing.
//
// It imports nothing of this module: it knows no event, node or job.
package audit
