// Package growth is what ranks of a node ask to grow to, between two steps, while they wait for the answer.
//
// The room has the grown arena of each made beside the present one, and says so to the leader, or why it can't. The leader decides: the job's state
// has a growth then, and the rank gets its arena; or the leader refuses, and the arena is given back. A fault that closes the epoch first ends the
// wait as well. Where the daemon starts anew in the middle the ranks ask again, and those of a growth that was decided get their arenas then.
//
// Invariant: until the job's state has the growth, a rank and its arena are as they were.
package growth
