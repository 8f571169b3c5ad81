package recovery

// ending is how a job comes to its end: its ranks have left, or it was stopped, and what is committed is to be on disk first.
type ending struct {
	known  *known
	outbox *outbox

	pace       pace
	parting    parting
	writes     writes
	writesOver bool // durable writes of the job have ended for good
}
