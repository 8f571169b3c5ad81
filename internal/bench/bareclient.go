package bench

import (
	"bytes"
	"context"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"

	"github.com/replicad/replicad/chaos/cluster"
)

// What the daemons have in flight of one object, and how large its parts are.
const (
	barePart  = 16 * mib
	bareLanes = 4
)

// bareClient uploads the bytes in the daemons' parts, and does nothing else. The rate is in MB/s.
func (d *durableBench) bareClient(ctx context.Context) (float64, error) {
	u, err := url.Parse(d.store.Settings.Endpoint)
	if err != nil {
		return 0, err
	}
	c, err := minio.NewCore(u.Host, &minio.Options{Creds: credentials.NewStaticV4(cluster.BucketAccess, cluster.BucketSecret, ""), Region: cluster.BucketRegion, BucketLookup: minio.BucketLookupPath})
	if err != nil {
		return 0, err
	}
	bucket, _, _ := strings.Cut(strings.TrimPrefix(d.url, "s3://"), "/")
	text := bytes.Repeat([]byte("a bare client's "), barePart/16)
	began := time.Now()
	id, err := c.NewMultipartUpload(ctx, bucket, "bare", minio.PutObjectOptions{})
	if err != nil {
		return 0, err
	}
	todo := make(chan int)
	parts := make([]minio.CompletePart, max(1, d.mib*mib/barePart))
	errs := make([]error, bareLanes)
	var wg sync.WaitGroup
	for lane := range bareLanes {
		wg.Go(func() {
			for i := range todo {
				if errs[lane] != nil {
					continue
				}
				var p minio.ObjectPart
				p, errs[lane] = c.PutObjectPart(ctx, bucket, "bare", id, i+1, bytes.NewReader(text), barePart, minio.PutObjectPartOptions{})
				parts[i] = minio.CompletePart{PartNumber: i + 1, ETag: p.ETag}
			}
		})
	}
	for i := range parts {
		todo <- i
	}
	close(todo)
	wg.Wait()
	if i := slices.IndexFunc(errs, func(err error) bool { return err != nil }); i >= 0 {
		return 0, errs[i]
	}
	if _, err := c.CompleteMultipartUpload(ctx, bucket, "bare", id, parts, minio.PutObjectOptions{}); err != nil {
		return 0, err
	}
	rate := float64(len(parts)*barePart) / 1e6 / time.Since(began).Seconds()
	return rate, c.RemoveObject(ctx, bucket, "bare", minio.RemoveObjectOptions{})
}
