package recovery

import (
	"reflect"

	"github.com/replicad/replicad/internal/config"
)

// DefaultTiming is what a daemon gives its leader unless configured: of config.Default, the delays that recovery knows.
func DefaultTiming() (t Timing) {
	from, to := reflect.ValueOf(config.Default().Timing), reflect.ValueOf(&t).Elem()
	for i := range to.NumField() {
		to.Field(i).Set(from.FieldByName(to.Type().Field(i).Name))
	}
	return t
}
