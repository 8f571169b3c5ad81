// Package checkpoint is the former layout of the durable tier: committed generations as safetensors shards, a manifest beside each shard, and one
// commit marker, in a directory that the writing and reading nodes share. Daemons find, read, mark and remove what lies there, through
// internal/durable/tier. They write it no more: what writes here is for the tests of what reads.
//
//	<job name>/<job id>/<epoch>-<step>/group-0.safetensors     the regions as tensors, without the part's alignment gaps
//	<job name>/<job id>/<epoch>-<step>/group-0.manifest        chunk digests and regions: a frame, see internal/wire
//	<job name>/<job id>/<epoch>-<step>/COMMIT                  the marker: a frame; a generation without it does not exist
//	<job name>/<job id>/frozen/<root>.safetensors, .manifest   frozen parts, written once and shared by generations
//
// Every file is written under a temporary name, synced, renamed, and its directory synced; the marker comes last and is
// linked into place, which fails where one exists. Invariant: whatever moment a writer dies at, a generation that Find
// returns is complete. What bits rot later is found when a chunk is read: each is checked against its digest, and the
// digests against the root that the marker and the replicated log name.
//
// The directory is held by descriptor, and what its path names is compared before anything counts as written: a directory that
// was moved away or unmounted is written no more. A good one that lies in its place is opened, and a write fails to say so.
//
// Several jobs may have had one name. Their markers say which of them was committed last, whatever the times of the files are.
//
// A Store may be used by several goroutines. It starts one for each call to the file system, and gives a call up that does not
// return: a mount whose server is gone must hold up neither a job nor the end of the daemon (see gate). All access is under os.Root, and names come from
// replica.CheckName and numbers, so nothing in a job's name or in a file can lead outside the directory. The package imports
// replica, wire and xxh3; it must not import transfer, shm or anything of the network.
package checkpoint
