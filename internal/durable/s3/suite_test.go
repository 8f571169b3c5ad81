package s3

import (
	"testing"
	"time"

	"github.com/replicad/replicad/internal/durable/store"
	"github.com/replicad/replicad/internal/durable/storetest"
	"github.com/replicad/replicad/internal/leakcheck"
)

func TestMain(m *testing.M) { leakcheck.Main(m) }

// client is a store on a test's server, as change makes its settings.
func client(t testing.TB, srv *storetest.Server, prefix string, change ...func(*Settings)) *Store {
	t.Helper()
	settings := Settings{Bucket: srv.Bucket, Prefix: prefix, Endpoint: srv.URL, AccessKey: storetest.Access, SecretKey: storetest.Secret, Patience: 10 * time.Second, PartBytes: leastPart}
	for _, c := range change {
		c(&settings)
	}
	s, err := Open(settings)
	if err != nil {
		t.Fatal(err)
	}
	s.calls.Hasten(20)
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func TestSuite(t *testing.T) {
	srv := storetest.Start(t)
	storetest.Run(t, func(t *testing.T) storetest.Bed {
		return srv.Bed(t, func(t testing.TB, prefix string) store.Store { return client(t, srv, prefix) })
	})
}
