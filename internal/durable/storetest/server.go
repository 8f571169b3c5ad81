package storetest

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"

	"github.com/replicad/replicad/internal/durable/store"
)

// Access and secret key of the servers that tests start.
const (
	Access = "AKIDTESTSTORES"
	Secret = "s3cr3t-of-the-test-stores"
)

// Server is a server of objects behind a proxy that spoils requests (.ci/stores).
type Server struct {
	URL          string
	Scheme       string // of its stores' URLs: s3, gs or az
	Bucket       string
	KeepsDeleted bool // see Bed
	client       *minio.Client
	cloud        raw // in place of client, of a server that is not S3's
	roots        atomic.Int64
	args         []string // of the server in memory
	kill         func()
}

// Fault is what happens to the next requests that match: .ci/stores has the kinds. An empty field matches all.
type Fault struct {
	Method string `json:"method,omitempty"`
	Key    string `json:"key,omitempty"`
	Query  string `json:"query,omitempty"`
	Access string `json:"access,omitempty"`
	Times  int    `json:"times,omitempty"` // 0: until Clear

	Kind   string            `json:"kind"`
	Status int               `json:"status,omitempty"`
	Body   string            `json:"body,omitempty"`
	Header map[string]string `json:"header,omitempty"`
	Bytes  int               `json:"bytes,omitempty"`
}

// Request is one that the proxy has seen.
type Request struct {
	Method, Path, Query string
	Header              http.Header
	Fault               string
	Status              int
}

// Start starts the server in memory. It ends with the test.
func Start(t testing.TB) *Server { return start(t, "plain") }

// StartVersioned is Start with a bucket that keeps all versions.
func StartVersioned(t testing.TB) *Server { return start(t, "versioned") }

func start(t testing.TB, bucket string, args ...string) *Server {
	t.Helper()
	args = append([]string{"-access", Access, "-secret", Secret, "-buckets", bucket}, args...)
	address, kill := process(t, build(t, "stores"), nil, args...)
	s := connect(t, address, bucket)
	s.args, s.kill = args, kill
	return s
}

// StartLimited is Start for a server that asks for fewer requests beyond so many a second.
func StartLimited(t testing.TB, rate int) *Server {
	return start(t, "plain", "-rate", fmt.Sprint(rate))
}

// Kill ends a server in memory as a machine that is gone does; what was in it is lost. Restart starts it again at its address.
func (s *Server) Kill() { s.kill() }

// Restart starts a server that was killed.
func (s *Server) Restart(t testing.TB) {
	t.Helper()
	_, s.kill = process(t, build(t, "stores"), nil, append(s.args, "-listen", strings.TrimPrefix(s.URL, "http://"))...)
}

// Unfinished counts the uploads that were neither completed nor aborted.
func (s *Server) Unfinished(t testing.TB) (n int) {
	t.Helper()
	for u := range s.client.ListIncompleteUploads(t.Context(), s.Bucket, "", true) {
		if u.Err != nil {
			t.Fatal(u.Err)
		}
		n++
	}
	return n
}

func connect(t testing.TB, address, bucket string) *Server {
	t.Helper()
	u, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	s := &Server{URL: address, Scheme: "s3", Bucket: bucket}
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	s.client, err = minio.New(u.Host, &minio.Options{Creds: credentials.NewStaticV4(Access, Secret, ""), Region: "us-east-1", BucketLookup: minio.BucketLookupPath, Transport: transport})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// build makes a program of .ci in bin/tools, from modules that `make installs` has fetched. The go command leaves one alone that is as it
// should be.
func build(t testing.TB, name string) string {
	t.Helper()
	source := above(t, filepath.Join(".ci", name))
	out := filepath.Join(source, "..", "..", "bin", "tools", name)
	cmd := exec.Command("go", "build", "-buildvcs=false", "-o", out, ".")
	cmd.Dir = source
	cmd.Env = append(os.Environ(), "GOFLAGS=-trimpath", "GOWORK=off")
	if b, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build .ci/%s (make installs fetches its modules): %v\n%s", name, err, b)
	}
	return out
}

// above finds a path of the repository from a package's directory.
func above(t testing.TB, name string) string {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for ; dir != "/"; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, name)); err == nil {
			return filepath.Join(dir, name)
		}
	}
	t.Fatalf("%s is in no directory above", name)
	return ""
}

// process starts a program that prints its address and ends with its standard input, or when it is killed.
func process(t testing.TB, program string, env []string, args ...string) (address string, kill func()) {
	t.Helper()
	cmd := exec.Command(program, args...)
	cmd.Env = append(os.Environ(), env...)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	kill = sync.OnceFunc(func() {
		_ = in.Close()
		_ = cmd.Process.Kill() // it keeps nothing
		_ = cmd.Wait()
	})
	t.Cleanup(kill)
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatalf("%s has not said its address: %v", program, err)
	}
	return strings.TrimSpace(line), kill
}

func (s *Server) control(t testing.TB, method, path string, in, out any) {
	t.Helper()
	b, err := json.Marshal(in)
	if err != nil {
		t.Fatal(err)
	}
	r, err := http.NewRequestWithContext(context.WithoutCancel(t.Context()), method, s.URL+path, bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	r.Close = true // no connection outlives the test
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if b, err = io.ReadAll(resp.Body); err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%s %s: %s %s %v", method, path, resp.Status, b, err)
	}
	if out != nil {
		if err := json.Unmarshal(b, out); err != nil {
			t.Fatal(err)
		}
	}
}

// Spoil adds faults. They end with the test at the latest.
func (s *Server) Spoil(t testing.TB, faults ...Fault) {
	t.Helper()
	t.Cleanup(func() { s.Clear(t) })
	s.control(t, http.MethodPut, "/-/faults", faults, nil)
}

// Clear ends all faults, and lets go of what they hold.
func (s *Server) Clear(t testing.TB) {
	t.Helper()
	s.control(t, http.MethodDelete, "/-/faults", nil, nil)
}

// Requests are those that the proxy has seen, in their order.
func (s *Server) Requests(t testing.TB) (list []Request) {
	t.Helper()
	s.control(t, http.MethodGet, "/-/log", nil, &list)
	return list
}

// Bed is a root of its own in the server's bucket. open is the store's constructor.
func (s *Server) Bed(t testing.TB, open func(t testing.TB, prefix string) store.Store) Bed {
	t.Helper()
	parent := fmt.Sprintf("root-%d", s.roots.Add(1))
	prefix := parent + "/lm"
	return Bed{
		Open:   func(t testing.TB) store.Store { return open(t, prefix) },
		Raw:    func(t testing.TB, key string, b []byte) { s.put(t, prefix+"/"+key, b) },
		Secret: map[string]string{"s3": Secret, "az": AzureKey}[s.Scheme],
		Outside: func(t testing.TB) func() map[string]string {
			s.put(t, prefix+"2/k", []byte("beside"))
			s.put(t, parent+"/x", []byte("above"))
			return func() map[string]string { return s.tree(t, parent, prefix) }
		},
		LoseAnswer:  func(t testing.TB, key string) { s.loseNext(t, "lose-answer", prefix+"/"+key) },
		LoseRequest: func(t testing.TB, key string) { s.loseNext(t, "lose-request", prefix+"/"+key) },
		Stall: func(t testing.TB) func() {
			s.Spoil(t, Fault{Kind: "stall", Key: ""})
			return func() { s.Clear(t) }
		},
	}
}

func (s *Server) loseNext(t testing.TB, kind, name string) {
	t.Helper()
	s.Clear(t)
	if s.cloud != nil {
		for _, f := range s.cloud.next(name) {
			f.Kind, f.Times = kind, 1
			s.Spoil(t, f)
		}
		return
	}
	// A put has no query, and a completion names its upload alone.
	s.Spoil(t, Fault{Kind: kind, Method: http.MethodPut, Key: name, Query: "-", Times: 1}, Fault{Kind: kind, Method: http.MethodPost, Key: name, Query: "uploadId=", Times: 1})
}

func (s *Server) put(t testing.TB, name string, b []byte) {
	if s.cloud != nil {
		if err := s.cloud.put(t, name, b); err != nil {
			t.Error(err)
		}
		return
	}
	if _, err := s.client.PutObject(t.Context(), s.Bucket, name, bytes.NewReader(b), int64(len(b)), minio.PutObjectOptions{DisableContentSha256: true}); err != nil {
		t.Errorf("put %s: %v", name, err)
	}
}

// tree reads all objects of a parent but those below a prefix.
func (s *Server) tree(t testing.TB, parent, but string) map[string]string {
	t.Helper()
	if s.cloud != nil {
		return treeOf(t, s.cloud, parent, but)
	}
	found := map[string]string{}
	for o := range s.client.ListObjectsIter(t.Context(), s.Bucket, minio.ListObjectsOptions{Prefix: parent, Recursive: true}) {
		if o.Err != nil {
			t.Fatal(o.Err)
		}
		if strings.HasPrefix(o.Key, but+"/") {
			continue
		}
		r, err := s.client.GetObject(t.Context(), s.Bucket, o.Key, minio.GetObjectOptions{})
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(r)
		_ = r.Close()
		if err != nil {
			t.Fatal(err)
		}
		found[o.Key] = string(b)
	}
	return found
}

// freeAddress is one that nobody listened at a moment ago.
func freeAddress(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// StartVersity starts a versitygw on a directory, behind the proxy, with one bucket: "plain", "versioned", or "locked", which keeps all
// versions for a day whatever is asked.
func StartVersity(t testing.TB, bucket string) *Server {
	t.Helper()
	program := above(t, filepath.Join("bin", "tools", "versitygw"))
	address, dir, old := freeAddress(t), Scratch(t), Scratch(t)
	cmd := exec.Command(program, "--port", address, "posix", "--versioning-dir", old, dir)
	cmd.Env = append(os.Environ(), "ROOT_ACCESS_KEY="+Access, "ROOT_SECRET_KEY="+Secret)
	log, err := os.Create(filepath.Join(t.TempDir(), "versitygw.log"))
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		_ = log.Close()
	})
	await(t, address)
	s := start(t, bucket, "-to", "http://"+address)
	s.KeepsDeleted = bucket != "plain" // versitygw 1.8.0 takes the marker of a deletion for an object
	err = s.client.MakeBucket(t.Context(), bucket, minio.MakeBucketOptions{ObjectLocking: bucket == "locked"})
	if err == nil && bucket == "versioned" {
		err = s.client.EnableVersioning(t.Context(), bucket)
	}
	if err == nil && bucket == "locked" {
		mode, days, unit := minio.Governance, uint(1), minio.Days
		err = s.client.SetBucketObjectLockConfig(t.Context(), bucket, &mode, &days, &unit)
	}
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// StartMoto starts a moto, which `make store-servers` installs, behind the proxy. The test is skipped where there is none.
func StartMoto(t testing.TB) *Server {
	t.Helper()
	program := filepath.Join(above(t, "bin"), "moto", "bin", "moto_server")
	if _, err := os.Stat(program); err != nil {
		t.Skip("moto is not here: make store-servers installs it, with pip")
	}
	address := freeAddress(t)
	host, port, _ := strings.Cut(address, ":")
	background(t, address, exec.Command(program, "-H", host, "-p", port))
	s := start(t, "plain", "-to", "http://"+address)
	if err := s.client.MakeBucket(t.Context(), s.Bucket, minio.MakeBucketOptions{}); err != nil {
		t.Fatal(err)
	}
	return s
}

// await dials until somebody listens.
func await(t testing.TB, address string) {
	t.Helper()
	for {
		c, err := net.Dial("tcp", address)
		if err == nil {
			_ = c.Close()
			return
		}
		select {
		case <-t.Context().Done():
			t.Fatal(err)
		default:
		}
	}
}
