//go:build race || invariants

package invariant

// On tells whether this build checks.
const On = true
