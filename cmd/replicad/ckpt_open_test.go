package main

import (
	"strings"
	"testing"
)

// TestAKeyIsNotShown: one that is given where its file belongs comes into no error, by flag and by environment.
func TestAKeyIsNotShown(t *testing.T) {
	const key = "age-secret-key-1qqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqq"
	for _, k := range []*keyring{{file: key}, {}} {
		t.Setenv(identityEnv, key)
		if _, err := k.identities(); err == nil || strings.Contains(err.Error(), key) || !strings.Contains(err.Error(), "not shown") {
			t.Errorf("%v", err)
		}
	}
}
