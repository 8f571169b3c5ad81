// Package reread is the room of the leader that has durable generations read: what was written counts for nothing before somebody has read it, and
// what lies on a disk for weeks rots unseen. It has two ways, each with one read at a time and a rate of its own. What nobody has read since it was written is read
// back at once, the newest first, where a job wrote it that is led: retention and the next write of the job wait for that. What was read longest ago is read again,
// as soon as that is longer ago than the period, whoever's it is: of former runs and of jobs that are over too. What others left unread comes first there.
//
// The room keeps nothing beyond what the last lists said, and what was written since. What a read found lies beside the generation on the disk, so that another
// leader, or another cluster on the same directory, goes on where this one ended. While a job recovers no read begins, for ten minutes: a recovery may need the disk.
//
// A Room belongs to one goroutine, the leader's. It has the shape of a room: Learn takes an event, Step returns what to do, Next says when to
// call Step again. It starts nothing, and imports replica alone.
package reread
