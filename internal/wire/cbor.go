package wire

import (
	"bytes"
	"fmt"

	"github.com/fxamacker/cbor/v2"
)

var (
	encoder = must(cbor.CoreDetEncOptions().UserBufferEncMode())
	decoder = must(cbor.DecOptions{
		DupMapKey:         cbor.DupMapKeyEnforcedAPF,
		IndefLength:       cbor.IndefLengthForbidden,
		TagsMd:            cbor.TagsForbidden,
		ExtraReturnErrors: cbor.ExtraDecErrorUnknownField,
		UTF8:              cbor.UTF8RejectInvalid,
		FieldNameMatching: cbor.FieldNameMatchingCaseSensitive,
		MaxNestedLevels:   maxNesting,
		MaxArrayElements:  maxElements,
		MaxMapPairs:       maxPairs,
	}.DecMode())
)

// must turns constant options that the library refuses into a panic at start: no input can cause it.
func must[M any](m M, err error) M {
	if err != nil {
		panic(err)
	}
	return m
}

// Marshal makes the body of a frame.
func Marshal(v any) ([]byte, error) {
	var b bytes.Buffer
	err := encoder.MarshalToBuffer(v, &b)
	return b.Bytes(), err
}

// Unmarshal reads one CBOR value that fills body exactly. Duplicate keys, unknown fields, tags, indefinite lengths, invalid
// UTF-8, trailing bytes, and counts or nesting beyond the limits are refused.
func Unmarshal(body []byte, v any) error {
	if len(body) > MaxState {
		return fmt.Errorf("%w: body of %d bytes, at most %d", ErrFrame, len(body), MaxState)
	}
	if err := decoder.Unmarshal(body, v); err != nil {
		return fmt.Errorf("%w: %T: %w", ErrFrame, v, err)
	}
	return nil
}
