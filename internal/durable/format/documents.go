package format

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
	"unicode/utf8"

	"github.com/replicad/replicad/internal/durable/sealed"
	"github.com/replicad/replicad/replica"
)

// Limits of what people and programs may attach.
const (
	MaxNotes = 64   // notes, metrics or entries of provenance
	MaxText  = 4096 // bytes of a text
	maxSpan  = 1 << 40
)

// Metric is a number that JSON has no word for where it is not finite.
type Metric float64

// MarshalJSON writes a number, or NaN, +Inf and -Inf as texts.
func (m Metric) MarshalJSON() ([]byte, error) {
	if f := float64(m); math.IsNaN(f) || math.IsInf(f, 0) {
		return json.Marshal(strconv.FormatFloat(f, 'g', -1, 64))
	}
	return json.Marshal(float64(m))
}

// UnmarshalJSON reads what MarshalJSON wrote.
func (m *Metric) UnmarshalJSON(b []byte) error {
	var s string
	if json.Unmarshal(b, &s) == nil {
		if s != "NaN" && s != "+Inf" && s != "-Inf" {
			return fmt.Errorf("metric %.32q: want a number", s)
		}
		f, err := strconv.ParseFloat(s, 64)
		*m = Metric(f)
		return err
	}
	return json.Unmarshal(b, (*float64)(m))
}

// Run is what a run says of itself, once.
type Run struct {
	Job     string            `json:"job"`
	ID      replica.JobID     `json:"id"`
	Owner   uint32            `json:"owner"`
	Order   uint64            `json:"order"`             // among the runs of the name: one more than the largest that was there
	Began   int64             `json:"began"`             // milliseconds since 1970, for people
	From    string            `json:"from,omitempty"`    // what it began from, as it was given
	Program map[string]string `json:"program,omitempty"` // its file, Arguments, versions
	Notes   map[string]string `json:"notes,omitempty"`
}

// Claim says which fleet owns an epoch of a run.
type Claim struct {
	Run     replica.JobID     `json:"run"`
	Epoch   replica.Epoch     `json:"epoch"`
	Cluster replica.ClusterID `json:"cluster"`
	Fleet   string            `json:"fleet"` // for people: who to ask
	// Takes: the fleet took the run with it, as its first or from another one. Its further claims, and those of the fleet before it, change nothing.
	Takes bool   `json:"takes,omitempty"`
	Order uint64 `json:"order"` // as Run's, at the time of the claim
	At    int64  `json:"at"`    // milliseconds since 1970, for people
}

// Ref names an object and its bytes.
type Ref struct {
	Key    string `json:"key"` // below the run
	Bytes  uint64 `json:"bytes"`
	SHA256 string `json:"sha256"`
}

// Commit makes a generation exist: everything that opening a job from it needs, beside the index that it names.
type Commit struct {
	Job        string               `json:"job"`
	Run        replica.JobID        `json:"run"`
	Order      uint64               `json:"order,omitempty"` // the run's among those of the name, as the newest claim had it: it is known without run.json and claims
	Cluster    replica.ClusterID    `json:"cluster"`         // whose daemons wrote it
	Owner      uint32               `json:"owner"`           // nobody else's job goes on from it
	Generation replica.Generation   `json:"generation"`
	Position   replica.Position     `json:"position"`
	Write      uint64               `json:"write"` // of the objects that its index names
	Index      Ref                  `json:"index"`
	Files      int                  `json:"files"`
	Bytes      uint64               `json:"bytes"`            // of all files, a shared one once
	Frozen     []string             `json:"frozen,omitempty"` // keys of shared files, both twins
	Layout     replica.Layout       `json:"layout"`
	Options    replica.Options      `json:"options"`
	Lineage    replica.Lineage      `json:"lineage"`
	Condemned  []replica.Generation `json:"condemned,omitempty"`
	Geometries []replica.Digest     `json:"geometries"` // by group, of the replicated part
	Recipe     []byte               `json:"recipe,omitempty"`
	Grown      replica.Epoch        `json:"grown,omitempty"`
	From       *replica.Origin      `json:"from,omitempty"` // the generation of another run that the run began with
	Lacks      []replica.Lacking    `json:"lacks,omitempty"`
	Metrics    map[string]Metric    `json:"metrics,omitempty"`
	Notes      map[string]string    `json:"notes,omitempty"`
	Provenance map[string]string    `json:"provenance,omitempty"` // program, Arguments, library versions
	Loader     *uint64              `json:"loader,omitempty"`     // the loader's epoch
	Keep       string               `json:"keep,omitempty"`       // why session.save wants it kept
	Stripped   bool                 `json:"stripped,omitempty"`   // without optimizer state: nothing resumes from it
	KeptFiles  *Ref                 `json:"kept_files,omitempty"` // the tar of files that its run carried by then
	Sealed     *Sealing             `json:"sealed,omitempty"`     // index and files are encrypted; nil: they are not
	At         int64                `json:"at"`                   // milliseconds since 1970 by the writer's clock, for people
}

// Arguments is the entry of Provenance, and of a run's Program, that has the program's arguments. Where a generation is encrypted nobody writes it.
const Arguments = "arguments"

// Sealing is what a commit says of a generation that is encrypted, so that it can be verified, copied and deleted without a key.
type Sealing struct {
	Recipients []string `json:"recipients"` // of age
	Files      []File   `json:"files"`      // the index's
}

// Hint is last.json and best.json: where to look first.
type Hint struct {
	Run        string             `json:"run"` // the run's directory
	Generation replica.Generation `json:"generation"`
	Position   replica.Position   `json:"position"`
	SHA256     string             `json:"sha256"` // of COMMIT
	Metric     string             `json:"metric,omitempty"`
	Value      Metric             `json:"value,omitempty"`
}

// Row is what a list shows of a commit.
type Row struct {
	Generation replica.Generation `json:"generation"`
	Position   replica.Position   `json:"position"`
	Write      uint64             `json:"write"`
	Bytes      uint64             `json:"bytes"`
	At         int64              `json:"at"`
	Metrics    map[string]Metric  `json:"metrics,omitempty"`
	Loader     *uint64            `json:"loader,omitempty"`
	Keep       string             `json:"keep,omitempty"`
	Stripped   bool               `json:"stripped,omitempty"`
	Sealed     bool               `json:"sealed,omitempty"` // encrypted
}

// Row is the commit's.
func (c *Commit) Row() Row {
	return Row{c.Generation, c.Position, c.Write, c.Bytes, c.At, c.Metrics, c.Loader, c.Keep, c.Stripped, c.Sealed != nil}
}

// Summary is a hint: rows of commits that were there once.
type Summary struct {
	Run  string `json:"run"`
	Rows []Row  `json:"rows"`
}

// Pin keeps a generation; with an end it is a reader's lease.
type Pin struct {
	Generation replica.Generation `json:"generation"`
	Who        string             `json:"who"`
	Why        string             `json:"why,omitempty"`
	Until      int64              `json:"until,omitempty"` // seconds since 1970; 0: for good
	At         int64              `json:"at"`
}

// Trash says that a generation is being deleted.
type Trash struct {
	Generation replica.Generation `json:"generation"`
	Who        string             `json:"who"`
	Why        string             `json:"why"`
	At         int64              `json:"at"`
	Nonce      string             `json:"nonce"` // who put the entry, and nobody else, may take it back
}

// Read says what a whole read of a generation came to. That it was good is in the key.
type Read struct {
	Generation replica.Generation `json:"generation"`
	Who        string             `json:"who"`
	Number     uint64             `json:"number,omitempty"` // among the records of the generation; 0: of a former version
	At         int64              `json:"at"`               // seconds since 1970, for people
	Write      uint64             `json:"write"`
	Error      string             `json:"error,omitempty"`
}

// Log is one line of who did what.
type Log struct {
	Verb        string               `json:"verb"`
	Who         string               `json:"who"`
	Host        string               `json:"host"`
	Run         string               `json:"run,omitempty"`
	Generations []replica.Generation `json:"generations,omitempty"`
	Why         string               `json:"why,omitempty"`
	At          int64                `json:"at"` // milliseconds since 1970
}

// Seal writes the document.
func (c *Commit) Seal() ([]byte, error)  { return Seal("commit", c) }
func (r *Run) Seal() ([]byte, error)     { return Seal("run", r) }
func (c *Claim) Seal() ([]byte, error)   { return Seal("claim", c) }
func (h *Hint) Seal() ([]byte, error)    { return Seal("hint", h) }
func (s *Summary) Seal() ([]byte, error) { return Seal("summary", s) }
func (p *Pin) Seal() ([]byte, error)     { return Seal("pin", p) }
func (t *Trash) Seal() ([]byte, error)   { return Seal("trash", t) }
func (r *Read) Seal() ([]byte, error)    { return Seal("read", r) }
func (l *Log) Seal() ([]byte, error)     { return Seal("log", l) }

// SealRoot writes replicad.json.
func SealRoot() ([]byte, error) { return Seal("root", struct{}{}) }

// ParseRoot reads replicad.json: whether this program knows the format.
func ParseRoot(b []byte) error { return unseal("root", b, &struct{}{}) }

// ParseCommit reads the COMMIT of a generation at a place. A run's UUID of zeros takes any whose digits are in the place's name.
func ParseCommit(b []byte, at Place, run replica.JobID, g replica.Generation) (*Commit, error) {
	var c Commit
	if err := unseal("commit", b, &c); err != nil {
		return nil, err
	}
	if c.Job != at.Job || !ofRun(c.Run, at, run) || c.Generation != g {
		return nil, corrupt("commit: it is of job %s, run %v, generation %v", c.Job, c.Run, c.Generation)
	}
	if err := c.check(); err != nil {
		return nil, corrupt("commit: %w", err)
	}
	return &c, nil
}

// ofRun tells whether an id is the run's that lies at a place.
func ofRun(id replica.JobID, at Place, run replica.JobID) bool {
	_, digits, ok := ParseRunName(at.Run)
	return ok && id.String()[:8] == digits && (run == (replica.JobID{}) || id == run)
}

func (c *Commit) check() error {
	if want := (Name{Kind: IndexKind, Generation: c.Generation, Write: c.Write}).String(); c.Index.Key != want || !isHex(c.Index.SHA256, 64) || c.Index.Bytes > MaxDocument {
		return fmt.Errorf("its index is %q, %d bytes, SHA-256 %.70q; want %s", c.Index.Key, c.Index.Bytes, c.Index.SHA256, want)
	}
	if c.Order > maxSpan {
		return fmt.Errorf("order %d, at most %d", c.Order, int64(maxSpan))
	}
	if c.Position.Epoch > replica.MaxEpoch || c.Position.Step > replica.MaxStep || c.Bytes > maxSpan<<20 {
		return fmt.Errorf("position %v or %d bytes out of range", c.Position, c.Bytes)
	}
	for _, key := range c.Frozen {
		if ParseName(key).Kind != SharedKind {
			return fmt.Errorf("%.80q is no frozen part", key)
		}
	}
	if k := c.KeptFiles; k != nil && (k.Key != KeptKey || !isHex(k.SHA256, 64) || k.Bytes > MaxDocument) {
		return fmt.Errorf("its kept files are %q, %d bytes, SHA-256 %.70q; want %s", k.Key, k.Bytes, k.SHA256, KeptKey)
	}
	if c.From != nil {
		if err := c.From.Check(); err != nil {
			return err
		}
	}
	if err := c.checkSealed(); err != nil {
		return err
	}
	if n := c.Layout.NumGroups(); len(c.Geometries) > n {
		return fmt.Errorf("%d geometries of %d groups", len(c.Geometries), n)
	}
	return cmp.Or(c.Layout.Check(), checkTexts("note", c.Notes), checkTexts("provenance", c.Provenance), checkNames("metric", c.Metrics))
}

// checkSealed tells whether what is said of encrypted files can be.
func (c *Commit) checkSealed() error {
	if c.Sealed == nil {
		return nil
	}
	if n := len(c.Sealed.Recipients); n == 0 || n > sealed.MaxRecipients {
		return fmt.Errorf("%d recipients, want 1 to %d", n, sealed.MaxRecipients)
	}
	for _, r := range c.Sealed.Recipients {
		if err := sealed.CheckRecipient(r); err != nil {
			return err
		}
	}
	return (&Index{Generation: c.Generation, Write: c.Write, Files: c.Sealed.Files}).checkFiles(c)
}

// checkTexts tells whether notes fit.
func checkTexts(what string, m map[string]string) error {
	for k, v := range m {
		if len(v) > MaxText || !utf8.ValidString(v) {
			return fmt.Errorf("%s %.40q: %d bytes, at most %d of UTF-8", what, k, len(v), MaxText)
		}
	}
	return checkNames(what, m)
}

func checkNames[V any](what string, m map[string]V) error {
	if len(m) > MaxNotes {
		return fmt.Errorf("%d entries of kind %s, at most %d", len(m), what, MaxNotes)
	}
	for k := range m {
		if len(k) == 0 || len(k) > replica.MaxRegionName || !utf8.ValidString(k) {
			return fmt.Errorf("%s %.40q: want a name of 1 to %d bytes", what, k, replica.MaxRegionName)
		}
	}
	return nil
}

// ParseRun reads the run.json of a place.
func ParseRun(b []byte, at Place) (*Run, error) {
	var r Run
	if err := unseal("run", b, &r); err != nil {
		return nil, err
	}
	if r.Job != at.Job || !ofRun(r.ID, at, replica.JobID{}) {
		return nil, corrupt("run: it is of job %s, %v", r.Job, r.ID)
	}
	if err := cmp.Or(checkTexts("note", r.Notes), checkTexts("program", r.Program)); err != nil || r.Order > maxSpan {
		return nil, corrupt("run: order %d, %w", r.Order, cmp.Or(err, fmt.Errorf("at most %d", int64(maxSpan))))
	}
	return &r, nil
}

// ParseClaim reads the claim of an epoch of the run at a place. A run's UUID of zeros takes any whose digits are in the place's name.
func ParseClaim(b []byte, at Place, run replica.JobID, e replica.Epoch) (*Claim, error) {
	var c Claim
	if err := unseal("claim", b, &c); err != nil {
		return nil, err
	}
	if !ofRun(c.Run, at, run) || c.Epoch != e || c.Order > maxSpan {
		return nil, corrupt("claim: it is of run %v, epoch %d, order %d", c.Run, c.Epoch, c.Order)
	}
	return &c, nil
}

// ParseHint reads last.json or best.json. One that leads out of the job is refused here, one that leads to nothing by who follows it.
func ParseHint(b []byte) (*Hint, error) {
	var h Hint
	if err := unseal("hint", b, &h); err != nil {
		return nil, err
	}
	if _, _, ok := ParseRunName(h.Run); !ok || !isHex(h.SHA256, 64) || h.Generation.Epoch > replica.MaxEpoch || h.Generation.Step > replica.MaxStep {
		return nil, corrupt("hint: run %.64q, generation %v, SHA-256 %.70q", h.Run, h.Generation, h.SHA256)
	}
	return &h, nil
}

// maxRows bounds a summary.
const maxRows = 1 << 16

// ParseSummary reads the summary of a place.
func ParseSummary(b []byte, at Place) (*Summary, error) {
	var s Summary
	if err := unseal("summary", b, &s); err != nil {
		return nil, err
	}
	if s.Run != at.Run || len(s.Rows) > maxRows {
		return nil, corrupt("summary: it is of run %.64q, with %d rows", s.Run, len(s.Rows))
	}
	return &s, nil
}

// ParsePin reads the pin that has a name.
func ParsePin(b []byte, n Name) (*Pin, error) {
	var p Pin
	if err := unseal("pin", b, &p); err != nil {
		return nil, err
	}
	if p.Generation != n.Generation || Who(p.Who) != n.Who {
		return nil, corrupt("pin: it is of generation %v, by %.64q", p.Generation, p.Who)
	}
	return &p, nil
}

// ParseTrash reads the trash entry of a generation.
func ParseTrash(b []byte, g replica.Generation) (*Trash, error) {
	var t Trash
	if err := unseal("trash", b, &t); err != nil {
		return nil, err
	}
	if t.Generation != g {
		return nil, corrupt("trash: it is of generation %v", t.Generation)
	}
	return &t, nil
}

// ParseRead reads the record of a read that has a name.
func ParseRead(b []byte, n Name) (*Read, error) {
	var r Read
	if err := unseal("read", b, &r); err != nil {
		return nil, err
	}
	if r.Generation != n.Generation || r.Number != n.Number || r.At != n.At || (r.Error == "") != n.Good || Who(r.Who) != n.Who {
		return nil, corrupt("read: it is of generation %v, at %d, by %.64q", r.Generation, r.At, r.Who)
	}
	return &r, nil
}

// ParseLog reads a line of the log.
func ParseLog(b []byte) (*Log, error) {
	var l Log
	if err := unseal("log", b, &l); err != nil {
		return nil, err
	}
	if l.Verb == "" || len(l.Verb) > replica.MaxNameBytes || len(l.Why) > MaxText {
		return nil, corrupt("log: verb %.64q", l.Verb)
	}
	return &l, nil
}

// Same tells whether two commits make the same generation exist from the same bytes: they may differ in when they were written, and in what
// ranks had said by then.
func (c *Commit) Same(o *Commit) bool {
	return c.Run == o.Run && c.Generation == o.Generation && c.Position == o.Position && c.Index == o.Index && c.Layout.Equal(o.Layout) && slices.Equal(c.Lineage, o.Lineage)
}
