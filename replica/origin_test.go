package replica

import (
	"encoding/json"
	"strings"
	"testing"
)

// An origin is passed to ranks whole, however long its texts are, and nothing that is none is taken.
func TestOrigin(t *testing.T) {
	long := strings.Repeat(`"`, MaxOrigin)
	o := Origin{Asked: long, URL: long, Job: strings.Repeat("j", 63), Run: JobID{7}, Place: long, Generation: Generation{Epoch: MaxEpoch, Step: MaxStep}, World: MaxRanks}
	if err := o.Check(); err != nil {
		t.Fatal(err)
	}
	var again Origin
	leads := Rank(MaxRanks - 1)
	if b := o.JSON(&leads); len(b) > MaxOriginJSON || json.Unmarshal(b, &again) != nil || again != o {
		t.Errorf("%d bytes, at most %d; read as %+v", len(b), MaxOriginJSON, again)
	}
	for name, c := range map[string]struct {
		spoil func(*Origin)
		says  string
	}{
		"no name":        {func(o *Origin) { o.Asked = "" }, "name"},
		"a control byte": {func(o *Origin) { o.URL = "s3://b\x1b[2J" }, "URL"},
		"a long place":   {func(o *Origin) { o.Place += "x" }, "place"},
		"no job":         {func(o *Origin) { o.Job = "" }, "job"},
		"no run":         {func(o *Origin) { o.Run = JobID{} }, "run"},
		"epoch 0":        {func(o *Origin) { o.Generation.Epoch = 0 }, "epoch"},
		"no ranks":       {func(o *Origin) { o.World = 0 }, "ranks"},
	} {
		bad := o
		c.spoil(&bad)
		if err := bad.Check(); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v, want one that says %q", name, err, c.says)
		}
	}
}

// What a launcher asks for again in the same words may be another generation by then, and what it asks for in other words the same one.
func TestSameOrigin(t *testing.T) {
	a := Origin{Asked: "s3://b/lm", Run: JobID{7}, Generation: Generation{1, 20}}
	for want, b := range map[Origin]bool{
		{Asked: "s3://b/lm", Run: JobID{7}, Generation: Generation{1, 30}}:    true,
		{Asked: "s3://b/lm@20", Run: JobID{7}, Generation: Generation{1, 20}}: true,
		{Asked: "s3://b/lm@30", Run: JobID{7}, Generation: Generation{1, 30}}: false,
		{Asked: "s3://b/lm@20", Run: JobID{8}, Generation: Generation{1, 20}}: false,
		{Asked: "s3://b/lm"}: true, // it can't be found any more
	} {
		if a.Same(&want) != b || want.Same(&a) != b {
			t.Errorf("%+v is the same: %v", want, !b)
		}
	}
}
