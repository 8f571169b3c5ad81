//go:build cgo

// The C client, for the binding. cgo compiles what lies in this folder only; src/ is also built without Go (Makefile).
#include "src/errors.c"
#include "src/expect.c"
#include "src/geometry.c"
#include "src/channel.c"
#include "src/open.c"
#include "src/part.c"
#include "src/help.c"
#include "src/capture.c"
#include "src/words.c"
#include "src/join.c"
#include "src/lacks.c"
#include "src/said.c"
#include "src/load.c"
#include "src/kv.c"
#include "src/grow.c"
