// Package netfault stands between the daemons of a cluster on loopback addresses and spoils their network at run time, for each ordered
// pair of nodes by itself: it cuts a pair in one direction or both, isolates a node, loses and delays packets. It needs no privilege.
//
// Each node advertises addresses (`addr`, `gossip_addr`) that the network listens on, and listens on others (`listen`, `gossip_listen`) that
// only the network knows. The nodes' listening addresses have an IP each, by which the network knows the sender:
//
//	X binds X.Listen, dials Y.Addr      X.Listen -> Y.Addr | X.Addr -> Y.Listen      Y sees a packet from X.Addr
//
// Everything comes from the advertised address of its sender, so that QUIC and gossip see one path, also for what is sent from other ports
// of the node (the daemons' probes). The listening IP may be that of the advertised addresses, with other ports.
//
// A node's configuration then has, for example,
//
//	addr: 127.0.5.1:7400, gossip_addr: 127.0.5.1:7401, listen: 127.0.5.1:8400, gossip_listen: 127.0.5.1:8401
//
// and voters and seeds name addr and gossip_addr, as ever. New comes before the daemons start, Close after they have ended.
//
// What a fault looks like:
//   - A cut loses datagrams without a word. Streams across it stall and go on after Heal; a stream that is opened across it connects,
//     for the kernel accepts it, but nothing passes. An opened stream that its client gives up during the cut never reaches the other node.
//   - A port that no daemon listens on is refused (ICMP), but not across a cut. So kill alone is a daemon's crash; Isolate, then
//     kill is the loss of a node, whose host does not answer any more.
//   - Loss and delay are drawn from a generator of the pair's own, which the seed and the names determine. Jitter reorders datagrams, never streams.
//     A lost piece of a stream comes later by a retransmission time-out.
//   - What ranks say to each other is not spoiled: it does not pass through the daemons' addresses.
//
// Who owns what: a path's rule is replaced as a whole by the Network's methods, which may be called at any time. Each socket has one goroutine
// that reads it and owns the table of its flows; each path has one that owns its queue of delayed packets, which is bounded: what does
// not fit is dropped and counted. Close waits for all of them. It imports the standard library alone.
package netfault
