package checkpoint

// Limits of what is read from disk.
const (
	// maxManifest and maxMarker bound the frames beside the shards, in bytes. A marker lists every part of a job: some
	// 150 bytes each.
	maxManifest = 64 << 20
	maxMarker   = 64 << 20
	// maxChunks bounds the number of a chunk that a mark names; a manifest of maxManifest has no more.
	maxChunks = maxManifest
	// maxEntries bounds how many names a directory may have before it is taken for something else than ours.
	maxEntries = 1 << 20
)
