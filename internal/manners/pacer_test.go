package manners

import (
	"sync"
	"testing"
	"time"

	"github.com/replicad/replicad/internal/bubble"
)

const mib = 1 << 20

func TestRates(t *testing.T) {
	const none = NoLimit
	for name, tc := range map[string]struct {
		limit float64
		least [classes]uint64
		want  [classes]float64
	}{
		"nobody trains":                         {none, [classes]uint64{0, 96 * mib, 16 * mib}, [classes]float64{none, none, 16 * mib}},
		"nobody trains, a job waits":            {none, [classes]uint64{128 * mib, 96 * mib, 0}, [classes]float64{none, 96 * mib, 8 * mib}},
		"nothing under way":                     {256 * mib, [classes]uint64{}, [classes]float64{256 * mib, 256 * mib, 256 * mib}},
		"a limit above the floors":              {256 * mib, [classes]uint64{0, 128 * mib, 0}, [classes]float64{256 * mib, 256 * mib, 8 * mib}},
		"floors above the limit":                {16 * mib, [classes]uint64{96 * mib, 128 * mib, 8 * mib}, [classes]float64{96 * mib, 128 * mib, 8 * mib}},
		"background alone, as the limit has it": {64 * mib, [classes]uint64{0, 0, 16 * mib}, [classes]float64{64 * mib, 64 * mib, 64 * mib}},
	} {
		if got := rates(tc.limit, tc.least); got != tc.want {
			t.Errorf("%s: %v, want %v", name, got, tc.want)
		}
	}
}

// However large a part is, its commit comes: a constant floor would have one of 40 GiB take half an hour.
func TestFloorFollowsSize(t *testing.T) {
	const large = 40 << 30
	for c, within := range map[Class]uint64{Recovery: 10, Mirroring: 30, Background: 300} {
		if f := floor(c, large); large/f > within {
			t.Errorf("class %d: %d bytes take %d s", c, uint64(large), large/f)
		}
		if f := floor(c, 1<<20); f != floors[c].rate {
			t.Errorf("class %d: a small part has a floor of %d", c, f)
		}
	}
}

// send has so many streams of one transfer of a class each send for a time, and returns how many bytes they sent each.
func send(p *Pacer, c Class, streams int, d time.Duration) []int {
	var wg sync.WaitGroup
	sent := make([]int, streams)
	for i := range streams {
		wg.Go(func() {
			f := p.Flow(c, 0)
			defer f.End()
			pass := f.Stream()
			for began := time.Now(); time.Since(began) < d; sent[i] += 256 << 10 {
				if pass(256 << 10); p.Holding().Limit == NoLimit && c == Recovery {
					time.Sleep(time.Millisecond) // what it takes to send a piece
				}
			}
		})
	}
	wg.Wait()
	return sent
}

func sum(list []int) (n int) {
	for _, v := range list {
		n += v
	}
	return n
}

// Streams share what their class may move, and each gets its share.
func TestPacerKeepsPace(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		p := new(Pacer)
		p.Limit(256*mib, "")
		sent := send(p, Recovery, 4, 10*time.Second)
		if all := sum(sent); all < 2500*mib || all > 2600*mib {
			t.Errorf("%d MiB in ten seconds", all/mib)
		}
		for _, n := range sent {
			if n < 600*mib || n > 680*mib {
				t.Errorf("one of four sent %d MiB", n/mib)
			}
		}
		if p.Moved() != uint64(sum(sent)) || p.Holding().UnderWay != 0 {
			t.Errorf("%d bytes moved, %+v", p.Moved(), p.Holding())
		}
	})
}

// However many share it, each transfer goes on at its floor: no stream is quiet for long.
func TestPacerFloors(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		p := new(Pacer)
		p.Limit(least, "")
		for _, n := range send(p, Mirroring, 32, 4*time.Second) {
			if n < 126*mib || n > 130*mib {
				t.Errorf("one of 32 sent %d MiB in four seconds", n/mib)
			}
		}
	})
}

// While a job waits what goes to mirrors is held to its floor, whether ranks train or not; the job's own transfer is not held back.
func TestPacerOrder(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		p := new(Pacer)
		var wg sync.WaitGroup
		var first, second []int
		wg.Go(func() { first = send(p, Recovery, 1, 4*time.Second) })
		wg.Go(func() { time.Sleep(time.Millisecond); second = send(p, Mirroring, 1, 3*time.Second) })
		wg.Wait()
		if first[0] != 1000*mib || second[0] < 95*mib || second[0] > 97*mib {
			t.Errorf("recovery sent %d MiB, mirroring %d", first[0]/mib, second[0]/mib)
		}
	})
}

// Where nothing holds back nobody ever sleeps, and a limit that goes frees those that it held soon.
func TestPacerUnlimited(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		p := new(Pacer)
		pass := p.Flow(Recovery, 0).Stream()
		began := time.Now()
		for range 10000 {
			pass(256 << 10)
		}
		if d := time.Since(began); d != 0 {
			t.Errorf("slept %v", d)
		}
		p.Limit(least, "why")
		for range 100 {
			pass(256 << 10)
		}
		if d, h := time.Since(began), p.Holding(); d < 500*time.Millisecond || h.Limit != least || h.Why != "why" || h.UnderWay != 1 {
			t.Errorf("under a limit %v; %+v", d, h)
		}
		p.Limit(NoLimit, "")
		began = time.Now()
		for range 10000 {
			pass(256 << 10)
		}
		if d := time.Since(began); d > 20*time.Millisecond {
			t.Errorf("the limit has gone, and held back for another %v", d)
		}
	})
}

// An end may come twice, and without a beginning.
func TestFlowEnds(t *testing.T) {
	p := new(Pacer)
	f, other := p.Flow(Mirroring, 0), p.Flow(Mirroring, 1<<40)
	other.End()
	f.Stream()
	f.Stream()
	if n := p.Holding().UnderWay; n != 1 {
		t.Errorf("%d under way", n)
	}
	f.End()
	f.End()
	if n := p.Holding().UnderWay; n != 0 {
		t.Errorf("%d under way", n)
	}
}
