package kept

import "os"

// Gather reads what --keep-file names into sealed memory; nil: it names nothing.
func Gather(paths []string) (*os.File, error) {
	if len(paths) == 0 {
		return nil, nil
	}
	b, err := Collect(paths)
	if err != nil {
		return nil, err
	}
	return Seal(b)
}
