package endpoint

import (
	"time"

	"github.com/quic-go/quic-go"
)

const (
	handshakeTimeout = 3 * time.Second
	idleTimeout      = 3 * time.Second // both ends set it: a peer's announcement alone is raised to 5 s by quic-go
	keepAlive        = time.Second

	// Receive windows: a 25 Gbit/s path of 10 ms needs 31 MB in flight; fewer bytes are kept unless a reader keeps up.
	initialWindow       = 2 << 20
	maxStreamWindow     = 32 << 20
	maxConnWindow       = 64 << 20
	windowBudget        = 1 << 30 // sum of all connections' windows beyond their initial ones
	maxIncomingStreams  = 64      // a peer's open streams on one connection; it waits for credit beyond
	maxConns            = 8192    // accepted connections in all: three classes of 2,700 nodes
	maxConnsPerPeer     = 48      // of one node: a few of each class, and the old ones that a restarted peer left behind
	handshakesPerSecond = 256     // beyond it a client must prove its address first (one round trip more)

	// What quic-go asks for; a smaller buffer silently drops bursts.
	socketBuffer = 7 << 20

	// Bulk connections over TCP.
	recordBuffer  = 256 << 10        // read and written at a time under the record layer, each way of each connection
	maxTCPConns   = 1024             // in all: half a gigabyte of buffers at the worst
	maxTCPPerPeer = 64               // of one node: some for each of its ranks
	maxShaking    = 256              // handshakes under way
	shakingBytes  = 32 << 10         // of a handshake, from the other end: a chain of certificates has three or four
	userTimeout   = 5 * time.Second  // bytes that the peer's kernel does not acknowledge
	acceptPause   = time.Second / 10 // after an accept that failed
	lingerFor     = time.Second / 2  // for the peer to read why it was refused
	lingerBytes   = 16 << 20

	logEvery   = 30 * time.Second // of refused handshakes, for one address
	logSources = 256              // addresses remembered for that; beyond them nothing is logged

	maxReason = 256 // bytes of a close reason taken from a peer into an error
)

// settings are the same for all classes: a server doesn't know the class when it has to choose.
func (e *Endpoint) settings() *quic.Config {
	return &quic.Config{
		HandshakeIdleTimeout:           handshakeTimeout,
		InitialPacketSize:              initialSize, // it grows by what the path carries; the default begins above what a tunnel of 1,280 bytes does
		MaxIdleTimeout:                 idleTimeout,
		KeepAlivePeriod:                keepAlive,
		InitialStreamReceiveWindow:     initialWindow,
		MaxStreamReceiveWindow:         maxStreamWindow,
		InitialConnectionReceiveWindow: initialWindow,
		MaxConnectionReceiveWindow:     maxConnWindow,
		AllowConnectionWindowIncrease:  e.windows.allow,
		MaxIncomingStreams:             maxIncomingStreams,
		MaxIncomingUniStreams:          -1,
		Versions:                       []quic.Version{quic.Version1},
	}
}
