// Package reread is the room of the leader that has durable generations read again: what lies on a disk for weeks rots unseen, and is found out
// when it is the last resort. It says which generation is to be read next: first those that nobody has read since they were written, the newest
// first, then the one that was read longest ago, as soon as that is longer ago than the period. It has one read at a time, of whatever lies in
// the durable directory, of former runs and of jobs that are over too.
//
// The room keeps nothing beyond what the last lists said. What a read found lies beside the generation on the disk, so that another leader, or
// another cluster on the same directory, goes on where this one ended. While a job recovers no read begins, for ten minutes: a recovery may need the disk.
//
// A Room belongs to one goroutine, the leader's. It has the shape of a room: Learn takes an event, Step returns what to do, Next says when to
// call Step again. It starts nothing, and imports replica alone.
package reread
