package config

import "testing"

func TestJobToken(t *testing.T) {
	c := &Config{}
	if got := c.JobToken("lm"); got != "" {
		t.Errorf("a token %q without a secret", got)
	}
	c.JobSecret = "0123456789abcdef"
	one := c.JobToken("lm")
	if one != "decab26d6471e1da82ee9a81d1a7c00a8d4ccc24" { // tokens that users have keep their worth across releases
		t.Errorf("token %q", one)
	}
	other := &Config{JobSecret: "0123456789abcdeg"}
	if one == c.JobToken("lm2") || one == other.JobToken("lm") || one != c.JobToken("lm") {
		t.Errorf("tokens %q, %q, %q", one, c.JobToken("lm2"), other.JobToken("lm"))
	}
}
