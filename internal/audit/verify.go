package audit

import (
	"bufio"
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"slices"
)

const maxBreaks = 100 // that are listed; a file of another kind would have one a line

// Report is what Verify found.
type Report struct {
	Lines       int
	First, Last uint64   // numbers of the first and the last line
	Digest      string   // of the last line
	Dropped     uint64   // lines that the log says were lost before they were written
	Breaks      []string // where the chain does not hold, at most maxBreaks
	Notes       []string // what is as it may be, and worth knowing
}

// Verify follows the chain through the files of one log, in whatever order they are named.
func Verify(paths ...string) (Report, error) {
	type named struct {
		path  string
		first uint64
	}
	var files []named
	for _, path := range paths {
		first, err := firstNumber(path)
		if err != nil {
			return Report{}, err
		}
		files = append(files, named{path, first})
	}
	slices.SortStableFunc(files, func(a, b named) int { return cmp.Compare(a.first, b.first) })
	var v verifier
	for _, f := range files {
		if err := v.file(f.path); err != nil {
			return Report{}, err
		}
	}
	if v.junk.sum != nil {
		v.Notes = append(v.Notes, fmt.Sprintf("%s: %d bytes at the end are no line: one was being written when its daemon died, or is being written now", v.junk.where, v.junk.bytes))
	}
	return v.Report, nil
}

// verifier is where Verify has got to.
type verifier struct {
	Report
	prev string // empty: no line yet
	path string
	at   int // line of the file
	junk junk
}

// junk is what lies between two lines and is none.
type junk struct {
	sum   hash.Hash
	bytes int
	where string
	open  bool // its last piece was the end of a line: should more follow, that newline is part of it
}

func (j *junk) add(b []byte, where string) {
	if j.sum == nil {
		j.sum, j.where = sha256.New(), where
	}
	piece, ends := bytes.CutSuffix(b, []byte{'\n'})
	if j.open {
		j.sum.Write([]byte{'\n'})
		j.bytes++
	}
	j.sum.Write(piece)
	j.bytes += len(piece)
	j.open = ends
}

func openRegular(path string) (*os.File, error) {
	st, err := os.Stat(path)
	if err == nil && !st.Mode().IsRegular() {
		err = fmt.Errorf("%s is not a regular file", path)
	}
	if err != nil {
		return nil, fmt.Errorf("audit log: %w", err)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("audit log: %w", err)
	}
	return f, nil
}

// firstNumber is that of a file's first line; zero if it has none.
func firstNumber(path string) (uint64, error) {
	f, err := openRegular(path)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	for r := bufio.NewReaderSize(f, maxLine+1); ; {
		b, err := r.ReadSlice('\n')
		if l, bad := parse(bytes.TrimSuffix(b, []byte{'\n'})); bad == nil {
			return l.N, nil
		}
		switch {
		case errors.Is(err, io.EOF):
			return 0, nil
		case err != nil && !errors.Is(err, bufio.ErrBufferFull):
			return 0, fmt.Errorf("audit log %s: %w", path, err)
		}
	}
}

func (v *verifier) file(path string) error {
	f, err := openRegular(path)
	if err != nil {
		return err
	}
	defer f.Close()
	v.path, v.at = path, 1
	begins, partial, lines := true, false, v.Lines
	for r := bufio.NewReaderSize(f, maxLine+1); ; {
		b, err := r.ReadSlice('\n')
		if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, bufio.ErrBufferFull) {
			return fmt.Errorf("audit log %s, line %d: %w", path, v.at, err)
		}
		if len(b) > 0 {
			l, bad := parse(bytes.TrimSuffix(b, []byte{'\n'}))
			if bad == nil && !partial && !errors.Is(err, bufio.ErrBufferFull) {
				v.line(l, bytes.TrimSuffix(b, []byte{'\n'}), begins)
				begins = false
			} else {
				v.junk.add(b, v.where())
			}
		}
		partial = errors.Is(err, bufio.ErrBufferFull)
		if errors.Is(err, io.EOF) {
			break
		}
		if !partial {
			v.at++
		}
	}
	if v.Lines == lines {
		v.Notes = append(v.Notes, path+" has no line")
	}
	return nil
}

func (v *verifier) where() string { return fmt.Sprintf("%s, line %d", v.path, v.at) }

// line takes the next one of the chain, whose bytes are b.
func (v *verifier) line(l line, b []byte, begins bool) {
	bad := func(format string, args ...any) {
		if len(v.Breaks) < maxBreaks {
			v.Breaks = append(v.Breaks, v.where()+": "+fmt.Sprintf(format, args...))
		}
	}
	if begins && l.Format != format {
		bad("format %q, want %q: the beginning of the file is missing, or another program wrote it", l.Format, format)
	}
	switch {
	case v.prev == "" && l.N == 1 && l.Prev != chainStart:
		bad("it is number 1 and follows a line that is not there")
	case v.prev == "" && l.N > 1:
		v.Notes = append(v.Notes, fmt.Sprintf("%s begins with number %d: what came before is not among the files", v.path, l.N))
	case v.prev == "":
	case l.N != v.Last+1:
		bad("number %d follows number %d", l.N, v.Last)
	case l.Prev != v.prev:
		bad("number %d was written after another line than the one before it: that was changed, or this", l.N)
	}
	switch have := v.junk; {
	case have.sum == nil && l.Torn == nil:
	case have.sum == nil:
		bad("%d bytes before it are missing, which it names", l.Torn.Bytes)
	case l.Torn == nil:
		bad("%d bytes before it, from %s on, are no line, and it does not name them", have.bytes, have.where)
	case have.bytes != l.Torn.Bytes || hex.EncodeToString(have.sum.Sum(nil)) != l.Torn.SHA256:
		bad("the bytes before it, from %s on, are not those that it names", have.where)
	default:
		v.Notes = append(v.Notes, fmt.Sprintf("%s: %d bytes of a line that was being written when its daemon died", have.where, have.bytes))
	}
	v.junk = junk{}
	if v.Lines == 0 {
		v.First = l.N
	}
	v.Lines++
	v.Dropped += l.Dropped
	v.Last, v.Digest = l.N, digest(b)
	v.prev = v.Digest
}
