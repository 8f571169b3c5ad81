// Package push sends what lies sealed in the arenas of a node's own ranks to the nodes that mirror it.
//
// Private parts go out as they are sealed. A replicated part goes out once it is the candidate, since only a candidate is worth the bytes. What
// a closed job is to resume at goes out until its mirrors have it. A mirror that is placed anew gets what is committed.
//
// Invariants: a part that a mirror has acknowledged goes out again only where a commit or the leader waits for it. A part goes to a node at most
// once in pushAgain. A node that takes no copy of a part for a second is named to the leader, which has another node mirror the part.
//
// The room knows parts, nodes and times. Opening a copy, and the order of what waits for a line, are its host's and the mover's.
package push
