// Package sim trains jobs on whole hosts in virtual time: real hosts, leaders and rules; a log, lanes, keepers, launchers and ranks in
// memory. Faults are aimed at moments of a job's life, and transfers take their time. It checks the promises of docs/protocol.md section 1,
// and that nothing stands still that could go on. It is tests alone: `make sim EPISODES=N SEED=S`, `make sim-control`.
package sim
