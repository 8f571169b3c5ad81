//go:build cgo

package trouble_test

import (
	"encoding/binary"
	"encoding/json"
	"flag"
	"fmt"
	"io/fs"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	harness "github.com/replicad/replicad/chaos/cluster"
	"github.com/replicad/replicad/internal/config"
	"github.com/replicad/replicad/replica"
)

var (
	kills    = flag.Int("kills", 0, "SIGKILLs of writer, leader and store server in TestKills (make store-test); 0: two, of writer and leader, on a directory")
	killSeed = flag.Uint64("kills-seed", 0, "the seed of these; 0: drawn, and printed")
)

// A killed is what TestKills kills, and what it brings back.
type killed int

const (
	writerDaemon killed = iota // the daemon of a node with a rank
	writerNode                 // everything of such a node, memory too
	leaderDaemon               // the daemon that leads
	storeServer
)

var killedNames = [...]string{"the daemon of a writer", "a writer's whole node", "the leader's daemon", "the store's server"}

// rig is a job that writes all the time, and the store that it writes to.
type rig struct {
	*cluster
	t         *testing.T
	rng       *rand.Rand
	launchers []*process // of n1 and n2
	daemons   []*process // all that there were: what they said stays said
	root      string     // of the store, as files
	store     *harness.Store
}

const (
	killJob   = "lm"
	killEvery = 20 // steps from one durable generation to the next
)

// TestKills: writers, leaders and the store's server are killed at seeded moments while generations are written all the time. Every generation that
// was reported durable is read whole and has the state of its step; none is half; after the grace nothing else is left.
func TestKills(t *testing.T) {
	seed := *killSeed
	if seed == 0 {
		seed = rand.Uint64()>>33 + 1
	}
	n, kinds := *kills, []killed{writerDaemon, writerNode, leaderDaemon, storeServer}
	if n == 0 {
		n, kinds = 2, []killed{writerNode, leaderDaemon}
	}
	t.Logf("seed %d: again with -kills %d -kills-seed %d", seed, *kills, seed)
	r := newRig(t, rand.New(rand.NewPCG(seed, 0x4b11)), *kills > 0)
	for i := range n {
		kind := kinds[i%len(kinds)]
		if *kills > 0 {
			kind = kinds[r.rng.IntN(len(kinds))]
		}
		r.kill(i, kind)
	}
	r.stop()
	r.judge()
}

func newRig(t *testing.T, rng *rand.Rand, onServer bool) *rig {
	t.Helper()
	r := &rig{cluster: newCluster(t, "n1", "n2", "n3"), t: t, rng: rng}
	r.calm()
	r.store = &harness.Store{URL: "file://" + filepath.Join(r.Dir, "durable")}
	r.root = filepath.Join(r.Dir, "durable")
	if onServer {
		store, err := harness.OpenStore(t.Context(), spawner, "s3://ckpt/kills", r.Dir, filepath.Join("..", "..", "bin", "tools"))
		if err != nil {
			t.Fatal(err)
		}
		r.store, r.root = store, filepath.Join(r.Dir, "bucket", "ckpt", "kills")
	}
	for _, n := range r.nodes {
		n.change(func(c *config.Config) { r.store.Use(c); c.DurableKeep = replica.Keep{Last: 1000}; c.RereadRate = 0 })
		r.up(n)
	}
	for _, n := range r.nodes {
		n.daemon.await("linked", nil)
	}
	r.launchers = []*process{r.train(0), r.train(1)}
	return r
}

func (n *node) change(fn func(*config.Config)) {
	n.t.Helper()
	fn(n.cfg)
	n.write()
}

func (r *rig) up(n *node) *process {
	r.t.Helper()
	n.launch()
	r.daemons = append(r.daemons, n.daemon)
	return n.daemon
}

// train starts the launcher of one rank, on the node of its number.
func (r *rig) train(rank int) *process {
	r.t.Helper()
	return r.nodes[rank].run(killJob, 2, rankSpec{Pace: 10 * time.Millisecond}, "--ranks", fmt.Sprint(rank), "--groups", "0,0", "--durable-every", fmt.Sprint(killEvery))
}

// kill waits for a seeded moment between two durable generations, kills, brings back, and waits until the job writes again.
func (r *rig) kill(i int, kind killed) {
	r.t.Helper()
	step := r.durable(0)
	watched := r.nodes[r.rng.IntN(2)].daemon
	for range 1 + r.rng.IntN(killEvery) {
		watched.awaitFrom(watched.mark(), "commit_seen", nil)
	}
	r.t.Logf("kill %d: %s, after step %d was durable", i+1, killedNames[kind], step)
	switch kind {
	case storeServer:
		r.store.Server.Kill()
		if err := r.store.Restart(r.t.Context()); err != nil {
			r.t.Fatal(err)
		}
	case writerNode:
		rank := r.rng.IntN(2)
		n := r.nodes[rank]
		r.launchers[rank].kill()
		n.die()
		r.up(n).await("linked", nil)
		r.launchers[rank] = r.train(rank)
	case writerDaemon, leaderDaemon:
		n := r.nodes[r.rng.IntN(2)]
		if kind == leaderDaemon {
			n = r.leader()
		}
		n.daemon.kill()
		r.up(n).await("linked", nil)
	}
	r.durable(step + 1)
}

func (r *rig) leader() *node {
	r.t.Helper()
	for _, n := range r.nodes {
		if s := n.status(); s.Leader != "" {
			for _, l := range r.nodes {
				if string(l.cfg.Node) == s.Leader {
					return l
				}
			}
		}
	}
	return r.nodes[0]
}

// durable waits until a step of at least so many is reported durable, and returns it.
func (r *rig) durable(least int) int {
	r.t.Helper()
	s := r.nodes[2].statusWhen(func(s status) bool { return s.job(killJob).Durable.Step >= max(least, 1) })
	return s.job(killJob).Durable.Step
}

// stop ends everything as an operator does: what is newest becomes durable.
func (r *rig) stop() {
	r.t.Helper()
	if code, out := call(r.t, "job", "stop", killJob, "--socket", r.nodes[0].cfg.AdminSocket); code != 0 {
		r.t.Fatalf("job stop: %d\n%s", code, out)
	}
	for _, l := range r.launchers {
		l.exit()
	}
	for _, n := range r.nodes {
		n.daemon.Signal(syscall.SIGTERM)
	}
	for _, n := range r.nodes {
		n.daemon.exit()
	}
}

// said are the steps that a daemon has reported durable.
func (r *rig) said() map[int]bool {
	steps := map[int]bool{}
	for _, p := range r.daemons {
		p.scan(0, func(l line) bool {
			if l.is("durable", nil) {
				steps[int(l.fields["step"].(float64))] = true
			}
			return false
		})
	}
	return steps
}

type killRow struct {
	Run, State, Why string
	Step, Epoch     int
}

func (r *rig) ckpt(into any, args ...string) {
	r.t.Helper()
	p := spawn(r.t, "ckpt "+args[0], r.store.Env, replicad, append(append([]string{"ckpt"}, args...), "--json")...)
	code, out := p.exit(), p.output()
	if i := strings.IndexAny(out, "[{"); code > 1 || i < 0 || json.NewDecoder(strings.NewReader(out[i:])).Decode(into) != nil {
		r.t.Fatalf("ckpt %s: %d\n%s", args[0], code, out)
	}
}

// judge reads all of the store.
func (r *rig) judge() {
	r.t.Helper()
	said, url := r.said(), r.store.URL+"/"+killJob
	var verified []struct {
		Step  int
		Good  bool
		Error string
	}
	r.ckpt(&verified, "verify", url, "--all", "-q")
	good := map[int]bool{}
	for _, v := range verified {
		if !v.Good {
			r.t.Errorf("step %d is half: %s", v.Step, v.Error)
		}
		good[v.Step] = true
	}
	for step := range said {
		if !good[step] {
			r.t.Errorf("step %d was reported durable, and is not there", step)
		}
	}
	var dropped any
	r.ckpt(&dropped, "prune", url, "--keep", "1000", "--keep-runs", "100", "--grace", "1ms", "--nobody-writes")
	var rows []killRow
	r.ckpt(&rows, "ls", url)
	writes := map[string]string{} // by directory of a generation
	for _, row := range rows {
		if row.State != "good" {
			r.t.Errorf("step %d is left %s: %s", row.Step, row.State, row.Why)
		}
		writes[fmt.Sprintf("step-%08d.e%d", row.Step, row.Epoch)] = ""
	}
	if len(rows) != len(verified) || len(rows) < len(said) || len(said) == 0 {
		r.t.Errorf("%d generations are left of %d, %d were reported", len(rows), len(verified), len(said))
	}
	r.walk(writes)
	r.t.Logf("%d generations were reported durable, %d are there, all are good", len(said), len(rows))
}

// aRun is the directory of one, among hints and the log.
var aRun = regexp.MustCompile(`^\d{8}T\d{4}Z-[0-9a-f]{8}$`)

// inRun are the files of a run beside those of generations.
var inRun = regexp.MustCompile(`^(run\.json|summary\.json|(epochs|reads|commits|pins|frozen)/[^/]+|~v-summary\.json/\d+)$`)

// walk looks at every file below the job: it belongs to the run, or to the one write of a generation that is there; and weights are of their step.
func (r *rig) walk(writes map[string]string) {
	r.t.Helper()
	object := regexp.MustCompile(`^(step-(\d+)\.e\d+)/[a-z0-9-]+\.(w\d+)\.(json|safetensors|xxh)$`)
	top := filepath.Join(r.root, killJob)
	err := filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		run, name, _ := strings.Cut(strings.TrimPrefix(path, top+"/"), "/")
		if !aRun.MatchString(run) || inRun.MatchString(name) {
			return nil
		}
		m := object.FindStringSubmatch(name)
		if m == nil {
			r.t.Errorf("left after the grace: %s", name)
			return nil
		}
		write, there := writes[m[1]]
		if !there || write != "" && write != m[3] {
			r.t.Errorf("left after the grace: %s", name)
		}
		writes[m[1]] = m[3]
		if strings.Contains(name, "/group-") {
			r.weights(path, m[2])
		}
		return nil
	})
	if err != nil {
		r.t.Fatal(err)
	}
	uploads, _ := filepath.Glob(filepath.Join(r.Dir, "bucket", "ckpt", ".sgwtmp", "multipart", "*", "*"))
	for _, u := range uploads {
		// What the server was killed over while it completed an upload it shows to nobody, and so nobody can abort it.
		if !strings.HasSuffix(u, ".inprogress") {
			r.t.Errorf("an unfinished upload is left: %s", u)
		}
	}
}

// weights checks that all weights of a group's file are the step that they are of.
func (r *rig) weights(path, step string) {
	r.t.Helper()
	b, err := os.ReadFile(path)
	if err != nil || len(b) < 8 {
		r.t.Fatal(path, err)
	}
	head := binary.LittleEndian.Uint64(b)
	var tensors map[string]json.RawMessage
	if err := json.Unmarshal(b[8:8+head], &tensors); err != nil {
		r.t.Fatal(path, err)
	}
	var w struct {
		DType   string    `json:"dtype"`
		Offsets [2]uint64 `json:"data_offsets"`
	}
	if err := json.Unmarshal(tensors["weights"], &w); err != nil || w.DType != "F32" || w.Offsets[0] == w.Offsets[1] {
		r.t.Fatal(path, err, w)
	}
	var want float32
	_, _ = fmt.Sscan(strings.TrimLeft(step, "0"), &want)
	data := b[8+head:][w.Offsets[0]:w.Offsets[1]]
	for i := 0; i < len(data); i += 4 {
		if got := math.Float32frombits(binary.LittleEndian.Uint32(data[i:])); got != want {
			r.t.Errorf("%s: weight %d is %v", path, i/4, got)
			return
		}
	}
}
