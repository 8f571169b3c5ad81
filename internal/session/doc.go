// Package session talks with the ranks and launchers of this node on a unix SEQPACKET socket.
//
// A peer's datagrams (wire's rank messages) become events; what the daemon has to say goes out through a bounded queue of the
// peer. Processes are watched by pidfd, so that a death is known within milliseconds.
//
// Goroutines: Run accepts, and owns one reader and one writer for each peer and one waiter for each watched process; it returns
// when all have ended. Readers block while the event queue is full; senders never block: a peer that does not read until its
// queue overflows is hung up on. Nothing a peer sends can make the daemon wait, allocate beyond a message's size (region records:
// beyond replica.MaxRegions), or keep a descriptor it did not ask for.
//
// Invariant: a peer's first message is HELLO, REATTACH or RUN_HELLO, sent once; a malformed message ends the session with a
// REFUSED that names the fault. Invariant: each peer that was announced by such an event is followed by exactly one Gone.
//
// session may import wire, replica and x/sys; it knows neither arenas nor jobs.
package session
