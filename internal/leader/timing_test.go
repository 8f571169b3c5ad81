package leader

import (
	"reflect"
	"testing"

	"github.com/replicad/replicad/internal/config"
)

// TestRecoveryTiming: recovery gets each of its delays from the configuration's field of that name. A field left out would be 0.
func TestRecoveryTiming(t *testing.T) {
	var all config.Timing
	from := reflect.ValueOf(&all).Elem()
	for i := range from.NumField() {
		from.Field(i).SetInt(int64(i) + 1)
	}
	got := reflect.ValueOf(recoveryTiming(all))
	for i := range got.NumField() {
		name := got.Type().Field(i).Name
		if want := from.FieldByName(name); !want.IsValid() || got.Field(i).Int() != want.Int() {
			t.Errorf("%s is %v, want the configuration's, %v", name, got.Field(i), want)
		}
	}
}
