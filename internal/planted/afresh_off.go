//go:build !chaos_afresh

package planted

// Afresh is a bug that make sim-control plants: a push that broke off begins again, whatever the mirror has of it.
const Afresh = false
