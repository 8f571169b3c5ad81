package node

import (
	"context"

	"github.com/replicad/replicad/internal/endpoint"
	"github.com/replicad/replicad/replica"
	"github.com/replicad/replicad/transfer"
)

// bulkLane is a lane over a bulk-class QUIC connection.
type bulkLane struct{ *endpoint.Conn }

func (l bulkLane) Open(ctx context.Context) (transfer.Stream, error) {
	s, err := l.Conn.Open(ctx)
	if err != nil {
		return nil, err // a nil *Stream in an interface would not be nil
	}
	return s, nil
}
func (l bulkLane) Close() { l.Conn.Close("lane done") }

// dialLane opens a lane to a node for parts.
func (d *daemon) dialLane(ctx context.Context, addr string, node replica.NodeName) (transfer.Lane, error) {
	c, err := d.endpoint.Dial(ctx, addr, node, endpoint.Bulk)
	if err != nil {
		return nil, err
	}
	return bulkLane{c}, nil
}
