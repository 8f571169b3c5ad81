/* hash_avx512.c: the inner loops for AVX-512, of processors that don't slow down for it (rpi_hash asks for VBMI: Ice Lake, Zen 4 and later). */
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#pragma GCC target("avx512f")
#include <immintrin.h>
#include <string.h>

#include "internal.h"
#define XXH_INLINE_ALL
#define XXH_VECTOR 3 /* XXH_AVX512 */
#include "xxhash.h"

static void rpi_stream(uint8_t *dst, const uint8_t *src, size_t n) {
	size_t head = -(uintptr_t)dst & 63;
	memcpy(dst, src, head);
	dst += head, src += head, n -= head;
	for (; n >= 128; dst += 128, src += 128, n -= 128) {
		_mm_prefetch((const char *)src + RPI_PIECE, _MM_HINT_T0); /* the next piece, which is digested next */
		_mm_prefetch((const char *)src + RPI_PIECE + 64, _MM_HINT_T0);
		__m512i a = _mm512_loadu_si512(src), b = _mm512_loadu_si512(src + 64);
		_mm512_stream_si512((void *)dst, a);
		_mm512_stream_si512((void *)(dst + 64), b);
	}
	memcpy(dst, src, n);
}

/* Non-temporal stores are not ordered by the compare-and-swap to COPIED. */
static void rpi_streamed(void) { _mm_sfence(); }

#define RPI_HASHER rpi_hasher_avx512
#include "gather.h"
#else
typedef int rpi_no_avx512;
#endif
