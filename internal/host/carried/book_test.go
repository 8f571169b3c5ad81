package carried

import (
	"errors"
	"strings"
	"testing"

	"github.com/replicad/replicad/internal/durable/kept"
	"github.com/replicad/replicad/internal/leakcheck"
)

func TestMain(m *testing.M) { leakcheck.Main(m) }

func tarOf(t *testing.T, text string) *kept.Tar {
	t.Helper()
	b, err := kept.Pack([]kept.Source{{Name: "a", Data: []byte(text)}})
	if err != nil {
		t.Fatal(err)
	}
	f, err := kept.Seal(b)
	if err != nil {
		t.Fatal(err)
	}
	tar, err := kept.Open(f)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(tar.Close)
	return tar
}

// closed tells whether nobody can read a tar any more.
func closed(tar *kept.Tar) bool {
	_, err := tar.Read()
	return err != nil
}

// The first files of a node are put; equal ones are no news, others are named at once, and what the run carries counts from then on.
func TestOffers(t *testing.T) {
	var b Book
	first, same, others := tarOf(t, "first"), tarOf(t, "first"), tarOf(t, "others")
	if b.Offer(1, first) != "" || b.Offer(2, same) != "" || b.Tar() != first || closed(first) || !closed(same) {
		t.Error("equal files are not taken as such")
	}
	if text := b.Offer(3, others); !strings.Contains(text, first.SHA256[:16]) || !strings.Contains(text, others.SHA256[:16]) || !closed(others) || b.Tar() != first {
		t.Errorf("%q", text)
	}
	if !b.Waits(1) || !b.Waits(2) || b.Waits(3) {
		t.Error("who waits")
	}
	if texts, _ := b.Put(first.SHA256, nil); len(texts) != 0 || b.Waits(1) || b.Tar() != first || closed(first) { // a store that loses it gets it again
		t.Errorf("%v", texts)
	}
	late, wrong := tarOf(t, "first"), tarOf(t, "wrong")
	if text := b.Offer(4, late); text != "" || b.Waits(4) || !closed(late) {
		t.Errorf("%q", text)
	}
	if text := b.Offer(5, wrong); !strings.Contains(text, "carries other files already") || !strings.Contains(text, first.SHA256[:16]) || !closed(wrong) || b.Tar() != first {
		t.Errorf("%q", text)
	}
	if b.Close(); b.Tar() != nil || !closed(first) {
		t.Error("it is held on")
	}
	if again := tarOf(t, "first"); b.Offer(6, again) != "" || b.Tar() != again || b.Waits(6) {
		t.Error("it is not taken again")
	}
}

// Where the run carries other files each launcher that gave some is told, once; a put that fails is told once, and tried again.
func TestPut(t *testing.T) {
	var b Book
	tar, there := tarOf(t, "mine"), strings.Repeat("ab", 32)
	b.Offer(1, tar)
	b.Offer(2, tarOf(t, "mine"))
	for i, want := range []int{2, 0} {
		if texts, _ := b.Put("", errors.New("the store is full")); len(texts) != want || want > 0 && !strings.Contains(texts[2], "the store is full") || b.Tar() != tar || closed(tar) || !b.Waits(1) {
			t.Errorf("failure %d: %v", i, texts)
		}
	}
	if texts, _ := b.Put("", errors.New("the store is away")); len(texts) != 2 {
		t.Errorf("another failure: %v", texts)
	}
	texts, _ := b.Put(there, nil)
	if len(texts) != 2 || !strings.Contains(texts[1], "SHA-256 abababababababab...") || !strings.Contains(texts[1], tar.SHA256[:16]) || !closed(tar) {
		t.Errorf("%v", texts)
	}
	if texts, _ := b.Put(there, nil); len(texts) != 0 {
		t.Errorf("again: %v", texts)
	}
	if texts, log := b.Put("", errors.New("of a write that began before")); len(texts) != 0 || log != "" {
		t.Errorf("late: %v, %q", texts, log)
	}
}

// A store that lost the files, and does not take them again, is named in the log, each time that it is another failure or a new loss; until it has them it is
// not known what the run carries.
func TestLost(t *testing.T) {
	var b Book
	tar := tarOf(t, "mine")
	b.Offer(1, tar)
	for range 2 {
		if _, log := b.Put(tar.SHA256, nil); log != "" {
			t.Errorf("it is there: %q", log)
		}
		for i, failure := range []string{"the store is full", "the store is full", "the store is away"} {
			_, log := b.Put("", errors.New(failure))
			if want := i != 1; want != strings.Contains(log, failure) || !want && log != "" {
				t.Errorf("%s: %q", failure, log)
			}
		}
		if b.Tar() != tar || b.Offer(2, tarOf(t, "mine")) != "" || !b.Waits(2) {
			t.Error("it counts as being there")
		}
	}
	if texts, _ := b.Put(strings.Repeat("ab", 32), nil); !strings.Contains(texts[2], "carries other files already") {
		t.Errorf("another one: %v", texts)
	}
}
