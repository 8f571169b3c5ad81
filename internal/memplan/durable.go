package memplan

import (
	"errors"
	"fmt"
	"time"

	"github.com/replicad/replicad/replica"
)

// Store is what a plan is told of a durable tier.
type Store struct {
	Rate    uint64        // bytes a second that a node gives to it
	Between time.Duration // from one fault of the job to the next
	Grace   time.Duration // timing.stop_grace
	Keep    int           // generations that are kept
}

// Durable is what a job's generations take on a durable tier, in bytes and seconds.
type Durable struct {
	World     int           `json:"world"`
	Nodes     int           `json:"nodes"`
	Bytes     uint64        `json:"generation_bytes"`
	Once      uint64        `json:"kept_once_bytes"` // of all generations; each of its files lies there twice
	Kept      uint64        `json:"kept_bytes"`      // of all that are kept, and of what is kept once
	Objects   int           `json:"objects"`         // of a generation, beside its index and commit
	NodeBytes uint64        `json:"node_bytes"`      // of a generation, that one node writes
	Write     time.Duration `json:"write_ns"`
	Every     time.Duration `json:"auto_every_ns"` // with --durable-every auto
	StopBytes uint64        `json:"stop_bytes"`    // that a daemon may have to write when all nodes are told to go down
	Stop      time.Duration `json:"stop_ns"`
	Fits      bool          `json:"fits"` // Stop lies within the grace
}

// NewDurable plans for a job that was checked.
func NewDurable(j Job, s Store) (d Durable, err error) {
	switch {
	case s.Rate == 0:
		err = errors.New("--rate 0: want what a node gives to the store in a second, as in 500MiB")
	case s.Between <= 0:
		err = fmt.Errorf("--between %v: want the time from one fault of the job to the next, as in 24h", s.Between)
	case s.Keep < 1:
		err = fmt.Errorf("--keep %d: want at least 1", s.Keep)
	}
	if err = errors.Join(err, j.Check()); err != nil {
		return d, err
	}
	world, nodes := uint64(j.World()), uint64(j.Nodes())
	shards, ranks := uint64(j.Shards), uint64(min(j.RanksPerNode, j.World()))
	trained, once := j.shard()
	d = Durable{World: j.World(), Nodes: j.Nodes(), Bytes: shards*trained + world*j.Own, Once: 2 * shards * once, Objects: j.Shards + j.Nodes()}
	d.Kept = uint64(s.Keep)*d.Bytes + d.Once
	d.NodeBytes = (shards+nodes-1)/nodes*trained + ranks*j.Own
	d.StopBytes = ranks * (trained + j.Own)
	d.Write, d.Stop = takes(d.NodeBytes, s.Rate), takes(d.StopBytes, s.Rate)
	d.Every = time.Duration(replica.DurableInterval(d.Write.Seconds(), s.Between.Seconds())) * time.Second
	d.Fits = d.Stop <= s.Grace
	return d, nil
}

// takes is how long bytes take at a rate; a year stands for all that is longer.
func takes(bytes, rate uint64) time.Duration {
	const year = 365 * 24 * time.Hour
	s := float64(bytes) / float64(rate)
	if s >= year.Seconds() {
		return year
	}
	return time.Duration(s * float64(time.Second))
}

// GraceFor leaves a fifth beyond what a write takes.
func GraceFor(write time.Duration) time.Duration {
	return (write + write/5).Truncate(time.Minute) + time.Minute
}
