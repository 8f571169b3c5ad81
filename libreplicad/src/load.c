/* load.c: the state's way in and out between epochs: the initial state sealed, a sealed generation loaded. */
#include <string.h>

#include "internal.h"

/* Takes a free place of a kind. The daemon frees places; none free is not this rank's to wait for. */
static int take_any(rp_handle *h, int kind, rpi_place *p, uint64_t *word, rp_error *err) {
	uint32_t n = kind == RPI_KIND_SLOT ? h->geo.slots : h->geo.ring;
	for (uint32_t i = 0; i < n; i++) {
		*p = kind == RPI_KIND_SLOT ? rpi_slot(h, i) : rpi_ring(h, i);
		if (rpi_take(*p, word))
			return RP_OK;
	}
	return rpi_error(err, RP_EAGAIN, "no free %s: the daemon frees one once the rank has stopped: call again", kind == RPI_KIND_SLOT ? "slot" : "ring place");
}

/* The frozen area is captured once. One that is sealed already (by an earlier process of this rank) must hold the same bytes. */
static int seal_frozen(rp_handle *h, uint64_t generation, rp_error *err) {
	memset(h->frozen_root, 0, sizeof h->frozen_root);
	if (h->frozen.bytes == 0)
		return RP_OK;
	rpi_place p = rpi_frozen(h);
	uint64_t word = atomic_load(p.word);
	if (RP_SLOT_STATE(word) == RP_SEALED) {
		uint8_t d[16];
		for (uint32_t i = 0; i < p.meta->chunks && i < rpi_chunks(h->frozen.bytes, h->geo.chunk_bytes); i++) {
			uint64_t at = (uint64_t)i * h->geo.chunk_bytes, left = h->frozen.bytes - at;
			h->hash->gather(NULL, &h->frozen, at, left < h->geo.chunk_bytes ? left : h->geo.chunk_bytes, d);
			if (memcmp(d, p.meta->digest[i], 16))
				return rpi_error(err, RP_ECORRUPT, "frozen regions differ from those sealed before, in chunk %u: frozen regions never change; end the job or declare them window", i);
		}
	} else {
		if (!rpi_take(p, &word))
			return rpi_error(err, RP_EAGAIN, "the frozen area is in state %llu: the daemon frees it once its copies are joined: call again", (unsigned long long)RP_SLOT_STATE(word));
		int rc = rpi_fill(h, p, word, RPI_PART_FROZEN, &h->frozen, generation, 0, NULL, 0, err);
		if (rc != RP_OK)
			return rc;
	}
	memcpy(h->frozen_root, p.meta->root, sizeof h->frozen_root);
	return RP_OK;
}

static int set_words(rp_handle *h, uint64_t epoch, uint64_t step, rp_error *err) {
	atomic_store(&h->good_frozen, false);
	if (!rpi_set_good(h, RP_WORD(epoch, step, 0)) || !rpi_set_step(h, RP_WORD(epoch, step, RP_IDLE)))
		return rpi_error(err, RP_ESTATE, "the good or step word was changed by somebody else: the arena has another owner, exit");
	rpi_own(h, epoch);
	return RP_OK;
}

RP_API int rp_begin_at(rp_handle *h, uint64_t step, rp_error *err) {
	RPI_ENTER(h, err);
	if (atomic_load(&h->life) != RPI_INIT)
		return rpi_error(err, RP_ESTATE, "rp_begin_at: call it when rp_join says RP_INIT, before rp_seal_initial");
	if (step > RP_STEP_MAX)
		return rpi_error(err, RP_EINVAL, "rp_begin_at: step %llu is above %llu", (unsigned long long)step, (unsigned long long)RP_STEP_MAX);
	if (h->order.step && h->order.step != step)
		return rpi_error(err, RP_ESTATE, "rp_begin_at: step %llu, but the job begins at step %llu", (unsigned long long)step, (unsigned long long)h->order.step);
	h->order.step = step;
	return RP_OK;
}

/* Seals the frozen area and the replicated part of what the registered memory holds. */
static int seal_shared(rp_handle *h, uint64_t generation, rp_error *err) {
	rpi_place p = {0};
	uint64_t word = 0;
	int rc = seal_frozen(h, generation, err);
	rpi_stage(h, generation);
	if (rc == RP_OK)
		rc = take_any(h, RPI_KIND_SLOT, &p, &word, err);
	if (rc == RP_OK)
		rc = rpi_fill(h, p, word, RPI_PART_REPLICATED, &h->staged[h->order.step % RP_STAGING], generation, 0, h->frozen_root, 0, err);
	return rc;
}

static int seal_own(rp_handle *h, uint64_t generation, uint32_t flags, rp_error *err) {
	rpi_place p = {0};
	uint64_t word = 0;
	int rc = take_any(h, RPI_KIND_RING, &p, &word, err);
	return rc == RP_OK ? rpi_fill(h, p, word, RPI_PART_PRIVATE, &h->private_part, generation, flags, NULL, 0, err) : rc;
}

static int initialising(rp_handle *h, const char *call, rp_error *err) {
	if (atomic_load(&h->life) != RPI_INIT)
		return rpi_error(err, RP_ESTATE, "%s: call it when rp_join says RP_INIT", call);
	if (rp_fenced(h))
		return rpi_error(err, RP_EFENCED, "epoch %llu is closed: rp_join", (unsigned long long)atomic_load(&h->epoch));
	return RP_OK;
}

static int initialised(rp_handle *h, uint64_t epoch) {
	h->initial_epoch = epoch;
	atomic_store(&h->life, RPI_ATTACHED);
	rpi_flush(h, 0); /* a daemon that is away reads the words when it is back */
	return RP_OK;
}

RP_API int rp_seal_initial(rp_handle *h, rp_error *err) {
	RPI_ENTER(h, err);
	int rc = initialising(h, "rp_seal_initial", err);
	uint64_t epoch = atomic_load(&h->epoch), generation = RP_WORD(epoch, h->order.step, 0);
	if (rc == RP_OK)
		rc = set_words(h, epoch, h->order.step, err);
	if (rc == RP_OK)
		rc = seal_shared(h, generation, err);
	if (rc == RP_OK)
		rc = seal_own(h, generation, 0, err);
	return rc == RP_OK ? initialised(h, epoch) : rc;
}

/* Nothing says that the replicated part is good, and before and after the seal the registered memory holds no epoch's state: it can't be captured as one. */
RP_API int rp_seal_own(rp_handle *h, rp_error *err) {
	RPI_ENTER(h, err);
	int rc = initialising(h, "rp_seal_own", err);
	if (rc != RP_OK)
		return rc;
	uint64_t epoch = atomic_load(&h->epoch);
	rpi_own(h, epoch);
	rc = seal_own(h, RP_WORD(epoch, h->order.step, 0), RP_SHARED_ELSEWHERE, err);
	if (!rpi_disown(h) && rc == RP_OK)
		rc = rpi_error(err, RP_ESTATE, "the good or step word was changed by somebody else: the arena has another owner, exit");
	return rc == RP_OK ? initialised(h, epoch) : rc;
}

static const char *const part_names[] = {"replicated part", "private part", "frozen area"};

/* A sealed part, its meta copied once: what the arena says from here on is not asked again. */
typedef struct {
	rpi_place place;
	uint64_t word;
	rp_meta meta;
	const rpi_layout *live;
	int part;
} source;

static int open_source(rp_handle *h, rpi_place p, int part, const rpi_layout *live, const uint8_t *root, uint64_t generation, source *s, rp_error *err) {
	const char *name = part_names[part];
	*s = (source){.place = p, .word = atomic_load(p.word), .meta = *p.meta, .live = live, .part = part};
	if (RP_SLOT_STATE(s->word) != RP_SEALED || s->meta.use_count != RP_SLOT_COUNT(s->word))
		return rpi_error(err, RP_ECORRUPT, "%s: place %u is in state %llu, not sealed", name, p.index, (unsigned long long)RP_SLOT_STATE(s->word));
	if (s->meta.bytes != live->bytes || s->meta.chunks != rpi_chunks(live->bytes, h->geo.chunk_bytes))
		return rpi_error(err, RP_ECORRUPT, "%s: %llu bytes in %u chunks, registered are %llu", name, (unsigned long long)s->meta.bytes, s->meta.chunks, (unsigned long long)live->bytes);
	if (part != RPI_PART_FROZEN && s->meta.generation != generation)
		return rpi_error(err, RP_ECORRUPT, "%s: place %u holds epoch %llu step %llu, ordered is epoch %llu step %llu", name, p.index, (unsigned long long)RP_WORD_EPOCH(s->meta.generation),
				 (unsigned long long)RP_WORD_STEP(s->meta.generation), (unsigned long long)RP_WORD_EPOCH(generation), (unsigned long long)RP_WORD_STEP(generation));
	if (memcmp(s->meta.root, root, 16))
		return rpi_error(err, RP_ECORRUPT, "%s: its root is not the plan's", name);
	return RP_OK;
}

/* Whether a chunk of a layout (the arena's bytes, or live ones) hashes to what was sealed. */
static int check_chunk(rp_handle *h, rpi_chunked *c, uint32_t i) {
	uint8_t d[16];
	uint64_t at = (uint64_t)i * h->geo.chunk_bytes, left = c->layout->bytes - at;
	h->hash->gather(NULL, c->layout, at, left < h->geo.chunk_bytes ? left : h->geo.chunk_bytes, d);
	return memcmp(d, c->place.meta->digest[i], 16) ? RPI_CORRUPT : RPI_WHOLE;
}

/* Copies a chunk to where it lives, and checks it there while it is in the cache. */
static int load_chunk(rp_handle *h, rpi_chunked *c, uint32_t i) {
	uint64_t at = (uint64_t)i * h->geo.chunk_bytes, end = at + h->geo.chunk_bytes;
	for (uint32_t k = rpi_segment_at(c->layout, at); k < c->layout->count && c->layout->segments[k].offset < end; k++) {
		const rpi_segment *g = &c->layout->segments[k];
		uint64_t from = g->offset > at ? g->offset : at, to = g->offset + g->bytes < end ? g->offset + g->bytes : end;
		memcpy(g->data + (from - g->offset), c->place.bytes + from, to - from);
	}
	return check_chunk(h, c, i);
}

/* Does that with every chunk, and compares the root with what was sealed. */
static int verify(rp_handle *h, const source *s, const rpi_layout *l, int (*each)(rp_handle *, rpi_chunked *, uint32_t), const char *where, rp_error *err) {
	uint8_t d[16];
	rpi_chunked c = {.each = each, .shared = true, .place = s->place, .layout = l, .word = s->word, .chunks = s->meta.chunks};
	if (rpi_each_chunk(h, &c) != RPI_WHOLE)
		return rpi_error(err, RP_ECORRUPT, "%s, %s: chunk %u does not hash to what was sealed", part_names[s->part], where, atomic_load(&c.bad));
	/* The root goes over the digests just compared, the flags and sizes copied from the meta. */
	rpi_root(h, s->part, s->place.meta, d);
	if (memcmp(d, s->meta.root, 16))
		return rpi_error(err, RP_ECORRUPT, "%s, %s: its chunks' digests do not hash to its root", part_names[s->part], where);
	return atomic_load(s->place.word) == s->word ? RP_OK : rpi_error(err, RP_ECORRUPT, "%s: its place changed while it was loaded", part_names[s->part]);
}

static int verify_arena(rp_handle *h, const source *s, rp_error *err) {
	rpi_segment whole = {0, s->live->bytes, s->place.bytes};
	rpi_layout l = {&whole, s->live->bytes > 0, s->live->bytes};
	return verify(h, s, &l, check_chunk, "sealed", err);
}

/* Verified in the arena first, so that bad bytes cost no live state; then verified as copied, so that what counts as loaded is
 * what lies in the regions. From the first copied byte on, live state is no step's until the load has succeeded. */
static int load_parts(rp_handle *h, source *s, int n, bool *sealed, rp_error *err) {
	int rc = RP_OK;
	for (int i = 0; i < n && rc == RP_OK; i++)
		rc = verify_arena(h, &s[i], err);
	*sealed = rc != RP_OK; /* from here on the fault is in what it is copied to: some thread writes there, or that memory is bad */
	if (rc == RP_OK && !rpi_disown(h))
		rc = rpi_error(err, RP_ESTATE, "the good or step word was changed by somebody else: the arena has another owner, exit");
	for (int i = 0; i < n && rc == RP_OK; i++)
		rc = verify(h, &s[i], s[i].live, load_chunk, "copied", err);
	return rc;
}

/* sealed: whether it is the sealed bytes that a failure is about. */
static int load(rp_handle *h, bool *sealed, rp_error *err) {
	*sealed = true;
	if (atomic_load(&h->life) != RPI_LOAD)
		return rpi_error(err, RP_ESTATE, "rp_load: call it when rp_join says RP_LOAD");
	const rp_order *o = &h->order;
	uint64_t epoch = atomic_load(&h->epoch);
	if (o->slot >= h->geo.slots || o->place >= h->geo.ring)
		return rpi_error(err, RP_EINVAL, "rp_load: the order names slot %u of %u, ring place %u of %u", o->slot, h->geo.slots, o->place, h->geo.ring);
	source s[3];
	int n = 2;
	int rc = open_source(h, rpi_slot(h, o->slot), RPI_PART_REPLICATED, &h->replicated, o->replicated_root, o->generation, &s[0], err);
	if (rc == RP_OK)
		rc = open_source(h, rpi_ring(h, o->place), RPI_PART_PRIVATE, &h->private_part, o->private_root, o->generation, &s[1], err);
	if (rc == RP_OK && h->frozen.bytes)
		rc = open_source(h, rpi_frozen(h), RPI_PART_FROZEN, &h->frozen, s[0].meta.frozen_root, 0, &s[n++], err);
	if (rc == RP_OK)
		rc = load_parts(h, s, n, sealed, err);
	if (rc != RP_OK)
		return rc;
	memcpy(h->frozen_root, s[0].meta.frozen_root, 16);
	rpi_stage(h, RP_WORD(epoch, o->step, 0));
	rc = set_words(h, epoch, o->step, err);
	if (rc == RP_OK)
		atomic_store(&h->life, RPI_LOADED);
	return rc;
}

/* The daemon is told of bytes that are not the plan's: after the second process that can't load a generation, the generation is given up
 * and not the job. Where the epoch was closed meanwhile, it has freed what that epoch's plan named: nothing is bad, and there is another order. */
RP_API int rp_load(rp_handle *h, rp_error *err) {
	RPI_ENTER(h, err);
	rp_error why = {0};
	bool sealed;
	int rc = load(h, &sealed, &why);
	if (rc == RP_ECORRUPT && rp_fenced(h))
		rc = rpi_error(&why, RP_EFENCED, "epoch %llu was closed while its state was loaded: rp_join", (unsigned long long)atomic_load(&h->epoch));
	if (rc == RP_ECORRUPT && sealed) {
		struct iovec body = {why.text, strnlen(why.text, sizeof why.text)};
		rpi_send(h, RP_M_UNLOADABLE, 0, &body, 1, rpi_deadline(1000000000), NULL);
	}
	if (rc != RP_OK && err)
		*err = why;
	return rc;
}

/* Where the copy of a region lies that rp_load brought. The copies that the order named stay where they are until a later step is committed, which none is before the next
 * rp_step_enter. */
static int as_ordered(rp_handle *h, uint32_t region, const char *call, rpi_place *p, uint64_t *word, const uint8_t **from, uint64_t *bytes, rp_error *err) {
	const rp_order *o = &h->order;
	int life = atomic_load(&h->life);
	if (region >= h->regions)
		return rpi_error(err, RP_EINVAL, "%s: region %u of %u", call, region, h->regions);
	if ((life != RPI_LOADED && life != RPI_READY) || h->step != RP_WORD(atomic_load(&h->epoch), o->step, RP_IDLE))
		return rpi_error(err, RP_ESTATE, "%s: call it after rp_load and before rp_step_enter", call);
	const uint8_t *rec = h->records + (size_t)region * RPI_RECORD;
	uint64_t at;
	memcpy(bytes, rec + 136, 8);
	memcpy(&at, rec + 208, 8);
	bool frozen = rec[130] == RP_FROZEN, private = rec[129] == RP_PRIVATE;
	*p = frozen ? rpi_frozen(h) : private ? rpi_ring(h, o->place) : rpi_slot(h, o->slot);
	*word = atomic_load(p->word);
	*from = p->bytes + at;
	if (RP_SLOT_STATE(*word) != RP_SEALED || p->meta->use_count != RP_SLOT_COUNT(*word) || (!frozen && p->meta->generation != o->generation))
		return rpi_error(err, RP_ESTATE, "%s: region %s: its copy is no longer in place %u", call, (const char *)rec, p->index);
	return RP_OK;
}

static int still(const rpi_place *p, uint64_t word, const char *call, rp_error *err) {
	return atomic_load(p->word) == word ? RP_OK : rpi_error(err, RP_ESTATE, "%s: place %u changed meanwhile", call, p->index);
}

RP_API int rp_as_loaded(rp_handle *h, uint32_t region, int *same, rp_error *err) {
	RPI_ENTER(h, err);
	if (!same)
		return rpi_error(err, RP_EINVAL, "rp_as_loaded: no place for the answer");
	rpi_place p = {0};
	const uint8_t *from;
	uint64_t word, bytes;
	int rc = as_ordered(h, region, "rp_as_loaded", &p, &word, &from, &bytes, err);
	if (rc != RP_OK)
		return rc;
	*same = bytes == 0 || memcmp(from, h->live[region], bytes) == 0;
	return still(&p, word, "rp_as_loaded", err);
}

RP_API int rp_load_again(rp_handle *h, uint32_t region, rp_error *err) {
	RPI_ENTER(h, err);
	rpi_place p = {0};
	const uint8_t *from;
	uint64_t word, bytes;
	int rc = as_ordered(h, region, "rp_load_again", &p, &word, &from, &bytes, err);
	if (rc != RP_OK)
		return rc;
	if (bytes)
		memcpy(h->live[region], from, bytes);
	return still(&p, word, "rp_load_again", err);
}
