// Package journal is what a daemon logs and audits: every line has a method here, with plain values in, and is named after its event. What repeats many times a second is
// said once in a while.
package journal
