// Package room is how the rooms of a host see a job.
//
// A room is one concern of a node with all of its state, in the shape of act.Room. It starts nothing, has no clock, and never waits. A room asks
// its host by a small port of its own. It must not import host, nor another room.
//
// The functions of this package answer questions about a job's record and its layout: they read the job alone, and never change it.
package room
