// Package bench is `replicad bench`: every figure of replicad's speed beside its limit, taken by turns in one run.
//
// A figure is the median of at least ten rounds. A round measures the limit and then replicad: memcpy and a capture, crypto/tls and
// a transfer over TLS, a bare fsync and a commit. Figures move by a factor of two between machines and hours; their ratio to a limit
// that was measured a moment before moves far less.
//
// What measures (measure.go, figure.go) is apart from what is measured: transfers in this process over the daemons' own endpoints,
// captures by the C program of bench/words_and_capture, and clusters of real processes for the rest.
//
// One goroutine, Run's, measures; nothing is measured beside something else. Servers that a measurement needs have goroutines of
// their own, which have ended when it returns.
//
// It stands on transfer, endpoint and chaos/cluster, asks `replicad demo` for recoveries through its report, and must not import
// internal/node, mover or host: daemons are measured from the outside.
package bench
