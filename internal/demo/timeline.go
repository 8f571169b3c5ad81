package demo

import (
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/replicad/replicad/chaos/cluster"
)

// Fault is one row of the table and of report.json. Milliseconds count from the injection; null where there was no such
// moment: nothing was fenced, or nothing moved.
type Fault struct {
	Kind       string   `json:"kind"`
	Detected   *float64 `json:"detected_ms"`
	Fenced     *float64 `json:"fenced_ms"`
	Planned    *float64 `json:"planned_ms"`
	MovedBytes *uint64  `json:"moved_bytes"`
	Sources    *int     `json:"sources"`
	Verified   *float64 `json:"verified_ms"`
	Resumed    *float64 `json:"resumed_ms"`
	StepsLost  uint64   `json:"steps_lost"`
	From       string   `json:"from"` // own-ram, peer-ram or durable
	Reason     string   `json:"reason"`

	// For people: the table and report.html.
	target    string
	at        time.Time     // of the injection
	step      uint64        // newest step then
	away      time.Duration // how long daemon or nodes were gone
	firstStep *float64      // the first new step of the last rank to make one
	epoch     uint64        // after it
}

// lastResort tells whether memory can't serve after it.
func (f *Fault) lastResort() bool { return f.Kind == GroupLoss || f.Kind == FleetLoss }

// The tiers as the daemons' logs name them.
const (
	fromOwnRAM  = "own-ram"
	fromPeerRAM = "peer-ram"
	fromDurable = "durable"
)

// measure reads a recovery off the daemons' events. at is the injection, committed the newest step committed before it, end
// when the job had recovered. A recovery may need several plans (a second fault): the one that resumed last counts, but
// detection and fence are the first ones.
func measure(f *Fault, events []cluster.LogEvent, committed uint64, end time.Time) {
	within := func(e cluster.LogEvent) bool { return !e.Time.Before(f.at) && !e.Time.After(end) }
	since := func(t time.Time) *float64 { return new(float64(t.Sub(f.at).Microseconds()) / 1000) }
	first := func(name string) (found *cluster.LogEvent) {
		for i, e := range events {
			if e.Event == name && within(e) && (found == nil || e.Time.Before(found.Time)) {
				found = &events[i]
			}
		}
		return found
	}
	last := func(name string, want func(cluster.LogEvent) bool) (found *cluster.LogEvent) {
		for i, e := range events {
			if e.Event == name && within(e) && want(e) && (found == nil || e.Time.After(found.Time)) {
				found = &events[i]
			}
		}
		return found
	}
	if e := first("fault"); e != nil {
		f.Detected = since(e.Time)
		f.Reason = e.Kind
		if e.Detail != "" {
			f.Reason += " (" + e.Detail + ")"
		}
	}
	if e := first("fenced"); e != nil {
		f.Fenced = since(e.Time)
	}
	resumed := last("resumed", func(cluster.LogEvent) bool { return true })
	if resumed == nil {
		f.From = fromOwnRAM // nothing was reloaded
		return
	}
	f.Resumed, f.epoch = since(resumed.Time), resumed.Epoch
	inEpoch := func(e cluster.LogEvent) bool { return e.Epoch == resumed.Epoch }
	if e := last("planned", inEpoch); e != nil {
		f.Planned, f.From, f.StepsLost = since(e.Time), e.Tier, e.StepsLost
		if committed > e.Step {
			f.StepsLost = max(f.StepsLost, committed-e.Step) // the daemons' word is not taken for it
		}
		f.Reason = strings.TrimPrefix(strings.TrimSuffix(f.Reason+"; "+e.Reason, "; "), "; ")
	}
	var bytes uint64
	sources := map[string]bool{}
	for _, e := range events {
		if e.Event != "moved" || !within(e) || !inEpoch(e) || e.Bytes == 0 {
			continue
		}
		bytes += e.Bytes
		for n := range e.By { // nodes, and "disk"
			sources[n] = true
		}
	}
	if bytes == 0 {
		return
	}
	f.MovedBytes, f.Sources = &bytes, new(len(sources))
	if e := last("verified", inEpoch); e != nil {
		f.Verified = since(e.Time)
	}
}

// quantile of a sample, by the nearest rank; 0 of none.
func quantile(sample []float64, q float64) float64 {
	if len(sample) == 0 {
		return 0
	}
	s := slices.Sorted(slices.Values(sample))
	return s[min(int(q*float64(len(s))), len(s)-1)]
}

// Figure is one number of the report. Ratio is value / limit; both are null where there is no limit.
type Figure struct {
	Name  string   `json:"name"`
	Unit  string   `json:"unit"`
	Value float64  `json:"value"`
	Limit *float64 `json:"limit"`
	Ratio *float64 `json:"ratio"`
}

func figure(name, unit string, value, limit float64) Figure {
	f := Figure{Name: name, Unit: unit, Value: value}
	if limit > 0 {
		f.Limit, f.Ratio = &limit, new(value/limit)
	}
	return f
}

// recoveryLimits are what recoveries should take from the kill to the first new step, in ms.
var recoveryLimits = map[string]float64{RankForward: 500, RankWindow: 500, NodeLoss: 2000, LeaderLoss: 2000}

// figures are the numbers of a run; j is under its lock.
func figures(faults []Fault, j *cluster.Journal, took, trained time.Duration, opt Options) []Figure {
	lags := make([]float64, 0, len(j.Lags))
	for _, l := range j.Lags {
		lags = append(lags, l/1000)
	}
	list := []Figure{
		figure("commit lag from the last seal, p50, while training", "ms", quantile(lags, 0.5), 0),
		figure("commit lag from the last seal, p99, while training", "ms", quantile(lags, 0.99), 0),
		figure("commits", "1", float64(len(j.Commits)), 0),
		figure("steps trained again", "1", float64(j.Repeats), 0),
		figure("losses reported otherwise by a repetition", "1", float64(j.Differs), 0),
		figure("events of the logs that were not kept", "1", float64(j.Dropped), 0),
		figure("training, faults included", "s", trained.Seconds(), 0),
		figure("steps a second, faults included", "1/s", float64(opt.Steps)/max(trained.Seconds(), 1e-3), 0),
		figure("whole demo", "s", took.Seconds(), opt.limit(90)),
	}
	counts := map[string]int{}
	moved := map[string]uint64{}
	for _, f := range faults {
		counts[f.Kind]++
		if f.firstStep != nil {
			list = append(list, figure("recovery from "+f.Kind+", to the first new step", "ms", *f.firstStep, opt.limit(recoveryLimits[f.Kind])))
		}
		if f.MovedBytes != nil {
			moved[f.From] += *f.MovedBytes
		}
		if f.away > 0 {
			list = append(list, figure("away, "+f.Kind, "ms", float64(f.away.Milliseconds()), 0))
		}
	}
	for _, tier := range slices.Sorted(maps.Keys(moved)) {
		list = append(list, figure("moved, recoveries from "+tier, "byte", float64(moved[tier]), 0))
	}
	return list
}
