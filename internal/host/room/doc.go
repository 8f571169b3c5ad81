// Package room is what the rooms of a host share: their shape, and how they see a job.
//
// A room is one concern of a node with all of its state. It starts nothing, has no clock, and never waits. Its host's goroutine calls it: Learn
// takes an event, Step returns the effects that the host carries out, and Next is when the host calls Step again at the latest. A room asks its
// host by a small port of its own. It must not import host, nor another room.
//
// The functions of this package answer questions about a job's layout: they read the job alone, and never change it.
package room
