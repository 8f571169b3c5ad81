package main

import (
	"context"
	"errors"

	"github.com/replicad/replicad/internal/admin"
	"github.com/replicad/replicad/internal/launch"
	"github.com/replicad/replicad/internal/usage"
	"github.com/replicad/replicad/internal/wire"
)

// The exit codes, for scripts. `replicad run` ends with the job's own code instead of 0; ended by a signal, verbs end with
// 128 + its number, but for daemon and keeper, whose regular end that is.
const (
	exitOK     = 0
	exitFailed = 1 // it was tried and failed; `replicad demo`: the weights differ or a fault was not survived
	exitUsage  = 2 // wrong flags or arguments: nothing was tried
	exitConfig = 3 // the configuration or the identity is missing or wrong: nothing was tried
	exitNobody = 4 // no daemon answers on the socket

	exitDoNotRequeue = wire.ExitDoNotRequeue // of `replicad run`: the job ended, and starting it again would only end the same way
	exitRefused      = wire.ExitRefused      // of `replicad run`: the program was refused before it had a rank, and the job is kept for the right one
)

const exitCodesHelp = `Exit codes: 0 done; 1 failed; 2 wrong flags or arguments; 3 configuration or identity missing or
wrong; 4 no daemon answers; 128 + n ended by signal n (daemon and keeper: 0).

` + "`replicad run`" + ` ends with the job's own code: 0 finished, or stopped by ` + "`job stop`" + `; 1 ended by
` + "`job end`" + `, or a program failed after its job had finished; 5 given up, do not requeue; 6 refused: the program is not the
job's, which is kept in memory for the right one. A job is given up after too many recoveries without
a new step, if a program ends again and again before it attaches, if one ends with 0 and never
connected to the daemon (it has no session), or if one that has its rank ends with status 78. Where a step is committed and no rank is left to wait, only the launcher ends, with 6.`

// codedError carries the exit code of an error, where its kind does not have one: package usage marks those of wrong flags and arguments.
type codedError struct {
	code int
	err  error // nil: what there is to say has been said
}

func (e *codedError) Error() string {
	if e.err == nil {
		return ""
	}
	return e.err.Error()
}

func (e *codedError) Unwrap() error { return e.err }

func coded(code int, err error) error {
	if err == nil {
		return nil
	}
	return &codedError{code, err}
}

// servedUntil makes the end that a signal asked for the regular one: daemon and keeper are meant to be ended by SIGTERM.
func servedUntil(ctx context.Context, err error) error {
	if _, ok := endedBySignal(ctx, err); ok {
		return nil
	}
	return err
}

// endedBySignal tells whether err is the end that a signal asked for, and which one: err is the context's own error, or its cause.
func endedBySignal(ctx context.Context, err error) (s launch.Signaled, ok bool) {
	ok = errors.As(context.Cause(ctx), &s) && (errors.Is(err, context.Canceled) || errors.As(err, new(launch.Signaled)))
	return s, ok
}

// exitCode maps an error to the process's exit code.
func exitCode(ctx context.Context, err error) int {
	var c *codedError
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, &c):
		return c.code
	case usage.Is(err):
		return exitUsage
	case admin.IsNobody(err):
		return exitNobody
	}
	if s, ok := endedBySignal(ctx, err); ok {
		return 128 + int(s.Signal)
	}
	return exitFailed
}
