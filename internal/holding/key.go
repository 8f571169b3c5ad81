package holding

import (
	"crypto/rand"
	"encoding/binary"
	"fmt"

	"github.com/replicad/replicad/replica"
)

// RankKey is the key of the arena that was made for an incarnation of a rank.
func RankKey(job replica.JobID, rank replica.Rank, inc replica.Incarnation) string {
	return fmt.Sprintf("%s-rank-%d-%d", job, rank, inc)
}

// MirrorKey is a key for an arena that mirrors parts of a rank. It is another one each time, over restarts of the daemon too.
func MirrorKey(job replica.JobID, rank replica.Rank) string {
	var b [8]byte
	rand.Read(b[:])
	return fmt.Sprintf("%s-mirror-%d-%d", job, rank, binary.LittleEndian.Uint64(b[:]))
}
