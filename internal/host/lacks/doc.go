// Package lacks keeps what the ranks of a job on one node say that their copies lack.
//
// A Book starts nothing, has no clock, and never waits. One goroutine, its owner's, calls it: Say takes a rank's word, Learn the job's newest
// record. Report is what the leader is to know, Committed what the launchers are to print.
//
// Invariants: a rank's word outlives its process for as long as a generation that the process had a part in may become durable. Each text is printed
// once, however many ranks say it, and a few of one rank.
//
// It must not import host.
package lacks
