package admin

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"
)

// A socket without a daemon is an error of its own, which a verb tells from the refusal of a daemon.
func TestNobodyAnswers(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "a")
	_, err := Client{Socket: socket}.Status(t.Context())
	if around := fmt.Errorf("drain: %w", err); !IsNobody(around) || !errors.Is(err, fs.ErrNotExist) || !strings.HasPrefix(err.Error(), "no daemon answers on "+socket+": ") {
		t.Error(err)
	}
	if IsNobody(nil) || IsNobody(fs.ErrNotExist) {
		t.Error("an error of something else is none of a daemon's silence")
	}
	if _, err := ReadStatus([]byte("not JSON")); err == nil || IsNobody(err) {
		t.Error(err)
	}
}
