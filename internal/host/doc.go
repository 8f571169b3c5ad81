// Package host is a node: what its jobs share, and the loop that brings each of them what happens. A job (package job) owns its
// ranks (package rank), a room one concern of all jobs, and hands (package hands) do what takes time. All they ask of each other
// goes through this package.
//
// One goroutine (Run) owns all mutable state, and what runs beside it posts one event back. The host meets the leader through a link
// alone, on this node too. It meets the world through the interfaces of Config, and a test may put its own in their place.
//
// What the leader gets is level-triggered: reports are full accounts, so losing a link, a daemon or a leader costs nothing but
// sending them again.
package host
