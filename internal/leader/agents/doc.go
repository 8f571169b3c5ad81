// Package agents is the room of the leader in which torchrun's agents meet. A round takes as many agents as the job's torchruns say (--nnodes), and
// gives each its rank among the nodes. An agent that comes while a round is full waits as a spare. An agent whose processes have failed
// leaves the round. The others of the round hear then that somebody waits, leave it too, and the next round begins.
//
// The room's state is soft. A new leader makes it again from what the daemons report of their agents. Nobody sends heartbeats: a daemon sees the
// end of an agent at once, and a node that recovery has found dead takes its agents along. Agents of a daemon that is merely away stay for a grace.
//
// A Room belongs to one goroutine, the leader's, and to one job. It starts nothing, and imports replica and the messages.
package agents
