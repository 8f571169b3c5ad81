// Package hostile is `replicad chaos hostile`: a cluster on this machine trains a job while a stranger, a peer with a node's
// certificate, a rank or a user of the host misbehaves in one way after another, and every daemon is watched meanwhile.
//
// The ways are the table All; each is a function of its own, in the file of who misbehaves. It runs in a process of its own,
// which the driver starts through `replicad chaos misbehave` and ends afterwards, so that what it keeps open ends with it. The
// driver (run.go) knows of the daemons what an operator could: their logs, their status, and /proc.
//
// Attacks use the project's own clients (internal/endpoint, internal/wire, transfer's key) and send what those never would. The
// package stands on chaos/cluster and must not import the daemon.
package hostile
