// Package unixsock is what the sockets of a node have in common: taking a path over from a process that was killed, the identity of
// who is at the other end, and descriptors that come and go beside a message.
//
// It owns nothing: listeners, connections and files are the caller's. It knows no message of this project and must not import
// any other package of it.
package unixsock
