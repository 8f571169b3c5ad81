/* part.c: a part in its place: taking the place, filling, sealing it. */
#include <string.h>

#include "internal.h"

uint32_t rpi_chunks(uint64_t bytes, uint32_t chunk) { return (uint32_t)((bytes + chunk - 1) / chunk); }

/* The root binds what the bytes are to how they are laid out; neither generation nor producer is in it, so that replicas agree. */
void rpi_root(const rp_handle *h, int part, const rp_meta *m, uint8_t root[16]) {
	uint8_t head[64];
	uint32_t numbers[4] = {(uint32_t)part, m->chunks, h->geo.chunk_bytes, m->flags & RP_NO_UPDATE};
	memcpy(head, "RPROOT01", 8);
	memcpy(head + 8, h->geometry[part], 16);
	memcpy(head + 24, numbers, 16);
	memcpy(head + 40, &m->bytes, 8);
	memcpy(head + 48, m->frozen_root, 16);
	h->hash->digest(head, sizeof head, m->digest, 16 * (size_t)m->chunks, root);
}

rpi_place rpi_slot(const rp_handle *h, uint32_t i) {
	return (rpi_place){RPI_KIND_SLOT, i, &h->control->slot[i].word, (rp_meta *)(void *)(h->arena + h->geo.meta_offset + h->geo.slot_meta_stride * (1 + i)), h->arena + h->geo.slot_offset + h->geo.slot_stride * i};
}

rpi_place rpi_ring(const rp_handle *h, uint32_t i) {
	uint64_t table = h->geo.meta_offset + h->geo.slot_meta_stride * (1 + h->geo.slots);
	return (rpi_place){RPI_KIND_RING, i, &h->control->place[i].word, (rp_meta *)(void *)(h->arena + table + h->geo.ring_meta_stride * i), h->arena + h->geo.ring_offset + h->geo.ring_stride * i};
}

rpi_place rpi_frozen(const rp_handle *h) {
	return (rpi_place){RPI_KIND_FROZEN, 0, &h->control->frozen.word, (rp_meta *)(void *)(h->arena + h->geo.meta_offset), h->arena + h->geo.frozen_offset};
}

bool rpi_take(rpi_place p, uint64_t *word) {
	uint64_t w = atomic_load(p.word);
	if (RP_SLOT_STATE(w) != RP_FREE || !atomic_compare_exchange_strong(p.word, &w, RP_SLOT(RP_SLOT_COUNT(w), RP_COPYING)))
		return false;
	*word = RP_SLOT(RP_SLOT_COUNT(w), RP_COPYING);
	return true;
}

/* COPIED and SEALED of a replicated part need the good word at or after it, in the same epoch. */
bool rpi_good(const rp_handle *h, uint64_t generation) {
	uint64_t good = atomic_load(&h->control->good.word);
	return RP_WORD_EPOCH(good) == RP_WORD_EPOCH(generation) && RP_WORD_STEP(good) >= RP_WORD_STEP(generation);
}

static bool move(rpi_place p, uint64_t *word, unsigned state) {
	uint64_t to = RP_SLOT(RP_SLOT_COUNT(*word), state);
	if (!atomic_compare_exchange_strong(p.word, word, to))
		return false;
	*word = to;
	return true;
}

/* Whether the registered memory can be a generation's: this handle has loaded, or sealed the initial state of, the epoch. A new process
 * whose arena is full of its predecessor's steps has done neither. Frozen bytes without a root would be a part of nothing. */
static int may_seal(rp_handle *h, int part, uint64_t generation, const uint8_t frozen_root[16], rp_error *err) {
	static const uint8_t none[16];
	if (atomic_load(&h->held) != RP_WORD_EPOCH(generation))
		return rpi_error(err, RP_ESTATE, "step %llu of epoch %llu can't be sealed: this process has not loaded that epoch's state, what it holds is epoch %llu's", (unsigned long long)RP_WORD_STEP(generation),
				 (unsigned long long)RP_WORD_EPOCH(generation), (unsigned long long)atomic_load(&h->held));
	if (part == RPI_PART_REPLICATED && h->frozen.bytes && (!frozen_root || memcmp(frozen_root, none, sizeof none) == 0))
		return rpi_error(err, RP_ESTATE, "step %llu can't be sealed: the root of its frozen regions is not known", (unsigned long long)RP_WORD_STEP(generation));
	return RP_OK;
}

/* Copies a chunk into its place, and digests it. */
static int capture_chunk(rp_handle *h, rpi_chunked *c, uint32_t i) {
	if (c->number && atomic_load(&h->canceled_number) >= c->number)
		return RPI_CANCELED;
	if (atomic_load_explicit(c->place.word, memory_order_relaxed) != c->word)
		return RPI_TORN;
	uint64_t size = h->geo.chunk_bytes, at = i * size, n = c->layout->bytes - at < size ? c->layout->bytes - at : size;
	h->hash->gather(c->place.bytes + at, c->layout, at, n, c->place.meta->digest[i]);
	return RPI_WHOLE;
}

int rpi_fill(rp_handle *h, rpi_place p, uint64_t word, int part, const rpi_layout *l, uint64_t generation, uint32_t flags, const uint8_t frozen_root[16], uint64_t number, rp_error *err) {
	int allowed = may_seal(h, part, generation, frozen_root, err);
	if (allowed != RP_OK)
		return allowed;
	rp_meta *m = p.meta;
	m->generation = generation;
	m->flags = flags;
	m->chunks = rpi_chunks(l->bytes, h->geo.chunk_bytes);
	m->bytes = l->bytes;
	m->use_count = RP_SLOT_COUNT(word);
	m->incarnation = h->incarnation;
	m->rank = h->hello.rank;
	memset(m->root, 0, sizeof m->root);
	memset(m->frozen_root, 0, sizeof m->frozen_root);
	if (frozen_root)
		memcpy(m->frozen_root, frozen_root, sizeof m->frozen_root);
	rpi_chunked c = {.each = capture_chunk, .shared = number != 0, .place = p, .layout = l, .word = word, .number = number, .chunks = m->chunks};
	switch (rpi_each_chunk(h, &c)) {
	case RPI_CANCELED:
		return rpi_error(err, RP_ECANCELED, "capture of step %llu was cancelled", (unsigned long long)RP_WORD_STEP(generation));
	case RPI_TORN:
		return rpi_error(err, RP_ECANCELED, "place %u was declared torn while step %llu was copied into it", p.index, (unsigned long long)RP_WORD_STEP(generation));
	}
	int same = part == RPI_PART_FROZEN ? RP_OK : rpi_as_expected(h, p, part, generation, err);
	if (same != RP_OK)
		return same;
	if (part == RPI_PART_REPLICATED && !rpi_good(h, generation))
		return rpi_error(err, RP_ECANCELED, "step %llu is not known to be good: the epoch moved on", (unsigned long long)RP_WORD_STEP(generation));
	if (!move(p, &word, RP_COPIED))
		return rpi_error(err, RP_ECANCELED, "place %u was declared torn before step %llu was copied", p.index, (unsigned long long)RP_WORD_STEP(generation));
	uint8_t root[16];
	rpi_root(h, part, m, root);
	memcpy(m->root, root, sizeof root);
	if (!move(p, &word, RP_SEALED))
		return rpi_error(err, RP_ECANCELED, "place %u was declared torn before step %llu was sealed", p.index, (unsigned long long)RP_WORD_STEP(generation));
	static const unsigned first[] = {0, RP_MAX_SLOTS, RP_MAX_SLOTS + RP_MAX_RING};
	atomic_fetch_or(&h->notices, 1u << (first[p.kind] + p.index));
	return RP_OK;
}
