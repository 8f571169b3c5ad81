// Package endpoint is a node's one port: QUIC connections of three classes and a datagram probe of our own on UDP, and on TCP connections
// under TLS for bulk data.
//
// A class (raft, control, bulk) is an ALPN name and has its own connections, so bulk data never delays a heartbeat. Peers are
// known by the name in their certificate. What a connection's end means is told apart, because the failure detector needs it:
// a *CloseError (the peer said so), ErrReset (the peer's daemon restarted), ErrSilent (nothing heard), and for probes
// ErrRefused (the host is up, no daemon has the port).
//
// Goroutines: Run owns the accept loops, the probe answers and one goroutine for each accepted connection, and returns when all
// have ended; quic-go runs its own for the socket and each connection, and Close waits for them. An Endpoint, Conn and Stream
// are safe for concurrent use. Invariant: every limit on what a peer may make this node hold is in limits.go.
//
// It imports replica and quic-go, gets its TLS configurations from the caller, and must not import any other package of this module.
package endpoint
