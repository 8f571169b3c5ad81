// Package admin asks a daemon on its admin socket, as verbs of the program do. It asks for the status, gives orders, which an operator may
// sign, and follows a write to the durable tier.
package admin

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/replicad/replicad/internal/unixsock"
)

// Limits of a call on the admin socket.
const (
	timeout  = 30 * time.Second
	maxReply = 64 << 20
)

// Client asks a daemon on its admin socket.
type Client struct {
	Socket  string
	Daemons []uint32 // users whose daemon is believed there; none: each
}

// nobody is an error of a socket on which no daemon answers.
type nobody struct{ error }

func (e nobody) Unwrap() error { return e.error }

// IsNobody reports whether no daemon answered.
func IsNobody(err error) bool { return errors.As(err, new(nobody)) }

// call does one request and returns the body of a successful reply. It may take so much longer than others.
func (c Client) call(ctx context.Context, method, path string, request []byte, longer time.Duration) ([]byte, error) {
	socket := c.Socket
	ctx, cancel := context.WithTimeout(ctx, timeout+longer)
	defer cancel()
	transport := &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return unixsock.Dial(ctx, "unix", socket, c.Daemons...)
	}}
	req, err := http.NewRequestWithContext(ctx, method, "http://replicad"+path, bytes.NewReader(request))
	if err != nil {
		return nil, err
	}
	resp, err := (&http.Client{Transport: transport}).Do(req)
	if u, ok := errors.AsType[*url.Error](err); ok {
		err = u.Err // without the address that only names the socket to the HTTP client
	}
	if err != nil {
		return nil, nobody{fmt.Errorf("no daemon answers on %s: %w (start one with `replicad daemon`, or name its socket with --socket)",
			socket, err)}
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxReply+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("daemon on %s: %w", socket, err)
	case len(body) > maxReply:
		return nil, fmt.Errorf("daemon on %s: a reply of more than %d bytes", socket, maxReply)
	case resp.StatusCode/100 != 2:
		why := strings.TrimSpace(string(body))
		if why == "" || resp.StatusCode != http.StatusConflict { // a refusal says all by itself
			why = resp.Status + ": " + why
		}
		return nil, fmt.Errorf("daemon on %s: %s", socket, why)
	}
	return body, nil
}
