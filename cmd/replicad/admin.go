package main

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

	"github.com/replicad/replicad/internal/config"
	"github.com/replicad/replicad/internal/unixsock"
	"github.com/spf13/cobra"
)

// Limits of a call on the admin socket.
const (
	adminTimeout  = 30 * time.Second
	maxAdminReply = 64 << 20
)

// admin names the admin socket: by itself or through the configuration.
type admin struct {
	target
	socket  string
	daemons []uint32      // users whose daemon is believed there, by the configuration
	longer  time.Duration // than adminTimeout, that a call may take
}

func (a *admin) addFlags(cmd *cobra.Command) {
	a.target.addFlags(cmd)
	cmd.Flags().StringVar(&a.socket, "socket", "", "admin `SOCKET` of the daemon, instead of --config")
}

// find reads the configuration, where that is needed: the admin socket is the one that it names.
func (a *admin) find() (*config.Config, error) {
	if a.socket != "" {
		return new(config.Config), nil
	}
	c, err := a.load(nil)
	if err == nil {
		a.socket, a.daemons = c.AdminSocket, c.Daemons()
	}
	return c, err
}

// call does one request and returns the body of a successful reply.
func (a *admin) call(ctx context.Context, method, path string, request []byte) ([]byte, error) {
	socket := a.socket
	ctx, cancel := context.WithTimeout(ctx, adminTimeout+a.longer)
	defer cancel()
	transport := &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return unixsock.Dial(ctx, "unix", socket, a.daemons...)
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
		return nil, coded(exitNobody, fmt.Errorf("no daemon answers on %s: %w (start one with `replicad daemon`, or name its socket with --socket)", socket, err))
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxAdminReply+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("daemon on %s: %w", socket, err)
	case len(body) > maxAdminReply:
		return nil, fmt.Errorf("daemon on %s: a reply of more than %d bytes", socket, maxAdminReply)
	case resp.StatusCode/100 != 2:
		why := strings.TrimSpace(string(body))
		if why == "" || resp.StatusCode != http.StatusConflict { // a refusal says all by itself
			why = resp.Status + ": " + why
		}
		return nil, fmt.Errorf("daemon on %s: %s", socket, why)
	}
	return body, nil
}
