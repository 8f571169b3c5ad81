//go:build !race

package invariant

// On tells whether this build checks.
const On = false
