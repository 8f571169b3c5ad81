//go:build !chaos_slots

package planted

// Slots is planted by the tag chaos_slots: a candidate pinned in a closed epoch keeps its slot after the plan, and the plan's generation finds none.
const Slots = false
