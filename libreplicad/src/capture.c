/* capture.c: the replicated part of a step, copied by the worker behind the next forward; the private part, copied by the training
 * thread; and the notices to the daemon of what was sealed.
 *
 * A capture is armed by rp_step_exit, run by whoever moves it from ARMED to RUNNING, and over when it is NONE again. The training
 * thread changes live state only while it is NONE. */
#include <linux/futex.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "internal.h"

/* The twin of lock.ShouldCapture: the candidate always (while none newer than the committed step is named: the first step due after
 * it), and nothing else with two slots; with more, for freshness, multiples of max(c, 2), so that no slot the candidate needs is taken. */
bool rpi_should_capture(uint64_t s, uint64_t committed, uint64_t candidate, uint64_t cadence, uint32_t slots) {
	uint64_t c = cadence > 1 ? cadence : 1;
	if (s <= committed)
		return false;
	if (candidate <= committed)
		candidate = committed / c * c + c;
	return s == candidate || (slots > 2 && s % (c > 2 ? c : 2) == 0);
}

/* Copies the private part into a free ring place and seals it. Never waits: without a place it is skipped and counted. */
int rpi_private(rp_handle *h, uint64_t generation, uint32_t flags, rp_error *err) {
	for (uint32_t i = 0; i < h->geo.ring; i++) {
		rpi_place p = rpi_ring(h, i);
		uint64_t word;
		if (!rpi_take(p, &word))
			continue;
		int rc = rpi_fill(h, p, word, RPI_PART_PRIVATE, &h->private_part, generation, flags, NULL, 0, err);
		if (rc != RP_OK)
			atomic_compare_exchange_strong(p.word, &word, RP_SLOT(RP_SLOT_COUNT(word), RP_TORN)); /* unless the daemon did */
		return rc;
	}
	atomic_fetch_add(&h->private_skipped, 1);
	return RP_EAGAIN;
}

/* Copies the volatile regions into the staging place of this step; the tag says when they are whole. */
void rpi_stage(rp_handle *h, uint64_t generation) {
	unsigned k = RP_WORD_STEP(generation) % RP_STAGING;
	uint8_t *to = h->arena + h->geo.staging_offset + k * h->geo.staging_stride;
	atomic_store(&h->control->tag[k].word, 0);
	for (uint32_t i = rpi_segment_at(&h->replicated, h->volatile_offset); i < h->replicated.count; i++) {
		const rpi_segment *g = &h->replicated.segments[i];
		memcpy(to + (g->offset - h->volatile_offset), g->data, g->bytes);
	}
	atomic_store(&h->control->tag[k].word, generation);
}

void rpi_arm(rp_handle *h, uint64_t generation, uint32_t flags, int *armed) {
	/* What another epoch committed or named says nothing here: this one began at the order's step. */
	uint64_t epoch = RP_WORD_EPOCH(generation), candidate = atomic_load(&h->control->candidate.word), committed = atomic_load(&h->control->committed.word);
	uint64_t named = RP_WORD_EPOCH(candidate) == epoch ? RP_WORD_STEP(candidate) : 0;
	uint64_t done = RP_WORD_EPOCH(committed) == epoch ? RP_WORD_STEP(committed) : h->order.step;
	*armed = 0;
	if (atomic_load(&h->capture) != RPI_NONE || !rpi_should_capture(RP_WORD_STEP(generation), done, named, atomic_load(&h->control->cadence.word), h->geo.slots))
		return;
	h->armed_generation = generation;
	h->armed_flags = flags;
	atomic_fetch_add(&h->armed_number, 1);
	atomic_store(&h->capture, RPI_ARMED);
	*armed = 1;
}

/* One of the two things that a step waits for is over. */
static void over(rp_handle *h, _Atomic uint32_t *state) {
	atomic_store(state, RPI_NONE);
	if (atomic_load(&h->capture_waiter))
		syscall(SYS_futex, state, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

static void skip(rp_handle *h) {
	atomic_store(&h->control->skipped.word, atomic_fetch_add(&h->skipped, 1) + 1);
}

/* One that this handle abandoned, else the lowest FREE one. */
static bool pick(rp_handle *h, rpi_place *p, uint64_t *word) {
	for (uint32_t i = 0; i < h->geo.slots; i++) {
		*p = rpi_slot(h, i);
		*word = h->abandoned[i];
		h->abandoned[i] = 0;
		if (*word && atomic_load(p->word) == *word)
			return true;
	}
	for (uint32_t i = 0; i < h->geo.slots; i++) {
		*p = rpi_slot(h, i);
		if (rpi_take(*p, word))
			return true;
	}
	return false;
}

static int copy_armed(rp_handle *h, rp_error *err) {
	uint64_t generation = h->armed_generation, step = RP_WORD_STEP(generation);
	unsigned k = step % RP_STAGING;
	if (atomic_load(&h->control->tag[k].word) != generation)
		return rpi_error(err, RP_ECANCELED, "the volatile regions of step %llu are no longer staged", (unsigned long long)step);
	rpi_place p;
	uint64_t word;
	if (!pick(h, &p, &word)) {
		skip(h);
		return rpi_error(err, RP_ECANCELED, "no free slot: the capture of step %llu is skipped", (unsigned long long)step);
	}
	int64_t began = rpi_now();
	int rc = rpi_fill(h, p, word, RPI_PART_REPLICATED, &h->staged[k], generation, h->armed_flags, h->frozen_root, atomic_load(&h->armed_number), err);
	if (rc != RP_OK) {
		if (atomic_load(p.word) == word)
			h->abandoned[p.index] = word;
		atomic_fetch_add(&h->canceled, 1);
		return rc;
	}
	atomic_fetch_add(&h->capture_bytes, h->replicated.bytes);
	atomic_fetch_add(&h->capture_ns, (uint64_t)(rpi_now() - began));
	atomic_store(&h->control->captured.word, atomic_fetch_add(&h->captures, 1) + 1);
	return RP_OK;
}

/* What a generation lacks to be copied: the device has not finished it, or it is still on its way to the registered memory, which holds
 * an older step. NULL: nothing. */
static const char *not_ready(rp_handle *h, uint64_t generation) {
	if (!rpi_good(h, generation))
		return "known to be good";
	return atomic_load(&h->unstaged) == generation ? "staged" : NULL;
}

int rpi_capture_run(rp_handle *h, rp_error *err) {
	uint32_t state = RPI_ARMED;
	if (atomic_load(&h->capture) != RPI_ARMED || !atomic_compare_exchange_strong(&h->capture, &state, RPI_RUNNING))
		return rpi_error(err, RP_EAGAIN, "no capture is armed");
	const char *lacks = not_ready(h, h->armed_generation);
	if (lacks) {
		uint64_t step = RP_WORD_STEP(h->armed_generation);
		atomic_store(&h->capture, RPI_ARMED);
		return rpi_error(err, RP_EAGAIN, "step %llu is not %s yet", (unsigned long long)step, lacks);
	}
	int rc = copy_armed(h, err);
	over(h, &h->capture);
	return rc;
}

/* The training thread, stopped in rp_join: seals the live state as generation, if that is what it is: whole, good, its volatile
 * regions still staged, and all of it in the registered memory. The words alone do not say that: they may be an earlier process's. */
int rpi_capture_live(rp_handle *h, uint64_t generation, rp_error *err) {
	if (atomic_load(&h->held) != RP_WORD_EPOCH(generation) || h->step != RP_WORD(RP_WORD_EPOCH(generation), RP_WORD_STEP(generation), RP_IDLE) || not_ready(h, generation) || atomic_load(&h->capture) != RPI_NONE)
		return RP_EAGAIN;
	h->armed_generation = generation;
	h->armed_flags = h->exit_flags;
	atomic_fetch_add(&h->armed_number, 1);
	atomic_store(&h->capture, RPI_ARMED);
	return rpi_capture_run(h, err);
}

RP_API int rp_capture(rp_handle *h, rp_error *err) {
	RPI_ENTER(h, err);
	if (!h->control)
		return rpi_error(err, RP_ESTATE, "rp_capture: before rp_attach");
	pthread_rwlock_rdlock(&h->shape);
	rpi_prefault_slots(h);
	int rc = rpi_capture_run(h, err);
	bool ran = rc == RP_OK;
	if (ran)
		rc = rpi_flush(h, rpi_now());
	pthread_rwlock_unlock(&h->shape);
	if (!ran)
		return rc;
	return rc == RP_EGONE ? rpi_error(err, rc, "the capture is sealed, the daemon is gone: rp_reconnect") : RP_OK;
}

RP_API int rp_private_staged(rp_handle *h, uint64_t epoch, uint64_t step, rp_error *err) {
	RPI_ENTER(h, err);
	uint64_t generation = RP_WORD(epoch, step, 0);
	uint32_t state = RPI_ARMED;
	if (epoch != atomic_load(&h->epoch))
		return rpi_error(err, RP_EFENCED, "rp_private_staged: of epoch %llu, which is over", (unsigned long long)epoch);
	if (!h->control || !atomic_compare_exchange_strong(&h->private_later, &state, RPI_RUNNING))
		return rpi_error(err, RP_EAGAIN, "no private part was left for later");
	if (h->private_generation != generation || !rpi_good(h, generation)) {
		atomic_store(&h->private_later, RPI_ARMED);
		return rpi_error(err, RP_EAGAIN, "the private part of step %llu is not due, or the step is not known to be good yet", (unsigned long long)step);
	}
	pthread_rwlock_rdlock(&h->shape);
	int rc = rpi_private(h, generation, 0, err);
	rpi_flush(h, 0); /* a daemon that is away reads the words when it is back */
	pthread_rwlock_unlock(&h->shape);
	over(h, &h->private_later);
	return rc;
}

/* Whether a place of a kind is sealed with a generation, or (generation 0) may be filled. */
static bool has(const rp_handle *h, int kind, uint64_t generation) {
	uint32_t n = kind == RPI_KIND_SLOT ? h->geo.slots : h->geo.ring;
	for (uint32_t i = 0; i < n; i++) {
		rpi_place p = kind == RPI_KIND_SLOT ? rpi_slot(h, i) : rpi_ring(h, i);
		uint64_t w = atomic_load(p.word);
		if (generation ? RP_SLOT_STATE(w) == RP_SEALED && p.meta->generation == generation : RP_SLOT_STATE(w) == RP_FREE || (kind == RPI_KIND_SLOT && h->abandoned[i]))
			return true;
	}
	return false;
}

RP_API int rp_seal_step(rp_handle *h, uint32_t flags, rp_error *err) {
	RPI_ENTER(h, err);
	uint64_t epoch = atomic_load(&h->epoch), s = RP_WORD_STEP(h->step), generation = RP_WORD(epoch, s, 0);
	if (rp_fenced(h))
		return rpi_error(err, RP_EFENCED, "epoch %llu is closed: rp_join", (unsigned long long)epoch);
	if (atomic_load(&h->life) != RPI_READY || h->step != RP_WORD(epoch, s, RP_IDLE))
		return rpi_error(err, RP_ESTATE, "rp_seal_step: call it between two steps");
	if (atomic_load(&h->capture) != RPI_NONE)
		return rpi_error(err, RP_EAGAIN, "step %llu is being captured", (unsigned long long)s);
	if (flags & ~(uint32_t)RP_PRIVATE_UNCHANGED)
		return rpi_error(err, RP_EINVAL, "rp_seal_step: unknown flags %#x", flags);
	if (atomic_load(&h->private_later) != RPI_NONE)
		return rpi_error(err, RP_EAGAIN, "the private part of step %llu is not staged yet", (unsigned long long)s);
	if (!has(h, RPI_KIND_RING, generation)) {
		if (!(flags & RP_PRIVATE_UNCHANGED))
			return rpi_error(err, RP_ECANCELED, "step %llu has no private part: the ring had no free place for it, since the daemon is behind: take another step", (unsigned long long)s);
		if (!has(h, RPI_KIND_RING, 0))
			return rpi_error(err, RP_EAGAIN, "no free ring place for step %llu: the daemon frees one once an older step is committed", (unsigned long long)s);
		if (rpi_private(h, generation, 0, err) == RP_ECORRUPT)
			return RP_ECORRUPT;
		rpi_flush(h, 0);
	}
	if (has(h, RPI_KIND_SLOT, generation))
		return RP_OK;
	const char *lacks = not_ready(h, generation);
	if (lacks)
		return rpi_error(err, RP_EAGAIN, "step %llu is not %s yet", (unsigned long long)s, lacks);
	if (!has(h, RPI_KIND_SLOT, 0))
		return rpi_error(err, RP_EAGAIN, "no free slot for step %llu: the daemon frees one once an older step is committed", (unsigned long long)s);
	if (rpi_capture_live(h, generation, err) == RP_ECORRUPT)
		return RP_ECORRUPT;
	rpi_flush(h, 0); /* a daemon that is away reads the words when it is back */
	return has(h, RPI_KIND_SLOT, generation) ? RP_OK : rpi_error(err, RP_EAGAIN, "step %llu could not be captured: call again", (unsigned long long)s);
}

/* A private part that was left for later will not be copied: nobody knows whether its step is good, or waits for it. */
static void forgo_private(rp_handle *h) {
	uint32_t state = RPI_ARMED;
	if (atomic_compare_exchange_strong(&h->private_later, &state, RPI_NONE))
		atomic_fetch_add(&h->private_skipped, 1);
}

static bool never_good(rp_handle *h, uint64_t generation) { return atomic_load(&h->good_frozen) && !rpi_good(h, generation); }

/* Whether the private part is copied, or forgone. */
static bool private_over(rp_handle *h, int64_t deadline) {
	uint32_t state = atomic_load(&h->private_later);
	if (state == RPI_ARMED && (rpi_now() >= deadline || never_good(h, h->private_generation)))
		forgo_private(h);
	return atomic_load(&h->private_later) == RPI_NONE;
}

/* Waits until another thread has changed a state, a while at most: rp_cancel, rp_freeze_good and the fence wake nobody. */
static void sleep_on(rp_handle *h, _Atomic uint32_t *word, uint32_t state, int64_t ns) {
	ns = ns > 0 && ns < RPI_POLL_NS ? ns : RPI_POLL_NS;
	struct timespec t = {ns / 1000000000, ns % 1000000000};
	atomic_store(&h->capture_waiter, 1);
	syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, state, &t, NULL, 0);
	atomic_store(&h->capture_waiter, 0);
}

bool rpi_capture_wait(rp_handle *h, int64_t deadline, uint64_t epoch) {
	uint32_t state;
	while (!private_over(h, deadline)) {
		if (rpi_closed(h, epoch))
			return false;
		if ((state = atomic_load(&h->private_later)) != RPI_NONE)
			sleep_on(h, &h->private_later, state, deadline - rpi_now());
	}
	while ((state = atomic_load(&h->capture)) != RPI_NONE) {
		int64_t left = deadline - rpi_now();
		bool canceled = atomic_load(&h->canceled_number) >= atomic_load(&h->armed_number);
		bool hopeless = state == RPI_ARMED && (canceled || never_good(h, h->armed_generation));
		if (rpi_closed(h, epoch))
			return false;
		if (left <= 0 || hopeless) {
			if (state == RPI_ARMED && atomic_compare_exchange_strong(&h->capture, &state, RPI_NONE)) {
				skip(h);
				return true;
			}
			if (state == RPI_RUNNING && !canceled) {
				atomic_store(&h->canceled_number, atomic_load(&h->armed_number));
				skip(h);
			}
			left = RPI_POLL_NS; /* at most one chunk of work is left */
		}
		sleep_on(h, &h->capture, state, left);
	}
	return true;
}

/* Before anything is loaded, and before user code runs again: nothing of this handle copies any more. An armed capture of good state
 * is run here; what a cancelled one left half done can never be sealed. */
void rpi_quiesce(rp_handle *h, int64_t deadline) {
	if (rpi_now() < deadline)
		rpi_capture_run(h, NULL);
	if (atomic_load(&h->capture) == RPI_ARMED)
		deadline = 0; /* not good: nobody will run it */
	forgo_private(h);
	rpi_capture_wait(h, deadline, 0);
	for (uint32_t i = 0; i < h->geo.slots; i++) {
		uint64_t w = h->abandoned[i];
		h->abandoned[i] = 0;
		if (w)
			atomic_compare_exchange_strong(&h->control->slot[i].word, &w, RP_SLOT(RP_SLOT_COUNT(w), RP_TORN));
	}
}

RP_API void rp_cancel(rp_handle *h) {
	if (!h || rpi_forked(h))
		return;
	atomic_store(&h->canceled_number, atomic_load(&h->armed_number));
	atomic_store(&h->hurried, true);
	forgo_private(h);
	rpi_wake_helpers(h);
}

static rpi_place noticed(const rp_handle *h, unsigned bit) {
	if (bit < RP_MAX_SLOTS)
		return rpi_slot(h, bit);
	return bit < RP_MAX_SLOTS + RP_MAX_RING ? rpi_ring(h, bit - RP_MAX_SLOTS) : rpi_frozen(h);
}

int rpi_flush(rp_handle *h, int64_t deadline) {
	if (atomic_load(&h->notices) == 0)
		return RP_OK;
	pthread_mutex_lock(&h->io);
	bool gone = h->gone;
	uint64_t connection = h->connections;
	pthread_mutex_unlock(&h->io);
	if (gone)
		return RP_EGONE;
	for (unsigned bit = 0; bit <= RP_MAX_SLOTS + RP_MAX_RING; bit++) {
		if (!(atomic_fetch_and(&h->notices, ~(1u << bit)) & (1u << bit)))
			continue;
		rpi_place p = noticed(h, bit);
		rp_sealed s = {.kind = (uint32_t)p.kind, .index = p.index, .word = atomic_load(p.word), .generation = p.meta->generation};
		if (RP_SLOT_STATE(s.word) != RP_SEALED)
			continue;
		struct iovec body = {&s, sizeof s};
		int rc = rpi_send_on(h, h->fd, RP_M_SEALED, 0, &body, 1, -1, deadline);
		if (rc == RP_OK)
			continue;
		atomic_fetch_or(&h->notices, 1u << bit); /* told when the daemon takes messages again */
		if (rc == RP_EGONE) {
			pthread_mutex_lock(&h->io);
			h->gone |= connection == h->connections;
			pthread_mutex_unlock(&h->io);
		}
		return rc;
	}
	return RP_OK;
}

RP_API int rp_notify(rp_handle *h) {
	if (!h)
		return RP_EINVAL;
	if (rpi_forked(h))
		return RP_EFORK;
	if (!h->control)
		return RP_ESTATE;
	pthread_rwlock_rdlock(&h->shape);
	int rc = rpi_flush(h, 0);
	pthread_rwlock_unlock(&h->shape);
	pthread_mutex_lock(&h->io);
	int told = rpi_tell_lacks(h);
	int said = rpi_tell_said(h);
	int paused = rpi_tell_pause(h);
	told = told != RP_OK ? told : said != RP_OK ? said : paused;
	rc = rc == RP_OK ? told : rc;
	if (!h->waiting) /* else the training thread reads */
		rpi_pump(h);
	if (h->gone)
		rc = RP_EGONE;
	pthread_mutex_unlock(&h->io);
	return rc == RP_ETIMEOUT ? RP_EAGAIN : rc;
}
