package endpoint

import (
	"errors"
	"fmt"
	"io"

	"github.com/quic-go/quic-go"
)

// What is known when a peer does not answer. They are different facts: none of them says that a node is dead.
var (
	ErrRefused = errors.New("connection refused: the host is up, no daemon has the port") // probe only
	ErrSilent  = errors.New("no answer")
	ErrReset   = errors.New("connection reset: the peer's daemon restarted")
	ErrClosed  = errors.New("endpoint closed")
	// ErrIdentity: one end does not take the other's certificate or protocol. It will not until somebody changes that.
	ErrIdentity = errors.New("certificate or protocol refused")
)

// Code says why a connection or stream was closed. The numbers are part of the protocol.
type Code uint64

// Close codes.
const (
	CodeDone     Code = 0 // its user closed it
	CodeShutdown Code = 1 // the daemon is going down
	CodeNoClass  Code = 2 // the node doesn't serve this class (a raft connection to a node that is no voter)
	CodeRefused  Code = 3 // the peer is who it says, and may not do this
	CodeTooMany  Code = 4 // a limit on connections
)

// CloseError is a close that the peer (Remote) or this side asked for.
type CloseError struct {
	Code   Code
	Reason string
	Remote bool
}

func (e *CloseError) Error() string {
	if e.Remote {
		return fmt.Sprintf("closed by the peer (code %d): %q", e.Code, e.Reason)
	}
	return fmt.Sprintf("closed here (code %d): %q", e.Code, e.Reason)
}

// explain translates quic-go's errors to this package's. The original stays in the chain, so deadlines and net.ErrClosed are found.
func explain(err error) error {
	if err == nil || errors.Is(err, io.EOF) {
		return err
	}
	var (
		app       *quic.ApplicationError
		reset     *quic.StatelessResetError
		idle      *quic.IdleTimeoutError
		handshake *quic.HandshakeTimeoutError
		transport *quic.TransportError
	)
	switch {
	case errors.As(err, &app):
		return fmt.Errorf("%w%.0w", &CloseError{Code: Code(app.ErrorCode), Reason: app.ErrorMessage[:min(len(app.ErrorMessage), maxReason)], Remote: app.Remote}, err)
	case errors.As(err, &reset):
		return fmt.Errorf("%w%.0w", ErrReset, err)
	case errors.As(err, &idle):
		return fmt.Errorf("%w for %v: %w", ErrSilent, idleTimeout, err)
	case errors.As(err, &handshake):
		return fmt.Errorf("%w within %v: %w", ErrSilent, handshakeTimeout, err)
	case errors.As(err, &transport) && transport.Remote && transport.ErrorCode.IsCryptoError():
		return fmt.Errorf("the peer refused this node's certificate or protocol: compare the two nodes' cluster, CA and clocks, its log says more: %w%.0w", err, ErrIdentity)
	case errors.As(err, &transport) && transport.ErrorCode.IsCryptoError():
		return fmt.Errorf("%w%.0w", err, ErrIdentity)
	case errors.Is(err, quic.ErrTransportClosed), errors.Is(err, quic.ErrServerClosed):
		return fmt.Errorf("%w: %w", ErrClosed, err)
	}
	return err
}
