// Package transfer moves sealed parts between daemons, chunk by chunk, over whatever lanes the node has.
//
// A receiver asks the first few holders at once: each lane pulls chunks from one queue, so that the faster takes more; each chunk is
// hashed on arrival and only then handed to the sink. A source that errs, stalls, or sends a wrong chunk gives its chunks
// back to the queue and is set aside with the reason; what has arrived stays. Others that receive the same part serve on what they
// have of it (Source.Receives). A producer pushes to its mirrors the same way.
//
// Ownership: Fetch, Push and Serve own the goroutines they start and return only when all of them have ended; each stream
// belongs to one of them. Readers, sinks and lanes are the caller's: memory, permission and connections are behind the
// interfaces of this package, which the node fills in.
//
// Invariants: a manifest counts only if it hashes to the root that the caller asked for, and a chunk only if it hashes to
// the manifest's digest, whoever sent them; no length from a peer is used before it was compared with the verified manifest
// or a limit; nothing is allocated per chunk.
//
// It imports replica, wire and xxh3. It must not import shm, pki, the QUIC endpoint or any other package of its own layer.
package transfer
