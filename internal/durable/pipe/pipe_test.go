package pipe

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/replicad/replicad/internal/durable/catalog"
	"github.com/replicad/replicad/internal/durable/durabletest"
	"github.com/replicad/replicad/internal/durable/format"
	"github.com/replicad/replicad/internal/durable/memory"
	"github.com/replicad/replicad/internal/leakcheck"
	"github.com/replicad/replicad/replica"
)

func TestMain(m *testing.M) { leakcheck.Main(m) }

// newest is the newest generation of a job.
func newest(ctx context.Context, c *catalog.Catalog, job string) (f catalog.Found, err error) {
	found, _, err := c.Find(ctx, job, replica.JobID{})
	if err == nil && len(found) == 0 {
		err = fmt.Errorf("job %s: no generation: %w", job, catalog.ErrNone)
	}
	if err != nil {
		return f, err
	}
	return found[0], nil
}

// over are the stores of one in memory: the newest generation of the job is opened.
func over(m *memory.Store) Stores {
	c := catalog.New(m, catalog.Options{Who: "ada", Host: "h"})
	return Stores{
		Read: func(ctx context.Context, job, _ string, read func(Generation) error) error {
			f, err := newest(ctx, c, job)
			if err != nil {
				return err
			}
			g := Generation{Found: f, Root: c.URL(), Shard: func(ctx context.Context, p replica.Part) (catalog.ShardReader, error) {
				return c.OpenShard(ctx, f, p)
			}}
			return c.Leased(ctx, f, "test", nil, func() error { return read(g) })
		},
		Write: func(context.Context) (*catalog.Catalog, uint32, func(), error) { return c, 7, func() {}, nil },
	}
}

// client is the other side.
type client struct {
	t   *testing.T
	in  *io.PipeWriter
	out *bufio.Reader
}

// talk begins a process. It ends, without an error, before the test does.
func talk(t *testing.T, s Stores) *client {
	t.Helper()
	reqs, in := io.Pipe()
	out, answers := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		err := Serve(context.WithoutCancel(t.Context()), reqs, answers, s)
		reqs.CloseWithError(io.ErrClosedPipe) // a client that writes on is not to wait
		answers.Close()
		ended <- err
	}()
	c := &client{t, in, bufio.NewReader(out)}
	t.Cleanup(func() {
		c.end()
		if _, err := io.Copy(io.Discard, c.out); err != nil {
			t.Error(err)
		}
		if err := <-ended; err != nil {
			t.Errorf("serve: %v", err)
		}
	})
	return c
}

func (c *client) end() { c.in.Close() }

func (c *client) ask(request any, data ...[]byte) {
	c.t.Helper()
	b, ok := request.(string)
	if !ok {
		text, err := json.Marshal(request)
		if err != nil {
			c.t.Fatal(err)
		}
		b = string(text)
	}
	if _, err := io.WriteString(c.in, b+"\n"); err != nil && !errors.Is(err, io.ErrClosedPipe) {
		c.t.Fatal(err)
	}
	c.send(data...)
}

func (c *client) send(data ...[]byte) {
	c.t.Helper()
	for _, b := range data {
		if _, err := c.in.Write(b); err != nil && !errors.Is(err, io.ErrClosedPipe) {
			c.t.Fatal(err)
		}
	}
}

// answer reads a line into v, and the error that it may be.
func (c *client) answer(v any) (f failed) {
	c.t.Helper()
	line, err := c.out.ReadBytes('\n')
	if err == nil {
		err = errors.Join(json.Unmarshal(line, &f))
	}
	if err == nil && v != nil && f.Error == "" {
		err = json.Unmarshal(line, v)
	}
	if err != nil {
		c.t.Fatalf("%q: %v", line, err)
	}
	return f
}

func (c *client) must(v any) {
	c.t.Helper()
	if f := c.answer(v); f.Error != "" {
		c.t.Fatalf("%+v", f)
	}
}

// read reads what one request brings.
func (c *client) read(n uint64) ([]byte, failed) {
	c.t.Helper()
	var all []byte
	for {
		var s some
		if f := c.answer(&s); f.Error != "" {
			return nil, f
		}
		b := make([]byte, s.Bytes)
		if _, err := io.ReadFull(c.out, b); err != nil {
			c.t.Fatal(err)
		}
		if all = append(all, b...); uint64(len(all)) >= n {
			return all, failed{}
		}
	}
}

const began = 1_795_756_004_000 // milliseconds since 1970

var id = replica.JobID{0xab, 0x01, 0x02, 0x03}

func layout(rows, from, world int) []byte {
	text := fmt.Sprintf(`{"version":1,"tensors":{"w":{"shape":[%d,70000],"local":[%d,70000],"offset":[%d,0],"placements":["shard(0)"],"mesh":[%d]}}}`, rows*world, rows, from, world)
	b := binary.LittleEndian.AppendUint64([]byte("RPCAP001"), uint64(len(text)))
	b = append(b, text...)
	return append(b, make([]byte, (64-len(b)%64)%64)...)
}

func random(n int, seed uint64) []byte {
	b, r := make([]byte, n), rand.New(rand.NewPCG(seed, 1))
	for i := 0; i+8 <= n; i += 8 {
		binary.LittleEndian.PutUint64(b[i:], r.Uint64())
	}
	return b
}

func begun(t *testing.T, s Stores, step replica.Step, world uint32) attempt {
	t.Helper()
	var a attempt
	c := talk(t, s)
	c.ask(beginRequest{Op: "begin", run: run{"lm", id}, Fleet: "f", Began: began, Step: &step, World: world, Program: map[string]string{"program": "x"}})
	c.must(&a)
	return a
}

// shares are what two ranks write: 9.8 MiB of rows each, which are more than two spans; an empty tensor, a number, and bytes that end in a gap.
func shares(rank int) (list []tensor, data [][]byte) {
	list = []tensor{{"w", "F32", []uint64{35, 70000}}, {"none", "BF16", []uint64{0, 3}}, {fmt.Sprint("n", rank), "I64", nil}, {fmt.Sprint("odd", rank), "U8", []uint64{3}}}
	return list, [][]byte{random(35*70000*4, uint64(rank)), nil, random(8, 9), random(8, 10)[:3]}
}

func written(t *testing.T, s Stores, step replica.Step, private []byte) (a attempt) {
	t.Helper()
	a = begun(t, s, step, 2)
	var reports []report
	for rank := range 2 {
		list, data := shares(rank)
		c := talk(t, s)
		c.ask(putRequest{Op: "put", run: run{"lm", id}, attempt: a, Rank: replica.Rank(rank), Tensors: list, Layout: layout(35, 35*rank, 2)}, data...)
		var again struct{ Again bool }
		c.must(&again)
		if !again.Again {
			t.Fatal("nothing is asked again")
		}
		c.send(data...)
		var r report
		c.must(&r)
		reports = append(reports, r)
	}
	c := talk(t, s)
	c.ask(commitRequest{Op: "commit", run: run{"lm", id}, attempt: a, Fleet: "f", Reports: reports, Private: private, Metrics: map[string]format.Metric{"loss": 2}})
	c.must(nil)
	return a
}

// TestWrittenIsRead: what two ranks have put is one generation, with whole shapes and places, and is read back in any ranges, asked for ahead.
func TestWrittenIsRead(t *testing.T) {
	m := memory.New()
	m.Least = 1 << 20
	s := over(m)
	a := written(t, s, 5, []byte("small"))
	c := talk(t, s)
	c.ask(openRequest{Op: "open", Job: "lm"})
	var o opened
	c.must(&o)
	if o.Where != "lm/"+a.Run+"/step-00000005.e1" || o.Root != "memory:" || o.Commit.Owner != 7 || o.Commit.Metrics["loss"] != 2 || o.Commit.Layout.NumGroups() != 2 {
		t.Errorf("%+v, %+v", o, o.Commit)
	}
	if pins := under(m, "/pins/"); len(pins) != 1 {
		t.Errorf("leases %v", pins)
	}
	i := slices.IndexFunc(o.Index.Tensors, func(t format.Tensor) bool { return t.Name == "w" })
	if w := o.Index.Tensors[i]; !slices.Equal(w.Shape, []uint64{70, 70000}) || len(w.Pieces) != 2 || !slices.Equal(w.Pieces[1].At, []uint64{35, 0}) || w.Placements[0] != "shard(0)" {
		t.Errorf("%+v", w)
	}
	type want struct {
		readRequest
		b []byte
	}
	var wants []want
	add := func(part string, index uint32, name string, from uint64, b []byte) {
		wants = append(wants, want{readRequest{"read", part, index, name, from, uint64(len(b))}, b})
	}
	for rank := range uint32(2) {
		_, data := shares(int(rank))
		add("group", rank, "w", 0, data[0])
		add("group", rank, "none", 0, nil)
		add("group", rank, fmt.Sprint("n", rank), 0, data[2])
		add("group", rank, fmt.Sprint("odd", rank), 1, data[3][1:])
		for _, from := range []uint64{0, 1, 512<<10 - 1, 512 << 10, 4<<20 - 3, 9_000_000} { // they share chunks and spans
			add("group", rank, "w", from, data[0][from:from+700_000])
		}
		add("frozen", rank, format.LayoutRegion, 0, layout(35, 35*int(rank), 2))
	}
	add("private", 0, State, 0, []byte("small"))
	go func() {
		for _, w := range wants {
			c.ask(w.readRequest)
		}
		c.ask(`{"op":"end"}`)
	}()
	for _, w := range wants {
		if got, f := c.read(w.Bytes); f.Error != "" || !bytes.Equal(got, w.b) {
			t.Errorf("%+v: %d bytes, which differ; %+v", w.readRequest, len(got), f)
		}
	}
	if _, err := c.out.ReadByte(); !errors.Is(err, io.EOF) {
		t.Errorf("more comes behind the end: %v", err)
	}
	if pins := under(m, "/pins/"); len(pins) != 0 {
		t.Errorf("leases are left: %v", pins)
	}
	verify(t, m, "lm")
}

func under(m *memory.Store, what string) []string {
	return slices.DeleteFunc(m.Keys(), func(k string) bool { return !strings.Contains(k, what) })
}

func verify(t *testing.T, m *memory.Store, job string) {
	t.Helper()
	c := catalog.New(m, catalog.Options{Who: "ada"})
	f, err := newest(t.Context(), c, job)
	if err != nil {
		t.Fatal(err)
	}
	if faults, err := c.Verify(t.Context(), f, nil); err != nil || len(faults) != 0 {
		t.Errorf("%v, %v", faults, err)
	}
}

// TestAnotherStepOfTheRun: the layout's file is shared; a step that is there is refused; one that was given up is written beside what it left.
func TestAnotherStepOfTheRun(t *testing.T) {
	m := memory.New()
	m.Least = 1 << 20
	s := over(m)
	first := written(t, s, 5, nil)
	c := talk(t, s)
	c.ask(beginRequest{Op: "begin", run: run{"lm", id}, Fleet: "f", Step: new(replica.Step(5)), World: 2})
	if f := c.answer(nil); f.Kind != kindUsage || !strings.Contains(f.Error, "step 5 of run "+first.Run+" of job lm is written already") {
		t.Errorf("%+v", f)
	}
	c = talk(t, s)
	c.ask(beginRequest{Op: "begin", run: run{"lm", id}, Fleet: "other", Step: new(replica.Step(6)), World: 2})
	if f := c.answer(nil); !strings.Contains(f.Error, catalog.ErrFenced.Error()) {
		t.Errorf("another writer takes the run: %+v", f)
	}
	given := begun(t, s, 6, 2)
	list, data := shares(0)
	c = talk(t, s)
	c.ask(putRequest{Op: "put", run: run{"lm", id}, attempt: given, Tensors: list, Layout: layout(35, 0, 2)}, data...)
	c.must(nil)
	c.send(data...)
	c.must(nil)
	second := written(t, s, 6, nil)
	if second.Write != given.Write+1 || second.Run != first.Run {
		t.Errorf("%+v after %+v, %+v", second, first, given)
	}
	if frozen := under(m, "/frozen/"); len(frozen) != 4 {
		t.Errorf("frozen files %v", frozen)
	}
	verify(t, m, "lm")
}

// TestBytesThatChange: tensors that are others the second time, or that end, are named, and no file of them is there.
func TestBytesThatChange(t *testing.T) {
	for name, tc := range map[string]struct {
		second func(data [][]byte) [][]byte
		want   string
	}{
		"changed": {func(d [][]byte) [][]byte { return [][]byte{d[0], d[1], random(8, 77), d[3]} }, "w, n0, odd0 changed while it was written"},
		"ended":   {func(d [][]byte) [][]byte { return [][]byte{d[0][:5<<20]} }, "the tensors' bytes end in chunk 10"},
	} {
		t.Run(name, func(t *testing.T) {
			m := memory.New()
			m.Least = 1 << 20
			s := over(m)
			a := begun(t, s, 5, 1)
			list, data := shares(0)
			c := talk(t, s)
			c.ask(putRequest{Op: "put", run: run{"lm", id}, attempt: a, Tensors: list, Layout: layout(35, 0, 1)}, data...)
			c.must(nil)
			c.send(tc.second(data)...)
			c.end()
			if f := c.answer(nil); f.Kind != kindUsage || !strings.Contains(f.Error, tc.want) {
				t.Errorf("%+v", f)
			}
			if files := under(m, "/step-"); len(files) != 0 {
				t.Errorf("files %v", files)
			}
		})
	}
}

// TestDamageIsNamed: of a job's own generation every region is read; where a chunk rotted the read says so, and the next one is answered.
func TestDamageIsNamed(t *testing.T) {
	m := memory.New()
	s := over(m)
	made := durabletest.Make(replica.Generation{Epoch: 1, Step: 9}, 2)
	f := save(t, m, made)
	bad := made.Groups[1].Manifest.Part
	at, _ := f.Index.Part(bad)
	file := f.Index.Files[at.File]
	m.Bend(f.Run.Under(file.Key), func(b []byte) []byte { b[file.Bytes-1] ^= 1; return b })
	c := talk(t, s)
	c.ask(openRequest{Op: "open", Job: durabletest.JobName})
	c.must(nil)
	read, damaged := 0, 0
	for _, p := range append(append(made.Groups, made.Frozen...), made.Private...) {
		for _, r := range p.Regions {
			if (r.Kind == replica.Private) != (p.Manifest.Part.Kind == replica.PrivatePart) || (r.Class == replica.Frozen) != (p.Manifest.Part.Kind == replica.FrozenPart) {
				continue
			}
			c.ask(readRequest{"read", kinds[p.Manifest.Part.Kind], p.Manifest.Part.Index, r.Name, 0, r.Bytes})
			got, f := c.read(r.Bytes)
			if f.Error != "" {
				if damaged++; p.Manifest.Part != bad || f.Kind != kindDamage || !strings.Contains(f.Error, fmt.Sprintf("%s: chunk %d at", file.Key, len(p.Manifest.Chunks)-1)) {
					t.Errorf("%v, %s: %+v", p.Manifest.Part, r.Name, f)
				}
				continue
			}
			if read++; !bytes.Equal(got, p.Bytes[r.Offset:r.Offset+r.Bytes]) {
				t.Errorf("%v, %s came back different", p.Manifest.Part, r.Name)
			}
		}
	}
	if read < 15 || damaged == 0 || damaged > 3 {
		t.Errorf("%d regions were read, %d were damaged", read, damaged)
	}
}

// save writes a generation as a job does.
func save(t *testing.T, m *memory.Store, made durabletest.Generation) catalog.Found {
	t.Helper()
	ctx, c := t.Context(), catalog.New(m, catalog.Options{Who: "ada"})
	r, err := c.Begin(ctx, format.Run{Job: durabletest.JobName, ID: durabletest.Job, Began: began})
	fleet := catalog.Fleet{Cluster: durabletest.Cluster, Name: "f", Epoch: 1}
	err = errors.Join(err, c.Claim(ctx, r, fleet))
	a := catalog.Attempt{Run: r, Generation: made.Generation, Write: 17}
	var files []format.Written
	roots := make(map[replica.Part]replica.Digest)
	of := func(p durabletest.Part) catalog.Part {
		return catalog.Part{Manifest: p.Manifest, Regions: p.Regions, Read: p.Read}
	}
	keep := func(w format.Written, werr error) {
		files, err = append(files, w), errors.Join(err, werr)
	}
	for i, p := range made.Groups {
		keep(c.WriteFrozen(ctx, r, of(made.Frozen[i])))
		keep(c.WriteGroup(ctx, a, of(p)))
		roots[p.Manifest.Part] = p.Manifest.Root
	}
	keep(c.WriteObject(ctx, a, catalog.NodeObject("b"), of(made.Private[0]), of(made.Private[1])))
	for _, p := range made.Private {
		roots[p.Manifest.Part] = p.Manifest.Root
	}
	said := format.Commit{Position: replica.Position{Epoch: 1, Step: made.Generation.Step}, Layout: made.Layout, Lineage: replica.Lineage{{Epoch: 1}}, Geometries: []replica.Digest{{3}}}
	if err == nil {
		_, err = c.Commit(ctx, a, fleet, said, roots, files)
	}
	if err != nil {
		t.Fatal(err)
	}
	f, err := newest(ctx, c, durabletest.JobName)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

const uuid = `"job":"lm","id":"ab010203-0000-0000-0000-000000000000"`

// TestRefusedRequests: what is wrong is named, and nothing is done.
func TestRefusedRequests(t *testing.T) {
	attempt := uuid + `,"run":"20261125T1716Z-ab010203","generation":{"epoch":1,"step":5},"write":1`
	for _, tc := range []struct{ request, want string }{
		{`nonsense`, "no JSON object"},
		{`[]`, "no JSON object"},
		{`{}`, `op ""`},
		{`{"op":"delete"}`, `op "delete": want open, read, begin, put, commit or end`},
		{`{"op":"open","job":"nobody"}`, "no generation"},
		{`{"op":"open","where":"x"}`, "unknown field"},
		{`{"op":"open"} {}`, "after top-level value"},
		{`{"op":"read","part":"group","name":"w"}`, "open a generation before it is read"},
		{`{"op":"end"}`, "open a generation before"},
		{`{"op":"begin",` + uuid + `,"fleet":"","step":1,"world":1}`, "fleet"},
		{`{"op":"begin",` + uuid + `,"fleet":"f","step":1,"world":0}`, "0 processes write"},
		{`{"op":"begin",` + uuid + `,"fleet":"f","step":274877906944,"world":1}`, "step 274877906944: at most"},
		{`{"op":"begin","job":"../x","id":"ab010203-0000-0000-0000-000000000000","fleet":"f","step":1,"world":1}`, "job: "},
		{`{"op":"begin","job":"lm","fleet":"f","step":1,"world":1}`, "without an id"},
		{`{"op":"put",` + attempt + `,"world":1,"rank":1,"tensors":[]}`, "rank 1 of 1"},
		{`{"op":"put",` + attempt + `,"world":1,"rank":0,"tensors":[]}`, "not there"},
		{`{"op":"commit",` + attempt + `,"world":2,"fleet":"f","reports":[]}`, "0 reports of 2 ranks"},
		{`{"op":"commit",` + attempt + `,"world":1,"fleet":"f","reports":[{"rank":3}]}`, "report 0 is rank 3's"},
	} {
		m := memory.New()
		c := talk(t, over(m))
		c.ask(tc.request)
		c.end()
		if f := c.answer(nil); !strings.Contains(f.Error, tc.want) || len(m.Keys()) != 0 {
			t.Errorf("%s: %+v; %v", tc.request, f, m.Keys())
		}
	}
}

// TestRefusedTensors: names, types and shapes that no file holds are refused before a byte is read.
func TestRefusedTensors(t *testing.T) {
	m := memory.New()
	s := over(m)
	a := begun(t, s, 5, 1)
	for want, list := range map[string][]tensor{
		`dtype "C128" is unknown`: {{"w", "C128", []uint64{1}}},
		"is too large":            {{"w", "F32", []uint64{1 << 40, 1 << 40}}},
		"registered twice":        {{"w", "F32", []uint64{1}}, {"w", "F32", []uint64{1}}},
		"want a name of 1 to":     {{strings.Repeat("x", 128), "F32", []uint64{1}}},
		"at most 8":               {{"w", "F32", slices.Repeat([]uint64{1}, 9)}},
	} {
		c := talk(t, s)
		c.ask(putRequest{Op: "put", run: run{"lm", id}, attempt: a, Tensors: list, Layout: layout(1, 0, 1)})
		if f := c.answer(nil); f.Kind != kindUsage || !strings.Contains(f.Error, want) {
			t.Errorf("%+v, want %s", f, want)
		}
	}
	if files := under(m, "safetensors"); len(files) != 0 {
		t.Errorf("files %v", files)
	}
}

// TestRefusedReads: a read of what is not there is answered by an error, and the next one as ever.
func TestRefusedReads(t *testing.T) {
	m := memory.New()
	save(t, m, durabletest.Make(replica.Generation{Epoch: 1, Step: 9}, 1))
	c := talk(t, over(m))
	c.ask(openRequest{Op: "open", Job: durabletest.JobName})
	c.must(nil)
	for _, tc := range []struct{ request, want string }{
		{`{"op":"read","part":"group","name":"weight","from":100,"bytes":41}`, `bytes 100 to 141 of "weight", which has 140`},
		{`{"op":"read","part":"group","name":"weight","from":18446744073709551615,"bytes":2}`, "2 bytes from"},
		{`{"op":"read","part":"group","name":"cursor","bytes":1}`, `group 0 has no region "cursor"`},
		{`{"op":"read","part":"group","index":4,"name":"weight","bytes":1}`, "the index does not list it"},
		{`{"op":"read","part":"shard","name":"weight","bytes":1}`, `part "shard"`},
		{`{"op":"open"}`, "the generation is open"},
		{`nonsense`, "no JSON object"},
	} {
		c.ask(tc.request)
		if _, f := c.read(1); !strings.Contains(f.Error, tc.want) {
			t.Errorf("%s: %+v", tc.request, f)
		}
		c.ask(`{"op":"read","part":"group","name":"weight","bytes":140}`)
		if b, f := c.read(140); len(b) != 140 {
			t.Errorf("after %s: %+v", tc.request, f)
		}
	}
}

// endless has no line's end.
type endless struct{}

func (endless) Read(b []byte) (int, error) { clear(b); return len(b), nil }

// TestALineHasAnEnd: one without is refused before more is kept of it.
func TestALineHasAnEnd(t *testing.T) {
	for want, in := range map[string]io.Reader{"a request of more than": endless{}, "in the middle of a line": strings.NewReader(`{"op":"open"}`)} {
		var out bytes.Buffer
		if err := Serve(t.Context(), in, &out, over(memory.New())); err != nil || !strings.Contains(out.String(), want) {
			t.Errorf("%v, %.200q", err, out.String())
		}
	}
	var out bytes.Buffer
	if err := Serve(t.Context(), strings.NewReader(""), &out, over(memory.New())); err != nil || out.Len() > 0 {
		t.Errorf("%v, %q", err, out.String())
	}
}

// FuzzRequest: a request that is taken comes back as it was, and what it asks for is within bounds.
func FuzzRequest(f *testing.F) {
	f.Add([]byte(`{"op":"open","job":"lm","at":"1200"}`))
	f.Add([]byte(`{"op":"read","part":"frozen","index":3,"name":"w","from":1,"bytes":2}`))
	f.Add([]byte(`{"op":"begin",` + uuid + `,"fleet":"f","began":1,"step":5,"world":2,"program":{"a":"b"}}`))
	attempt := uuid + `,"run":"20261125T1716Z-ab010203","generation":{"epoch":1,"step":5},"write":1,"world":1`
	f.Add([]byte(`{"op":"put",` + attempt + `,"rank":0,"tensors":[{"name":"w","dtype":"F32","shape":[2,3]}],"layout":"` + base64.StdEncoding.EncodeToString(layout(1, 0, 1)) + `"}`))
	f.Add([]byte(`{"op":"commit",` + attempt + `,"fleet":"f","reports":[{"rank":0}],"metrics":{"loss":"NaN"}}`))
	f.Fuzz(func(t *testing.T, line []byte) {
		r, err := parse(line)
		if err != nil {
			return
		}
		b, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		if q, err := parse(b); err != nil {
			t.Fatalf("%s: %v", b, err)
		} else if c, _ := json.Marshal(q); !bytes.Equal(b, c) {
			t.Fatalf("%s comes back as %s", b, c)
		}
		switch r := r.(type) {
		case *putRequest:
			if g, err := geometry(r); err == nil && uint32(r.Rank) < r.World && len(r.Tensors) > 0 && len(g.Regions) < len(r.Tensors) {
				t.Fatalf("%d regions of %d tensors", len(g.Regions), len(r.Tensors))
			}
		case *readRequest:
			if _, err := r.part(); err != nil || r.From+r.Bytes < r.From {
				t.Fatalf("%+v: %v", r, err)
			}
		}
	})
}
