// Package host is a node's side of every job: the sessions of its ranks, their fences, restores, mirrors and launchers, and which parts in
// its arenas (internal/holding) are pinned, kept and freed. It carries out what the leader orders, and reports what it sees.
//
// One goroutine (Run) owns all mutable state. Everything that takes time (hashing, transfers, disk) runs beside it and posts one event
// back. It meets the leader through a link alone, whether that is on another node or on this one, and the world through the interfaces
// of Config: a test may put its own in their place.
//
// What it tells the leader is level-triggered: reports are full accounts, so losing a link, a daemon or a leader costs nothing but sending
// them again.
package host
