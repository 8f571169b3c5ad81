package spool

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Left is a note that a former life of the owner left beside parts of a write.
type Left struct {
	File string // for people
	Note []byte
	Err  error // why it cannot be read
}

// Note leaves a few words beside the parts of a write, which outlive the daemon with them. It goes with Close of what it returns.
func (s *Spool) Note(ctx context.Context, n Name, note []byte) (*Part, error) {
	if s.cfg.Dir == "" || len(note) > maxNote {
		return nil, fmt.Errorf("a note of %d bytes: %w", len(note), ErrNone)
	}
	w := n.write()
	s.mu.Lock()
	s.files[w] += uint64(len(note))
	s.missing += uint64(len(note))
	s.mu.Unlock()
	p, err := s.fileAt(ctx, w, uint64(len(note)), s.path(n, noteExt))
	if err != nil {
		return nil, err
	}
	if err := p.Append(ctx, note); err != nil {
		return nil, errors.Join(err, p.Close(ctx))
	}
	return p, nil
}

// File is the name of the part's file; empty: it lies in memory.
func (p *Part) File() string {
	if p.disk == nil {
		return ""
	}
	return filepath.Base(p.path)
}

// Left reads the notes that former lives of the owner left.
func (s *Spool) Left(ctx context.Context) (list []Left, err error) {
	if s.cfg.Dir == "" {
		return nil, nil
	}
	list, err = result(ctx, func() (list []Left, err error) {
		names, err := s.former("", noteExt)
		for _, n := range names {
			l := Left{File: filepath.Join(s.cfg.Dir, n)}
			l.Note, l.Err = readNote(l.File)
			list = append(list, l)
		}
		return list, err
	})
	if err != nil {
		return nil, fmt.Errorf("spool_dir %s: %w", s.cfg.Dir, err)
	}
	return list, nil
}

func readNote(path string) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() || info.Size() > maxNote {
		return nil, errors.Join(err, fmt.Errorf("%s is no note", path))
	}
	return io.ReadAll(io.LimitReader(f, maxNote))
}

// LeftPart is a part that a former life left.
type LeftPart struct{ disk *os.File }

// OpenLeft opens the file of a part of so many bytes that a former life of the owner left.
func (s *Spool) OpenLeft(ctx context.Context, file string, bytes uint64) (p *LeftPart, err error) {
	p, err = result(ctx, func() (*LeftPart, error) {
		f, err := s.openLeft(file, bytes)
		if err == nil && ctx.Err() != nil { // nobody waits for it any more
			err = errors.Join(context.Cause(ctx), f.Close())
		}
		return &LeftPart{f}, err
	})
	if err != nil {
		return nil, fmt.Errorf("spool %s: %w", filepath.Join(s.cfg.Dir, file), err)
	}
	return p, nil
}

func (s *Spool) openLeft(file string, bytes uint64) (*os.File, error) {
	names, err := s.former("", file)
	if err != nil {
		return nil, err
	}
	if len(names) != 1 || names[0] != file {
		return nil, fmt.Errorf("%q: %w", file, os.ErrNotExist)
	}
	f, err := os.OpenFile(filepath.Join(s.cfg.Dir, file), os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && (!info.Mode().IsRegular() || uint64(info.Size()) != bytes) {
		err = fmt.Errorf("it has %d bytes, the part %d", info.Size(), bytes)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// ReadAt reads bytes. After an error b must not be used again.
func (p *LeftPart) ReadAt(ctx context.Context, b []byte, off uint64) error {
	return within(ctx, func() error {
		_, err := p.disk.ReadAt(b, int64(off))
		return err
	})
}

// Close closes the file, which stays.
func (p *LeftPart) Close() error { return p.disk.Close() }

// Drop removes what former lives left of a job, by its UUID, or all where it is empty.
func (s *Spool) Drop(ctx context.Context, job string) (n int, err error) {
	if s.cfg.Dir == "" {
		return 0, nil
	}
	n, err = result(ctx, func() (int, error) { return s.remove(job, func(os.DirEntry) bool { return true }) })
	if err != nil {
		return n, fmt.Errorf("spool_dir %s: %w", s.cfg.Dir, err)
	}
	return n, nil
}
