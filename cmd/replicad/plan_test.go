package main

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/memplan"
	"github.com/replicad/replicad/replica"
)

func TestPlanMemory(t *testing.T) {
	const args = "plan memory --params 70e9 --shards 64 --ranks-per-node 8"
	code, out, errout := try(t, strings.Fields(args)...)
	if code != exitOK || errout != "" {
		t.Fatalf("code %d: %s", code, errout)
	}
	for _, want := range []string{"64 ranks on 8 nodes, 8 a node; each part on 2 nodes", "2 slots: an arena of 20.4 GiB", "arenas: slots", "163.0 GiB", "mirrors: shards", "stages of tensors on a device", "in all", "--slots 3", "--copies 1", "-81.5 GiB", "the loss of a node may cost its part of the state"} {
		if !strings.Contains(out, want) {
			t.Errorf("nothing of %q in\n%s", want, out)
		}
	}
	code, out, errout = try(t, strings.Fields(args+" --node-memory 1TiB")...)
	if code != exitOK || !strings.Contains(out, "of 1023.8 GiB for copies; ") {
		t.Errorf("code %d: %s%s", code, out, errout)
	}
	code, out, errout = try(t, strings.Fields(args+" --node-memory 256GiB --json")...)
	var p memplan.Plan
	if err := json.Unmarshal([]byte(out), &p); err != nil || code != exitFailed || p.Fits == nil || *p.Fits || p.Node == 0 || len(p.Changes) != 6 || !strings.Contains(errout, "and has 255.8 GiB for copies: fits with --shards 128") {
		t.Errorf("code %d, %v: %s%s", code, err, out, errout)
	}
	if code, out, errout = try(t, strings.Fields("plan memory --params 8.03e9 --frozen 8e9 --copies 3")...); code != exitOK || !strings.Contains(out, "3 ranks on 3 nodes") || !strings.Contains(out, "kept once") {
		t.Errorf("code %d: %s%s", code, out, errout)
	}
}

// A job that runs is planned from what its ranks registered, and what one more copy would take.
func TestPlanMemoryOfARunningJob(t *testing.T) {
	id := replica.JobID{7}
	s := control.Status{Node: "a", Jobs: []control.JobStatus{{Name: "old", Phase: "ended"}, {Name: "lm", ID: id, Phase: "open", Copies: 2}, {Name: "elsewhere", Phase: "open"}},
		Sizes: []control.SizeStatus{{Job: id, Trained: 1 << 30, Common: 64 << 10, Frozen: 1 << 20, Own: 4 << 20, Slots: 3, ChunkBytes: replica.DefaultChunkBytes}}}
	for r := range replica.Rank(8) {
		s.Jobs[1].Ranks = append(s.Jobs[1].Ranks, control.RankStatus{Rank: r, Group: replica.GroupID(r % 4), Node: replica.NodeName("n" + string(rune('0'+r/2)))})
	}
	socket := serveAdmin(t, func(w http.ResponseWriter, _ *http.Request) {
		if err := json.NewEncoder(w).Encode(s); err != nil {
			t.Error(err)
		}
	})
	plan := func(args string) (p memplan.Plan) {
		t.Helper()
		code, out, errout := try(t, strings.Fields("plan memory --json --job lm --socket "+socket+" "+args)...)
		if err := json.Unmarshal([]byte(out), &p); err != nil || code != exitOK {
			t.Fatalf("%s: code %d, %v: %s", args, code, err, errout)
		}
		return p
	}
	p, more := plan(""), plan("--copies 3")
	if p.World != 8 || p.Nodes != 4 || p.Slots != 3 || p.Shard != 1<<30 || p.Arena < 3<<30 || p.Arena > 4<<30 || more.Node <= p.Node {
		t.Errorf("%+v; with three copies %d bytes", p, more.Node)
	}
	for args, want := range map[string]string{
		"--job old": `--job "old": node a knows no job of that name that runs`, "--job elsewhere": `--job "elsewhere": no rank of it has registered its state on node a`,
		"--job lm --shards 4": "if any flags in the group [job shards] are set none of the others can be",
	} {
		if code, out, errout := try(t, append([]string{"plan", "memory", "--socket", socket}, strings.Fields(args)...)...); code == exitOK || !strings.Contains(errout, want) || out != "" {
			t.Errorf("%s: code %d: %s%s", args, code, out, errout)
		}
	}
}

func TestPlanDurable(t *testing.T) {
	code, out, errout := try(t, strings.Fields("plan durable --params 7e9 --shards 8 --ranks-per-node 4 --rate 2GiB")...)
	if code != exitOK || errout != "" {
		t.Fatalf("code %d: %s", code, errout)
	}
	for _, want := range []string{"8 ranks on 2 nodes", "65.2 GiB in 10 objects", "writes 32.6 GiB of a generation: 16s at 2.0 GiB a second", "every 27m47s (Daly: a write takes 16s, a fault in 24h0m0s", "timing.stop_grace 1m0s lasts"} {
		if !strings.Contains(out, want) {
			t.Errorf("nothing of %q in\n%s", want, out)
		}
	}
	code, out, errout = try(t, strings.Fields("plan durable --params 70e9 --shards 64 --ranks-per-node 8 --rate 500MiB --json")...)
	var d memplan.Durable
	if err := json.Unmarshal([]byte(out), &d); err != nil || code != exitFailed || d.Fits || d.Objects != 72 ||
		!strings.Contains(errout, "timing.stop_grace 1m0s is too short: a daemon may have to write 81.5 GiB when all nodes go down, 2m47s at 500.0 MiB a second: set it to 4m0s") {
		t.Errorf("code %d, %v: %s%s", code, err, out, errout)
	}
	for args, want := range map[string]string{
		"--params 7e9":                         "--rate 0: want what a node gives",
		"--params 7e9 --rate 0":                "--rate 0: want what a node gives to the store in a second",
		"--params 7e9 --rate 1MiB --keep 0":    "--keep 0: want at least 1",
		"--params 7e9 --rate 1MiB --between 0": "--between 0s: want the time from one fault of the job to the next",
		"--params 7x --rate 1MiB":              `--params "7x": want a whole number`,
	} {
		if code, out, errout := try(t, append([]string{"plan", "durable"}, strings.Fields(args)...)...); code != exitUsage || !strings.Contains(errout, want) || out != "" {
			t.Errorf("%s: code %d: %s%s", args, code, out, errout)
		}
	}
}

func TestPlanMemoryRefuses(t *testing.T) {
	for args, want := range map[string]string{
		"":                           `--params "": want a whole number, as in 70e9`,
		"--params 7x":                `--params "7x": want a whole number, as in 70e9`,
		"--params 0.5":               `--params "0.5": want a whole number`,
		"--params -1":                `--params "-1": want a whole number`,
		"--params 1e99":              `--params "1e99": want a whole number`,
		"--params 7e9 --dtype int4":  `--dtype "int4": want fp32, bf16, fp16 or fp8`,
		"--params 7e9 --optimizer x": `--optimizer "x": want one of adam, adamw,`,
		"--params 7e9 --own 1x":      `size "1x": want a whole number with an optional unit`,
		"--params 7e9 --shards 8 --ranks-per-node 8": "--copies 2: 8 ranks, 8 a node, are on 1 nodes",
		"--params 7e9 --node-memory 1MiB":            "--node-memory 1MiB: want more than --memory-margin, 256MiB",
		"--params 7e9 --frozen 8e9":                  "--frozen 8000000000: want at most --params, 7000000000",
	} {
		if code, out, errout := try(t, append([]string{"plan", "memory"}, strings.Fields(args)...)...); code != exitUsage || !strings.Contains(errout, want) || out != "" {
			t.Errorf("%s: code %d: %s%s", args, code, out, errout)
		}
	}
}
