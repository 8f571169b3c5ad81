// Package job is one job on its node: what the node knows of it, its ranks there, and what follows from one for the other.
//
// A job is made by the leader's view and dropped in one place, and belongs to the goroutine of the node. Nobody else sees its ranks (package
// rank). What costs time runs beside the node, and its end comes back to the same job as an Ending. The order in which everything local is
// brought in line with the job's record is a table (upkeep.go).
package job
