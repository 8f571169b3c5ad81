package admin

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"

	"github.com/replicad/replicad/internal/control"
)

// StatusBody asks the daemon for its status, in JSON.
func (c Client) StatusBody(ctx context.Context) ([]byte, error) {
	return c.call(ctx, http.MethodGet, "/status", nil, 0)
}

// Status asks the daemon for its status.
func (c Client) Status(ctx context.Context) (control.Status, error) {
	body, err := c.StatusBody(ctx)
	if err != nil {
		return control.Status{}, err
	}
	return ReadStatus(body)
}

// ReadStatus reads what statusBody returned.
func ReadStatus(body []byte) (s control.Status, err error) {
	if err := json.Unmarshal(body, &s); err != nil {
		return s, fmt.Errorf("status: %w (are this program and the daemon of one release?)", err)
	}
	return s, nil
}
