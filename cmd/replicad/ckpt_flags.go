package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/replicad/replicad/internal/console"
	"github.com/replicad/replicad/internal/durable/format"
	"github.com/replicad/replicad/internal/durable/place"
	"github.com/spf13/cobra"
)

// ckptVerbs has what all verbs of ckpt share.
type ckptVerbs struct {
	std stdio
	place.Finder
}

// common are the flags of every verb.
type common struct {
	json bool
	who  string
}

func (f *common) add(cmd *cobra.Command, writes bool) *cobra.Command {
	cmd.Flags().BoolVar(&f.json, "json", false, "print JSON")
	if writes {
		cmd.Flags().StringVar(&f.who, "as", "", "your name in pins and in the log (default: user and number)")
	}
	return cmd
}

// name is under which somebody pins.
func (f *common) name() string {
	if f.who != "" {
		return f.who
	}
	return place.DefaultWho()
}

// metrics are for people.
func metrics(m map[string]format.Metric) string {
	var out []string
	for _, k := range sortedKeys(m) {
		out = append(out, fmt.Sprintf("%s=%.5g", console.Line(k), float64(m[k])))
	}
	return console.Dash(strings.Join(out, " "))
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

// alongside names the kept files of a conversion, the first ones.
func alongside(names []string) string {
	const most = 4
	switch n := len(names); {
	case n == 0:
		return ""
	case n == 1:
		return ", and the kept file " + console.Line(names[0])
	case n > most:
		return fmt.Sprintf(", and %d kept files (%s, ...)", n, console.Line(strings.Join(names[:most], ", ")))
	default:
		return fmt.Sprintf(", and %d kept files (%s)", n, console.Line(strings.Join(names, ", ")))
	}
}

// notes prints what is to be known of a conversion.
func (c ckptVerbs) notes(list []string) {
	for _, n := range list {
		console.Printf(c.std.err, "note: %s\n", console.Line(n))
	}
}
