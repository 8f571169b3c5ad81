package main

import (
	"context"

	"github.com/replicad/replicad/internal/durable"
	"github.com/replicad/replicad/internal/durable/store"
)

// openStore opens the store that a URL or a path names. What a URL does not say, the environment does, as for Amazon's own tools.
func openStore(ctx context.Context, url string) (store.Store, error) {
	return durable.Open(ctx, url, durable.Settings{})
}
