//go:build !race

package bubble

// racing tells whether this build has the race detector.
const racing = false
