// Package exposure tells what a fault would cost now: the steps that ranks have made since the last commit. A node gives it what it knows itself, with
// its own time, and says what it is told to: it needs no leader for that.
//
// It is pure: no clock, goroutine or I/O.
package exposure
