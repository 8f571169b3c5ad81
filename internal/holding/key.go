package holding

import (
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"strconv"
	"strings"

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

// grownMark stands before the epoch in the key of an arena that a growth has brought.
const grownMark = "-grown-"

// GrownKey is the key of the arena that an incarnation of a rank got by the growth of an epoch.
func GrownKey(job replica.JobID, rank replica.Rank, inc replica.Incarnation, e replica.Epoch) string {
	return fmt.Sprintf("%s%s%d", RankKey(job, rank, inc), grownMark, e)
}

// Grown is the epoch of the growth that has brought the arena; 0: its process has had it from the beginning.
func (a *Arena) Grown() replica.Epoch {
	_, after, found := strings.Cut(a.key, grownMark)
	if !found {
		return 0
	}
	e, err := strconv.ParseUint(after, 10, 40)
	if err != nil {
		return 0
	}
	return replica.Epoch(e)
}
