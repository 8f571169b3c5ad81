//go:build race

package transfer

// raceEnabled: sync.Pool drops at random under the race detector, so allocations can't be counted.
const raceEnabled = true
