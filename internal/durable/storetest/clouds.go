package storetest

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// StartGCS starts a server in memory that speaks as Google Cloud Storage does, behind the proxy. It ends with the test.
func StartGCS(t testing.TB) *Server {
	return cloud(t, "gs", newGCS, "-kind", "gcs", "-buckets", "plain")
}

// StartAzure starts a server in memory that speaks as Azure's blobs do, behind the proxy. It ends with the test.
func StartAzure(t testing.TB) *Server {
	return cloud(t, "az", newAzure, "-kind", "azure", "-buckets", "plain")
}

// StartFakeGCS starts a fake-gcs-server, which `make store-test` builds, behind the proxy.
func StartFakeGCS(t testing.TB) *Server {
	t.Helper()
	address := freeAddress(t)
	host, port, _ := strings.Cut(address, ":")
	background(t, address, exec.Command(above(t, filepath.Join("bin", "tools", "fake-gcs-server")), "-backend", "memory", "-scheme", "http", "-host", host, "-port", port, "-log-level", "error"))
	s := cloud(t, "gs", newGCS, "-to", "http://"+address)
	s.cloud.make(t)
	return s
}

// StartAzurite starts an Azurite, which `make store-servers` installs, behind the proxy. The test is skipped where there is none.
func StartAzurite(t testing.TB) *Server {
	t.Helper()
	program := filepath.Join(above(t, "bin"), "azurite", "node_modules", ".bin", "azurite-blob")
	if _, err := os.Stat(program); err != nil {
		t.Skip("Azurite is not here: make store-servers installs it, with npm")
	}
	address := freeAddress(t)
	host, port, _ := strings.Cut(address, ":")
	cmd := exec.Command(program, "--silent", "--disableTelemetry", "--inMemoryPersistence", "--blobHost", host, "--blobPort", port)
	cmd.Env = append(os.Environ(), "AZURITE_ACCOUNTS="+Access+":"+AzureKey)
	background(t, address, cmd)
	s := cloud(t, "az", newAzure, "-to", "http://"+address)
	s.cloud.make(t)
	return s
}

// AzureKey is the key of the account of Azure's servers for tests, whose name is Access.
var AzureKey = base64.StdEncoding.EncodeToString([]byte(Secret))

// background runs a server of which nothing but its address is wanted.
func background(t testing.TB, address string, cmd *exec.Cmd) {
	t.Helper()
	log, err := os.Create(filepath.Join(t.TempDir(), "server.log"))
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
}

// raw is a server's objects, past all that a store checks.
type raw interface {
	make(t testing.TB) // the bucket
	put(t testing.TB, name string, b []byte) error
	names(t testing.TB, prefix string) ([]string, error)
	get(t testing.TB, name string) ([]byte, error)
	// next are the faults' matches of the next write of a name: of a put, and of the completion of an upload.
	next(name string) []Fault
}

func cloud(t testing.TB, scheme string, objects func(s *Server, c *http.Client) raw, args ...string) *Server {
	t.Helper()
	address, _ := process(t, build(t, "stores"), nil, args...)
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	s := &Server{URL: address, Scheme: scheme, Bucket: "plain"}
	s.cloud = objects(s, &http.Client{Transport: transport})
	return s
}

// ask sends one request, and reads its answer.
func ask(t testing.TB, c *http.Client, method, address string, header map[string]string, body []byte) ([]byte, error) {
	r, err := http.NewRequestWithContext(context.WithoutCancel(t.Context()), method, address, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	for k, v := range header {
		r.Header.Set(k, v)
	}
	resp, err := c.Do(r)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode/100 != 2 {
		err = errors.New(method + " " + address + ": " + resp.Status + " " + string(b))
	}
	return b, err
}

type gcs struct {
	s *Server
	c *http.Client
}

func newGCS(s *Server, c *http.Client) raw { return gcs{s, c} }

func (g gcs) make(t testing.TB) {
	t.Helper()
	if _, err := ask(t, g.c, http.MethodPost, g.s.URL+"/storage/v1/b", map[string]string{"Content-Type": "application/json"}, []byte(`{"name":"`+g.s.Bucket+`"}`)); err != nil {
		t.Fatal(err)
	}
}

func (g gcs) put(t testing.TB, name string, b []byte) error {
	_, err := ask(t, g.c, http.MethodPost, g.s.URL+"/upload/storage/v1/b/"+g.s.Bucket+"/o?uploadType=media&name="+url.QueryEscape(name), nil, b)
	return err
}

func (g gcs) names(t testing.TB, prefix string) (list []string, err error) {
	text, err := ask(t, g.c, http.MethodGet, g.s.URL+"/storage/v1/b/"+g.s.Bucket+"/o?prefix="+url.QueryEscape(prefix), nil, nil)
	var page struct{ Items []struct{ Name string } }
	if err == nil {
		err = json.Unmarshal(text, &page)
	}
	for _, o := range page.Items {
		list = append(list, o.Name)
	}
	return list, err
}

func (g gcs) get(t testing.TB, name string) ([]byte, error) {
	return ask(t, g.c, http.MethodGet, g.s.URL+"/storage/v1/b/"+g.s.Bucket+"/o/"+strings.ReplaceAll(url.QueryEscape(name), "+", "%20")+"?alt=media", nil, nil)
}

func (g gcs) next(name string) []Fault {
	return []Fault{{Method: http.MethodPost, Query: "name=" + url.QueryEscape(name) + "&"}, {Method: http.MethodPost, Key: name + "/compose"}}
}

type azure struct {
	s   *Server
	c   *http.Client
	sas string
}

func newAzure(s *Server, c *http.Client) raw { return azure{s, c, AzureSAS("racwdl")} }

// AzureSAS is a token for all that an account's container may be asked, signed as Azure wants it.
func AzureSAS(permissions string) string {
	const version, service, types = "2020-12-06", "b", "co"
	end := time.Now().Add(time.Hour).UTC().Format(time.RFC3339)
	key, _ := base64.StdEncoding.DecodeString(AzureKey)
	mac := hmac.New(sha256.New, key)
	_, _ = io.WriteString(mac, strings.Join([]string{Access, permissions, service, types, "", end, "", "", version, "", ""}, "\n"))
	return url.Values{"sv": {version}, "ss": {service}, "srt": {types}, "sp": {permissions}, "se": {end}, "sig": {base64.StdEncoding.EncodeToString(mac.Sum(nil))}}.Encode()
}

// address is that of a name of the container; empty: its own.
func (a azure) address(name, query string) string {
	path := a.s.URL + "/" + Access + "/" + a.s.Bucket
	if name != "" {
		path += "/" + (&url.URL{Path: name}).EscapedPath()
	}
	return path + "?" + query + "&" + a.sas
}

func (a azure) make(t testing.TB) {
	t.Helper()
	if _, err := ask(t, a.c, http.MethodPut, a.address("", "restype=container"), nil, nil); err != nil {
		t.Fatal(err)
	}
}

func (a azure) put(t testing.TB, name string, b []byte) error {
	_, err := ask(t, a.c, http.MethodPut, a.address(name, ""), map[string]string{"x-ms-blob-type": "BlockBlob", "x-ms-version": "2023-11-03"}, b)
	return err
}

func (a azure) names(t testing.TB, prefix string) (list []string, err error) {
	text, err := ask(t, a.c, http.MethodGet, a.address("", "restype=container&comp=list&prefix="+url.QueryEscape(prefix)), nil, nil)
	var page struct {
		Blobs struct {
			Blob []struct{ Name string }
		}
	}
	if err == nil {
		err = xml.Unmarshal(text, &page)
	}
	for _, o := range page.Blobs.Blob {
		list = append(list, o.Name)
	}
	return list, err
}

func (a azure) get(t testing.TB, name string) ([]byte, error) {
	return ask(t, a.c, http.MethodGet, a.address(name, ""), nil, nil)
}

func (a azure) next(name string) []Fault {
	return []Fault{{Method: http.MethodPut, Key: name, Query: "-"}, {Method: http.MethodPut, Key: name, Query: "comp=blocklist"}}
}

// treeOf reads all objects whose names begin with a parent, but those below a prefix.
func treeOf(t testing.TB, objects raw, parent, but string) map[string]string {
	t.Helper()
	found := map[string]string{}
	list, err := objects.names(t, parent)
	for _, name := range list {
		if strings.HasPrefix(name, but+"/") {
			continue
		}
		b, gerr := objects.get(t, name)
		if gerr != nil {
			err = fmt.Errorf("%s: %w", name, gerr)
		}
		found[name] = string(b)
	}
	if err != nil {
		t.Fatal(err)
	}
	return found
}
