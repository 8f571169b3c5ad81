//go:build cgo

package trouble_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"filippo.io/age"

	"github.com/replicad/replicad/internal/config"
	"github.com/replicad/replicad/internal/durable"
	"github.com/replicad/replicad/internal/durable/store"
	"github.com/replicad/replicad/internal/durable/storetest"
)

// TestNoSecretIsWritten plants each kind of secret, has a job write encrypted generations to a bucket, and things go wrong with each secret. Then it looks
// for them in all that was written: logs, audit, the state directory, the bucket, what status says, what launchers and commands printed.
func TestNoSecretIsWritten(t *testing.T) {
	t.Parallel()
	const jobSecret, wrongToken, argument, inEnv, inFile, phrase = "j0b5ecret-0123456789", "wr0ng-t0k3n-0123456789", "--wandb-key=a7gument-5ecret", "env1ronment-5ecret", "k3pt-f1le-5ecret", "pa55phrase correct horse"
	id, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	file := func(name, text string) string {
		p := filepath.Join(dir, name)
		if err := os.WriteFile(p, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return p
	}
	key, kept := file("key.txt", id.String()+"\n"), file("config.json", `{"token": "`+inFile+`"}`)
	srv := storetest.Start(t)
	n := one(t, onBucket(t, srv), func(c *config.Config) {
		c.JobSecret, c.DurableRecipients, c.DurableIdentities = jobSecret, []string{id.Recipient().String()}, key
	})
	token := n.cfg.JobToken("job")
	secrets := map[string]string{
		"job_secret": jobSecret, "the job's token": token, "a wrong token": wrongToken, "S3's secret key": storetest.Secret, "the identity": strings.TrimPrefix(id.String(), "AGE-SECRET-KEY-"),
		"a passphrase": phrase, "an argument": argument, "the environment": inEnv, "a kept file": inFile,
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	env := append(rankSpec{}.env(), "WANDB_API_KEY="+inEnv)
	l := spawn(t, "job launcher", env, replicad, "run", "--config", n.File, "--job", "job", "--world", "1", "--chunk-mb", "1", "--durable-every", "5", "--keep-file", kept, "--", self, argument)
	for range 2 {
		n.daemon.awaitFrom(n.daemon.mark(), "durable", nil)
	}
	// What is wrong is told.
	stray := n.rank("job", 0, 1, 0, rankSpec{Token: wrongToken})
	if code := stray.exit(); code == 0 {
		t.Error("a rank with a wrong token ends well")
	}
	srv.Spoil(t, storetest.Fault{Kind: "answer", Status: 403, Body: "<Error><Code>SignatureDoesNotMatch</Code><Message>no</Message></Error>"})
	n.daemon.awaitFrom(n.daemon.mark(), "failed", nil)
	srv.Clear(t)
	said := map[string]string{"the rank that was refused": stray.output()}
	tell := func(what string, fails bool, env []string, args ...string) {
		p := spawn(t, what, env, replicad, args...)
		if code := p.exit(); (code != 0) != fails {
			t.Errorf("%s: code %d: %s", what, code, p.output())
		}
		said[what] = p.output()
	}
	creds := []string{"AWS_ENDPOINT_URL_S3=" + srv.URL, "AWS_ACCESS_KEY_ID=" + storetest.Access, "AWS_SECRET_ACCESS_KEY=" + storetest.Secret, "AWS_REGION=us-east-1"}
	root, out := n.cfg.Durable, filepath.Join(dir, "out")
	tell("status", false, nil, "status", "--config", n.File)
	tell("status --json", false, nil, "status", "--config", n.File, "--json")
	tell("config check", false, nil, "config", "check", n.File)
	tell("ckpt show", false, creds, "ckpt", "show", root)
	tell("ckpt log", false, creds, "ckpt", "log", root)
	tell("a key in place of its file", true, creds, "ckpt", "export", root, out, "--to", "pt", "--identity", id.String())
	tell("a key in place of a recipient", true, creds, "ckpt", "cp", root, out, "--recipient", id.String())
	tell("a passphrase in place of a key", true, creds, "ckpt", "export", root, out, "--to", "pt", "--identity", file("phrase", phrase))
	tell("a bucket that is not there", true, creds, "ckpt", "ls", "s3://no-such-bucket/ck")
	l.kill()
	n.die()

	said["the daemon"], said["the launcher"] = n.daemon.output(), l.output()
	err = filepath.WalkDir(n.cfg.StateDir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() || path == n.File { // a configuration has what it has
			return err
		}
		b, err := os.ReadFile(path)
		said["the file "+path] = string(b)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	st, err := durable.Open(t.Context(), root, durable.Settings{Endpoint: srv.URL, AccessKey: storetest.Access, SecretKey: storetest.Secret})
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	objects := 0
	err = st.List(t.Context(), "", "", func(info store.Info) error {
		objects++
		b := make([]byte, info.Size)
		err := st.ReadRange(t.Context(), info.Key, 0, b)
		said["the object "+info.Key] = string(b)
		return err
	})
	if err != nil || objects < 10 {
		t.Fatalf("%d objects, %v", objects, err)
	}
	named := 0
	for what, text := range said {
		if strings.Contains(text, "config.json") || strings.Contains(text, `"job"`) { // what is no secret is found
			named++
		}
		for name, secret := range secrets {
			if strings.Contains(text, secret) {
				t.Errorf("%s shows %s:\n%.2000s", what, name, text)
			}
		}
	}
	if named < 5 {
		t.Errorf("%d of %d texts name the job or its file: are they what was written?", named, len(said))
	}
}
