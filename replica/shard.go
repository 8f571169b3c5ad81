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
