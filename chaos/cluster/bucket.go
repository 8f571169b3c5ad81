package cluster

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/replicad/replicad/internal/config"
)

// Keys of the servers that are started here. They listen on this machine alone, and go with their cluster.
const (
	BucketAccess = "replicad"
	BucketSecret = "a-server-on-loopback-for-a-while" //nolint:gosec // it guards nothing
	BucketRegion = "us-east-1"
)

// patienceBucket is how long a server may take to listen.
const patienceBucket = 20 * time.Second

// Store is a durable tier that nodes share.
type Store struct {
	URL      string
	Settings config.Store // of a bucket whose server is not named by the environment
	Env      []string     // of programs that reach it as `replicad ckpt` does
	Kind     string       // the program of Server; empty: none was started
	Server   *Process

	start func() (*Process, error)
}

// Use has the daemon of this configuration write there.
func (s *Store) Use(c *config.Config) { c.DurableDir, c.Durable, c.Store = "", s.URL, s.Settings }

// OpenStore makes a durable tier of a directory, a file:// URL or an s3:// URL. A bucket whose server no variable of the environment names gets one
// of its own: a program of tools, with its files in dir.
func OpenStore(ctx context.Context, spawn *Spawner, where, dir, tools string) (*Store, error) {
	rest, bucket := strings.CutPrefix(where, "s3://")
	switch {
	case !bucket:
		path, err := filepath.Abs(strings.TrimPrefix(where, "file://"))
		if err == nil {
			err = os.MkdirAll(path, 0o700)
		}
		return &Store{URL: "file://" + path}, err
	case os.Getenv("AWS_ENDPOINT_URL_S3") != "" || os.Getenv("AWS_ENDPOINT_URL") != "":
		return &Store{URL: where}, nil
	}
	name, _, _ := strings.Cut(rest, "/")
	return serveBucket(ctx, spawn, where, name, dir, tools)
}

// bucketServers are the programs that can serve a bucket, the best first.
var bucketServers = []struct {
	name string
	args func(address, dir, bucket string) []string
}{
	{"versitygw", func(address, dir, _ string) []string { return []string{"--port", address, "--quiet", "posix", dir} }},
	{"stores", func(address, _, bucket string) []string {
		return []string{"-listen", address, "-stay", "-access", BucketAccess, "-secret", BucketSecret, "-buckets", bucket}
	}},
}

func serveBucket(ctx context.Context, spawn *Spawner, where, bucket, dir, tools string) (*Store, error) {
	root, keys := filepath.Join(dir, "bucket"), filepath.Join(dir, "bucket.keys")
	text := fmt.Sprintf("[default]\naws_access_key_id = %s\naws_secret_access_key = %s\n", BucketAccess, BucketSecret)
	address, err := freeAddress()
	if err := errors.Join(err, os.MkdirAll(filepath.Join(root, bucket), 0o700), os.WriteFile(keys, []byte(text), 0o600)); err != nil {
		return nil, fmt.Errorf("files of %s: %w", where, err)
	}
	s := &Store{URL: where, Settings: config.Store{Endpoint: "http://" + address, Region: BucketRegion, Credentials: keys}}
	s.Env = []string{"AWS_ENDPOINT_URL_S3=" + s.Settings.Endpoint, "AWS_REGION=" + BucketRegion, "AWS_ACCESS_KEY_ID=" + BucketAccess, "AWS_SECRET_ACCESS_KEY=" + BucketSecret}
	for _, kind := range bucketServers {
		program := filepath.Join(tools, kind.name)
		if _, err := os.Stat(program); err != nil {
			continue
		}
		s.Kind = kind.name
		s.start = func() (*Process, error) {
			env := []string{"ROOT_ACCESS_KEY=" + BucketAccess, "ROOT_SECRET_KEY=" + BucketSecret}
			return spawn.Start("the server of "+where, LogPath(dir, "bucket"), env, Output{}, program, kind.args(address, root, bucket)...)
		}
		return s, s.Restart(ctx)
	}
	return nil, fmt.Errorf("%s: there is no server of buckets in %s: `make store-server` builds one, or name one that runs in AWS_ENDPOINT_URL_S3", where, tools)
}

// Restart starts the server again, with what it has on its disk, and waits until it listens.
func (s *Store) Restart(ctx context.Context) (err error) {
	if s.Server, err = s.start(); err != nil {
		return err
	}
	address := strings.TrimPrefix(s.Settings.Endpoint, "http://")
	ctx, cancel := context.WithTimeout(ctx, patienceBucket)
	defer cancel()
	again := time.NewTicker(20 * time.Millisecond)
	defer again.Stop()
	for {
		c, err := new(net.Dialer).DialContext(ctx, "tcp", address)
		if err == nil {
			return c.Close()
		}
		select {
		case <-again.C:
		case <-s.Server.Gone:
			return fmt.Errorf("the server of %s has ended: %v: %s", s.URL, s.Server.State(), strings.Join(s.Server.Last(), "; "))
		case <-ctx.Done():
			return fmt.Errorf("the server of %s does not listen: %w", s.URL, err)
		}
	}
}

// freeAddress is one that nobody listened at a moment ago.
func freeAddress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return l.Addr().String(), l.Close()
}
