package gcs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"

	"golang.org/x/oauth2"
	"golang.org/x/oauth2/google"

	"github.com/replicad/replicad/internal/durable/remote"
)

const scope = "https://www.googleapis.com/auth/devstorage.read_write"

// fetch asks for a token. What the credentials are is looked up each time: a file may have been written anew.
func (s *Store) fetch(ctx context.Context) (remote.Token, error) {
	ctx = context.WithValue(ctx, oauth2.HTTPClient, &http.Client{Transport: s.calls.Transport(nil)})
	creds, err := credentialsOf(ctx, s.settings.Credentials)
	if err != nil {
		return remote.Token{}, refusedToken(err)
	}
	t, err := creds.TokenSource.Token()
	var answer *oauth2.RetrieveError
	if errors.As(err, &answer) && answer.Response != nil {
		err = fmt.Errorf("HTTP %d %s", answer.Response.StatusCode, answer.ErrorCode) // its body is not shown
		if status := answer.Response.StatusCode; status < 500 && status != http.StatusTooManyRequests {
			return remote.Token{}, refusedToken(err)
		}
	}
	if err != nil {
		return remote.Token{}, &remote.Failure{Class: remote.Contended, Text: "no token: " + remote.OneLine(err.Error()), Err: err}
	}
	return remote.Token{Text: remote.Secret(t.AccessToken), Expires: t.Expiry}, nil
}

// renew says where the credentials come from, and what somebody must do about those that the server does not take.
func (s *Store) renew() string {
	if file := cmp.Or(s.settings.Credentials, os.Getenv("GOOGLE_APPLICATION_CREDENTIALS")); file != "" {
		return "the credentials are of " + file + ": renew that file, which is read again by itself"
	}
	return "the credentials are of gcloud, or of the machine's service account: run gcloud auth application-default login, or name a file in GOOGLE_APPLICATION_CREDENTIALS"
}

func credentialsOf(ctx context.Context, file string) (*google.Credentials, error) {
	if file == "" {
		return google.FindDefaultCredentials(ctx, scope)
	}
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	// The file is named by who configures the daemon, as GOOGLE_APPLICATION_CREDENTIALS is; nobody else's is read.
	return google.CredentialsFromJSONWithParams(ctx, b, google.CredentialsParams{Scopes: []string{scope}}) //nolint:staticcheck // it may be of any type
}

var errCredentials = errors.New("no credentials: set GOOGLE_APPLICATION_CREDENTIALS, or run gcloud auth application-default login, or give the machine a service account")

func refusedToken(err error) error {
	return &remote.Failure{Class: remote.Refused, Code: "no credentials", Text: remote.OneLine(errCredentials.Error() + ": " + err.Error()), Err: errors.Join(errCredentials, err)}
}
