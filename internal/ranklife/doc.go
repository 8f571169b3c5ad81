// Package ranklife plays a rank's life against every client that can be a rank. The scenarios are one table, in testdata. The daemon's side
// is made of the daemon's own parts (session, host/rank, holding, shm), and the table scripts its leader. It is for tests.
package ranklife
