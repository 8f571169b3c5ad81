package remote

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/iotest"
	"time"

	"github.com/replicad/replicad/internal/bubble"
	"github.com/replicad/replicad/internal/durable/store"
	"github.com/replicad/replicad/internal/leakcheck"
)

func TestMain(m *testing.M) { leakcheck.Main(m) }

// notices keeps what a store tells on its way.
type notices struct {
	mu   sync.Mutex
	list []Notice
}

func (n *notices) note(x Notice) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.list = append(n.list, x)
}

func (n *notices) take() []Notice {
	n.mu.Lock()
	defer n.mu.Unlock()
	list := n.list
	n.list = nil
	return list
}

// slowly is a connection that takes a byte of the body now and then, and then no more.
type slowly struct {
	every time.Duration
	most  int
}

func (s slowly) RoundTrip(r *http.Request) (*http.Response, error) {
	for range s.most {
		time.Sleep(s.every) // of the bubble
		if _, err := r.Body.Read(make([]byte, 1)); err == io.EOF {
			return &http.Response{StatusCode: 200, Header: http.Header{"Etag": {`"x"`}}, Body: io.NopCloser(strings.NewReader("")), Request: r}, nil
		}
	}
	<-r.Context().Done()
	return nil, r.Context().Err()
}

// A part that takes hours is not given up while it moves, and is after half a minute in which it does not.
func TestProgressNotTime(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		told := &notices{}
		send := func(c slowly) error {
			w := &watched{next: c, stall: defaultStall, notice: told.note, closing: context.Background()}
			r, err := http.NewRequestWithContext(t.Context(), http.MethodPut, "http://store/k", strings.NewReader(strings.Repeat("x", 1000)))
			if err != nil {
				t.Fatal(err)
			}
			resp, err := w.RoundTrip(r)
			if err == nil {
				_ = resp.Body.Close()
			}
			return err
		}
		began := time.Now()
		if err := send(slowly{9 * time.Second, 2000}); err != nil {
			t.Errorf("a byte in 9 s: %v", err)
		}
		if list := told.take(); len(list) > 0 {
			t.Errorf("told %v", list)
		}
		if took := time.Since(began); took < 2*time.Hour {
			t.Errorf("it took %v", took)
		}
		began = time.Now()
		if err := send(slowly{time.Second, 500}); !errors.Is(err, ErrStalled) || len(told.take()) != 1 {
			t.Errorf("one that stops moving: %v", err)
		}
		if took := time.Since(began); took != 500*time.Second+defaultStall {
			t.Errorf("it was given up after %v", took)
		}
	})
}

// trickling is a connection whose answer comes in so many bytes at once; none: it never comes.
type trickling struct{ at, all int }

const trickle = 700 * time.Millisecond

func (c trickling) RoundTrip(r *http.Request) (*http.Response, error) {
	if c.at == 0 {
		<-r.Context().Done()
		return nil, r.Context().Err()
	}
	text := strings.NewReader(strings.Repeat(" ", c.all))
	body := readerFunc(func(p []byte) (int, error) {
		time.Sleep(trickle) // of the bubble
		if err := r.Context().Err(); err != nil {
			return 0, err
		}
		return text.Read(p[:min(len(p), c.at)])
	})
	return &http.Response{StatusCode: 200, Header: http.Header{}, Body: io.NopCloser(body), Request: r}, nil
}

type readerFunc func(p []byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

// TestAnswersComeWithinATime: a byte now and then keeps no answer alive, and one that is parsed is whole within two minutes, or it is told each ten seconds what came
// of it. A server that says nothing is told after 10 s, and given up after 30 s.
func TestAnswersComeWithinATime(t *testing.T) {
	for what, tc := range map[string]struct {
		conn     trickling
		method   string
		parsed   bool
		took     time.Duration // 0: it comes through
		says     string
		told     []string // of the first notices
		toldMost int
	}{
		"nothing":                   {trickling{0, 0}, http.MethodGet, true, 30 * time.Second, "nothing moved for 30s", []string{"nothing moved for 10s"}, 1},
		"a byte now and then":       {trickling{1, 5000}, http.MethodGet, false, 30 * time.Second, "only 42 bytes came in 30s", []string{"only 14 bytes came in 10s"}, 1},
		"slow bytes":                {trickling{100, 100_000}, http.MethodGet, false, 0, "", nil, 0},
		"a page by bytes":           {trickling{1, 5000}, http.MethodGet, true, 30 * time.Second, "only 42 bytes came in 30s", []string{"its answer is not whole after 10s: 14 bytes came", "its answer is not whole after 20s: 28 bytes came"}, 3},
		"a slow page":               {trickling{100, 14_000}, http.MethodGet, true, 0, "", []string{"its answer is not whole after 10s: 1400 bytes came", "its answer is not whole after 20s: 2800 bytes came"}, 9},
		"a page without end":        {trickling{100, 1 << 20}, http.MethodGet, true, 2 * time.Minute, "its answer is not whole after 2m0s: 17100 bytes came", []string{"its answer is not whole after 10s: 1400 bytes came"}, 12},
		"blanks while it assembles": {trickling{1, 1000}, http.MethodPost, true, 0, "", nil, 0},
	} {
		t.Run(what, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				told := &notices{}
				c := New(Client{URL: "x://b", Notice: told.note, Judge: func(ctx context.Context, _ *Trace, err error) *Failure {
					return Judge(ctx, err, func(error) *Failure { return nil })
				}})
				defer c.Close()
				w := &watched{next: tc.conn, stall: c.Stall, notice: c.Notice, closing: c.closing}
				call, began := c.Begin(t.Context(), "list", "lm/"), time.Now()
				err := call.Fail(call.Repeat(func(ctx context.Context) error {
					r, err := http.NewRequestWithContext(ctx, tc.method, "http://store/k", nil)
					if err != nil {
						return err
					}
					resp, err := w.RoundTrip(r)
					if err != nil {
						return err
					}
					defer resp.Body.Close()
					if tc.parsed {
						resp.Body = Bounded(resp.Body, MaxAnswer)
					}
					_, err = io.Copy(io.Discard, resp.Body)
					return err
				}))
				if took := time.Since(began); (err != nil) != (tc.took > 0) || err != nil && (!errors.Is(err, ErrStalled) || took < tc.took || took > tc.took+trickle || !strings.Contains(err.Error(), tc.says)) {
					t.Errorf("%v, after %v", err, took)
				}
				list := told.take()
				if len(list) < len(tc.told) || len(list) > tc.toldMost {
					t.Fatalf("it is told %v", list)
				}
				for i, want := range tc.told {
					if n := list[i]; n.Err.Error() != want || n.Op != "list" || n.Key != "lm/" {
						t.Errorf("it is told %v, want %q", n, want)
					}
				}
			})
		})
	}
}

// TestListingsTellHowFarTheyAre: a line each ten seconds, and an end of those that have none.
func TestListingsTellHowFarTheyAre(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		told := &notices{}
		c := New(Client{URL: "x://b", Notice: told.note, Judge: func(ctx context.Context, _ *Trace, err error) *Failure {
			return Judge(ctx, err, func(error) *Failure { return nil })
		}})
		defer c.Close()
		pages := 0
		err := c.Begin(t.Context(), "list", "lm/").ListPages("", "lm/", "", func(store.Info) error { return nil }, func(context.Context, string) (Page, error) {
			time.Sleep(time.Second) // of the bubble
			pages++
			return Page{Objects: []store.Info{{Key: fmt.Sprintf("lm/%09d", pages)}}, Next: fmt.Sprint(pages)}, nil
		})
		if !errors.Is(err, store.ErrRefused) || !strings.Contains(err.Error(), "it lists 16384 names in 16384 pages, and says that there are more") || pages != maxPages {
			t.Errorf("%v, after %d pages", err, pages)
		}
		list := told.take()
		if want := (Notice{Op: "list", Key: "lm/", Far: "20 names in 20 pages so far, in 20s"}); len(list) != maxPages/10 || list[1] != want {
			t.Errorf("it is told %d times, %+v", len(list), list[:min(len(list), 2)])
		}
	})
}

// late is a connection that is answered early, and asks for more of the body afterwards.
type late struct{ body io.ReadCloser }

func (l *late) RoundTrip(r *http.Request) (*http.Response, error) {
	l.body = r.Body
	return &http.Response{StatusCode: 503, Header: http.Header{}, Body: io.NopCloser(strings.NewReader("")), Request: r}, nil
}

// A caller has its buffer back: a connection that is late gets nothing of what is in it by then.
func TestBodyOfARequestThatIsOver(t *testing.T) {
	l := &late{}
	w := &watched{next: l, stall: time.Hour, notice: func(Notice) {}, closing: context.Background()}
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPut, "http://store/k", strings.NewReader("text"))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := w.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	if n, err := l.body.Read(make([]byte, 1)); n != 1 || err != nil {
		t.Errorf("before the answer is read: %d, %v", n, err)
	}
	if err := resp.Body.Close(); err != nil {
		t.Error(err)
	}
	if n, err := l.body.Read(make([]byte, 10)); n != 0 || !errors.Is(err, errOver) {
		t.Errorf("afterwards: %d, %v", n, err)
	}
}

func TestWaits(t *testing.T) {
	for attempt := 1; attempt < 60; attempt++ {
		for _, c := range []Class{Slow, Busy, Doubtful} {
			first := firstWait
			if c == Slow || c == Busy {
				first = slowWait
			}
			most := min(first<<min(attempt-1, 10), mostWait)
			if d := waitBefore(attempt, c); d < most/2 || d > most {
				t.Errorf("attempt %d: %v, want %v to %v", attempt, d, most/2, most)
			}
		}
	}
}

func TestPartFor(t *testing.T) {
	for _, size := range []int64{0, 1, 16 << 20, 1 << 30, 160_000 << 20, 160_000<<20 + 1, 1 << 40, 50_000_000 << 20} {
		p := PartFor(size, 16<<20)
		if n := (size + p - 1) / p; n > MaxParts || p < 5<<20 || p > 5<<30 || size <= 160_000<<20 && p != 16<<20 {
			t.Errorf("%d bytes in %d parts of %d", size, n, p)
		}
	}
}

func TestSecretsAreHidden(t *testing.T) {
	s := struct{ SecretKey, SessionToken Secret }{"passw0rd", "t0ken"}
	text := fmt.Sprintf("%v %+v %#v %s %q %x %d %v", s, s, s, s.SecretKey, s.SecretKey, s.SecretKey, s.SecretKey, []any{&s, s.SessionToken})
	b, err := json.Marshal(map[string]any{"key": s.SecretKey, "token": s.SessionToken})
	if err != nil {
		t.Fatal(err)
	}
	text += string(b)
	for _, secret := range []string{"passw0rd", "t0ken", hex.EncodeToString([]byte("passw0rd"))} {
		if strings.Contains(text, secret) {
			t.Errorf("%s shows %s", text, secret)
		}
	}
}

// TestListPages: what a server lists out of order, beside what was asked for, or round and round is refused, and nothing is listed twice.
func TestListPages(t *testing.T) {
	c := New(Client{URL: "x://b", Judge: func(ctx context.Context, _ *Trace, err error) *Failure {
		return Judge(ctx, err, func(error) *Failure { return nil })
	}})
	defer c.Close()
	page := func(next string, names ...string) (p Page) {
		for _, n := range names {
			p.Objects = append(p.Objects, store.Info{Key: n})
		}
		p.Next = next
		return p
	}
	for i, tc := range []struct {
		pages map[string]Page
		after string
		want  string // the keys; empty: refused
	}{
		{map[string]Page{"": page("2", "r/a", "r/b"), "2": page("", "r/c")}, "", "a b c"},
		{map[string]Page{"": page("2", "r/a", "r/b"), "2": page("", "r/c")}, "b", "c"},
		{map[string]Page{"": page("2", "r/a", "r/~u/x", "r/b c"), "2": page("", "r/d")}, "", "a d"},
		{map[string]Page{"": page("2", "r/a", "r/b"), "2": page("", "r/b")}, "", ""},
		{map[string]Page{"": page("2", "r/a", "r/b"), "2": page("", "r/a")}, "b", ""},
		{map[string]Page{"": page("", "s/a")}, "", ""},
		{map[string]Page{"": page("2", "r/a"), "2": page("2")}, "", ""},
		{map[string]Page{"": page("2", "r/a"), "2": page("3"), "3": page("2")}, "", ""}, // round, and naming nothing
		{map[string]Page{"": page("2"), "2": page("3"), "3": page("4"), "4": page("", "r/a")}, "", "a"},
	} {
		var keys []string
		err := c.Begin(t.Context(), "list", "").ListPages("r/", "", tc.after, func(o store.Info) error {
			keys = append(keys, o.Key)
			return nil
		}, func(_ context.Context, next string) (Page, error) { return tc.pages[next], nil })
		if tc.want == "" && !errors.Is(err, store.ErrRefused) || tc.want != "" && (err != nil || strings.Join(keys, " ") != tc.want) {
			t.Errorf("%d: %q, %v, want %q", i, keys, err, tc.want)
		}
	}
}

// TestAnswersAreBounded: what is parsed has an end, in bytes and in elements.
func TestAnswersAreBounded(t *testing.T) {
	for what, tc := range map[string]struct {
		text string
		most int64
		ok   bool
	}{
		"a page":              {strings.Repeat("<Contents><Key>k</Key><Size>1</Size></Contents>", 5000), MaxAnswer, true},
		"a name without end":  {"<Key>" + strings.Repeat("A", 1<<20), 1 << 19, false},
		"exactly as much":     {strings.Repeat("A", 1<<19), 1 << 19, true},
		"elements in another": {strings.Repeat("<a>", maxMarks+1), MaxAnswer, false},
		"attributes":          {"<a " + strings.Repeat(`b="" `, maxMarks+1), MaxAnswer, false},
		"objects of nothing":  {"[" + strings.Repeat("{},", maxMarks), MaxAnswer, false},
		"lists in another":    {strings.Repeat("[", maxMarks+1), MaxAnswer, false},
	} {
		b, err := io.ReadAll(Bounded(io.NopCloser(iotest.HalfReader(strings.NewReader(tc.text))), tc.most))
		if tc.ok && (err != nil || string(b) != tc.text) || !tc.ok && (!errors.Is(err, store.ErrRefused) || int64(len(b)) > tc.most) {
			t.Errorf("%s: %d bytes, %v", what, len(b), err)
		}
	}
}

// TestTokensAreSharedAndBounded: one question at once, of which no caller waits longer than it wants to.
func TestTokensAreSharedAndBounded(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		asked := 0
		k := &Tokens{Fetch: func(ctx context.Context) (Token, error) {
			asked++
			select {
			case <-time.After(3 * time.Second): // of the bubble
				return Token{Text: Secret(fmt.Sprint("t", asked)), Expires: time.Now().Add(time.Hour)}, nil
			case <-ctx.Done():
				return Token{}, ctx.Err()
			}
		}}
		short, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := k.Get(short); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a caller with a second: %v", err)
		}
		for range 2 { // the question of the first one goes on
			if text, err := k.Get(t.Context()); err != nil || string(text) != "t1" {
				t.Errorf("%q, %v", string(text), err)
			}
		}
		time.Sleep(time.Hour - tokenEarly) // of the bubble
		if text, err := k.Get(t.Context()); err != nil || string(text) != "t2" {
			t.Errorf("near its end: %q, %v", string(text), err)
		}
		k.Expire()
		if text, err := k.Get(t.Context()); err != nil || string(text) != "t3" || asked != 3 {
			t.Errorf("after it was refused: %q, %v, %d questions", string(text), err, asked)
		}
	})
}
