package pt

import (
	"slices"

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
	{replica.U64, "uint64", ""}, {replica.F8E4M3, "float8_e4m3fn", ""}, {replica.F8E5M2, "float8_e5m2", ""}, {replica.C64, "complex64", "ComplexFloatStorage"},
	{replica.F8E8M0, "float8_e8m0fnu", ""}, {replica.F8E4M3FNUZ, "float8_e4m3fnuz", ""}, {replica.F8E5M2FNUZ, "float8_e5m2fnuz", ""}, {replica.F4X2, "float4_e2m1fn_x2", ""},
}

// others are storages of types that a generation has no name for, and the size of an element.
var others = map[string]uint64{"ComplexDoubleStorage": 16, "ComplexHalfStorage": 4, "QInt8Storage": 1, "QUInt8Storage": 1, "QInt32Storage": 4, "QUInt4x2Storage": 1, "QUInt2x4Storage": 1}

// untyped is a storage of bytes: the tensor says the type.
var untyped = pickles.Class{Module: "torch.storage", Name: "UntypedStorage"}

// elementSize is that of a storage's class; 0: it is none.
func elementSize(c pickles.Class) uint64 {
	switch d := storageOf(c); {
	case d != 0:
		return d.Size()
	case c == untyped:
		return 1
	case c.Module == "torch":
		return others[c.Name]
	}
	return 0
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

// unnamed are types of torch's that a generation has no name for.
var unnamed = []string{"complex128", "complex32", "qint8", "quint8", "qint32", "quint4x2", "quint2x4", "bits8", "bits16"}

// IsType tells whether a class is an element type of torch's, whether or not a generation can hold it.
func IsType(c pickles.Class) bool {
	return TypeOf(c) != 0 || c.Module == "torch" && slices.Contains(unnamed, c.Name)
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
