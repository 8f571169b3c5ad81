/* gather.h: the inner loops, compiled once per instruction set. The includer defines RPI_HASHER (the name of the table) and
 * rpi_stream (a copy that goes round the cache) with rpi_streamed, and has xxhash.h included with XXH_INLINE_ALL. Where it defines RPI_FUSED
 * as well, it has rpi_stripes, which copies so and digests what it copies.
 *
 * With RPI_FUSED each byte is read once, into a register, from which it is digested and stored. Else a piece is digested first, which brings it
 * into the cache, and copied from there: one pass over memory all the same, but digesting and waiting for memory take turns. rpi_streamed waits
 * for the stores, once for all pieces: waiting after each kept the next from being read meanwhile. */
enum { stream_from = 4096 }; /* shorter copies stay in the cache: somebody reads them soon */

static const uint8_t rpi_zeros[RPI_ALIGN];

static void rpi_canonical(XXH3_state_t *s, uint8_t digest[16]) {
	XXH128_canonical_t c;
	XXH128_canonicalFromHash(&c, XXH3_128bits_digest(s));
	memcpy(digest, c.digest, 16);
}

#ifdef RPI_FUSED
/* XXH3_update of xxhash.h for long input, with rpi_stripes in the place of its inner loop. n is at least stream_from. */
static void fused(XXH3_state_t *s, uint8_t *dst, const uint8_t *src, uint64_t n) {
	XXH_ALIGN(64) xxh_u64 acc[XXH_ACC_NB];
	memcpy(acc, s->acc, sizeof acc);
	size_t head = sizeof s->buffer - s->bufferedSize, per_block = s->nbStripesPerBlock, at = s->nbStripesSoFar;
	memcpy(s->buffer + s->bufferedSize, src, head);
	memcpy(dst, src, head);
	XXH3_consumeStripes(acc, &at, per_block, s->buffer, sizeof s->buffer / XXH_STRIPE_LEN, XXH3_kSecret, s->secretLimit, XXH3_accumulate_512, XXH3_scrambleAcc);
	s->totalLen += n;
	dst += head, src += head, n -= head;
	for (uint64_t left = (n - 1) / XXH_STRIPE_LEN; left;) { /* one byte at least stays for the end */
		size_t now = left < per_block - at ? (size_t)left : per_block - at, bytes = now * XXH_STRIPE_LEN;
		rpi_stripes(acc, dst, src, now, XXH3_kSecret + at * XXH_SECRET_CONSUME_RATE, n >= RPI_AHEAD + bytes);
		if ((at += now) == per_block) {
			XXH3_scrambleAcc(acc, XXH3_kSecret + s->secretLimit);
			at = 0;
		}
		dst += bytes, src += bytes, n -= bytes, left -= now;
	}
	memcpy(s->buffer + sizeof s->buffer - XXH_STRIPE_LEN, src - XXH_STRIPE_LEN, XXH_STRIPE_LEN); /* the end may need it */
	memcpy(s->buffer, src, n);
	memcpy(dst, src, n);
	memcpy(s->acc, acc, sizeof acc);
	s->bufferedSize = (XXH32_hash_t)n, s->nbStripesSoFar = at;
}

/* Whether fused can take a run: its stores need an aligned place behind what fills xxhash's buffer. */
static bool fuses(const XXH3_state_t *s, const uint8_t *dst, uint64_t n) {
	return dst && n >= stream_from && ((uintptr_t)dst + sizeof s->buffer - s->bufferedSize) % XXH_STRIPE_LEN == 0;
}
#endif

static void gather_run(XXH3_state_t *s, uint8_t *dst, const uint8_t *src, uint64_t n) {
#ifdef RPI_FUSED
	if (fuses(s, dst, n)) {
		fused(s, dst, src, n);
		return;
	}
#endif
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
