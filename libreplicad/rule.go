//go:build cgo

package libreplicad

/*
#include <stdbool.h>
#include <stdint.h>
bool rpi_should_capture(uint64_t s, uint64_t committed, uint64_t candidate, uint64_t cadence, uint32_t slots);
*/
import "C"

import "github.com/replicad/replicad/replica"

// shouldCapture is the client's own copy of lock.ShouldCapture; a test holds the two together.
func shouldCapture(s, committed, candidate, cadence replica.Step, slots int) bool {
	return bool(C.rpi_should_capture(C.uint64_t(s), C.uint64_t(committed), C.uint64_t(candidate), C.uint64_t(cadence), C.uint32_t(slots)))
}
