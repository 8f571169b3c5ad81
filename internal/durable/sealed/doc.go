// Package sealed encrypts what the durable tier stores, and reads it back by ranges. Each object is an age file by itself (C2SP age): `age -d` with
// the key gives what lies in it.
//
// An object is an envelope (age's header, then a nonce of 16 bytes), and chunks of 64 KiB, each with a tag of 16 bytes behind it. How large it is
// follows from how much lies in it, so that a range of the one is a range of the other.
//
// Headers are written and read by filippo.io/age, and so is what is encrypted. Ranges are decrypted here: age reads each chunk by itself, and looks at
// the last one first, which makes many requests of one.
//
// The package knows no store and no format. It imports age and ChaCha20-Poly1305, and must not import any package of this module.
package sealed
