// Package tier is the durable tier as daemons use it: they write generations into a store, find what lies there, read it back, and remove what is
// not kept. Package catalog does the work, and knows no daemon.
//
// A directory may have generations of the former layout, which package checkpoint wrote. They are found, read, marked and removed like the others;
// new ones are written in the present layout alone.
//
// A Tier may be used by several goroutines. It keeps no truth of its own, but remembers which epochs its fleet has claimed.
package tier
