// Package racing tells tests whether Go's race detector is on, and how many cases of a long enumeration to run. It is imported by tests alone and must not
// import anything of this module.
//
// Without the race detector an enumeration runs each case: On is false, Stride is 1. Under it one case in Stride runs, the first among them. It looks for
// races there, and a case takes the same ways through the code as its neighbours. `make unit` tests the packages that ask both ways: the Makefile's TWICE.
package racing
