package main

import (
	"bytes"
	"crypto/md5"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"encoding/xml"
	"fmt"
	"hash/crc32"
	"io"
	"maps"
	"mime"
	"mime/multipart"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// object is one content of a name.
type object struct {
	data     []byte
	number   int64 // generation, or ETag
	modified time.Time
	mark     string // x-ms-meta-replicadaborted
}

// shelf has the objects of a bucket that is not S3's.
type shelf struct {
	mu     sync.Mutex // guards the rest
	bucket string
	last   int64
	all    map[string]object
	staged map[string][]block // by name, in their order
}

// block is one that was staged and not committed.
type block struct {
	id   string
	data []byte
}

func newShelf(bucket string) *shelf {
	return &shelf{bucket: bucket, last: 1 << 40, all: map[string]object{}, staged: map[string][]block{}}
}

func (s *shelf) put(name string, data []byte, mark string) object {
	s.last++
	o := object{data: data, number: s.last, modified: time.Now().UTC(), mark: mark}
	s.all[name] = o
	return o
}

// page is the names that begin so, from one on, and the first of the next page.
func (s *shelf) page(all []string, prefix, from, most string) (list []string, next string) {
	n, err := strconv.Atoi(most)
	if err != nil {
		n = 1000
	}
	for _, name := range all {
		if !strings.HasPrefix(name, prefix) || name < from {
			continue
		}
		if len(list) == n {
			return list, name
		}
		list = append(list, name)
	}
	return list, ""
}

// gcs speaks as Google Cloud Storage does, as far as replicad asks.
func (s *shelf) gcs(w http.ResponseWriter, r *http.Request) {
	b, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	q := r.URL.Query()
	upload := strings.HasPrefix(r.URL.Path, "/upload")
	path, ok := strings.CutPrefix(strings.TrimPrefix(r.URL.Path, "/upload"), "/storage/v1/b/"+s.bucket+"/o")
	name := strings.TrimPrefix(path, "/")
	into, compose := strings.CutSuffix(name, "/compose")
	switch {
	case !ok:
		gcsError(w, 404, "notFound", "The specified bucket does not exist.")
	case upload && q.Get("uploadType") == "media":
		gcsAnswer(w, q.Get("name"), s.put(q.Get("name"), b, ""))
	case upload:
		s.gcsInsert(w, r, b)
	case path == "":
		from := max(q.Get("startOffset"), q.Get("pageToken"))
		list, next := s.page(slices.Sorted(maps.Keys(s.all)), q.Get("prefix"), from, q.Get("maxResults"))
		out := map[string]any{"kind": "storage#objects", "nextPageToken": next}
		var items []any
		for _, n := range list {
			items = append(items, properties(n, s.all[n]))
		}
		out["items"] = items
		_ = json.NewEncoder(w).Encode(out)
	case r.Method == http.MethodPost && compose:
		s.gcsCompose(w, into, b)
	default:
		s.gcsObject(w, r, name)
	}
}

func (s *shelf) gcsObject(w http.ResponseWriter, r *http.Request, name string) {
	o, there := s.all[name]
	switch {
	case !there && r.URL.Query().Get("alt") == "media":
		http.Error(w, "No such object: "+s.bucket+"/"+name, 404)
	case !there:
		gcsError(w, 404, "notFound", "No such object: "+s.bucket+"/"+name)
	case r.Method == http.MethodDelete:
		delete(s.all, name)
		w.WriteHeader(http.StatusNoContent)
	case r.URL.Query().Get("alt") == "media":
		w.Header().Set("X-Goog-Generation", fmt.Sprint(o.number))
		w.Header().Set("X-Goog-Hash", "crc32c="+crcText(o.data))
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(o.data))
	default:
		gcsAnswer(w, name, o)
	}
}

func (s *shelf) gcsInsert(w http.ResponseWriter, r *http.Request, b []byte) {
	_, params, _ := mime.ParseMediaType(r.Header.Get("Content-Type"))
	parts := multipart.NewReader(bytes.NewReader(b), params["boundary"])
	var about struct{ Name, CRC32C string }
	p, err := parts.NextPart()
	if err == nil {
		err = json.NewDecoder(p).Decode(&about)
	}
	var data []byte
	if err == nil {
		if p, err = parts.NextPart(); err == nil {
			data, err = io.ReadAll(p)
		}
	}
	was, wanted := r.URL.Query().Get("ifGenerationMatch"), s.all[about.Name].number
	switch {
	case err != nil:
		gcsError(w, 400, "parseError", err.Error())
	case about.CRC32C != crcText(data):
		gcsError(w, 400, "invalid", fmt.Sprintf("Provided CRC32C %q doesn't match calculated CRC32C %q.", about.CRC32C, crcText(data)))
	case was != "" && was != fmt.Sprint(wanted):
		gcsError(w, 412, "conditionNotMet", "At least one of the pre-conditions you specified did not hold.")
	default:
		gcsAnswer(w, about.Name, s.put(about.Name, data, ""))
	}
}

func (s *shelf) gcsCompose(w http.ResponseWriter, name string, b []byte) {
	var q struct{ SourceObjects []struct{ Name string } }
	if err := json.Unmarshal(b, &q); err != nil || len(q.SourceObjects) > 32 {
		gcsError(w, 400, "invalid", "The number of source components provided exceeds the maximum (32).")
		return
	}
	var data []byte
	for _, o := range q.SourceObjects {
		part, there := s.all[o.Name]
		if !there {
			gcsError(w, 404, "notFound", "Object "+o.Name+" not found.")
			return
		}
		data = append(data, part.data...)
	}
	gcsAnswer(w, name, s.put(name, data, ""))
}

func crcText(b []byte) string {
	sum := crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli))
	return base64.StdEncoding.EncodeToString(binary.BigEndian.AppendUint32(nil, sum))
}

func properties(name string, o object) map[string]any {
	return map[string]any{"kind": "storage#object", "name": name, "size": fmt.Sprint(len(o.data)), "generation": fmt.Sprint(o.number), "updated": o.modified, "crc32c": crcText(o.data)}
}

func gcsAnswer(w http.ResponseWriter, name string, o object) {
	_ = json.NewEncoder(w).Encode(properties(name, o))
}

func gcsError(w http.ResponseWriter, status int, reason, message string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]any{"error": map[string]any{"code": status, "message": message, "errors": []any{map[string]any{"reason": reason}}}})
}

// azure speaks as Azure's blobs do, as far as replicad asks. It looks at no signature: Azurite does.
func (s *shelf) azure(w http.ResponseWriter, r *http.Request) {
	b, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	w.Header().Set("X-Ms-Request-Id", "1")
	q := r.URL.Query()
	_, path, _ := strings.Cut(r.URL.Path[1:], "/") // after the account
	container, name, _ := strings.Cut(path, "/")
	o, there := s.all[name]
	sum := md5.Sum(b)
	etag, match := fmt.Sprintf(`"0x%X"`, o.number), r.Header.Get("If-Match")
	write := r.Method == http.MethodPut && q.Get("comp") != "block"
	switch sent := r.Header.Get("Content-MD5"); {
	case r.Header.Get("Authorization") == "" && q.Get("sig") == "":
		azureError(w, 401, "NoAuthenticationInformation")
	case container != s.bucket:
		azureError(w, 404, "ContainerNotFound")
	case name == "":
		s.azureList(w, r)
	case sent != "" && sent != base64.StdEncoding.EncodeToString(sum[:]):
		azureError(w, 400, "Md5Mismatch")
	case write && r.Header.Get("If-None-Match") == "*" && there:
		azureError(w, 409, "BlobAlreadyExists")
	case match != "" && (!there || match != etag):
		azureError(w, 412, "ConditionNotMet")
	case q.Get("comp") == "blocklist" && r.Method == http.MethodGet && there || q.Get("comp") == "blocklist" && r.Method == http.MethodGet && len(s.staged[name]) > 0:
		s.azureBlocks(w, name)
	case q.Get("comp") == "block":
		id := q.Get("blockid")
		s.staged[name] = append(slices.DeleteFunc(s.staged[name], func(x block) bool { return x.id == id }), block{id, b})
		w.WriteHeader(http.StatusCreated)
	case q.Get("comp") == "blocklist" && r.Method == http.MethodPut:
		s.azureCommit(w, r, name, b)
	case r.Method == http.MethodPut:
		s.azurePut(w, r, name, b)
	case !there:
		azureError(w, 404, "BlobNotFound")
	case r.Method == http.MethodDelete:
		delete(s.all, name)
		w.WriteHeader(http.StatusAccepted)
	default:
		w.Header().Set("ETag", etag)
		if o.mark != "" {
			w.Header().Set("X-Ms-Meta-Replicadaborted", o.mark)
		}
		http.ServeContent(w, r, "", o.modified, bytes.NewReader(o.data))
	}
}

func (s *shelf) azurePut(w http.ResponseWriter, r *http.Request, name string, data []byte) {
	delete(s.staged, name)
	o := s.put(name, data, r.Header.Get("X-Ms-Meta-Replicadaborted"))
	w.Header().Set("ETag", fmt.Sprintf(`"0x%X"`, o.number))
	w.WriteHeader(http.StatusCreated)
}

func (s *shelf) azureCommit(w http.ResponseWriter, r *http.Request, name string, b []byte) {
	var list struct{ Uncommitted []string }
	if err := xml.Unmarshal(b, &list); err != nil {
		azureError(w, 400, "InvalidXmlDocument")
		return
	}
	var data []byte
	for _, id := range list.Uncommitted {
		i := slices.IndexFunc(s.staged[name], func(x block) bool { return x.id == id })
		if i < 0 {
			azureError(w, 400, "InvalidBlockList")
			return
		}
		data = append(data, s.staged[name][i].data...)
	}
	s.azurePut(w, r, name, data)
}

func (s *shelf) azureBlocks(w http.ResponseWriter, name string) {
	var text strings.Builder
	for _, b := range s.staged[name] {
		fmt.Fprintf(&text, "<Block><Name>%s</Name><Size>%d</Size></Block>", b.id, len(b.data))
	}
	_, _ = io.WriteString(w, "\ufeff"+xml.Header+"<BlockList><CommittedBlocks/><UncommittedBlocks>"+text.String()+"</UncommittedBlocks></BlockList>")
}

func (s *shelf) azureList(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	all := slices.Collect(maps.Keys(s.all))
	if strings.Contains(q.Get("include"), "uncommittedblobs") {
		for name := range s.staged {
			if _, there := s.all[name]; !there {
				all = append(all, name)
			}
		}
	}
	slices.Sort(all)
	list, next := s.page(all, q.Get("prefix"), q.Get("marker"), q.Get("maxresults"))
	var text strings.Builder
	for _, name := range list {
		text.WriteString("<Blob><Name>")
		_ = xml.EscapeText(&text, []byte(name))
		text.WriteString("</Name><Properties>")
		if o, there := s.all[name]; there {
			fmt.Fprintf(&text, "<Last-Modified>%s</Last-Modified><Etag>0x%X</Etag>", o.modified.Format(http.TimeFormat), o.number)
		}
		fmt.Fprintf(&text, "<Content-Length>%d</Content-Length></Properties></Blob>", len(s.all[name].data))
	}
	_, _ = io.WriteString(w, "\ufeff"+xml.Header+"<EnumerationResults><Blobs>"+text.String()+"</Blobs><NextMarker>"+next+"</NextMarker></EnumerationResults>")
}

func azureError(w http.ResponseWriter, status int, code string) {
	w.Header().Set("X-Ms-Error-Code", code)
	w.Header().Set("Content-Type", "application/xml")
	w.WriteHeader(status)
	_, _ = fmt.Fprintf(w, "\ufeff%s<Error><Code>%s</Code><Message>as the fake says\nRequestId:1</Message></Error>", xml.Header, code)
}
