package main

import (
	"context"
	"fmt"

	"github.com/replicad/replicad/internal/durable/directory"
	"github.com/replicad/replicad/internal/durable/store"
)

// openStore opens the store that a URL or a path names.
func openStore(ctx context.Context, url string) (store.Store, error) {
	dir, ok := directoryOf(url)
	if !ok {
		return nil, fmt.Errorf("%s: this program opens directories alone", url)
	}
	return directory.Open(ctx, dir)
}
