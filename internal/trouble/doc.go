// Package trouble holds tests alone: bad input and bad luck, met by the real programs. Daemons, keepers, launchers and ranks
// are processes of their own on loopback addresses, in clusters of chaos/cluster; the tests see what an operator sees: exit codes,
// messages, logs, the admin socket. Every refusal must name the value and the remedy, and leave nothing behind.
//
// The test binary is also the rank (rank_test.go): a small trainer whose state says which step it is of. Nothing imports this
// package, and outside its tests it imports nothing.
package trouble
