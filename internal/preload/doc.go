// Package preload keeps one process that has imported what a program's first life imported, and has restarts fork from it.
//
// The program's first life reports its imports (Listener). Room decides, from events and the time, when such a process is started, what it
// leaves out, and when it is given up. Process is the machinery: it starts one, reads what it says, and asks it for forks. A forked process
// is a child of the caller and waits until it is told to go. The messages are in replicad_preload.py of the Python package.
//
// Owner: the caller's goroutine owns Room, and calls Fork. A Process and a Listener have one goroutine each, which sends events. No error
// here is a failed start: the caller then starts a process that imports by itself.
//
// It must not import other packages of this module than internal/unixsock.
package preload
