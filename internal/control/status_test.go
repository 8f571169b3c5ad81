package control

import (
	"encoding/json"
	"reflect"
	"testing"

	"github.com/replicad/replicad/internal/fixture"
)

// What an operator's scripts read is JSON: an answer to status makes the same bytes of it at the node that asked as where it was made. So a
// list that is empty does not become one that is missing.
func TestStatusIsTheSameJSONAfterALink(t *testing.T) {
	full, n := LeaderStatus{}, uint64(0)
	fixture.Fill(reflect.ValueOf(&full).Elem(), &n)
	empty := func(v any) any { // each slice of it empty, and not nil
		emptied(reflect.ValueOf(v).Elem())
		return v
	}
	for name, s := range map[string]LeaderStatus{
		"full": full, "nothing": {}, "no job": {Jobs: []JobStatus{}}, "a job with nothing": {Jobs: []JobStatus{{}}}, "empty lists": {Jobs: []JobStatus{*empty(&JobStatus{}).(*JobStatus)}},
	} {
		before, err := json.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}
		got, err := DecodeAs[StatusReply](fixture.Body(t, KindStatusReply, StatusReply{ID: 1, Status: s}))
		if err != nil {
			t.Fatal(err)
		}
		if after, err := json.Marshal(got.Status); err != nil || string(after) != string(before) {
			t.Errorf("%s: %v\nbefore %s\nafter  %s", name, err, before, after)
		}
	}
}

func emptied(v reflect.Value) {
	for i := range v.NumField() {
		switch f := v.Field(i); f.Kind() {
		case reflect.Slice:
			f.Set(reflect.MakeSlice(f.Type(), 0, 0))
		case reflect.Struct:
			emptied(f)
		default:
		}
	}
}
