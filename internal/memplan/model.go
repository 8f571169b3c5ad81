package memplan

import (
	"errors"
	"fmt"
	"math/big"

	"github.com/replicad/replicad/replica"
)

// dtypeNames are the types that a plan knows, by torch's short names.
var dtypeNames = map[string]replica.DType{"fp32": replica.F32, "bf16": replica.BF16, "fp16": replica.F16, "fp8": replica.F8E4M3}

// Model is what is given of a model in words: as 70e9 and bf16. The faults name the flags of `replicad plan` for them.
type Model struct{ Params, Frozen, Dtype, Moments string }

// Read takes these for a job, and as many replicas as it has copies where it has one shard and none are given.
func (m Model) Read(j *Job) error {
	var errs []error
	for _, n := range []struct {
		flag, text string
		into       *uint64
	}{{"--params", m.Params, &j.Params}, {"--frozen", m.Frozen, &j.Frozen}} {
		v, err := wholeNumber(n.text)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s %q: want a whole number, as in 70e9 or 8030261248", n.flag, n.text))
		}
		*n.into = v
	}
	for _, n := range []struct {
		flag, text string
		into       *replica.DType
	}{{"--dtype", m.Dtype, &j.DType}, {"--moments-dtype", m.Moments, &j.Moments}} {
		var ok bool
		if *n.into, ok = dtypeNames[n.text]; !ok {
			errs = append(errs, fmt.Errorf("%s %q: want fp32, bf16, fp16 or fp8", n.flag, n.text))
		}
	}
	if j.Replicas == 0 {
		if j.Replicas = 1; j.Shards == 1 {
			j.Replicas = j.Copies * j.RanksPerNode
		}
	}
	return errors.Join(errs...)
}

// wholeNumber reads 70e9 and 70000000000.
func wholeNumber(text string) (uint64, error) {
	if len(text) > 40 {
		return 0, errors.New("too long")
	}
	n, _, err := big.ParseFloat(text, 10, 128, big.ToNearestEven)
	if err != nil || !n.IsInt() || n.Sign() < 0 {
		return 0, errors.New("no whole number")
	}
	v, _ := n.Uint64()
	if n.Cmp(new(big.Float).SetUint64(v)) != 0 {
		return 0, errors.New("too large")
	}
	return v, nil
}
