package s3

import (
	"bytes"
	"encoding/xml"
	"io"
	"net/http"
	"strings"

	"github.com/replicad/replicad/internal/durable/remote"
)

const (
	maxAnswer = 64 << 10 // bytes of the answer to a put, of which nothing but its headers is wanted, and of a 404
	maxPage   = 8 << 20  // and of what is not an object: a page of a listing is at most 5 MB
)

// inspected reads an answer that the library would believe. A put that says 200 may have an error in it, by some servers and by what stands
// before them. A 404 without a code is a proxy's, and the library would take it for one of the key: the object would count as absent. Such
// answers become errors of the server. Whatever is parsed is bounded, and a listing leads on.
func inspected(resp *http.Response) (*http.Response, error) {
	if p, ok := resp.Request.Context().Value(pagesKey{}).(*remote.Pages); ok {
		if f := p.Next(resp.Request.URL.Query().Get("continuation-token")); f != nil {
			_ = resp.Body.Close()
			return nil, f
		}
	}
	if r := resp.Request; r.Method != http.MethodGet || r.URL.RawQuery != "" || resp.StatusCode >= 300 { // what is left is an object
		resp.Body = remote.Bounded(resp.Body, maxPage)
	}
	if r := resp.Request; !(r.Method == http.MethodPut && resp.StatusCode == http.StatusOK || r.Method != http.MethodHead && resp.StatusCode == http.StatusNotFound) {
		return resp, nil
	}
	b, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if cerr := resp.Body.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return nil, err
	}
	resp.Body = io.NopCloser(bytes.NewReader(b))
	reason := ""
	if resp.StatusCode == http.StatusOK {
		reason = hiddenError(resp.Header, b)
	} else if !namesCode(b) {
		reason = "500 a 404 that is not the store's"
	}
	if reason != "" {
		resp.StatusCode, resp.Status = http.StatusInternalServerError, reason
	}
	return resp, nil
}

// namesCode tells whether an error's body is that of a store.
func namesCode(body []byte) bool {
	var e struct {
		XMLName xml.Name `xml:"Error"`
		Code    string
	}
	return xml.Unmarshal(body, &e) == nil && e.Code != ""
}

// hiddenError tells what is wrong with a successful answer to a put; empty: nothing is.
func hiddenError(h http.Header, body []byte) string {
	text := strings.ToLower(string(bytes.TrimSpace(body)))
	switch {
	case strings.Contains(text, "<error>") || strings.Contains(text, "<error "):
		return "500 an error in an answer of 200"
	case strings.HasPrefix(text, "<!doctype") || strings.HasPrefix(text, "<html"):
		return "500 a page in HTML in an answer of 200"
	case h.Get("ETag") == "":
		return "500 an answer of 200 without an ETag"
	}
	return ""
}
