package remote

import (
	"fmt"
	"io"
	"net/url"
)

// Secret is text that is never shown.
type Secret string

const hidden = "(hidden)"

// String hides it.
func (Secret) String() string { return hidden }

// Format hides it from each verb, also from one that does not fit a text.
func (Secret) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, hidden) }

// MarshalText hides it from JSON and YAML.
func (Secret) MarshalText() ([]byte, error) { return []byte(hidden), nil }

// IsEndpoint tells whether text names a server, and nothing more than that and a path. What it is not is not shown: it may hold a password.
func IsEndpoint(text string, path bool) bool {
	u, err := url.Parse(text)
	return err == nil && u.Host != "" && (u.Scheme == "http" || u.Scheme == "https") && (path || u.Path == "" || u.Path == "/") && u.RawQuery == "" && u.Fragment == "" && u.User == nil
}
