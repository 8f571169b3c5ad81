package pt

import (
	"github.com/replicad/replicad/internal/durable/formats/pickles"
	"github.com/replicad/replicad/replica"
)

// dtypes have the names of torch, and those of the storages that torch.save names; types that came later have none.
var dtypes = []struct {
	dtype         replica.DType
	name, storage string
}{
	{replica.U8, "uint8", "ByteStorage"}, {replica.I8, "int8", "CharStorage"}, {replica.I16, "int16", "ShortStorage"}, {replica.I32, "int32", "IntStorage"},
	{replica.I64, "int64", "LongStorage"}, {replica.F16, "float16", "HalfStorage"}, {replica.BF16, "bfloat16", "BFloat16Storage"}, {replica.F32, "float32", "FloatStorage"},
	{replica.F64, "float64", "DoubleStorage"}, {replica.Bool, "bool", "BoolStorage"}, {replica.U16, "uint16", ""}, {replica.U32, "uint32", ""},
	{replica.U64, "uint64", ""}, {replica.F8E4M3, "float8_e4m3fn", ""}, {replica.F8E5M2, "float8_e5m2", ""},
}

// TypeName is torch's name of an element type.
func TypeName(t replica.DType) string {
	for _, d := range dtypes {
		if d.dtype == t {
			return d.name
		}
	}
	return ""
}

// TypeOf is the element type that a class of torch's names; 0: none that a generation can hold.
func TypeOf(v any) replica.DType {
	c, ok := v.(pickles.Class)
	for _, d := range dtypes {
		if ok && c == (pickles.Class{Module: "torch", Name: d.name}) {
			return d.dtype
		}
	}
	return 0
}

// storageOf is the element type of a storage's class.
func storageOf(c pickles.Class) replica.DType {
	for _, d := range dtypes {
		if c.Module == "torch" && c.Name == d.storage && d.storage != "" {
			return d.dtype
		}
	}
	return 0
}

func storageName(t replica.DType) string {
	for _, d := range dtypes {
		if d.dtype == t {
			return d.storage
		}
	}
	return ""
}
