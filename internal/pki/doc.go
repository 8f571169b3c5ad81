// Package pki makes and reads a cluster's credentials: its certificate authority, one certificate a node, those of operators, and
// the gossip key.
//
// A node's identity is the URI SAN replicad://<cluster-uuid>/node/<name> of a certificate that the cluster's CA signed; DNS
// names and addresses mean nothing. Whoever holds a node's key is that node, so private files are 0600 and Load refuses laxer ones.
//
// An operator's identity is likewise replicad://<cluster-uuid>/operator/<name>, and good for signing orders alone: no connection is
// opened with it, and a node's certificate signs none.
//
// Invariant: the TLS configurations made here verify the chain, the cluster and (as a client) the node's name on every
// connection; sessions are never resumed, so no connection escapes that check. An Identity is immutable and safe for concurrent use.
// The package starts no goroutine. It imports replica and must not import any other package of this module.
package pki
