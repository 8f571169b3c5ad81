package replica

// Missing is a part that the commit of a candidate lacks on a node: the node has not said that it holds it.
type Missing struct {
	Part Part
	Node NodeName
	// Mirror tells that the node mirrors the part; else one of its ranks makes it.
	Mirror bool
	Rank   Rank // that makes it; of a group's part that is mirrored, 0
	// Holders are the nodes that hold the part already; none: its maker has not sealed it.
	Holders []NodeName
}
