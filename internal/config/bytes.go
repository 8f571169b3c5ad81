package config

import (
	"fmt"
	"math/bits"
	"strconv"
	"strings"
)

// Bytes is a size in bytes, written as a number with an optional unit: 4096, 64KiB, 512MiB, 2GiB, 1TiB.
type Bytes uint64

var byteUnits = []struct {
	name string
	size uint64
}{{"TiB", 1 << 40}, {"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}, {"B", 1}}

// ParseBytes reads a size.
func ParseBytes(s string) (Bytes, error) {
	num, size := strings.TrimSpace(s), uint64(1)
	for _, u := range byteUnits {
		if rest, ok := strings.CutSuffix(num, u.name); ok {
			num, size = strings.TrimSpace(rest), u.size
			break
		}
	}
	n, err := strconv.ParseUint(num, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("size %q: want a whole number with an optional unit B, KiB, MiB, GiB or TiB", s)
	}
	high, total := bits.Mul64(n, size)
	if high != 0 {
		return 0, fmt.Errorf("size %q does not fit in 64 bits", s)
	}
	return Bytes(total), nil
}

func (b Bytes) String() string {
	for _, u := range byteUnits {
		if b != 0 && uint64(b)%u.size == 0 {
			return strconv.FormatUint(uint64(b)/u.size, 10) + u.name
		}
	}
	return "0B"
}

// MarshalText writes the form that ParseBytes reads.
func (b Bytes) MarshalText() ([]byte, error) { return []byte(b.String()), nil }

// UnmarshalText reads a size.
func (b *Bytes) UnmarshalText(text []byte) error {
	v, err := ParseBytes(string(text))
	if err == nil {
		*b = v
	}
	return err
}

// DonorRate is Auto, Unlimited or a size, in a second.
type DonorRate string

// What a DonorRate is beside a size.
const (
	Auto      DonorRate = "auto"
	Unlimited DonorRate = "unlimited"
)

// Bytes is the size, where it is one.
func (r DonorRate) Bytes() (rate Bytes, ok bool) {
	rate, err := ParseBytes(string(r))
	return rate, err == nil
}
