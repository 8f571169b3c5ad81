package catalog

import "github.com/replicad/replicad/internal/durable/catalog/damage"

// Plain says in a few words, for people, why a read failed.
func Plain(err error) string { return damage.Plain(err) }

// IsDamage reports whether an error says that bytes are not those that were written. A store that does not answer, or refuses, says nothing
// of them.
func IsDamage(err error) bool { return damage.Is(err) }
