//go:build race

package trouble_test

const raceEnabled = true
