// Package wire is the bytes of every message and record that replicad sends or stores: frames with magic, version, kind,
// length and checksum, CBOR bodies, the tags of the log's commands, and the fixed-layout messages that ranks and daemons
// exchange (rank.go, the twin of libreplicad/src/layout.h).
//
// It owns no goroutine, connection or file: callers bring the reader, the writer and the limit. Invariants: no length or
// element count found in foreign bytes is trusted before it was compared with a limit; a body is decoded only after its
// checksum held; numbers that were given out (kinds, tags, map keys) never change their meaning, and the files in testdata
// hold one sample of each for ever. Foreign bytes lead to an error that matches ErrFrame, never to a panic.
//
// It imports only replica, a checksum and a CBOR library; nothing of the network, the file system, or other packages of ours.
package wire
