package node

import (
	"slices"
	"strings"

	"github.com/replicad/replicad/internal/config"
	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/pki"
	"github.com/replicad/replicad/membership"
	"github.com/replicad/replicad/replica"
)

func namedKeys(keys [][]byte) (out []membership.Key) {
	for _, k := range keys {
		out = append(out, membership.Key{Name: pki.Fingerprint(k), Secret: k})
	}
	return out
}

func gossipKeyStatus(keys [][]byte, self replica.NodeName, members []membership.Member) (out []control.GossipKeyStatus) {
	for i, k := range keys {
		s := control.GossipKeyStatus{Fingerprint: pki.Fingerprint(k), Primary: i == 0}
		for _, m := range members {
			if !m.Alive || m.Name == self || m.Keys == "" { // an earlier release says nothing of its keys
				continue
			}
			names := strings.Split(m.Keys, ", ")
			if !slices.Contains(names, s.Fingerprint) {
				s.Missing = append(s.Missing, m.Name)
			}
			if names[0] == s.Fingerprint {
				s.SpokenBy = append(s.SpokenBy, m.Name)
			}
		}
		out = append(out, s)
	}
	return out
}

// unknownKeys names the registered nodes whose daemons answer, and of whose gossip keys this node hears nothing: one that lacks the key that the
// others speak with can't read what they ask, so to gossip it is dead. A daemon that is gone gossips as little, whatever its keys.
func unknownKeys(self replica.NodeName, members []membership.Member, nodes []control.NodeStatus, answers func(replica.NodeName) bool) (names []replica.NodeName) {
	for _, n := range nodes {
		up := n.Name != self && !n.Revoked && answers(n.Name)
		if up && !slices.ContainsFunc(members, func(m membership.Member) bool { return m.Name == n.Name && m.Alive && m.Keys != "" }) {
			names = append(names, n.Name)
		}
	}
	return names
}

// GossipKeys says which gossip keys a configuration's node has, by their fingerprints; empty if they can't be read, which Check says.
func GossipKeys(c *config.Config) string {
	id, err := Identity(c)
	if err != nil {
		return ""
	}
	keys := id.GossipKeys()
	text := "gossip key " + pki.Fingerprint(keys[0])
	if len(keys) > 1 {
		text += " is sent with; also accepted: " + pki.Fingerprints(keys[1:])
	}
	return text
}
