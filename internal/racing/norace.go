//go:build !race

package racing

const (
	On     = false
	Stride = 1
)
