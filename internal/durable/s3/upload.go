package s3

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"

	"github.com/minio/minio-go/v7"

	"github.com/replicad/replicad/internal/durable/remote"
	"github.com/replicad/replicad/internal/durable/store"
)

// Limits of S3.
const (
	leastPart   = 5 << 20 // but for the last
	defaultPart = 16 << 20
	mostPart    = 5 << 30
	mostUpload  = remote.MaxParts * mostPart
	readBack    = 8 << 20 // read at a time
)

// upload is a multipart upload. An empty object has no parts, which S3 does not allow: it is put at the end.
type upload struct {
	s    *Store
	key  string
	size int64
	part int64
	id   string // empty: of an empty object

	mu   sync.Mutex // guards the rest
	here []minio.CompletePart
	sums [][]byte   // SHA-256 of the parts that are here
	over bool       // completed or aborted
	info store.Info // of a completed one
	said string     // the checksum of the store's answer to the completion; empty: it said none
}

// Upload begins a large object.
func (s *Store) Upload(ctx context.Context, key string, size int64) (store.Upload, error) {
	if err := store.CheckKey(key); err != nil {
		return nil, err
	}
	if size < 0 || size > mostUpload {
		return nil, fmt.Errorf("upload %s: %d bytes, want 0 to %d", key, size, int64(mostUpload))
	}
	c := s.calls.Begin(ctx, "upload", key)
	u := &upload{s: s, key: key, size: size, part: remote.PartFor(size, s.settings.PartBytes)}
	n := (size + u.part - 1) / u.part
	u.here, u.sums = make([]minio.CompletePart, n), make([][]byte, n)
	if n == 0 {
		if ctx.Err() != nil {
			return nil, c.Fail(judge(ctx, c.Trace, ctx.Err()))
		}
		return u, nil
	}
	opts := minio.PutObjectOptions{ServerSideEncryption: s.encryption}
	if s.settings.Checksum == "sha256" {
		opts.UserMetadata = map[string]string{"X-Amz-Checksum-Algorithm": "SHA256"}
	}
	// One whose answer was lost stays behind, and Unfinished lists it.
	if f := c.Repeat(func(ctx context.Context) (err error) {
		u.id, err = s.core.NewMultipartUpload(ctx, s.settings.Bucket, s.name(key), opts)
		if err == nil && u.id == "" {
			err = errors.New("the answer has no ID")
		}
		return err
	}); f != nil {
		return nil, c.Fail(f)
	}
	return u, nil
}

func (u *upload) PartBytes() int64 { return u.part }

// Part puts part i.
func (u *upload) Part(ctx context.Context, i int, b []byte) error {
	if i < 0 || i >= len(u.here) || int64(len(b)) != min(u.part, u.size-int64(i)*u.part) {
		return fmt.Errorf("part %d of %s has %d bytes, of an object of %d in parts of %d", i, u.key, len(b), u.size, u.part)
	}
	c := u.s.calls.Begin(ctx, fmt.Sprintf("part %d of", i), u.key)
	d := u.s.digestsOf(b)
	header := http.Header{}
	for k, v := range d.header {
		header.Set(k, v)
	}
	var p minio.ObjectPart
	if f := c.Repeat(func(ctx context.Context) (err error) {
		p, err = u.s.core.PutObjectPart(ctx, u.s.settings.Bucket, u.s.name(u.key), u.id, i+1, bytes.NewReader(b), int64(len(b)),
			minio.PutObjectPartOptions{Md5Base64: d.md5, Sha256Hex: d.hex, CustomHeader: header.Clone(), DisableContentSha256: true})
		return err
	}); f != nil {
		return c.Fail(f)
	}
	done := minio.CompletePart{PartNumber: i + 1, ETag: p.ETag}
	if want := d.header[shaHeader]; want != "" {
		if p.ChecksumSHA256 != "" && p.ChecksumSHA256 != want {
			return c.Fail(nil, store.ErrCorrupt, errors.New("the store has another checksum of it"))
		}
		done.ChecksumSHA256 = want
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	u.here[i], u.sums[i] = done, d.sha[:]
	return nil
}

// Complete makes the object exist.
func (u *upload) Complete(ctx context.Context, sum [32]byte) (store.Info, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	c := u.s.calls.Begin(ctx, "complete", u.key)
	switch {
	case u.over && u.info.Key != "":
		return u.info, nil
	case u.over:
		return store.Info{}, c.Fail(nil, store.ErrAbsent, errors.New("the upload was aborted"))
	}
	for i, p := range u.here {
		if p.PartNumber == 0 {
			return store.Info{}, c.Fail(nil, fmt.Errorf("part %d of %d was not put", i, len(u.here)))
		}
	}
	if len(u.here) == 0 && sum != sha256.Sum256(nil) {
		return store.Info{}, c.Fail(nil, store.ErrCorrupt, errors.New("the digest of an empty object is another"))
	}
	info, err := c.Finish(u.size, u.complete, func(ctx context.Context) (store.Info, error) { return u.s.head(ctx, u.key) })
	if err == nil && !u.agrees(sum) {
		err = u.s.readsAs(ctx, u.key, u.size, sum)
	}
	if info.Checksum != hex.EncodeToString(sum[:]) {
		info.Checksum = "" // of something else than all of the bytes
	}
	if err == nil {
		u.over, u.info = true, info
	}
	return info, err
}

func (u *upload) complete(ctx context.Context) error {
	if u.id == "" {
		_, err := u.s.send(ctx, u.key, nil, nil)
		return err
	}
	info, err := u.s.core.CompleteMultipartUpload(ctx, u.s.settings.Bucket, u.s.name(u.key), u.id, u.here, minio.PutObjectOptions{})
	var r minio.ErrorResponse
	if errors.As(err, &r) && r.StatusCode == 0 { // an error in an answer of 200
		r.StatusCode = http.StatusInternalServerError
		err = r
	}
	u.said = info.ChecksumSHA256
	return err
}

// agrees tells whether the checksum that the store has of the upload, where it says one, is of the bytes that were sent: the digest of the parts' digests,
// which S3 says with "-3" behind it for three parts and some servers say without, or that of the whole. Another one is a doubt, and the bytes decide.
func (u *upload) agrees(whole [sha256.Size]byte) bool {
	said, _, _ := strings.Cut(u.said, "-")
	parts := sha256.Sum256(bytes.Join(u.sums, nil))
	return said == "" || said == base64.StdEncoding.EncodeToString(parts[:]) || said == base64.StdEncoding.EncodeToString(whole[:])
}

// readsAs reads an object, and tells whether it has the bytes of a digest.
func (s *Store) readsAs(ctx context.Context, key string, size int64, want [sha256.Size]byte) error {
	h := sha256.New()
	for off := int64(0); off < size; off += readBack {
		b := make([]byte, min(readBack, size-off)) // a call that was given up may still write to it
		if err := s.ReadRange(ctx, key, off, b); err != nil {
			return err
		}
		_, _ = h.Write(b) // it returns no error
	}
	if got := [sha256.Size]byte(h.Sum(nil)); got != want {
		return s.calls.Begin(ctx, "complete", key).Fail(nil, store.ErrCorrupt, fmt.Errorf("it reads with SHA-256 %x, %x was written", got, want))
	}
	return nil
}

// Abort frees what the parts took.
func (u *upload) Abort(ctx context.Context) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.over {
		return nil
	}
	if u.id != "" {
		if err := u.s.AbortPending(ctx, store.Pending{Key: u.key, ID: u.id}); err != nil {
			return err
		}
	}
	u.over = true
	return nil
}
