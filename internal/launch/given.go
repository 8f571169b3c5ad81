package launch

import (
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"syscall"

	"github.com/replicad/replicad/internal/usage"
)

// Prepared is the connection to a process that was prepared for this launcher (replicad_preload.py says how); nil: there is none.
func Prepared() (*os.File, error) {
	const name = "REPLICAD_PRELOAD_FD"
	text := os.Getenv(name)
	if text == "" {
		return nil, nil
	}
	fd, err := strconv.Atoi(text)
	if err != nil || fd < 3 {
		return nil, fmt.Errorf("%s=%q: want the number of a descriptor, 3 or more", name, text)
	}
	syscall.CloseOnExec(fd)
	return os.NewFile(uintptr(fd), name), nil
}

// maxTokenFile bounds a file with a token, in bytes.
const maxTokenFile = 4096

// ReadToken takes the job's token from a file, or where none is named from the environment. Never
// from the command line, which every user of the host can read.
func (o *Options) ReadToken(name string) error {
	if name == "" {
		if o.Token == "" {
			o.Token = os.Getenv("REPLICAD_TOKEN")
		}
		return nil
	}
	file, err := os.Open(name)
	if err != nil {
		return usage.Wrong(fmt.Errorf("--token-file: %w", err))
	}
	defer file.Close()
	b, err := io.ReadAll(io.LimitReader(file, maxTokenFile))
	if err != nil {
		return usage.Wrong(fmt.Errorf("--token-file %s: %w", name, err))
	}
	if o.Token = strings.TrimSpace(string(b)); o.Token == "" {
		return usage.Wrong(fmt.Errorf("--token-file %s is empty: put there what `replicad job token %s` prints on a node", name,
			o.Job))
	}
	return nil
}
