package importwall

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
)

const module = "github.com/replicad/replicad"

// wall is what one package may import beside the standard library.
type wall struct {
	layer int      // it imports only from layers below its own
	own   []string // packages of this module; nil: whatever lies below
	third []string // packages of others, each with what lies below it
}

// side marks packages beside the layers: nothing of the program imports them.
const side = 9

// houses are packages in one layer, each list from the ground up: a package imports those of its house that stand before it, as its row
// allows. Without them every floor of a house would be a layer of the whole tree.
var houses = [][]string{
	{"recovery/place", "recovery/plan", "recovery/odds", "recovery"},
	{
		"internal/durable/catalog/damage", "internal/durable/catalog/objects",
		"internal/durable/catalog/find", "internal/durable/catalog/read", "internal/durable/catalog/diff",
		"internal/durable/catalog/hints", "internal/durable/catalog/write", "internal/durable/catalog/keep", "internal/durable/catalog/move",
		"internal/durable/catalog",
	},
}

// beneath reports whether a package stands below another in one house.
func beneath(houses [][]string, own, name string) bool {
	return slices.ContainsFunc(houses, func(house []string) bool {
		at := slices.Index(house, own)
		return at >= 0 && slices.Index(house, name) > at
	})
}

// walls is docs/design.md's table of layers.
var walls = map[string]wall{
	"replica":            {0, []string{}, nil},
	"internal/invariant": {0, []string{}, nil},
	"internal/usage":     {0, []string{}, nil},
	"internal/owner":     {0, []string{}, []string{"golang.org/x/sys/unix"}},

	"lock":                   {1, []string{"replica", "internal/planted"}, nil},
	"recovery":               {1, []string{"replica", "internal/planted", "recovery/odds", "recovery/place", "recovery/plan"}, nil},
	"recovery/odds":          {1, []string{"replica", "recovery/place", "recovery/plan"}, nil},
	"recovery/plan":          {1, []string{"replica", "recovery/place"}, nil},
	"recovery/place":         {1, []string{"replica"}, nil},
	"rng":                    {1, []string{"replica"}, nil},
	"internal/franchise":     {1, []string{"replica", "internal/planted"}, nil},
	"internal/wire":          {1, []string{"replica"}, []string{"github.com/cespare/xxhash/v2", "github.com/fxamacker/cbor/v2"}},
	"internal/unixsock":      {1, []string{"internal/owner"}, []string{"golang.org/x/sys/unix"}},
	"internal/exposure":      {1, []string{"replica"}, nil},
	"internal/threads":       {1, []string{}, []string{"golang.org/x/sys/unix"}},
	"internal/console":       {1, []string{"replica"}, nil},
	"internal/want":          {1, []string{}, []string{"golang.org/x/sys/unix"}},
	"internal/audit":         {1, []string{"replica"}, nil},
	"internal/atomicfile":    {1, []string{}, nil},
	"internal/manners":       {1, []string{"replica"}, []string{"golang.org/x/sys/unix"}},
	"internal/durable/store": {1, []string{}, nil},
	"internal/config":        {1, []string{"replica", "internal/owner"}, []string{"github.com/goccy/go-yaml"}},

	"internal/durable/kept":        {1, []string{}, []string{"golang.org/x/sys/unix"}},
	"internal/durable/safetensors": {1, []string{"replica"}, []string{"github.com/zeebo/xxh3"}},
	"internal/durable/retain":      {1, []string{"replica"}, nil},
	"internal/durable/sealed":      {1, []string{}, []string{"filippo.io/age", "golang.org/x/crypto"}},
	"internal/durable/format":      {2, []string{"replica", "rng", "internal/durable/safetensors", "internal/durable/sealed", "internal/wire"}, nil},
	"internal/durable/catalog/damage": {3, []string{
		"internal/durable/format", "internal/durable/sealed", "internal/durable/store",
	}, nil},
	"internal/durable/catalog/objects": {3, []string{
		"internal/durable/catalog/damage", "internal/durable/format", "internal/durable/store",
	}, nil},
	"internal/durable/catalog/find": {3, []string{
		"replica", "internal/durable/catalog/damage", "internal/durable/catalog/objects", "internal/durable/format",
		"internal/durable/sealed", "internal/durable/store",
	}, nil},
	"internal/durable/catalog/read": {3, []string{
		"replica", "internal/durable/catalog/damage", "internal/durable/catalog/find", "internal/durable/catalog/objects",
		"internal/durable/format", "internal/durable/kept", "internal/durable/safetensors", "internal/durable/sealed", "internal/durable/store",
	}, nil},
	"internal/durable/catalog/hints": {3, []string{
		"replica", "internal/durable/catalog/find", "internal/durable/catalog/objects", "internal/durable/format",
	}, nil},
	"internal/durable/catalog/write": {3, []string{
		"replica", "internal/durable/catalog/damage", "internal/durable/catalog/find", "internal/durable/catalog/hints",
		"internal/durable/catalog/objects", "internal/durable/catalog/read",
		"internal/durable/format", "internal/durable/kept", "internal/durable/safetensors", "internal/durable/sealed", "internal/durable/store",
	}, nil},
	"internal/durable/catalog/keep": {3, []string{
		"replica", "internal/durable/catalog/damage", "internal/durable/catalog/find", "internal/durable/catalog/hints",
		"internal/durable/catalog/objects", "internal/durable/catalog/read", "internal/durable/format", "internal/durable/store",
	}, nil},
	"internal/durable/catalog/move": {3, []string{
		"replica", "internal/durable/catalog/damage", "internal/durable/catalog/find", "internal/durable/catalog/hints",
		"internal/durable/catalog/keep", "internal/durable/catalog/objects", "internal/durable/catalog/read", "internal/durable/catalog/write",
		"internal/durable/format", "internal/durable/safetensors", "internal/durable/sealed", "internal/durable/store",
	}, nil},
	"internal/durable/catalog/diff": {3, []string{
		"replica", "internal/durable/catalog/find", "internal/durable/catalog/read", "internal/durable/format", "internal/durable/safetensors",
	}, nil},
	"internal/durable/catalog": {3, []string{
		"replica", "internal/durable/catalog/damage", "internal/durable/catalog/diff", "internal/durable/catalog/find",
		"internal/durable/catalog/hints", "internal/durable/catalog/keep", "internal/durable/catalog/move",
		"internal/durable/catalog/objects", "internal/durable/catalog/read", "internal/durable/catalog/write", "internal/durable/format",
		"internal/durable/sealed", "internal/durable/store",
	}, nil},

	"internal/durable/formats":             {1, []string{"replica"}, []string{"golang.org/x/sys/unix"}},
	"internal/durable/formats/pickles":     {1, []string{}, nil},
	"internal/durable/formats/pt":          {2, []string{"replica", "internal/durable/formats", "internal/durable/formats/pickles"}, nil},
	"internal/durable/formats/hf":          {2, []string{"internal/durable/formats", "internal/durable/safetensors"}, nil},
	"internal/durable/formats/dcp":         {3, []string{"replica", "internal/durable/formats", "internal/durable/formats/pickles", "internal/durable/formats/pt"}, nil},
	"internal/durable/formats/convert":     {4, []string{"replica", "internal/durable/catalog", "internal/durable/catalog/damage", "internal/durable/catalog/find", "internal/durable/catalog/read", "internal/durable/format", "internal/durable/kept", "internal/durable/formats", "internal/durable/formats/dcp", "internal/durable/formats/hf", "internal/durable/formats/pt", "internal/durable/safetensors"}, nil},
	"internal/durable/formats/formatstest": {side, []string{"replica", "internal/durable/formats"}, nil},

	"internal/session":           {2, []string{"replica", "internal/durable/kept", "internal/unixsock", "internal/want", "internal/wire"}, []string{"golang.org/x/sys/unix"}},
	"internal/control":           {2, []string{"replica", "internal/wire"}, nil},
	"internal/account":           {2, []string{"replica", "internal/config"}, nil},
	"internal/journal":           {2, []string{"replica", "recovery", "internal/audit", "internal/config"}, []string{"github.com/rs/zerolog", "golang.org/x/sys/unix"}},
	"internal/preload":           {2, []string{"internal/unixsock"}, []string{"golang.org/x/sys/unix"}},
	"internal/rendezvous":        {2, []string{"replica", "internal/wire"}, nil},
	"internal/consensus":         {2, []string{"replica", "lock", "internal/atomicfile", "internal/franchise", "internal/invariant", "internal/wire"}, []string{"github.com/hashicorp/raft", "github.com/hashicorp/raft-boltdb/v2", "github.com/hashicorp/go-hclog", "go.etcd.io/bbolt"}},
	"internal/spool":             {2, []string{"replica"}, []string{"golang.org/x/sys/unix"}},
	"internal/durable/directory": {2, []string{"internal/durable/store"}, []string{"golang.org/x/sys/unix"}},
	"internal/durable/remote":    {2, []string{"internal/durable/store"}, nil},
	"internal/shm":               {2, []string{"replica", "internal/planted", "internal/unixsock", "internal/want"}, []string{"github.com/zeebo/xxh3", "golang.org/x/sys/unix"}},
	"internal/pki":               {2, []string{"replica", "internal/owner"}, nil},
	"internal/endpoint":          {2, []string{"replica"}, []string{"github.com/quic-go/quic-go", "golang.org/x/net/ipv4", "golang.org/x/sys/unix"}},
	"membership":                 {2, []string{"replica"}, []string{"github.com/hashicorp/memberlist"}},
	"transfer":                   {2, []string{"replica", "internal/wire"}, []string{"github.com/zeebo/xxh3", "github.com/quic-go/quic-go"}},
	"internal/pace":              {2, []string{}, nil},
	"chaos/netfault":             {2, []string{}, []string{"golang.org/x/sys/unix"}},

	"internal/durable/gcs":   {3, []string{"internal/durable/remote", "internal/durable/store"}, []string{"golang.org/x/oauth2"}},
	"internal/durable/azure": {3, []string{"internal/durable/remote", "internal/durable/store"}, nil},
	"internal/durable/s3":    {3, []string{"internal/durable/remote", "internal/durable/store"}, []string{"github.com/minio/minio-go/v7"}},
	"internal/desk":          {3, []string{"replica", "internal/control", "internal/shm", "internal/wire"}, nil},
	"internal/mover":         {3, []string{"replica", "internal/durable/store", "internal/shm", "transfer"}, nil},
	"internal/status":        {3, []string{"replica", "internal/console", "internal/control", "internal/pki"}, nil},
	"internal/keeper":        {3, []string{"internal/config", "internal/journal"}, []string{"github.com/rs/zerolog", "golang.org/x/sys/unix"}},
	"internal/memplan":       {3, []string{"replica", "recovery", "recovery/place", "internal/control", "internal/shm"}, nil},
	"internal/holding":       {3, []string{"replica", "internal/atomicfile", "internal/invariant", "internal/journal", "internal/planted", "internal/shm", "internal/unixsock"}, nil},

	"internal/durable":      {4, []string{"internal/durable/azure", "internal/durable/directory", "internal/durable/gcs", "internal/durable/remote", "internal/durable/s3", "internal/durable/store"}, nil},
	"internal/durable/pipe": {4, []string{"replica", "internal/durable/catalog", "internal/durable/catalog/read", "internal/durable/format", "internal/durable/safetensors", "internal/usage"}, nil},
	"internal/durable/tier": {4, []string{"replica", "internal/durable/catalog", "internal/durable/directory", "internal/durable/format", "internal/durable/kept", "internal/durable/retain", "internal/durable/sealed", "internal/durable/store"}, nil},

	"internal/durable/place": {5, []string{"replica", "internal/console", "internal/durable", "internal/durable/catalog",
		"internal/durable/catalog/find", "internal/durable/format", "internal/durable/remote", "internal/durable/sealed", "internal/durable/store", "internal/usage"}, nil},

	"internal/durable/ckpt": {6, []string{"replica", "internal/console", "internal/durable/catalog", "internal/durable/catalog/read",
		"internal/durable/format", "internal/durable/formats/convert",
		"internal/durable/kept", "internal/durable/pipe", "internal/durable/place", "internal/durable/retain", "internal/durable/sealed", "internal/durable/store",
		"internal/usage", "internal/wire"}, nil},

	"internal/admin":        {4, []string{"replica", "internal/config", "internal/console", "internal/control", "internal/pki", "internal/status", "internal/unixsock"}, nil},
	"internal/host/act":     {4, []string{"replica", "internal/holding", "internal/session", "internal/shm"}, nil},
	"internal/host/carried": {4, []string{"internal/durable/kept"}, nil},
	"internal/host/room":    {4, []string{"replica", "internal/control", "internal/holding", "internal/shm"}, nil},
	"internal/host/admission": {5, []string{"replica", "recovery", "internal/audit", "internal/config", "internal/control", "internal/desk",
		"internal/holding", "internal/host/room", "internal/invariant", "internal/session", "internal/shm", "internal/want", "internal/wire"}, nil},
	"internal/host/adoption":  {5, []string{"replica", "recovery", "internal/holding", "internal/host/act", "internal/host/room", "internal/session", "internal/shm"}, nil},
	"internal/host/fetch":     {5, []string{"replica", "recovery/place", "internal/control", "internal/holding", "internal/host/room", "internal/journal", "internal/mover", "internal/shm", "transfer"}, nil},
	"internal/host/growth":    {5, []string{"replica", "internal/control", "internal/host/act", "internal/host/room", "internal/invariant", "internal/session", "internal/shm", "internal/wire"}, nil},
	"internal/host/lacks":     {5, []string{"replica"}, nil},
	"internal/host/agents":    {5, []string{"replica", "internal/control", "internal/host/act", "internal/wire"}, nil},
	"internal/host/remarks":   {5, []string{"replica"}, nil},
	"internal/host/launchers": {5, []string{"replica", "lock", "recovery", "internal/audit", "internal/config", "internal/control", "internal/durable/kept", "internal/durable/tier", "internal/host/carried", "internal/host/room", "internal/invariant", "internal/session", "internal/shm", "internal/want", "internal/wire"}, nil},
	"internal/host/mirrors":   {5, []string{"replica", "internal/control", "internal/holding", "internal/host/act", "internal/host/room", "internal/invariant", "internal/planted", "internal/shm", "transfer"}, nil},
	"internal/host/push":      {5, []string{"replica", "lock", "internal/control", "internal/holding", "internal/host/act", "internal/host/room", "internal/invariant", "internal/manners", "internal/mover", "internal/shm", "transfer"}, nil},
	"internal/host/restore":   {5, []string{"replica", "internal/holding", "internal/host/act", "internal/host/room", "internal/invariant", "internal/shm"}, nil},
	"internal/host/scrub":     {5, []string{"replica", "internal/control", "internal/holding", "internal/host/act", "internal/host/room", "internal/shm"}, nil},
	"internal/host/writer":    {5, []string{"replica", "lock", "recovery", "internal/control", "internal/durable/tier", "internal/holding", "internal/host/act", "internal/host/room", "internal/invariant", "internal/shm", "internal/spool"}, nil},

	"internal/leader/agents": {3, []string{"replica", "internal/wire"}, nil},
	"internal/leader/reread": {3, []string{"replica"}, nil},
	"internal/leader/voters": {3, []string{"replica", "internal/control"}, nil},

	"internal/leader/operators": {4, []string{
		"replica", "lock", "recovery/odds", "recovery/plan", "internal/audit", "internal/consensus", "internal/control", "internal/pki",
	}, nil},

	"internal/leader/durable": {4, []string{"replica", "lock", "recovery", "internal/control"}, nil},
	"internal/leader":         {5, []string{"replica", "lock", "recovery", "recovery/odds", "recovery/plan", "internal/account", "internal/audit", "internal/config", "internal/consensus", "internal/control", "internal/durable/catalog/find", "internal/durable/format", "internal/durable/store", "internal/durable/tier", "internal/invariant", "internal/exposure", "internal/journal", "internal/leader/agents", "internal/leader/durable", "internal/leader/operators", "internal/leader/reread", "internal/leader/voters", "internal/rendezvous", "internal/wire"}, nil},
	"internal/host/rank":      {5, []string{"recovery", "replica", "internal/control", "internal/holding", "internal/host/room", "internal/invariant", "internal/session", "internal/shm", "internal/wire"}, nil},
	"internal/host/hands":     {6, []string{"replica", "transfer", "internal/config", "internal/control", "internal/durable/kept", "internal/durable/tier", "internal/holding", "internal/host/act", "internal/host/fetch", "internal/host/mirrors", "internal/host/push", "internal/host/restore", "internal/host/room", "internal/host/scrub", "internal/host/writer", "internal/journal", "internal/manners", "internal/mover", "internal/shm", "internal/spool"}, nil},
	"internal/host/job":       {6, []string{"lock", "recovery", "replica", "transfer", "internal/config", "internal/control", "internal/exposure", "internal/holding", "internal/host/act", "internal/host/admission", "internal/host/adoption", "internal/host/growth", "internal/host/lacks", "internal/host/launchers", "internal/host/mirrors", "internal/host/push", "internal/host/rank", "internal/host/remarks", "internal/host/restore", "internal/host/room", "internal/host/writer", "internal/invariant", "internal/journal", "internal/manners", "internal/planted", "internal/session", "internal/shm", "internal/wire"}, nil},
	"internal/host":           {7, []string{"replica", "transfer", "internal/account", "internal/audit", "internal/config", "internal/control", "internal/desk", "internal/holding", "internal/host/act", "internal/host/admission", "internal/host/adoption", "internal/host/agents", "internal/host/fetch", "internal/host/growth", "internal/host/hands", "internal/host/job", "internal/host/launchers", "internal/host/mirrors", "internal/host/push", "internal/host/restore", "internal/host/room", "internal/host/scrub", "internal/host/writer", "internal/invariant", "internal/journal", "internal/manners", "internal/mover", "internal/session", "internal/shm", "internal/spool", "internal/unixsock", "internal/want", "internal/wire"}, []string{"golang.org/x/sys/unix"}},
	"internal/node":           {8, nil, []string{"github.com/rs/zerolog", "github.com/hashicorp/go-hclog", "golang.org/x/sys/unix"}},
	"internal/launch":         {4, []string{"replica", "internal/durable/sealed", "internal/console", "internal/owner", "internal/preload", "internal/unixsock", "internal/usage", "internal/want", "internal/wire"}, []string{"golang.org/x/sys/unix"}},
	"chaos/cluster":           {4, []string{"replica", "internal/config", "internal/pace", "internal/pki", "internal/usage"}, []string{"golang.org/x/sys/unix"}},
	"chaos":                   {5, []string{"replica", "internal/config", "internal/pace", "internal/shm", "chaos/cluster", "chaos/netfault"}, []string{"golang.org/x/sys/unix"}},
	"chaos/hostile":           {5, []string{"replica", "transfer", "chaos/cluster", "internal/config", "internal/endpoint", "internal/pki", "internal/unixsock", "internal/wire"}, []string{"github.com/quic-go/quic-go", "github.com/zeebo/xxh3", "golang.org/x/sys/unix"}},
	"internal/demo":           {5, []string{"internal/config", "chaos/cluster"}, []string{"golang.org/x/sys/unix", "golang.org/x/term"}},
	"internal/bench":          {5, []string{"replica", "transfer", "chaos/cluster", "internal/config", "internal/endpoint", "internal/pki"}, []string{"filippo.io/age", "github.com/minio/minio-go/v7", "github.com/quic-go/quic-go", "github.com/zeebo/xxh3", "golang.org/x/sys/unix"}},

	"cmd/replicad": {9, nil, []string{"github.com/spf13/cobra", "github.com/spf13/pflag", "github.com/rs/zerolog", "golang.org/x/sys/unix"}},

	"libreplicad":                  {side, []string{"replica"}, []string{"golang.org/x/sys/unix"}},
	"examples/textlm":              {side, []string{"replica", "libreplicad", "examples/textlm/collective", "examples/textlm/data", "examples/textlm/model"}, nil},
	"examples/textlm/collective":   {side, []string{}, []string{"golang.org/x/sys/unix"}},
	"examples/textlm/data":         {side, []string{}, nil},
	"examples/textlm/model":        {side, []string{}, []string{"golang.org/x/sys/unix"}},
	"internal/planted":             {0, []string{}, nil},
	"internal/durable/catalogtest": {side, []string{"replica", "internal/durable", "internal/durable/catalog", "internal/durable/durabletest", "internal/durable/format", "internal/durable/sealed"}, []string{"filippo.io/age"}},
	"internal/durable/durabletest": {side, []string{"replica", "rng", "internal/durable/safetensors"}, nil},
	"internal/durable/memory":      {side, []string{"internal/durable/store"}, nil},
	"internal/fixture":             {side, []string{"replica", "internal/wire"}, []string{"github.com/cespare/xxhash/v2"}},
	"internal/journal/journaltest": {side, []string{"internal/config", "internal/journal"}, nil},
	"internal/leader/leadertest":   {side, []string{"replica", "lock", "internal/config", "internal/consensus", "internal/control", "internal/fixture", "internal/journal/journaltest", "internal/leader", "internal/wire"}, nil},
	"internal/host/room/roomtest":  {side, []string{"replica", "internal/control", "internal/fixture", "internal/holding", "internal/host/act", "internal/host/room", "internal/shm", "internal/transcript", "internal/wire"}, nil},
	"internal/durable/storetest":   {side, []string{"replica", "internal/durable/catalog", "internal/durable/durabletest", "internal/durable/format", "internal/durable/store"}, []string{"github.com/minio/minio-go/v7"}},
	"transfer/storetest":           {side, []string{"replica", "transfer"}, []string{"github.com/zeebo/xxh3"}},
	"internal/leakcheck":           {side, []string{}, nil},
	"internal/bubble":              {side, []string{"internal/racing"}, nil},
	"internal/racing":              {side, []string{}, nil},
	"internal/transcript":          {side, []string{}, nil},
	"internal/otheruser":           {side, []string{}, []string{"golang.org/x/sys/unix"}},
	"internal/sim":                 {side, []string{}, nil},
	"internal/trouble":             {side, []string{}, nil},
	"internal/importwall":          {side, []string{}, nil},

	"internal/ranklife": {side, []string{"replica", "internal/holding", "internal/host/rank", "internal/session", "internal/shm", "internal/wire"}, nil},
}

// pkg is what the go command says of a package.
type pkg struct {
	ImportPath, Dir                                       string
	GoFiles, CgoFiles, TestGoFiles, XTestGoFiles, Imports []string
	TestImports, XTestImports                             []string
	Error                                                 *struct{ Err string }
}

func (p pkg) name() string { return strings.TrimPrefix(strings.TrimPrefix(p.ImportPath, module), "/") }

// packages lists the module, once for all tests: a package is nothing but its files, so nothing is built for it.
func packages(t *testing.T) []pkg {
	t.Helper()
	list, err := listed()
	if err != nil {
		t.Fatal(err)
	}
	if len(list) < 5 {
		t.Fatalf("the go command lists %d packages: the walls would hold nothing", len(list))
	}
	return list
}

var listed = sync.OnceValues(func() (list []pkg, err error) {
	cmd := exec.Command("go", "list", "-e", "-json=ImportPath,Dir,GoFiles,CgoFiles,TestGoFiles,XTestGoFiles,Imports,TestImports,XTestImports,Error", module+"/...")
	cmd.Stderr = os.Stderr
	cmd.Env = append(os.Environ(), "CGO_ENABLED=1")
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w", err)
	}
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		var p pkg
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			return list, nil
		} else if err != nil {
			return nil, err
		}
		list = append(list, p)
	}
})

func TestWalls(t *testing.T) {
	for _, p := range packages(t) {
		for _, complaint := range breaches(walls, houses, p) {
			t.Error(complaint)
		}
	}
}

// TestOneCheckerOfHistories: the checker of histories is a dependency of the simulation's tests, and of nothing else. No package but those in
// the table may import anything of others outside its tests.
func TestOneCheckerOfHistories(t *testing.T) {
	var by []string
	for _, p := range packages(t) {
		if slices.Contains(slices.Concat(p.TestImports, p.XTestImports), "github.com/anishathalye/porcupine") {
			by = append(by, p.name())
		}
	}
	if !slices.Equal(by, []string{"internal/sim"}) {
		t.Errorf("the tests of %v import porcupine, want those of internal/sim alone", by)
	}
}

// breaches names the imports of p that the walls forbid.
func breaches(walls map[string]wall, houses [][]string, p pkg) (list []string) {
	bad := func(format string, args ...any) { list = append(list, p.name()+": "+fmt.Sprintf(format, args...)) }
	if p.Error != nil {
		bad("%s", p.Error.Err)
	}
	w, ok := walls[p.name()]
	if !ok {
		bad("is not in the table of walls: enter it with its layer")
		return list
	}
	for _, path := range p.Imports {
		own, isOwn := strings.CutPrefix(path, module+"/")
		switch {
		case isOwn:
			below, known := walls[own]
			switch {
			case w.own != nil && !slices.Contains(w.own, own):
				bad("imports %s; it may import %v", own, w.own)
			case known && w.layer != side && !(below.layer < w.layer || below.layer == w.layer && beneath(houses, own, p.name())):
				bad("is in layer %d and imports %s, which is in layer %d: imports point down, never sideways", w.layer, own, below.layer)
			}
		case strings.Contains(strings.SplitN(path, "/", 2)[0], "."):
			if !slices.ContainsFunc(w.third, func(t string) bool { return path == t || strings.HasPrefix(path, t+"/") }) {
				bad("imports %s; of others it may import %v", path, w.third)
			}
		}
	}
	return list
}

// TestWallsHold shows that the check can fail.
func TestWallsHold(t *testing.T) {
	law := map[string]wall{"low": {0, nil, nil}, "a": {1, nil, []string{"example.org/x"}}, "b": {1, nil, nil}, "c": {1, []string{}, nil}, "top": {2, nil, nil}, "tool": {side, []string{"top"}, nil}}
	house := [][]string{{"a", "b"}}
	for _, tc := range []struct {
		from, to string
		want     string
	}{
		{"a", module + "/low", ""}, {"a", "fmt", ""}, {"a", "example.org/x/y", ""}, {"top", module + "/b", ""}, {"tool", module + "/top", ""},
		{"b", module + "/a", ""}, {"a", module + "/b", "sideways"}, {"a", module + "/top", "sideways"}, {"c", module + "/low", "may import []"},
		{"a", "example.org/xy", "may import"}, {"b", "example.org/x", "may import"}, {"top", module + "/tool", "sideways"}, {"new", "fmt", "not in the table"},
	} {
		got := strings.Join(breaches(law, house, pkg{ImportPath: module + "/" + tc.from, Imports: []string{tc.to}}), "\n")
		if (tc.want == "") != (got == "") || !strings.Contains(got, tc.want) {
			t.Errorf("%s imports %s: %q, want %q", tc.from, tc.to, got, tc.want)
		}
	}
}

// TestLayersOfTheTable: no two adaptors know each other, and what the table allows points down.
func TestLayersOfTheTable(t *testing.T) {
	for name, w := range walls {
		for _, own := range w.own {
			below, known := walls[own]
			if !known || w.layer != side && !(below.layer < w.layer || below.layer == w.layer && beneath(houses, own, name)) {
				t.Errorf("%s (layer %d) is allowed %s (known %v, layer %d)", name, w.layer, own, known, below.layer)
			}
		}
	}
}

// TestDaemonBuildsWithoutCgo: the daemon runs on any Linux host, whatever C library it has. Its flags are those of `make build`,
// whose packages the compiler then has in its cache.
func TestDaemonBuildsWithoutCgo(t *testing.T) {
	cmd := exec.Command("go", "build", "-buildvcs=false", "-trimpath", "-o", os.DevNull, module+"/cmd/replicad")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}
