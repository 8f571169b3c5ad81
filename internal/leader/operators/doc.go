// Package operators is the leader's room for what operators order: who may, the drain, the clearing and the loss of nodes, changes of
// voters and revocations. Orders about one job are the job's. A room belongs to the goroutine that runs the leader. An Authority, and what
// a room starts beside the leader, do not.
package operators
