package usage

import (
	"errors"
	"fmt"
	"io"
	"testing"
)

// A mark is seen through what is wrapped around it, and changes neither the text nor what is inside.
func TestWrong(t *testing.T) {
	err := Wrong(fmt.Errorf("--to: %w", io.EOF))
	if around := fmt.Errorf("import: %w", err); !Is(err) || !Is(around) || !errors.Is(around, io.EOF) || err.Error() != "--to: EOF" {
		t.Errorf("%v", around)
	}
	if Wrong(nil) != nil || Is(nil) || Is(io.EOF) {
		t.Error("what nobody marked is marked")
	}
}
