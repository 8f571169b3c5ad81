// Package membership is the gossip view of the cluster: who seems to be there, where, and in which life of its memory.
//
// Gossip is evidence and never decides: a member that memberlist declares dead is reported as Suspect, and nothing unsafe may
// follow from that alone. Whoever has the gossip key can say anything about anybody; what arrives is checked for form only.
//
// Events are hints: the queue is bounded, drops the oldest when full and counts them. Members is the truth as known here, and
// always at least as new as the events.
//
// Goroutines: memberlist runs its own until Close; Run is the caller's. It imports replica and memberlist and must not import
// any other package of this module.
package membership
