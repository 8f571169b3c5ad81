/* hash_avx2.c: the inner loops for AVX2. GCC switches instruction sets within a file, so no file needs flags of its own; other
 * compilers use hash.c's. */
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#pragma GCC target("avx2")
#include <immintrin.h>
#include <string.h>

#include "internal.h"
#define XXH_INLINE_ALL
#define XXH_VECTOR 2 /* XXH_AVX2 */
#include "xxhash.h"

static void rpi_stream(uint8_t *dst, const uint8_t *src, size_t n) {
	size_t head = -(uintptr_t)dst & 31;
	memcpy(dst, src, head);
	dst += head, src += head, n -= head;
	for (; n >= 128; dst += 128, src += 128, n -= 128) {
		_mm_prefetch((const char *)src + RPI_PIECE, _MM_HINT_T0); /* the next piece, which is digested next */
		_mm_prefetch((const char *)src + RPI_PIECE + 64, _MM_HINT_T0);
		__m256i a = _mm256_loadu_si256((const __m256i *)src), b = _mm256_loadu_si256((const __m256i *)(src + 32));
		__m256i c = _mm256_loadu_si256((const __m256i *)(src + 64)), d = _mm256_loadu_si256((const __m256i *)(src + 96));
		_mm256_stream_si256((__m256i *)dst, a);
		_mm256_stream_si256((__m256i *)(dst + 32), b);
		_mm256_stream_si256((__m256i *)(dst + 64), c);
		_mm256_stream_si256((__m256i *)(dst + 96), d);
	}
	memcpy(dst, src, n);
}

/* See hash_avx512.c. */
static void rpi_stripes(uint64_t *acc, uint8_t *dst, const uint8_t *src, size_t stripes, const uint8_t *secret, bool ahead) {
	__m256i sum[2] = {_mm256_load_si256((const __m256i *)acc), _mm256_load_si256((const __m256i *)acc + 1)};
	for (size_t i = 0; i < stripes; i++, dst += 64, src += 64, secret += XXH_SECRET_CONSUME_RATE) {
		if (ahead) {
			_mm_prefetch((const char *)src + RPI_AHEAD, _MM_HINT_T1);
			_mm_prefetch((const char *)src + RPI_NEAR, _MM_HINT_T0);
		}
		for (int k = 0; k < 2; k++) {
			__m256i data = _mm256_loadu_si256((const __m256i *)src + k), keyed = _mm256_xor_si256(data, _mm256_loadu_si256((const __m256i *)secret + k));
			__m256i product = _mm256_mul_epu32(keyed, _mm256_shuffle_epi32(keyed, _MM_SHUFFLE(0, 3, 0, 1)));
			sum[k] = _mm256_add_epi64(product, _mm256_add_epi64(sum[k], _mm256_shuffle_epi32(data, _MM_SHUFFLE(1, 0, 3, 2))));
			_mm256_stream_si256((__m256i *)dst + k, data);
		}
	}
	_mm256_store_si256((__m256i *)acc, sum[0]);
	_mm256_store_si256((__m256i *)acc + 1, sum[1]);
}

/* Non-temporal stores are not ordered by the compare-and-swap to COPIED. */
static void rpi_streamed(void) { _mm_sfence(); }

#define RPI_FUSED
#define RPI_HASHER rpi_hasher_avx2
#include "gather.h"
#else
typedef int rpi_no_avx2;
#endif
