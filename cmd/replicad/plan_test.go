package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/replicad/replicad/internal/memplan"
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
