// Package shm holds ranks' state in sealed memfds: arenas, their places and words, and the keeper that survives the daemon.
//
// An arena (libreplicad/src/layout.h) is laid out once from the regions' sizes: a control page, the region records, a table
// of metas, the frozen area, 2 to 4 slots, the private ring, and the volatile staging area. The daemon creates it, seals its
// size and hands the descriptor to the rank, which maps and writes it. A mirror arena has the same layout but is written by
// the daemon alone, through Stage.
//
// Ownership: an Arena is safe for concurrent use, because every word is an atomic that is changed by compare-and-swap; who
// may change which place when is decided by the caller. Only the control page is mapped here. Everything else is read and
// written with pread and pwrite: what is found is copied once and then checked, and a page that a hostile rank punched out is an
// error or zeros, never a SIGBUS.
//
// Invariant: nothing found in shared memory is used as a length, an offset or an index before it was compared with the geometry
// that this process computed itself. Invariant: a place is served only while its word says SEALED, before and after the read.
//
// The keeper is a process of its own that holds descriptors and nothing else (RunKeeper, DialKeeper).
//
// shm may import replica, xxh3 and x/sys; never another adaptor, nor anything that knows jobs, commits or the network.
package shm
