//go:build !chaos_heir

package planted

// Heir is planted by the tag chaos_heir: the bug of docs/heir.md: a process that took a dead one's arena over is asked to capture what it never loaded, and nobody is
// told who produced a part. libreplicad's half is the macro RP_CHAOS_HEIR.
const Heir = false
