package store

import "context"

// Watch hears how calls go on that have not returned. It travels in their context, through whatever is between caller and store. A store calls it
// from any goroutine, and it must not block.
type Watch struct {
	Moved    func(bytes int)   // the connection, or the kernel, has taken so many bytes more
	Troubled func(what string) // a request has failed some times, or stands still: what it is, what came of it, and what is done about it
}

type watchKey struct{}

// Watching has stores tell w of the calls that are made with the context.
func Watching(ctx context.Context, w Watch) context.Context {
	return context.WithValue(ctx, watchKey{}, w)
}

// Moved tells who watches that bytes were taken.
func Moved(ctx context.Context, bytes int) {
	if w, ok := ctx.Value(watchKey{}).(Watch); ok && w.Moved != nil && bytes > 0 {
		w.Moved(bytes)
	}
}

// Troubled tells who watches of a request that does not succeed.
func Troubled(ctx context.Context, what string) {
	if w, ok := ctx.Value(watchKey{}).(Watch); ok && w.Troubled != nil {
		w.Troubled(what)
	}
}
