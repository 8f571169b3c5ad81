// Package manners holds a daemon's transfers back for the sake of the ranks that train on its node.
//
// The [Governor] is the rule: it compares how long the steps of the jobs here take with what they take in calm, and says how many
// bytes a second may leave, and come in to be mirrored. It is pure: what it needs to know is passed in, the time too. The [Pacer] is the machinery: it has the
// goroutines that send wait.
//
// Where nobody trains nothing is held back: the ranks of a job that recovers stand still, and each second counts. Only the order of the
// classes holds then: what a job waits for goes before what is sent for safety's sake.
package manners
