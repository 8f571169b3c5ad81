/* gather.h: the inner loops, compiled once per instruction set. The includer defines RPI_HASHER (the name of the table) and
 * rpi_stream (a copy that goes round the cache) with rpi_streamed, and has xxhash.h included with XXH_INLINE_ALL.
 *
 * A piece is digested first, which brings it into the cache, and copied from there with stores that don't evict it: one pass over
 * memory. rpi_streamed waits for these stores, once for all pieces: waiting after each kept the next from being read meanwhile. */
#ifdef RPI_PLAIN
enum { stream_from = 1 << 30 };
#else
enum { stream_from = 4096 }; /* shorter copies stay in the cache: somebody reads them soon */
#endif

static const uint8_t rpi_zeros[RPI_ALIGN];

static void rpi_canonical(XXH3_state_t *s, uint8_t digest[16]) {
	XXH128_canonical_t c;
	XXH128_canonicalFromHash(&c, XXH3_128bits_digest(s));
	memcpy(digest, c.digest, 16);
}

static void gather_run(XXH3_state_t *s, uint8_t *dst, const uint8_t *src, uint64_t n) {
	while (n) {
		size_t piece = n < RPI_PIECE ? n : RPI_PIECE;
		XXH3_128bits_update(s, src, piece);
		if (dst) {
			if (piece < stream_from)
				memcpy(dst, src, piece);
			else
				rpi_stream(dst, src, piece);
			dst += piece;
		}
		src += piece, n -= piece;
	}
}

static void gather(uint8_t *dst, const rpi_layout *l, uint64_t offset, uint64_t n, uint8_t digest[16]) {
	XXH3_state_t s;
	XXH3_128bits_reset(&s);
	uint64_t end = offset + n;
	for (uint32_t i = rpi_segment_at(l, offset); offset < end;) {
		uint64_t stop = end, run;
		if (i < l->count && l->segments[i].offset <= offset) {
			const rpi_segment *g = &l->segments[i];
			if (g->offset + g->bytes < stop)
				stop = g->offset + g->bytes;
			run = stop - offset;
			gather_run(&s, dst, g->data + (offset - g->offset), run);
			i++;
		} else {
			if (i < l->count && l->segments[i].offset < stop)
				stop = l->segments[i].offset;
			run = stop - offset < RPI_ALIGN ? stop - offset : RPI_ALIGN;
			gather_run(&s, dst, rpi_zeros, run);
		}
		if (dst)
			dst += run;
		offset += run;
	}
	rpi_streamed();
	rpi_canonical(&s, digest);
}

static void digest_two(const void *a, size_t an, const void *b, size_t bn, uint8_t digest[16]) {
	XXH3_state_t s;
	XXH3_128bits_reset(&s);
	XXH3_128bits_update(&s, a, an);
	if (bn)
		XXH3_128bits_update(&s, b, bn);
	rpi_canonical(&s, digest);
}

const rpi_hasher RPI_HASHER = {gather, digest_two};
