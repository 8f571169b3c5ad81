package azure

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/replicad/replicad/internal/durable/storetest"
)

// TestExpiredCredentialsAreNamed: a signature that has expired, and a token that the server does not take, are named by where they came from.
func TestExpiredCredentialsAreNamed(t *testing.T) {
	srv := storetest.StartAzure(t)
	file := filepath.Join(t.TempDir(), "connection")
	if err := os.WriteFile(file, []byte("SharedAccessSignature=sig=s3cret"), 0o600); err != nil {
		t.Fatal(err)
	}
	srv.Spoil(t, storetest.Fault{Kind: "answer", Method: http.MethodPut, Status: 403, Body: xmlError("AuthenticationFailed")})
	for _, tc := range []struct {
		file, want string
		env        map[string]string
	}{
		{file, "renew " + file + ", and restart", nil},
		{"", "renew AZURE_STORAGE_CONNECTION_STRING, and restart", map[string]string{"AZURE_STORAGE_CONNECTION_STRING": "SharedAccessSignature=sig=s3cret"}},
		{"", "renew AZURE_STORAGE_SAS_TOKEN, and restart", map[string]string{"AZURE_STORAGE_SAS_TOKEN": "sig=s3cret"}},
		{"", "renew AZURE_STORAGE_KEY, and restart", map[string]string{"AZURE_STORAGE_KEY": storetest.AzureKey}},
	} {
		s := client(t, srv, "lm", func(s *Settings) {
			s.Key = ""
			told, err := s.Told(tc.file, func(name string) string { return tc.env[name] })
			if err != nil {
				t.Fatal(err)
			}
			*s = told
		})
		_, err := s.PutNew(t.Context(), "k", []byte("x"))
		if err == nil || strings.Count(err.Error(), tc.want) != 1 || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%q: %v", tc.want, err)
		}
	}
	for want, env := range map[string]map[string]string{
		"/run/token":          {"AZURE_FEDERATED_TOKEN_FILE": "/run/token"},
		"AZURE_CLIENT_SECRET": {"AZURE_CLIENT_SECRET": "s3cret"},
		"this machine's":      nil,
	} {
		s := Store{settings: Settings{env: func(name string) string { return env[name] }}}
		if got := s.renew(); !strings.Contains(got, want) || strings.Contains(got, "s3cret") {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
