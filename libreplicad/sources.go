//go:build cgo

package libreplicad

import "embed"

// The C sources, for the ABI test. Embedding them also makes the go command build again when one changes: of a package's C
// it looks only at what lies in the package's own folder.
//
//go:embed src/*.c src/*.h include/*.h third_party/xxhash/xxhash.h
var sources embed.FS
