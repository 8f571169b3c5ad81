/* hash_portable.c: the inner loops without vector instructions, which no build ships: what the others are held against. */
#include <string.h>

#include "harness.h"
#define XXH_INLINE_ALL
#define XXH_VECTOR 0 /* XXH_SCALAR */
#include "xxhash.h"
#define rpi_stream memcpy
static void rpi_streamed(void) {}
#define RPI_HASHER hasher_portable
#include "../src/gather.h"
