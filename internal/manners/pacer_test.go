package manners

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

const mib = 1 << 20

func TestRates(t *testing.T) {
	const none = NoLimit
	for name, tc := range map[string]struct {
		limit    float64
		underWay [classes]int
		want     [classes]float64
	}{
		"nobody trains":                         {none, [classes]int{0, 3, 2}, [classes]float64{none, none, 16 * mib}},
		"nobody trains, a job waits":            {none, [classes]int{4, 3, 0}, [classes]float64{none, 24 * mib, 8 * mib}},
		"nothing under way":                     {256 * mib, [classes]int{}, [classes]float64{256 * mib, 256 * mib, 256 * mib}},
		"a limit above the floors":              {256 * mib, [classes]int{0, 4, 0}, [classes]float64{256 * mib, 256 * mib, 8 * mib}},
		"floors above the limit":                {16 * mib, [classes]int{3, 4, 1}, [classes]float64{96 * mib, 32 * mib, 8 * mib}},
		"one of mirroring, floor below limit":   {16 * mib, [classes]int{0, 1, 0}, [classes]float64{32 * mib, 16 * mib, 8 * mib}},
		"background alone, as the limit has it": {64 * mib, [classes]int{0, 0, 2}, [classes]float64{64 * mib, 64 * mib, 64 * mib}},
	} {
		if got := rates(tc.limit, tc.underWay); got != tc.want {
			t.Errorf("%s: %v, want %v", name, got, tc.want)
		}
	}
}

// send has so many streams of one transfer of a class each send for a time, and returns how many bytes they sent each.
func send(p *Pacer, c Class, streams int, d time.Duration) []int {
	var wg sync.WaitGroup
	sent := make([]int, streams)
	for i := range streams {
		wg.Go(func() {
			f := p.Flow(c)
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
	synctest.Test(t, func(t *testing.T) {
		p := new(Pacer)
		p.Limit(256*mib, "", false)
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
	synctest.Test(t, func(t *testing.T) {
		p := new(Pacer)
		p.Limit(least, "", false)
		for _, n := range send(p, Mirroring, 32, 4*time.Second) {
			if n < 30*mib || n > 34*mib {
				t.Errorf("one of 32 sent %d MiB in four seconds", n/mib)
			}
		}
	})
}

// While a job waits what goes to mirrors is held to its floor, whether ranks train or not; the job's own transfer is not held back.
func TestPacerOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := new(Pacer)
		var wg sync.WaitGroup
		var first, second []int
		wg.Go(func() { first = send(p, Recovery, 1, 4*time.Second) })
		wg.Go(func() { time.Sleep(time.Millisecond); second = send(p, Mirroring, 1, 3*time.Second) })
		wg.Wait()
		if first[0] != 1000*mib || second[0] < 23*mib || second[0] > 25*mib {
			t.Errorf("recovery sent %d MiB, mirroring %d", first[0]/mib, second[0]/mib)
		}
	})
}

// Where nothing holds back nobody ever sleeps, and a limit that goes frees those that it held soon.
func TestPacerUnlimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := new(Pacer)
		pass := p.Flow(Recovery).Stream()
		began := time.Now()
		for range 10000 {
			pass(256 << 10)
		}
		if d := time.Since(began); d != 0 {
			t.Errorf("slept %v", d)
		}
		p.Limit(least, "why", false)
		for range 100 {
			pass(256 << 10)
		}
		if d, h := time.Since(began), p.Holding(); d < 500*time.Millisecond || h.Limit != least || h.Why != "why" || h.UnderWay != 1 {
			t.Errorf("under a limit %v; %+v", d, h)
		}
		p.Limit(NoLimit, "", false)
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
	f, other := p.Flow(Mirroring), p.Flow(Mirroring)
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
