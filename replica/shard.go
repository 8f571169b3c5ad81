package replica

// ShardInfo is a shard of a durable generation, as its commit marker lists it.
type ShardInfo struct {
	Part   Part   `json:"part" cbor:"1,keyasint"`
	File   string `json:"file" cbor:"2,keyasint"` // below the job's directory
	Bytes  uint64 `json:"bytes" cbor:"3,keyasint"`
	Root   Digest `json:"root" cbor:"4,keyasint"`
	Digest Digest `json:"digest" cbor:"5,keyasint"` // of the file
	// Frozen is the frozen part that was written along; WriteMarker lists it by itself.
	Frozen *ShardInfo `json:"frozen,omitempty" cbor:"6,keyasint,omitempty"`
}

// Stored is a file of the durable tier, as its writer reports it.
type Stored struct {
	Key    string `json:"key" cbor:"1,keyasint"`                      // below the run
	Twin   string `json:"twin,omitempty" cbor:"2,keyasint,omitempty"` // of a frozen part: the same bytes once more
	Bytes  uint64 `json:"bytes" cbor:"3,keyasint"`
	Header uint64 `json:"header" cbor:"4,keyasint"` // bytes of length field and header
	SHA256 []byte `json:"sha256" cbor:"5,keyasint"`
	// Sealed is how many bytes lie before what is encrypted; 0: the file is not. Bytes and SHA256 are of the file as it lies there.
	Sealed uint64 `json:"sealed,omitempty" cbor:"7,keyasint,omitempty"`
	// Frozen is the file of the frozen part that was written along.
	Frozen *Stored `json:"frozen,omitempty" cbor:"6,keyasint,omitempty"`
}
