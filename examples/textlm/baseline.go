package main

import (
	"context"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/replicad/replicad/examples/textlm/model"
	"github.com/replicad/replicad/libreplicad"
	"github.com/replicad/replicad/replica"
)

// baseline trains all ranks as goroutines of this process: same mathematics, same collectives over TCP, no replicad.
func baseline(ctx context.Context, o options, stdout io.Writer) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	kv := newKV(ctx)
	var mu sync.Mutex
	var wg sync.WaitGroup
	for rank := range o.world {
		wg.Go(func() {
			m, err := newModel(o, rank, o.world, model.Heap)
			if err == nil {
				t := &trainer{Rank: &solo{kv: kv}, model: m, rank: rank, world: o.world, host: "127.0.0.1", opt: o, out: newEvents(stdout, &mu, rank)}
				t.out.emit(event{Event: "start"})
				err = t.train(ctx)
			}
			if err != nil {
				cancel(fmt.Errorf("rank %d: %w", rank, err))
			}
		})
	}
	wg.Wait()
	return context.Cause(ctx)
}

// solo is a Rank without replicad: nothing is kept, so a lost peer ends the run.
type solo struct {
	kv     *kv
	joined int
}

func (s *solo) Join(context.Context) (libreplicad.Order, error) {
	if s.joined++; s.joined > 2 {
		return libreplicad.Order{}, fmt.Errorf("a rank was lost, and nothing was kept: %w", libreplicad.ErrStopped)
	}
	action := libreplicad.Load // of what is there already
	if s.joined == 1 {
		action = libreplicad.Init
	}
	return libreplicad.Order{Action: action, Epoch: 1}, nil
}

func (s *solo) SealInitial(context.Context) error              { return nil }
func (s *solo) SealOwn(context.Context) error                  { return nil }
func (s *solo) Load() error                                    { return nil }
func (s *solo) Ready(context.Context) error                    { return nil }
func (s *solo) StepEnter(replica.Step, time.Duration) error    { return nil }
func (s *solo) StepExit(replica.Step, replica.PartFlags) error { return nil }
func (s *solo) FreezeGood()                                    {}
func (s *solo) Fail(string) error                              { return nil }
func (s *solo) Fence() <-chan struct{}                         { return s.kv.ctx.Done() }
func (s *solo) Leave(context.Context) error                    { return nil }

func (s *solo) KVSet(_ context.Context, key string, value []byte) error {
	s.kv.set(key, value)
	return nil
}

func (s *solo) KVGet(ctx context.Context, key string) ([]byte, error) { return s.kv.get(ctx, key) }

// kv is a rendezvous within one process.
type kv struct {
	ctx context.Context
	mu  sync.Mutex
	at  map[string]*entry
}

type entry struct {
	value []byte
	here  chan struct{} // closed once value is set
}

func newKV(ctx context.Context) *kv { return &kv{ctx: ctx, at: map[string]*entry{}} }

func (k *kv) entry(key string) *entry {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.at[key] == nil {
		k.at[key] = &entry{here: make(chan struct{})}
	}
	return k.at[key]
}

func (k *kv) set(key string, value []byte) {
	e := k.entry(key)
	e.value = append([]byte(nil), value...)
	close(e.here)
}

func (k *kv) get(ctx context.Context, key string) ([]byte, error) {
	e := k.entry(key)
	select {
	case <-e.here:
		return e.value, nil
	case <-k.ctx.Done():
		return nil, context.Cause(k.ctx)
	case <-ctx.Done():
		return nil, fmt.Errorf("key %q: %w", key, context.Cause(ctx))
	}
}
