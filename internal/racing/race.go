//go:build race

package racing

const (
	On     = true
	Stride = 11 // odd: enumerations alternate between two kinds of case
)
