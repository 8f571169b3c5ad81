package replica

import (
	"bytes"
	"encoding/json"
	"fmt"
	"unicode/utf8"
)

// MaxOrigin bounds each text of an Origin, in bytes.
const MaxOrigin = 1024

// MaxOriginJSON bounds Origin.JSON of one that is checked, in bytes: replicad.h names it.
const MaxOriginJSON = 8191

// Origin names the durable generation of another run that a job began with, in whatever layout that has: its ranks load their state from there before
// their first step. A job that has a state of its own never does so again.
type Origin struct {
	Asked      string     `json:"asked" cbor:"1,keyasint"` // as the launcher was given it
	URL        string     `json:"url" cbor:"2,keyasint"`   // of the store's root, without secrets
	Job        string     `json:"job" cbor:"3,keyasint"`
	Run        JobID      `json:"run" cbor:"4,keyasint"`
	Place      string     `json:"place" cbor:"5,keyasint"` // below the root
	Generation Generation `json:"generation" cbor:"6,keyasint"`
	World      uint32     `json:"world" cbor:"7,keyasint"`
}

// Check says what is wrong with an origin.
func (o *Origin) Check() error {
	for _, f := range []struct{ what, text string }{{"name", o.Asked}, {"URL", o.URL}, {"place", o.Place}} {
		if f.text == "" || len(f.text) > MaxOrigin || !utf8.ValidString(f.text) || Line(f.text, MaxOrigin) != f.text {
			return fmt.Errorf("the origin's %s %.80q has %d bytes: want 1 to %d that can be printed", f.what, f.text, len(f.text), MaxOrigin)
		}
	}
	if err := CheckJobName(o.Job); err != nil {
		return fmt.Errorf("the origin's job: %w", err)
	}
	if g := o.Generation; o.Run == (JobID{}) || g.Epoch == 0 || g.Epoch > MaxEpoch || g.Step > MaxStep || o.World == 0 || o.World > MaxRanks {
		return fmt.Errorf("the origin is generation %v of run %v with %d ranks: want epochs and ranks from 1, up to epoch %d, step %d and %d ranks", g, o.Run, o.World, MaxEpoch, MaxStep, MaxRanks)
	}
	return nil
}

// Same tells whether two name one generation, or were asked for in the same words: what those name may have moved on since.
func (o *Origin) Same(p *Origin) bool {
	return o.Asked == p.Asked || o.Run == p.Run && o.Generation == p.Generation
}

func (o *Origin) String() string {
	return fmt.Sprintf("step %d of %s/%s", o.Generation.Step, o.URL, o.Job)
}

// JSON is the origin as a rank reads it, in one line. seals is the rank that is to load, and seal, what the group of the one that reads has in common;
// nil: its group is not known.
func (o *Origin) JSON(seals *Rank) []byte {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false) // it is to be no longer than MaxOriginJSON
	told := struct {
		*Origin
		Seals *Rank `json:"seals,omitempty"`
	}{o, seals}
	if err := e.Encode(told); err != nil {
		panic(err) // texts and numbers
	}
	return bytes.TrimSpace(b.Bytes())
}

// Start is the step whose state a job begins with: its origin's, the one that its ranks have sealed first where they had a state of their own, or 0.
func (j *Job) Start() Step {
	switch {
	case j.From != nil:
		return j.From.Generation.Step
	case len(j.Lineage) > 0:
		return j.Lineage[0].Start
	}
	return 0
}
