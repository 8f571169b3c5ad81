// Package mirrors holds parts of other nodes' ranks, in arenas of the daemon's own: a rank's private parts, or a group's replicated ones.
//
// An arena comes into being when a part is first brought: by a push of its maker, or by a fetch that a plan wants. It counts once its memory is
// there, and the keeper and the list on disk have it. The room has parts of a plan fetched that are to be mirrored here, and those that this
// node was asked to fetch for others. It gives an arena up once nobody needs what is there.
//
// Invariants: a job has at most one arena a part here, and at most one on its way. Of each part at most one fetch is under way, and none while
// its maker brings it.
package mirrors
