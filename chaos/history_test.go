package chaos

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestHistoryJudges(t *testing.T) {
	path := filepath.Join(t.TempDir(), "history.jsonl")
	is := func(seconds float64) recovered {
		return recovered{Layout: "pairs", Kinds: kindsText([]string{"rank", "daemon"}), Seconds: seconds}
	}
	h, err := readHistory(path)
	if err != nil {
		t.Fatal(err)
	}
	for range historyLeast { // of one run: not judged by each other
		if slower, err := h.add(is(100)); slower != "" || err != nil {
			t.Fatal(slower, err)
		}
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	for i := range historyLeast - 1 {
		if _, err := h.add(is(float64(i+1) / 10)); err != nil {
			t.Fatal(err)
		}
	}
	if h, err = readHistory(path); err != nil || h.limit(is(0)) != 0 {
		t.Fatalf("%v: judged by %d recoveries", err, historyLeast-1)
	}
	if _, err := h.add(is(90)); err != nil { // the one in ten that counts not
		t.Fatal(err)
	}
	if h, err = readHistory(path); err != nil {
		t.Fatal(err)
	}
	if slower, err := h.add(is(4*0.9 + 1.9)); slower != "" || err != nil {
		t.Errorf("within the limit: %q, %v", slower, err)
	}
	if slower, _ := h.add(is(4*0.9 + 2.1)); !strings.Contains(slower, "daemon+rank in layout pairs took 5.7 s, and may take 5.6 s by 10 earlier ones") {
		t.Errorf("beyond it: %q", slower)
	}
	if slower, _ := h.add(recovered{Layout: "shards", Kinds: "rank", Seconds: 1000}); slower != "" {
		t.Errorf("of another layout: %q", slower)
	}
	if err := os.WriteFile(path, []byte(`{"layout":"pairs","kinds":"rank","seconds":1}`+"\nhalf"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := readHistory(path); err == nil || !strings.Contains(err.Error(), "line 2") {
		t.Errorf("half a line: %v", err)
	}
	if h, err := readHistory(""); err != nil {
		t.Error(err)
	} else if slower, err := h.add(is(1e6)); slower != "" || err != nil {
		t.Error(slower, err)
	}
}
