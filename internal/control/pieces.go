package control

import (
	"fmt"

	"github.com/replicad/replicad/internal/wire"
)

// PieceBytes is how much of a large message one frame carries: a link that brings less than that in LinkSilent is given up.
const PieceBytes = 256 << 10

// piece is a part of a message that is too large for one frame. The pieces of one message come in order, and those of another after its last.
type piece struct {
	Kind  wire.Kind `cbor:"1,keyasint"`
	Total uint64    `cbor:"2,keyasint"` // bytes of the whole body
	Bytes []byte    `cbor:"3,keyasint"`
}

// inPieces encodes a message of any size up to wire.MaxState, as one frame or in pieces. Several links may send them: nobody writes to them.
func inPieces(k wire.Kind, v any) ([][]byte, error) {
	body, err := wire.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("encode message %d: %w", k, err)
	}
	if len(body) <= PieceBytes {
		frame, err := wire.AppendBody(nil, k, body)
		return [][]byte{frame}, err
	}
	if len(body) > wire.MaxState {
		return nil, fmt.Errorf("encode message %d: %d bytes, at most %d", k, len(body), wire.MaxState)
	}
	var out [][]byte
	for total := uint64(len(body)); len(body) > 0; {
		n := min(len(body), PieceBytes)
		frame, err := wire.Append(nil, KindPiece, piece{k, total, body[:n]})
		if err != nil {
			return nil, err
		}
		out, body = append(out, frame), body[n:]
	}
	return out, nil
}

// assembly joins the pieces of a message; what has arrived is all that is allocated for.
type assembly struct {
	kind  wire.Kind
	total uint64
	body  []byte
}

// add takes a piece; whole tells that it was the last, and that kind and body are the message.
func (a *assembly) add(p piece) (kind wire.Kind, body []byte, whole bool, err error) {
	if len(a.body) == 0 {
		a.kind, a.total = p.Kind, p.Total
	}
	switch have := uint64(len(a.body) + len(p.Bytes)); {
	case p.Kind != a.kind || p.Total != a.total:
		return 0, nil, false, fmt.Errorf("%w: a piece of message %d of %d bytes among those of message %d of %d", wire.ErrFrame, p.Kind, p.Total, a.kind, a.total)
	case p.Total > wire.MaxState || len(p.Bytes) == 0 || have > p.Total:
		return 0, nil, false, fmt.Errorf("%w: a piece of %d bytes after %d of %d, at most %d", wire.ErrFrame, len(p.Bytes), len(a.body), p.Total, wire.MaxState)
	case p.Kind == KindPiece:
		return 0, nil, false, fmt.Errorf("%w: pieces of pieces", wire.ErrFrame)
	}
	a.body = append(a.body, p.Bytes...)
	if uint64(len(a.body)) < a.total {
		return 0, nil, false, nil
	}
	kind, body = a.kind, a.body
	*a = assembly{}
	return kind, body, true, nil
}
