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

/* What comes RPI_AHEAD later is asked for into the second cache, where waiting for memory holds up nothing that is copied, and what comes RPI_NEAR
 * later into the first. Either alone is slower (docs/decisions, D93). */
static void rpi_stripes(uint64_t *acc, uint8_t *dst, const uint8_t *src, size_t stripes, const uint8_t *secret, bool ahead) {
	__m512i sum = _mm512_load_si512(acc);
	for (size_t i = 0; i < stripes; i++, dst += 64, src += 64, secret += XXH_SECRET_CONSUME_RATE) {
		if (ahead) {
			_mm_prefetch((const char *)src + RPI_AHEAD, _MM_HINT_T1);
			_mm_prefetch((const char *)src + RPI_NEAR, _MM_HINT_T0);
		}
		__m512i data = _mm512_loadu_si512(src), keyed = _mm512_xor_si512(data, _mm512_loadu_si512(secret));
		__m512i product = _mm512_mul_epu32(keyed, _mm512_shuffle_epi32(keyed, (_MM_PERM_ENUM)_MM_SHUFFLE(0, 3, 0, 1)));
		sum = _mm512_add_epi64(product, _mm512_add_epi64(sum, _mm512_shuffle_epi32(data, (_MM_PERM_ENUM)_MM_SHUFFLE(1, 0, 3, 2))));
		_mm512_stream_si512((void *)dst, data);
	}
	_mm512_store_si512(acc, sum);
}

/* Non-temporal stores are not ordered by the compare-and-swap to COPIED. */
static void rpi_streamed(void) { _mm_sfence(); }

#define RPI_FUSED
#define RPI_HASHER rpi_hasher_avx512
#include "gather.h"
#else
typedef int rpi_no_avx512;
#endif
