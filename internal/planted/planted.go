//go:build !chaos_heir

// Package planted holds the bugs that are planted back, by build tag, to see that the tests find them: the negative controls of chaos/.
// No release is built with such a tag. It imports nothing.
package planted

// Heir is the bug of docs/heir.md: a process that took a dead one's arena over is asked to capture what it never loaded, and nobody is
// told who produced a part. libreplicad's half is the macro RP_CHAOS_HEIR.
const Heir = false
