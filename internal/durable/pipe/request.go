package pipe

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/replicad/replicad/internal/durable/format"
	"github.com/replicad/replicad/replica"
)

// openRequest opens a generation for reading.
type openRequest struct {
	Op  string `json:"op"`
	Job string `json:"job,omitempty"` // empty: the URL names it, or there is one
	At  string `json:"at,omitempty"`  // as behind "@"; empty: the newest that is whole
}

// readRequest asks for bytes of a region.
type readRequest struct {
	Op    string `json:"op"`
	Part  string `json:"part"`  // group, frozen or private
	Index uint32 `json:"index"` // the group's number, or the rank's
	Name  string `json:"name"`  // of the region
	From  uint64 `json:"from"`  // in the region
	Bytes uint64 `json:"bytes"`
}

// run names what is written.
type run struct {
	Job string        `json:"job"`
	ID  replica.JobID `json:"id"`
}

// attempt is what begin answered: every later request has it.
type attempt struct {
	Run        string             `json:"run"` // its directory
	Generation replica.Generation `json:"generation"`
	Write      uint64             `json:"write"`
	World      uint32             `json:"world"`
}

// beginRequest begins a generation of a run, which it begins where it is not there. It may be asked for again.
type beginRequest struct {
	Op string `json:"op"`
	run
	Fleet   string            `json:"fleet"` // who writes, the same in all requests of a run
	Began   int64             `json:"began"` // when the run did, in milliseconds since 1970
	Program map[string]string `json:"program,omitempty"`
	Step    *replica.Step     `json:"step"`  // null: one above the largest that the job has
	World   uint32            `json:"world"` // processes that write
}

// putRequest writes what a rank has.
type putRequest struct {
	Op string `json:"op"`
	run
	attempt
	Rank    replica.Rank `json:"rank"`
	Tensors []tensor     `json:"tensors"`          // their bytes follow in this order, twice
	Layout  []byte       `json:"layout,omitempty"` // the bytes of format.LayoutRegion
}

type tensor struct {
	Name  string   `json:"name"`
	DType string   `json:"dtype"` // as safetensors calls it
	Shape []uint64 `json:"shape"`
}

// report is what put answers.
type report struct {
	Rank     replica.Rank   `json:"rank"`
	Group    format.File    `json:"group"`
	Frozen   *format.File   `json:"frozen,omitempty"`
	Root     replica.Digest `json:"root"`
	Geometry replica.Digest `json:"geometry"`
}

// commitRequest makes a generation exist.
type commitRequest struct {
	Op string `json:"op"`
	run
	attempt
	Fleet      string                   `json:"fleet"`
	Reports    []report                 `json:"reports"`           // one a rank
	Private    []byte                   `json:"private,omitempty"` // small state: a capsule, kept as rank 0's
	Metrics    map[string]format.Metric `json:"metrics,omitempty"`
	Notes      map[string]string        `json:"notes,omitempty"`
	Provenance map[string]string        `json:"provenance,omitempty"`
}

// endRequest ends reading: no more follows it.
type endRequest struct {
	Op string `json:"op"`
}

// parse reads a request strictly, and checks what can be checked by itself.
func parse(line []byte) (any, error) {
	var head endRequest
	if err := json.Unmarshal(line, &head); err != nil {
		return nil, wrong("a request that is no JSON object: %w", err)
	}
	var r interface{ check() error }
	switch head.Op {
	case "open":
		r = &openRequest{}
	case "read":
		r = &readRequest{}
	case "begin":
		r = &beginRequest{}
	case "put":
		r = &putRequest{}
	case "commit":
		r = &commitRequest{}
	case "end":
		r = &endRequest{}
	default:
		return nil, wrong("op %.40q: want open, read, begin, put, commit or end: are program and package of one release?", head.Op)
	}
	d := json.NewDecoder(bytes.NewReader(line))
	d.DisallowUnknownFields()
	if err := d.Decode(r); err != nil {
		return nil, wrong("%s: %w: are program and package of one release?", head.Op, err)
	}
	if err := r.check(); err != nil {
		return nil, wrong("%s: %w", head.Op, err)
	}
	return r, nil
}

func (r *openRequest) check() error { return nil } // the catalog says what is wrong with names
func (r *endRequest) check() error  { return nil }

func (r *readRequest) check() error {
	if _, err := r.part(); err != nil {
		return err
	}
	if r.From+r.Bytes < r.From {
		return fmt.Errorf("%d bytes from %d on", r.Bytes, r.From)
	}
	return nil
}

var kinds = []string{replica.ReplicatedPart: "group", replica.PrivatePart: "private", replica.FrozenPart: "frozen"}

func (r *readRequest) part() (replica.Part, error) {
	kind := slices.Index(kinds, r.Part)
	if kind < 0 {
		return replica.Part{}, fmt.Errorf("part %.40q: want group, frozen or private", r.Part)
	}
	return replica.Part{Kind: replica.PartKind(kind), Index: r.Index}, nil
}

func (r *run) check() error {
	if r.ID == (replica.JobID{}) {
		return errors.New("a run without an id")
	}
	if err := replica.CheckJobName(r.Job); err != nil {
		return fmt.Errorf("job: %w", err)
	}
	return nil
}

func checkFleet(name string) error {
	if name == "" || len(name) > 2*replica.MaxNameBytes {
		return fmt.Errorf("fleet %.80q: want 1 to %d bytes", name, 2*replica.MaxNameBytes)
	}
	return nil
}

func checkWorld(n uint32) error {
	if n == 0 || n > replica.MaxRanks {
		return fmt.Errorf("%d processes write, want 1 to %d", n, replica.MaxRanks)
	}
	return nil
}

func (r *beginRequest) check() error {
	if r.Step != nil && *r.Step > replica.MaxStep {
		return fmt.Errorf("step %d: at most %d", *r.Step, replica.MaxStep)
	}
	return errors.Join(r.run.check(), checkFleet(r.Fleet), checkWorld(r.World))
}

func (a *attempt) check() error {
	if a.Generation.Epoch > replica.MaxEpoch || a.Generation.Step > replica.MaxStep {
		return fmt.Errorf("generation %v is out of range", a.Generation)
	}
	return checkWorld(a.World)
}

func (r *putRequest) check() error {
	if uint32(r.Rank) >= r.World {
		return fmt.Errorf("rank %d of %d", r.Rank, r.World)
	}
	return errors.Join(r.run.check(), r.attempt.check())
}

func (r *commitRequest) check() error {
	if len(r.Reports) != int(r.World) {
		return fmt.Errorf("%d reports of %d ranks", len(r.Reports), r.World)
	}
	for i, p := range r.Reports {
		if int(p.Rank) != i {
			return fmt.Errorf("report %d is rank %d's", i, p.Rank)
		}
	}
	return errors.Join(r.run.check(), r.attempt.check(), checkFleet(r.Fleet))
}
