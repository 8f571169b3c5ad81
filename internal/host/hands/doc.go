// Package hands does for a node what takes time, or touches what lasts. It moves bytes to and from other nodes and the store,
// hashes, makes memory and gives it back.
//
// It decides nothing. What it is to do comes from a room or a job, and runs beside the node's goroutine. Its end is posted there: an Answer
// for a room, a Reply for the leader, a Released place. Nobody else has the mover, the store, the spool or the custodian.
package hands
