package durable

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/replicad/replicad/internal/durable/store"
	"github.com/replicad/replicad/internal/durable/storetest"
	"github.com/replicad/replicad/internal/leakcheck"
)

func TestMain(m *testing.M) { leakcheck.Main(m) }

var (
	tried = flag.Bool("stores", false, "run the suite on every kind of store (make store-test)")
	page  = flag.String("table", "", "the page whose table is written anew")
)

// kinds are the columns of the table. One whose server is not installed here keeps its column as it is.
var kinds = []struct {
	name string
	bed  func(t *testing.T) func(t *testing.T) storetest.Bed
}{
	{"directory", func(*testing.T) func(t *testing.T) storetest.Bed {
		return func(t *testing.T) storetest.Bed { return storetest.Directory(t, openDirectory).Bed }
	}},
	{"gofakes3 0.0.12", onServer(func(t *testing.T) *storetest.Server { return storetest.Start(t) })},
	{"same, versions", onServer(func(t *testing.T) *storetest.Server { return storetest.StartVersioned(t) })},
	{"versitygw 1.8.0", onServer(func(t *testing.T) *storetest.Server { return storetest.StartVersity(t, "plain") })},
	{"same, versions", onServer(func(t *testing.T) *storetest.Server { return storetest.StartVersity(t, "versioned") })},
	{"same, Object Lock", onServer(func(t *testing.T) *storetest.Server { return storetest.StartVersity(t, "locked") })},
	{"moto 5.2.5", onServer(func(t *testing.T) *storetest.Server { return storetest.StartMoto(t) })},
	{"fake-gcs-server 1.56.1", onServer(func(t *testing.T) *storetest.Server { return storetest.StartFakeGCS(t) })},
	{"Azurite 3.37.0", onServer(func(t *testing.T) *storetest.Server { return storetest.StartAzurite(t) })},
}

func opened(t testing.TB, where string, s Settings) store.Store {
	t.Helper()
	o, err := Open(t.Context(), where, s)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = o.Close() })
	return o
}

func openDirectory(t testing.TB, dir string) store.Store { return opened(t, "file://"+dir, Settings{}) }

func onServer(start func(t *testing.T) *storetest.Server) func(t *testing.T) func(t *testing.T) storetest.Bed {
	return func(t *testing.T) func(t *testing.T) storetest.Bed {
		srv := start(t)
		return func(t *testing.T) storetest.Bed {
			b := srv.Bed(t, func(t testing.TB, prefix string) store.Store {
				switch where := srv.Bucket + "/" + prefix; srv.Scheme {
				case "gs":
					return opened(t, "gs://"+where, Settings{Endpoint: srv.URL})
				case "az":
					t.Setenv("AZURE_STORAGE_KEY", storetest.AzureKey)
					return opened(t, "az://"+where, Settings{Endpoint: srv.URL + "/" + storetest.Access})
				default:
					return opened(t, "s3://"+where, Settings{Endpoint: srv.URL, AccessKey: storetest.Access, SecretKey: storetest.Secret})
				}
			})
			b.KeepsDeleted = srv.KeepsDeleted
			return b
		}
	}
}

// TestStores is make store-test: the whole suite on each kind of store, by the way that daemons open them.
func TestStores(t *testing.T) {
	if !*tried {
		t.Skip("make store-test runs it; the suite of the directory and of gofakes3 runs with their packages")
	}
	var all []storetest.Results
	for i, k := range kinds {
		var r storetest.Results
		t.Run(fmt.Sprintf("%d %s", i, k.name), func(t *testing.T) { r = storetest.Run(t, k.bed(t)) })
		if r == nil {
			r = column(t, i)
		}
		all = append(all, r)
	}
	text := table(all)
	t.Logf("\n%s", text)
	if *page == "" {
		return
	}
	b, err := os.ReadFile(*page)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(b), tableBegin)
	_, after, ok2 := strings.Cut(rest, tableEnd)
	if !ok || !ok2 {
		t.Fatalf("%s has no place for the table", *page)
	}
	if err := os.WriteFile(*page, []byte(before+tableBegin+text+tableEnd+after), 0o644); err != nil {
		t.Fatal(err)
	}
}

const (
	tableBegin = "<!-- make store-test writes from here -->\n"
	tableEnd   = "<!-- to here -->\n"
)

// column is what the page says of a kind that was not tried.
func column(t *testing.T, i int) storetest.Results {
	t.Helper()
	r := storetest.Results{}
	b, err := os.ReadFile(filepath.Join("..", "..", "docs", "stores.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(b), tableBegin)
	rest, _, _ = strings.Cut(rest, tableEnd)
	for line := range strings.SplitSeq(rest, "\n") {
		if cells := strings.Split(line, "|"); len(cells) > i+3 {
			r[strings.TrimSpace(cells[1])] = strings.TrimSpace(cells[i+2])
		}
	}
	return r
}

func table(all []storetest.Results) string {
	var b strings.Builder
	b.WriteString("| case |")
	for _, k := range kinds {
		fmt.Fprintf(&b, " %s |", k.name)
	}
	b.WriteString("\n|---|" + strings.Repeat("---|", len(kinds)) + "\n")
	for _, row := range storetest.Rows() {
		fmt.Fprintf(&b, "| %s |", row.Name)
		for _, r := range all {
			fmt.Fprintf(&b, " %s |", r[row.Name])
		}
		b.WriteString("\n")
	}
	return b.String()
}

// TestTable: the page has the suite's cases, in their order, and none that fails.
func TestTable(t *testing.T) {
	b, err := os.ReadFile(filepath.Join("..", "..", "docs", "stores.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(b), tableBegin)
	rest, _, ok := strings.Cut(rest, tableEnd)
	if !ok {
		t.Fatal("docs/stores.md has no table")
	}
	var want, got []string
	for _, row := range storetest.Rows() {
		want = append(want, row.Name)
	}
	for _, line := range strings.Split(strings.TrimSpace(rest), "\n")[2:] {
		cells := strings.Split(line, "|")
		got = append(got, strings.TrimSpace(cells[1]))
		if strings.Contains(line, "fails") || len(cells) != len(kinds)+3 {
			t.Errorf("%s", line)
		}
	}
	if !slices.Equal(want, got) {
		t.Errorf("docs/stores.md has the cases %q, the suite %q: run make store-test", got, want)
	}
}
