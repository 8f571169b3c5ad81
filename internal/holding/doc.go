// Package holding is what a node holds of its jobs in memory: arenas with their readers and pins, the inventory of the parts sealed in them, and
// the custody of their descriptors beyond the daemon's death.
//
// It says what lies where, and who reads it. Why something is kept, whose it is by the job's rules, and when it is freed are its owner's to
// decide (internal/host).
//
// Ownership: an Arena, and whatever comes of it but for what says otherwise, belongs to one goroutine. The Custodian and the bytes of a Reader may
// be used from any.
//
// holding may import replica, internal/shm, internal/unixsock, internal/atomicfile, internal/journal and internal/planted; never what knows ranks' sessions,
// the network or the leader.
package holding
