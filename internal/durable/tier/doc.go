// Package tier is the durable tier as daemons use it: they write generations into a store, find what lies there, read it back, and remove what is
// not kept. Package catalog does the work, and knows no daemon.
//
// A Tier may be used by several goroutines. It keeps no truth of its own, but remembers which epochs its fleet has claimed.
package tier
