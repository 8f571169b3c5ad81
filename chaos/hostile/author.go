package hostile

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
)

// fileBombs has `replicad ckpt import` read files of a megabyte, or of the most that a format allows, which ask for gigabytes.
func fileBombs(ctx context.Context, a *attack) error {
	dir, err := os.MkdirTemp("", "replicad-bombs-")
	if err != nil {
		return err
	}
	a.later(func() { _ = os.RemoveAll(dir) })
	to := filepath.Join(dir, "to")
	if err := os.Mkdir(to, 0o700); err != nil {
		return err
	}
	dcp := filepath.Join(dir, "dcp")
	if err := os.Mkdir(dcp, 0o700); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dcp, ".metadata"), sharedChunks(300_000, 60), 0o600); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dcp, "__0_0.distcp"), make([]byte, 1<<16), 0o600); err != nil {
		return err
	}
	header := filepath.Join(dir, "header.safetensors")
	if err := crowdedHeader(header, 95_000_000); err != nil {
		return err
	}
	for what, file := range map[string]string{"of a DCP folder": dcp, "of a safetensors header": header} {
		if err := a.refuses(ctx, what, dir, nil, "ckpt", "import", file, "--to", to, "--job", "bomb"); err != nil {
			return err
		}
	}
	return nil
}

// crowdedHeader writes a safetensors file whose header has so many bytes of metadata with short keys: the format allows 100 MB. It holds none of it: what this
// process has resident when it starts the command counts as the command's.
func crowdedHeader(file string, size int) (err error) {
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	w, n := bufio.NewWriter(f), 0
	put := func(format string, args ...any) {
		m, failed := fmt.Fprintf(w, format, args...)
		n, err = n+m, errors.Join(err, failed)
	}
	put("%8s", "") // the header's length, once it is known
	put(`{"__metadata__":{"":""`)
	for i := 0; n < size-200 && err == nil; i++ {
		put(`,"%x":""`, i)
	}
	put(`},"w":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}}`)
	length := binary.LittleEndian.AppendUint64(nil, uint64(n-8))
	put("%16s", "")
	if err = errors.Join(err, w.Flush()); err == nil {
		_, err = f.WriteAt(length, 0)
	}
	return err
}

// sharedChunks is the metadata of a folder of torch.distributed.checkpoint that puts one record of a chunk so many times into one list (two bytes each), and one
// record of a tensor with it under so many names.
func sharedChunks(chunks, tensors int) []byte {
	const module = "torch.distributed.checkpoint.metadata"
	var o bytes.Buffer
	slots := 0
	u32 := func(v int) { o.Write(binary.LittleEndian.AppendUint32(nil, uint32(v))) }
	put := func() int {
		if o.WriteByte('r'); slots < 256 {
			o.Truncate(o.Len() - 1)
			o.Write([]byte{'q', byte(slots)})
		} else {
			u32(slots)
		}
		slots++
		return slots - 1
	}
	get := func(slot int) { o.Write([]byte{'h', byte(slot)}) } // there are few
	text := func(s string) { o.WriteByte('X'); u32(len(s)); o.WriteString(s) }
	class := func(m, n string) { o.WriteString("c" + m + "\n" + n + "\n") }
	object := func(m, n string) { class(m, n); o.WriteString(")\x81") }
	tuple := func(v int) { o.WriteByte('J'); u32(v); o.WriteByte('\x85') }
	o.WriteString("\x80\x02")
	object(module, "Metadata")
	o.WriteString("}(")
	text("state_dict_metadata")
	o.WriteString("}(")
	tensor := 0
	for i := range tensors {
		text(fmt.Sprint("t", i))
		if i > 0 {
			get(tensor)
			continue
		}
		object(module, "TensorStorageMetadata")
		o.WriteString("}(")
		text("properties")
		object(module, "TensorProperties")
		o.WriteByte('(')
		class("torch", "float32")
		o.WriteString("tb")
		text("size")
		tuple(4)
		text("chunks")
		o.WriteString("](")
		object(module, "ChunkStorageMetadata")
		o.WriteString("}(")
		text("offsets")
		tuple(0)
		text("sizes")
		tuple(4)
		o.WriteString("ub")
		chunk := put()
		for range chunks - 1 {
			get(chunk)
		}
		o.WriteString("eub")
		tensor = put()
	}
	o.WriteByte('u')
	text("storage_data")
	o.WriteString("}(")
	for i := range tensors {
		object(module, "MetadataIndex")
		o.WriteString("}(")
		text("fqn")
		text(fmt.Sprint("t", i))
		text("offset")
		tuple(0)
		o.WriteString("ub")
		object("torch.distributed.checkpoint.filesystem", "_StorageInfo")
		o.WriteString("}(")
		text("relative_path")
		text("__0_0.distcp")
		text("offset")
		o.WriteByte('J')
		u32(i * 1000)
		text("length")
		o.WriteByte('J')
		u32(900)
		o.WriteString("ub")
	}
	o.WriteString("uub.")
	return o.Bytes()
}

// storeAnswers has `replicad ckpt ls` list buckets of a server whose answers have no end.
func storeAnswers(ctx context.Context, a *attack) error {
	l, err := net.Listen("tcp", net.JoinHostPort(a.own.Host(), "0"))
	if err != nil {
		return err
	}
	server := &http.Server{Handler: http.HandlerFunc(a.answer)} //nolint:gosec // who asks is a command of this run
	go func() { _ = server.Serve(l) }()                         // it ends with the process
	a.later(func() { _ = server.Close() })
	env := []string{"AWS_ENDPOINT_URL=http://" + l.Addr().String(), "AWS_ACCESS_KEY_ID=AKIAHOSTILE", "AWS_SECRET_ACCESS_KEY=hostilehostilehostile", "AWS_EC2_METADATA_DISABLED=true", "AWS_REGION=us-east-1"}
	for what, bucket := range map[string]string{"of a key without end": "hugename", "of a page without end": "hugelist", "of nested tags": "deepxml", "of an empty truncated page": "emptytrunc"} {
		if err := a.refuses(ctx, what, a.Dir, env, "ckpt", "ls", "s3://"+bucket+"/"); err != nil {
			return err
		}
	}
	if n := a.counted("empty pages"); n > 100 {
		return fmt.Errorf("an empty page that says that more follows was asked for %d times", n)
	}
	return nil
}

// answer is a bucket's: its name says how it misbehaves. It has a good root.
func (a *attack) answer(w http.ResponseWriter, r *http.Request) {
	bucket, key, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	w.Header().Set("Last-Modified", "Sun, 01 Nov 2026 00:00:00 GMT")
	w.Header().Set("ETag", `"x"`)
	const head = `<?xml version="1.0"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Name>b</Name>`
	item := func(key string) string {
		return "<Contents><Key>" + key + `</Key><LastModified>2026-11-01T00:00:00.000Z</LastModified><ETag>"x"</ETag><Size>10</Size></Contents>`
	}
	endless := func(first, again string) {
		w.Header().Set("Content-Type", "application/xml")
		_, err := w.Write([]byte(first))
		for range 4000 { // of a megabyte
			if err != nil {
				return // it has hung up, as it should
			}
			a.count("MB sent", 1)
			_, err = w.Write([]byte(again))
		}
	}
	switch {
	case key == "replicad.json":
		_, _ = w.Write([]byte(`{"replicad":"root","format":1,"sha256":"44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a","body":{}}`))
	case !r.URL.Query().Has("list-type"):
		w.WriteHeader(http.StatusNotFound)
		_, _ = w.Write([]byte("<Error><Code>NoSuchKey</Code></Error>"))
	case bucket == "hugename":
		endless(head+"<Contents><Key>", strings.Repeat("A", 1<<20))
	case bucket == "hugelist":
		endless(head+"<IsTruncated>false</IsTruncated>", strings.Repeat(item("j/x"), 7000))
	case bucket == "deepxml":
		_, _ = w.Write([]byte("<ListBucketResult>" + strings.Repeat("<a>", 3_000_000)))
	case bucket == "emptytrunc":
		a.count("empty pages", 1)
		_, _ = w.Write([]byte(head + "<IsTruncated>true</IsTruncated><NextContinuationToken>t</NextContinuationToken></ListBucketResult>"))
	}
}
