package consensus

import "testing"

// Entries wake the reader of changes alone: who waits for another leader would look at each step's commit otherwise.
func TestEntriesMoveNobody(t *testing.T) {
	n := newNews()
	first, second := *n.moved.Load(), *n.moved.Load()
	n.applied()
	n.applied() // full: one says it all
	select {
	case <-first:
		t.Error("an entry is taken for a change of leadership")
	default:
	}
	<-n.changes
	n.poke()
	<-first
	<-second
	<-n.changes
	select {
	case <-*n.moved.Load():
		t.Error("the next change has come already")
	default:
	}
}
