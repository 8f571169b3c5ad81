package admin

import (
	"bytes"
	"cmp"
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"os"

	"github.com/replicad/replicad/internal/config"
	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/pki"
)

// OperatorVariable names an operator's certificate in the environment.
const OperatorVariable = "REPLICAD_OPERATOR"

// LoadOperator finds who signs. Nil: nobody, and the order may concern this daemon's own node alone. One that the configuration names is
// for those who may read it; one that was named for this order must be there.
func LoadOperator(file string, c *config.Config) (*pki.Operator, error) {
	if file = cmp.Or(file, os.Getenv(OperatorVariable)); file == "" {
		if file = c.PKI.Operator; file == "" || !pki.CanLoadOperator(file) {
			return nil, nil
		}
	}
	return pki.LoadOperator(file)
}

// Give gives an order, signed where there is somebody to sign it.
func (c Client) Give(ctx context.Context, order control.Order, o *pki.Operator) ([]byte, error) {
	if o != nil && order.Verb != control.Voters {
		text, err := c.call(ctx, http.MethodGet, "/challenge", nil, 0)
		if err != nil {
			return nil, err
		}
		challenge, err := hex.DecodeString(string(bytes.TrimSpace(text)))
		if err != nil {
			return nil, fmt.Errorf("the leader's challenge: %w (are this program and the daemon of one release?)", err)
		}
		if order, err = order.SignedBy(o.Cluster, challenge, o.Sign); err != nil {
			return nil, err
		}
	}
	b, err := json.Marshal(order)
	if err != nil {
		return nil, err
	}
	return c.call(ctx, http.MethodPost, "/order", b, max(order.Patience()-control.DrainTimeout, 0))
}
