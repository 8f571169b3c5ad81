package pki

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
)

// The file of gossip keys has one a line, in hex. The first is the primary one, with which a node speaks; it hears who speaks with any.

const (
	gossipKeyBytes = 32
	maxGossipKeys  = 4 // a rotation needs two
)

// GossipKeys are the node's gossip keys as they were read last, 32 bytes each, the primary one first. The caller must not change them.
func (id *Identity) GossipKeys() [][]byte { return *id.gossip.Load() }

// ReloadGossip reads the file of gossip keys again. A node whose new keys are all unknown to its present ones would fall silent to every
// other node, so such a file changes nothing; it is what the node would have after a restart.
func (id *Identity) ReloadGossip() (changed bool, err error) {
	keys, err := readGossipKeys(id.files.gossip)
	if err != nil {
		return false, err
	}
	old := id.GossipKeys()
	if slices.EqualFunc(keys, old, bytes.Equal) {
		return false, nil
	}
	if !slices.ContainsFunc(keys, func(k []byte) bool {
		return slices.ContainsFunc(old, func(o []byte) bool { return bytes.Equal(k, o) })
	}) {
		return false, fmt.Errorf("gossip keys %s: none of them (%s) is in use here (%s), so this node would hear no other node: first add the new key behind the old one on every node (replicad pki gossip-key add)", id.files.gossip, Fingerprints(keys), Fingerprints(old))
	}
	id.gossip.Store(&keys)
	return true, nil
}

// Fingerprint names a gossip key without telling it: 8 hex digits of a digest of its own.
func Fingerprint(key []byte) string {
	sum := sha256.Sum256(append([]byte("replicad gossip key fingerprint "), key...))
	return hex.EncodeToString(sum[:4])
}

// Fingerprints are those of several keys, in their order, with commas.
func Fingerprints(keys [][]byte) string {
	var b bytes.Buffer
	for i, k := range keys {
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteString(Fingerprint(k))
	}
	return b.String()
}

// AddGossipKey makes a new gossip key and puts it last into dir's file: nodes accept it and do not send with it yet. All nodes get that file.
func AddGossipKey(dir string) (keys [][]byte, err error) {
	return changeGossipKeys(dir, func(keys [][]byte) ([][]byte, error) {
		if len(keys) > 1 {
			return nil, fmt.Errorf("the file has %d keys, so a rotation is under way: end it first (use, then drop)", len(keys))
		}
		return append(keys, newGossipKey()), nil
	})
}

// UseGossipKey puts the last key of dir's file first. Every node must have it by then.
func UseGossipKey(dir string) (keys [][]byte, err error) {
	return changeGossipKeys(dir, func(keys [][]byte) ([][]byte, error) {
		if len(keys) < 2 {
			return nil, errors.New("the file has one key, and nodes send with it: add another first")
		}
		last := len(keys) - 1
		return append([][]byte{keys[last]}, keys[:last]...), nil
	})
}

// DropGossipKeys leaves the first key of dir's file alone. Every node must speak with it by then.
func DropGossipKeys(dir string) (keys [][]byte, err error) {
	return changeGossipKeys(dir, func(keys [][]byte) ([][]byte, error) {
		if len(keys) < 2 {
			return nil, errors.New("the file has one key: there is nothing to drop")
		}
		return keys[:1], nil
	})
}

// changeGossipKeys replaces the file whole.
func changeGossipKeys(dir string, change func([][]byte) ([][]byte, error)) ([][]byte, error) {
	path := filepath.Join(dir, gossipFile)
	keys, err := readGossipKeys(path)
	if err == nil {
		if keys, err = change(keys); err != nil {
			err = fmt.Errorf("gossip keys %s: %w", path, err)
		}
	}
	if err != nil {
		return nil, err
	}
	return keys, replaceFiles(dir, []file{{gossipFile, 0o600, gossipText(keys)}})
}

func newGossipKey() []byte {
	key := make([]byte, gossipKeyBytes)
	rand.Read(key) // never fails (crypto/rand)
	return key
}

func gossipText(keys [][]byte) []byte {
	var b bytes.Buffer
	for _, k := range keys {
		b.WriteString(hex.EncodeToString(k) + "\n")
	}
	return b.Bytes()
}

func readGossipKeys(path string) ([][]byte, error) {
	b, err := readFile(path, true)
	if err != nil {
		return nil, err
	}
	return parseGossipKeys(path, b)
}

func parseGossipKeys(path string, b []byte) ([][]byte, error) {
	lines := bytes.Fields(b)
	if len(lines) == 0 || len(lines) > maxGossipKeys {
		return nil, fmt.Errorf("gossip keys %s: %d keys: want 1 to %d, one a line: copy the gossip.key that `replicad pki init` made", path, len(lines), maxGossipKeys)
	}
	var keys [][]byte
	for i, line := range lines {
		key, err := hex.DecodeString(string(line))
		if err != nil || len(key) != gossipKeyBytes {
			return nil, fmt.Errorf("gossip keys %s: key %d: want %d hex digits: copy the gossip.key that `replicad pki init` made", path, i+1, 2*gossipKeyBytes)
		}
		if slices.ContainsFunc(keys, func(k []byte) bool { return bytes.Equal(k, key) }) {
			return nil, fmt.Errorf("gossip keys %s: key %d is there twice", path, i+1)
		}
		keys = append(keys, key)
	}
	return keys, nil
}
