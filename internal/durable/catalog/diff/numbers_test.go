package diff

import (
	"testing"

	"github.com/replicad/replicad/internal/leakcheck"
	"github.com/replicad/replicad/replica"
)

func TestMain(m *testing.M) { leakcheck.Main(m) }

func TestNumbers(t *testing.T) {
	for _, tc := range []struct {
		t    replica.DType
		b    []byte
		want float64
	}{{replica.F16, []byte{0x00, 0x3c}, 1}, {replica.F16, []byte{0x01, 0x00}, 5.960464477539063e-08}, {replica.F16, []byte{0x00, 0xc0},
		-2}, {replica.BF16, []byte{0x80, 0x3f}, 1},
		{replica.F8E4M3, []byte{0x38}, 1}, {replica.F8E4M3, []byte{0x7e}, 448}, {replica.F8E4M3, []byte{0x01}, 0.001953125},
		{replica.F8E8M0, []byte{0x80}, 2}, {replica.F8E4M3FNUZ, []byte{0x40}, 1}, {replica.F8E4M3FNUZ, []byte{0x7f}, 240},
		{replica.F8E5M2FNUZ, []byte{0x40}, 1}, {replica.F8E5M2FNUZ, []byte{0x7f}, 57344}, {replica.F8E5M2, []byte{0x3c}, 1},
		{replica.F8E5M2, []byte{0x7b}, 57344},
		{replica.I8, []byte{0xff}, -1}, {replica.U8, []byte{0xff}, 255}, {replica.Bool, []byte{1}, 1}, {replica.I16, []byte{0xfe, 0xff},
			-2}} {
		if got := number(tc.t, tc.b); got != tc.want {
			t.Errorf("%v %x is %v, want %v", tc.t, tc.b, got, tc.want)
		}
	}
}
