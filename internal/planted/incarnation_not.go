//go:build !chaos_incarnation

package planted

// Incarnation is planted by the tag chaos_incarnation: a keeper that is replaced beside its living daemon mints another incarnation of the node, of which no rank's claim knows.
const Incarnation = false
