package azure

import (
	"cmp"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/replicad/replicad/internal/durable/remote"
)

// renew says where the credentials come from, and what somebody must do about those that the server does not take. Key and SAS are read once.
func (s *Store) renew() string {
	env := s.settings.env
	switch {
	case s.settings.Key != "" || s.settings.SAS != "":
		return "renew " + cmp.Or(s.settings.from, "the key or signature that this store was opened with") + ", and restart the daemon or command"
	case env("AZURE_FEDERATED_TOKEN_FILE") != "":
		return "the identity is of " + env("AZURE_FEDERATED_TOKEN_FILE") + ": see to what writes that file, which is read again by itself"
	case env("AZURE_CLIENT_SECRET") != "":
		return "renew AZURE_CLIENT_SECRET, and restart the daemon or command"
	}
	return "the identity is this machine's: see to that"
}

// sign adds what proves who asks: a signature, a query, or a token.
func (s *Store) sign(r *http.Request) error {
	r.Header.Set("X-Ms-Date", time.Now().UTC().Format(http.TimeFormat))
	r.Header.Set("X-Ms-Version", version)
	switch {
	case s.settings.SAS != "":
		r.URL.RawQuery = strings.TrimPrefix(r.URL.RawQuery+"&"+string(s.settings.SAS), "&")
	case s.settings.Key != "":
		key, err := base64.StdEncoding.DecodeString(string(s.settings.Key))
		if err != nil {
			return err
		}
		mac := hmac.New(sha256.New, key)
		_, _ = mac.Write([]byte(toSign(r, s.settings.Account)))
		r.Header.Set("Authorization", "SharedKey "+s.settings.Account+":"+base64.StdEncoding.EncodeToString(mac.Sum(nil)))
	default:
		t, err := s.tokens.Get(r.Context())
		if err != nil {
			return err
		}
		r.Header.Set("Authorization", "Bearer "+string(t))
	}
	return nil
}

// toSign is a request as a shared key signs it: "Authorize with Shared Key" of Azure's reference.
func toSign(r *http.Request, account string) string {
	length := ""
	if r.ContentLength > 0 {
		length = strconv.FormatInt(r.ContentLength, 10)
	}
	get := r.Header.Get
	lines := []string{r.Method, get("Content-Encoding"), get("Content-Language"), length, get("Content-MD5"), get("Content-Type"), "", // x-ms-date is in place of the date
		get("If-Modified-Since"), get("If-Match"), get("If-None-Match"), get("If-Unmodified-Since"), get("Range")}
	var own []string
	for k := range r.Header {
		if name := strings.ToLower(k); strings.HasPrefix(name, "x-ms-") {
			own = append(own, name+":"+strings.TrimSpace(get(k)))
		}
	}
	slices.Sort(own)
	var query []string
	for k, v := range r.URL.Query() {
		slices.Sort(v)
		query = append(query, strings.ToLower(k)+":"+strings.Join(v, ","))
	}
	slices.Sort(query)
	lines = append(lines, own...)
	lines = append(lines, "/"+account+r.URL.EscapedPath())
	return strings.Join(append(lines, query...), "\n")
}

const (
	resource  = "https://storage.azure.com"
	authority = "https://login.microsoftonline.com"
	machine   = "http://169.254.169.254/metadata/identity/oauth2/token"
)

var errCredentials = errors.New("no credentials: set AZURE_STORAGE_KEY, AZURE_STORAGE_SAS_TOKEN or AZURE_STORAGE_CONNECTION_STRING, or AZURE_TENANT_ID and AZURE_CLIENT_ID with AZURE_FEDERATED_TOKEN_FILE or AZURE_CLIENT_SECRET, or give the machine an identity")

// fetch asks for a token of an identity: that of a pod, of a service, or of the machine.
func (s *Store) fetch(ctx context.Context) (remote.Token, error) {
	env := s.settings.env
	r, err := tokenRequest(ctx, env)
	if err != nil {
		return remote.Token{}, refusedToken(err.Error())
	}
	resp, err := s.outside.Do(r)
	var about *url.Error
	if errors.As(err, &about) {
		err = about.Err
	}
	if err != nil {
		if r.Method == http.MethodGet { // nobody is there: it is no machine of Azure's
			return remote.Token{}, refusedToken(err.Error())
		}
		return remote.Token{}, &remote.Failure{Class: remote.Contended, Text: "no token: " + remote.OneLine(err.Error()), Err: err}
	}
	defer resp.Body.Close()
	var t struct {
		Token   string      `json:"access_token"`
		Expires json.Number `json:"expires_in"`
		Error   string      `json:"error"`
	}
	err = json.NewDecoder(resp.Body).Decode(&t)
	switch {
	case resp.StatusCode >= 500 || resp.StatusCode == http.StatusTooManyRequests:
		return remote.Token{}, &remote.Failure{Class: remote.Contended, Status: resp.StatusCode, Text: "no token: " + resp.Status, Err: errCredentials}
	case err != nil || t.Token == "":
		return remote.Token{}, refusedToken(resp.Status + " " + t.Error) // its description may hold more
	}
	seconds, err := t.Expires.Int64()
	if err != nil || seconds <= 0 {
		seconds = 300
	}
	return remote.Token{Text: remote.Secret(t.Token), Expires: time.Now().Add(time.Duration(seconds) * time.Second)}, nil
}

// tokenRequest is how a token is asked for. A federated token is read each time: it is written anew each hour.
func tokenRequest(ctx context.Context, env func(string) string) (*http.Request, error) {
	tenant, client := env("AZURE_TENANT_ID"), env("AZURE_CLIENT_ID")
	form := url.Values{"grant_type": {"client_credentials"}, "client_id": {client}, "scope": {resource + "/.default"}}
	switch file, secret := env("AZURE_FEDERATED_TOKEN_FILE"), env("AZURE_CLIENT_SECRET"); {
	case tenant != "" && client != "" && file != "":
		b, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		form.Set("client_assertion_type", "urn:ietf:params:oauth:client-assertion-type:jwt-bearer")
		form.Set("client_assertion", strings.TrimSpace(string(b)))
	case tenant != "" && client != "" && secret != "":
		form.Set("client_secret", secret)
	default:
		q := url.Values{"api-version": {"2018-02-01"}, "resource": {resource + "/"}}
		if client != "" {
			q.Set("client_id", client)
		}
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, machine+"?"+q.Encode(), nil)
		if err == nil {
			r.Header.Set("Metadata", "true")
		}
		return r, err
	}
	host := strings.TrimSuffix(cmp.Or(env("AZURE_AUTHORITY_HOST"), authority), "/")
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, host+"/"+url.PathEscape(tenant)+"/oauth2/v2.0/token", strings.NewReader(form.Encode()))
	if err == nil {
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	return r, err
}

func refusedToken(why string) error {
	return &remote.Failure{Class: remote.Refused, Code: "no credentials", Text: remote.OneLine(fmt.Sprintf("%v", why)) + ": " + errCredentials.Error(), Err: errCredentials}
}
