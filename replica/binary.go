package replica

import "fmt"

// The identities decode from exactly 16 bytes: a decoder that pads or cuts a foreign byte string would make one identity
// look like another. Encoding needs no method: a byte array is a byte string.

func (c *ClusterID) UnmarshalBinary(b []byte) error { return exact16((*[16]byte)(c), b, "cluster id") }
func (j *JobID) UnmarshalBinary(b []byte) error     { return exact16((*[16]byte)(j), b, "job id") }
func (b *BootID) UnmarshalBinary(v []byte) error    { return exact16((*[16]byte)(b), v, "boot id") }
func (d *Digest) UnmarshalBinary(b []byte) error    { return exact16((*[16]byte)(d), b, "digest") }

func exact16(dst *[16]byte, b []byte, what string) error {
	if len(b) != len(dst) {
		return fmt.Errorf("%s of %d bytes, want 16", what, len(b))
	}
	copy(dst[:], b)
	return nil
}
