package transfer

import "time"

// Limits and times, in one place. They bound what a peer can cost; none decides what is correct.
const (
	// aheadBytes is how much a lane asks for ahead, in chunks of which there are at least two and at most mostAhead: with one, the source
	// idles for a round trip and a verification per chunk; more makes a dying lane return more.
	aheadBytes = 4 << 20
	mostAhead  = 16
	// stallAfter is how long a stream may bring no byte before it is set aside. Too short sets a busy source aside for a
	// pause of its host; too long delays a recovery whose only other sources are slower.
	stallAfter = 5 * time.Second
	// slowest is at how many bytes a second a chunk comes at least, or counts as stalled: a link that loses nearly everything never ends, and what
	// could take its place is not asked. No pace of a donor's is below a hundred times as much (manners).
	slowest = 64 << 10
	// hedgeAfter is how old a request must be before an idle lane asks for the same chunk too. It bounds what a slow last
	// source costs without doubling the traffic of healthy ones.
	hedgeAfter = 500 * time.Millisecond
	// receivesAgain is how long a receiver that had nothing new is left alone before it is asked again.
	receivesAgain = 20 * time.Millisecond
	// hashPiece is how much is read at most before it is hashed, and hashLeast at least: half of a core's second cache, and enough that the
	// hash's own start does not count.
	hashPiece, hashLeast = 256 << 10, 32 << 10
	// pacedPiece is how much is sent at most before a paced part may be held back again. Smaller pieces cost more calls of the system.
	pacedPiece = 256 << 10
	// idleAfter is how long a served stream may be quiet between two requests: the receiver may be making room.
	idleAfter = 30 * time.Second
	// rehashes is how many bytes a second a node hashes again at least of what it has; busy ones are slower than the 4 GiB of a quiet core.
	rehashes = 256 << 20
	// restAfter is how long a connection that serves one exchange after another may rest between two: pushes come a step apart.
	restAfter = 5 * time.Minute
	// wideFrom is from how many bytes a part is worth connections beside its node's first: a TLS handshake costs 2 ms of processor time at
	// each end, in which a lane moves 2 MB. headStart is how long the others wait for that one.
	wideFrom  = 8 << 20
	headStart = 250 * time.Millisecond
	// donorsAtOnce is how many nodes that have all of a part are asked for it at once, the first ones of the list: so many fill a link, and each
	// more costs connections and wakes one more node. The others are in reserve.
	donorsAtOnce = 4
	// Tries of an address that failed while others of its node work: jittered, doubling between these. More often, and an interface that is
	// down costs handshakes for nothing.
	redialFirst = 100 * time.Millisecond
	redialMost  = 2 * time.Second
	// dialAfter bounds one attempt to reach a source.
	dialAfter = 5 * time.Second
	// Retries after NotYet and refusals: jittered, doubling between these, for at most patience.
	retryFirst = 20 * time.Millisecond
	retryMost  = time.Second
	patience   = 15 * time.Second
	// pushWhole is up to how many bytes a part is pushed without asking first what the mirror lacks. Every commit waits for the
	// private parts, which are kilobytes: the question would cost a round trip, and the answer is mostly "all of it".
	pushWhole = 64 << 10
	// maxErrorText bounds what a peer's refusal may make us log, in bytes.
	maxErrorText = 512
	// maxRequest bounds the first frame of a fetch, in bytes; maxPush that of a push, which carries a manifest: names of
	// regions and a digest of each chunk.
	maxRequest = 4 << 10
	// maxItems bounds what a manifest lists: as many chunks as an array may have, and 65,536 regions of 32 items.
	maxItems = 4 << 20
	maxPush  = 64 << 20
)
