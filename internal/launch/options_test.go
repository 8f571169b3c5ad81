package launch

import (
	"fmt"
	"strings"
	"testing"

	"github.com/replicad/replicad/internal/wire"
	"github.com/replicad/replicad/replica"
)

func goodOptions() Options {
	return Options{Socket: "/run/s", Job: "test", World: 4, Groups: []replica.GroupID{0, 1, 0, 1}, Ranks: []replica.Rank{0, 3}, Command: []string{"sh"}}
}

func TestValidate(t *testing.T) {
	if err := goodOptions().Validate(); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		want  string
		spoil func(*Options)
	}{
		{"no socket", func(o *Options) { o.Socket = "" }},
		{"--job", func(o *Options) { o.Job = "Not A Name" }},
		{"token of 64 bytes", func(o *Options) { o.Token = strings.Repeat("x", 64) }},
		{"--world 0", func(o *Options) { o.World = 0 }},
		{"--groups names 4 ranks, --world 3", func(o *Options) { o.World, o.Ranks = 3, nil }},
		{"--groups auto with groups by number", func(o *Options) { o.Named = true }},
		{"--groups auto with groups by number", func(o *Options) { o.Groups, o.Named, o.Nondeterministic = nil, true, []replica.GroupID{0} }},
		{"nobody is in group 1", func(o *Options) { o.Groups = []replica.GroupID{0, 2, 0, 2} }},
		{"--ranks: 4", func(o *Options) { o.Ranks = []replica.Rank{4} }},
		{"--ranks: 1", func(o *Options) { o.Ranks = []replica.Rank{1, 1} }},
		{"--spare", func(o *Options) { o.Spare = true }},
		{"--capacity 5", func(o *Options) { o.Capacity = 5 }},
		{"--min-copies -1", func(o *Options) { o.MinCopies = -1 }},
		{"--cadence -1", func(o *Options) { o.Cadence = -1 }},
		{"--slots 5", func(o *Options) { o.Slots = 5 }},
		{"--chunk-mb 2048", func(o *Options) { o.ChunkMB = 2048 }},
		{"--durable-every: durable_every 1073741825", func(o *Options) { o.DurableEvery = replica.MaxDurableSteps + 1 }},
		{"no command", func(o *Options) { o.Command = nil }},
		{"no-such-program", func(o *Options) { o.Command = []string{"no-such-program"} }},
	} {
		o := goodOptions()
		tc.spoil(&o)
		if err := o.Validate(); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("want an error with %q, got: %v", tc.want, err)
		}
	}
	if err := (Options{}).Validate(); err == nil || strings.Count(err.Error(), "\n") < 3 {
		t.Errorf("not all faults together: %v", err)
	}
}

func TestGroupsAuto(t *testing.T) {
	o := goodOptions()
	o.Groups, o.Named, _ = ParseGroups("auto")
	if err := o.Validate(); err != nil || !o.Named || o.hello().Flags != wire.RunNameGroups {
		t.Errorf("%v, named %v, flags %d", err, o.Named, o.hello().Flags)
	}
	env := strings.Join(o.environ(wire.RunStart{World: 4, Group: replica.NoGroup}, seat{}), "\n")
	if !strings.Contains(env, "REPLICAD_GROUPS=auto") || strings.Contains(env, "REPLICAD_GROUP=") {
		t.Errorf("a rank that names its group has the environment\n%s", env)
	}
	if env := strings.Join(o.Environ(), "\n"); !strings.Contains(env, "REPLICAD_GROUPS=auto") {
		t.Errorf("another launcher's ranks have the environment\n%s", env)
	}
	if env := strings.Join(o.environ(wire.RunStart{World: 20000, Groups: make([]replica.GroupID, 20000)}, seat{}), "\n"); strings.Contains(env, "REPLICAD_GROUPS=") {
		t.Error("groups that don't fit an environment are put into it")
	}
	if groups, named, err := ParseGroups("0,1"); err != nil || named || len(groups) != 2 {
		t.Errorf("%v, %v, %v", groups, named, err)
	}
}

func TestParseList(t *testing.T) {
	for s, want := range map[string]string{"": "[]", "0": "[0]", "0, 1,0,1": "[0 1 0 1]"} {
		if got, err := ParseList[replica.GroupID](s); fmt.Sprint(got) != want || err != nil {
			t.Errorf("%q: %v, %v", s, got, err)
		}
	}
	for _, s := range []string{",", "a", "1,,2", "-1", "1048576", "4294967296"} {
		if got, err := ParseList[replica.Rank](s); err == nil {
			t.Errorf("%q is taken for %v", s, got)
		}
	}
}
