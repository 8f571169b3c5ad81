// Package remarks keeps what the ranks and launchers of a node say of a job: notes, metrics, versions and the epoch of their data. Nothing of it goes
// anywhere until a durable write is under way: the leader is then told what belongs to the generation that is written, and again where that changes.
//
// It imports replica alone, and has no clock.
package remarks
