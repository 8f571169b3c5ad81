// Package sim trains jobs on whole hosts in virtual time: real hosts, leaders and rules; a log, lanes, keepers, launchers and ranks in
// memory. It loses ranks, daemons and nodes at random moments, and checks the promises of docs/protocol.md section 1. It is tests alone:
// `make sim EPISODES=N SEED=S`.
package sim
