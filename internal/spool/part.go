package spool

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// Part is one part in the spool. One goroutine appends to it while another reads what was appended before; Close comes after both.
type Part struct {
	of    *Spool
	write write
	bytes uint64
	path  string
	disk  *os.File // nil: it lies in memory
	mem   []byte
	at    uint64 // appended
	once  sync.Once
}

// Where names the place, for people.
func (p *Part) Where() string {
	if p.disk == nil {
		return "spool_memory"
	}
	return p.path
}

// Append adds bytes. Its caller may change b again only after success.
func (p *Part) Append(ctx context.Context, b []byte) error {
	if uint64(len(b)) > p.bytes-p.at {
		return fmt.Errorf("spool %s: %d bytes more than the part has", p.Where(), uint64(len(b))-(p.bytes-p.at))
	}
	if p.disk == nil {
		copy(p.mem[p.at:], b)
		p.at += uint64(len(b))
		return nil
	}
	off := int64(p.at)
	err := within(ctx, func() error {
		_, err := p.disk.WriteAt(b, off)
		return err
	})
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		err = fmt.Errorf("%w: %w", ErrFull, err)
	}
	if err != nil {
		return fmt.Errorf("spool %s: %w", p.path, err)
	}
	p.at += uint64(len(b))
	p.of.mu.Lock()
	defer p.of.mu.Unlock()
	p.of.missing -= uint64(len(b))
	return nil
}

// Sync has what was appended reach the disk.
func (p *Part) Sync(ctx context.Context) error {
	if p.disk == nil {
		return nil
	}
	if err := within(ctx, p.disk.Sync); err != nil {
		return fmt.Errorf("spool %s: %w", p.path, err)
	}
	return nil
}

// ReadAt reads bytes that were appended. After an error b must not be used again.
func (p *Part) ReadAt(ctx context.Context, b []byte, off uint64) error {
	if p.disk == nil {
		copy(b, p.mem[off:])
		return nil
	}
	err := within(ctx, func() error {
		_, err := p.disk.ReadAt(b, int64(off))
		return err
	})
	if err != nil {
		return fmt.Errorf("spool %s: %w", p.path, err)
	}
	return nil
}

// Close removes the part, and waits for that no longer than ctx lasts. The room is free once it is removed.
func (p *Part) Close(ctx context.Context) (err error) {
	p.once.Do(func() {
		if p.disk == nil {
			err = unix.Munmap(p.mem)
			p.of.mu.Lock()
			defer p.of.mu.Unlock()
			p.of.memory.remove(p.write, p.bytes)
			return
		}
		err = within(ctx, func() error {
			err := errors.Join(p.disk.Close(), os.Remove(p.path))
			p.of.mu.Lock()
			defer p.of.mu.Unlock()
			p.of.files.remove(p.write, p.bytes)
			p.of.missing -= p.bytes - p.at
			return err
		})
	})
	return err
}
