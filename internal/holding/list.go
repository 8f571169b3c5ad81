package holding

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/replicad/replicad/internal/atomicfile"
	"github.com/replicad/replicad/replica"
)

// List is on disk what a daemon that starts again must get back, from the keeper or from the ranks, before it speaks
// for its node.
type List struct {
	Magic   string  `json:"magic"`
	Version int     `json:"version"`
	Arenas  []Entry `json:"arenas"`
}

// Entry is one arena. PID and Start are 0 where no process has it: a mirror's, or that of a rank that lives elsewhere now.
type Entry struct {
	Key    string        `json:"key"`
	Job    replica.JobID `json:"job"`
	Rank   replica.Rank  `json:"rank"`
	Mirror bool          `json:"mirror,omitempty"`
	PID    int           `json:"pid,omitempty"`
	Start  uint64        `json:"start,omitempty"`
	// Boot is the life of the host in which pid and start mean that process; after another boot they mean any.
	Boot replica.BootID `json:"boot,omitzero"`
	// For is the name of the job of a process that is yet to be handed the arena.
	For string `json:"for,omitempty"`
}

const (
	listMagic   = "replicad-arenas"
	listVersion = 1
	listCap     = 64 << 20 // bytes
)

// LoadList reads the list at path; empty where there is none yet. What is no list is an error that names the file and the remedy.
func LoadList(path string) (List, error) {
	f, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return List{}, nil
	}
	if err != nil {
		return List{}, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, listCap+1))
	if err != nil {
		return List{}, err
	}
	list, err := parseList(b)
	if err != nil {
		return List{}, fmt.Errorf("%s: %w: remove it if no rank of this node is alive", path, err)
	}
	return list, nil
}

func parseList(b []byte) (list List, err error) {
	if len(b) > listCap {
		return List{}, fmt.Errorf("not a list of arenas: more than %d MiB", listCap>>20)
	}
	if err := json.Unmarshal(b, &list); err != nil {
		return List{}, fmt.Errorf("not a list of arenas: %w", err)
	}
	if list.Magic != listMagic || list.Version != listVersion {
		return List{}, fmt.Errorf("magic %q, version %d: want a list of arenas of version %d", list.Magic, list.Version, listVersion)
	}
	return list, nil
}

// writeList writes the list, fsynced and renamed.
func writeList(path string, arenas []Entry) error {
	b, err := json.MarshalIndent(List{Magic: listMagic, Version: listVersion, Arenas: arenas}, "", " ")
	if err != nil {
		return err
	}
	return atomicfile.Write(path, b)
}
