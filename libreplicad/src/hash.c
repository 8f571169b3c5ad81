/* hash.c: XXH3-128 and the copy that goes with it, for any machine (SSE2, NEON, or plain C, as the compiler has it); and the choice between this,
 * AVX2 and AVX-512. */
#include <string.h>

#include "internal.h"
#define XXH_INLINE_ALL
#include "xxhash.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <emmintrin.h>
static void rpi_stream(uint8_t *dst, const uint8_t *src, size_t n) {
	size_t head = -(uintptr_t)dst & 15;
	memcpy(dst, src, head);
	dst += head, src += head, n -= head;
	for (; n >= 64; dst += 64, src += 64, n -= 64) {
		_mm_prefetch((const char *)src + RPI_PIECE, _MM_HINT_T0); /* the next piece, which is digested next */
		__m128i a = _mm_loadu_si128((const __m128i *)src), b = _mm_loadu_si128((const __m128i *)(src + 16));
		__m128i c = _mm_loadu_si128((const __m128i *)(src + 32)), d = _mm_loadu_si128((const __m128i *)(src + 48));
		_mm_stream_si128((__m128i *)dst, a);
		_mm_stream_si128((__m128i *)(dst + 16), b);
		_mm_stream_si128((__m128i *)(dst + 32), c);
		_mm_stream_si128((__m128i *)(dst + 48), d);
	}
	memcpy(dst, src, n);
}

/* Non-temporal stores are not ordered by the compare-and-swap to COPIED. */
static void rpi_streamed(void) { _mm_sfence(); }
#else
#if defined(__aarch64__) && XXH_VECTOR != XXH_NEON
#error "XXH3 without NEON on a 64-bit ARM: the compiler's flags leave it out (+nosimd)"
#endif
#define rpi_stream memcpy
static void rpi_streamed(void) {}
#endif

#define RPI_HASHER rpi_hasher_base
#include "gather.h"

uint32_t rpi_segment_at(const rpi_layout *l, uint64_t offset) {
	uint32_t low = 0, high = l->count;
	while (low < high) {
		uint32_t mid = low + (high - low) / 2;
		if (l->segments[mid].offset + l->segments[mid].bytes <= offset)
			low = mid + 1;
		else
			high = mid;
	}
	return low;
}

/* Asked by cpuid rather than by the compiler's helper, whose library part has a constructor. What a processor can do counts only with
 * registers that the kernel saves (XCR0). */
const rpi_hasher *rpi_hash(void) {
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
	enum { xmm_ymm = 0x6, xmm_ymm_zmm = 0xe6, vbmi = 1 << 1 };
	unsigned a, b, c, d;
	if (__get_cpuid(1, &a, &b, &c, &d) && (c & bit_OSXSAVE) && __get_cpuid_count(7, 0, &a, &b, &c, &d)) {
		unsigned saved, high;
		__asm__("xgetbv" : "=a"(saved), "=d"(high) : "c"(0));
		if ((b & bit_AVX512F) && (c & vbmi) && (saved & xmm_ymm_zmm) == xmm_ymm_zmm)
			return &rpi_hasher_avx512;
		if ((b & bit_AVX2) && (saved & xmm_ymm) == xmm_ymm)
			return &rpi_hasher_avx2;
	}
#endif
	return &rpi_hasher_base;
}
