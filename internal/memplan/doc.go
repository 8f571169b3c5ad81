// Package memplan says, before a job runs, what a node will need of host memory for it: arenas, mirrors and stages.
//
// Invariant: it knows no size of its own. Arenas and mirrors are shm's layout of the regions that a rank would register, and their number on a
// node is what recovery's placement comes to, so that plan and reality can't drift apart.
//
// Pure: no clock, no I/O. It must not import what runs daemons.
package memplan
