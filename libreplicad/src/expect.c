/* expect.c: what the caller has where its state lies, held against what was copied of it, before the copy counts.
 *
 * A copy's digests say that it is what was read. They don't say that it was read where the caller's state lies now: only the caller knows
 * that, and says it anew for each piece. */
#include <string.h>

#include "internal.h"

RP_API int rp_expect(rp_handle *h, uint32_t region, uint64_t offset, const void *live, size_t n, rp_error *err) {
	RPI_ENTER(h, err);
	uint64_t epoch = RP_WORD_EPOCH(h->step), s = RP_WORD_STEP(h->step), at, bytes;
	if (region >= h->regions)
		return rpi_error(err, RP_EINVAL, "rp_expect: region %u of %u", region, h->regions);
	const uint8_t *rec = h->records + (size_t)region * RPI_RECORD;
	memcpy(&bytes, rec + 136, 8);
	memcpy(&at, rec + 208, 8);
	if (!live || n > RP_EXPECT_MAX || offset > bytes || n > bytes - offset || rec[130] == RP_FROZEN)
		return rpi_error(err, RP_EINVAL, "rp_expect: region %s: %zu bytes from byte %llu on: want at most %d of its %llu, and none of a frozen one", (const char *)rec, n, (unsigned long long)offset, RP_EXPECT_MAX,
				 (unsigned long long)bytes);
	int part = rec[129] == RP_PRIVATE ? RPI_PART_PRIVATE : RPI_PART_REPLICATED;
	bool early = part == RPI_PART_PRIVATE && !h->private_in_window; /* copied by the next rp_step_enter */
	if (atomic_load(&h->life) != RPI_READY || h->step != RP_WORD(epoch, s, early ? RP_IDLE : RP_UPDATING))
		return rpi_error(err, RP_ESTATE, "rp_expect: region %s: call it %s", (const char *)rec, early ? "before rp_step_enter" : "between rp_step_enter and rp_step_exit");
	/* Nobody reads it meanwhile: the training thread copies private parts itself, and no capture is under way inside of the window. */
	rpi_expected *e = &h->expected[part];
	*e = (rpi_expected){RP_WORD(epoch, early ? s + 1 : s, 0), region, at + offset, live, n};
	memcpy(h->expected_bytes[part], live, n);
	return RP_OK;
}

RP_API uint64_t rp_compared(const rp_handle *h) { return h && !rpi_forked(h) ? atomic_load(&h->compared) : 0; }

/* A change of the caller's in place, between two steps, may be in the copy or not: then what was expected is no longer there, and says nothing. */
int rpi_as_expected(rp_handle *h, rpi_place p, int part, uint64_t generation, rp_error *err) {
	const rpi_expected *e = &h->expected[part];
	const uint8_t *want = h->expected_bytes[part], *have = p.bytes + e->offset;
	if (!e->n || e->generation != generation)
		return RP_OK;
	atomic_fetch_add(&h->compared, 1);
	if (memcmp(have, want, e->n) == 0 || memcmp(e->live, want, e->n) != 0)
		return RP_OK;
	size_t i = 0;
	while (have[i] == want[i])
		i++;
	const uint8_t *rec = h->records + (size_t)e->region * RPI_RECORD;
	uint64_t at;
	memcpy(&at, rec + 208, 8);
	return rpi_error(err, RP_ECORRUPT, "region %s: its copy of step %llu differs, from byte %llu on, from what the caller had of it when the step was to be copied: the copy is not kept", (const char *)rec,
			 (unsigned long long)RP_WORD_STEP(generation), (unsigned long long)(e->offset + i - at));
}
