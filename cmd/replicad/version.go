package main

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/replicad/replicad/internal/console"
	"github.com/spf13/cobra"
)

// release is the project's version; python/src/replicad/__init__.py has the same.
const release = "0.1.0"

// version, the source's revision, is set by the linker (see Makefile).
var version string

// versionText is what the binary knows of its source: the linker's word, else what the go command recorded.
func versionText() string {
	if version != "" {
		return version
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	var revision, dirty string
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision":
			revision = s.Value[:min(len(s.Value), 12)]
		case s.Key == "vcs.modified" && s.Value == "true":
			dirty = "-dirty"
		}
	}
	if revision != "" {
		return revision + dirty
	}
	return info.Main.Version
}

// built is the line that both `replicad version` and `replicad --version` print.
func built() string {
	return fmt.Sprintf("replicad %s %s %s %s/%s\n", release, versionText(), runtime.Version(), runtime.GOOS, runtime.GOARCH)
}

func newVersion(std stdio) *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the release, its source and its platform",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			err := console.Write(std.out, "%s", console.Paragraph(built()))
			return err
		},
	}
}
