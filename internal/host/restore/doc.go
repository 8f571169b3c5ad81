// Package restore brings the parts of a plan into the arenas of a node's own ranks.
//
// A rank that waits for its state is restored once a plan names it, and again while its sources fail. What lies here already counts only if it
// was read again since the fence (protocol section 6, Restore). Reading takes a third of a second a gigabyte, and a recovery mostly has that
// time before its plan: while the program of a lost rank starts. So the newest generation of each arena is read as soon as the job is closed,
// and a restore that wants it finds it read, or waits for the rest.
//
// Invariants: a process of a rank has at most one restore under way, of the newest plan. A fence and the end of the process cancel it. One place
// of an arena is read ahead at a time.
package restore
