package main

import (
	"os/exec"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/replicad/replicad/chaos"
	"github.com/spf13/pflag"
)

// What a failed run tells a reader to paste is the same run: each flag is in it, and each comes back as it was.
func TestChaosAgainHasEveryFlag(t *testing.T) {
	o := chaos.Options{Seed: 7, Duration: 90 * time.Second, Kills: 3, Faults: []string{"rank", "push-daemon"}, Trainer: "bin/textlm --positions window", Ends: true, Program: "old/replicad",
		Layouts: []string{"own"}, World: 3, Groups: []int{0, 1, 2}, Shards: 3, Slots: 2, StateMB: 24, Steps: 250, Pace: 50 * time.Millisecond, Warm: 1,
		Flags: []string{"--cadence", "4"}}
	v := reflect.ValueOf(o)
	for i := range v.NumField() {
		if name := v.Type().Field(i).Name; v.Field(i).IsZero() && !slices.Contains([]string{"History", "ReportDir", "Dir", "Keep", "Again"}, name) {
			t.Errorf("this test says nothing of %s", name)
		}
	}
	line := chaosAgain(o)
	f := new(pflag.FlagSet)
	var back chaos.Options
	chaosFlags(f, &back)
	f.VisitAll(func(flag *pflag.Flag) {
		if strings.Contains(line, " --"+flag.Name+"=") == slices.Contains(chaosPlaces, flag.Name) {
			t.Errorf("--%s is in it, or it is not: %s", flag.Name, line)
		}
	})
	words, err := exec.Command("sh", "-c", `for w in `+strings.TrimPrefix(line, "replicad chaos run")+`; do echo "$w"; done`).Output() // as a shell takes it
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Parse(strings.Split(strings.TrimSpace(string(words)), "\n")); err != nil || !reflect.DeepEqual(back, o) {
		t.Errorf("%s\n%+v, want\n%+v: %v", line, back, o, err)
	}
}
