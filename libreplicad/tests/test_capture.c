/* test_capture.c: captures by a worker thread, cancelled, torn, without a slot; loads that must refuse. */
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <linux/falloc.h>

#include "harness.h"

static void step(rank *r, uint64_t s, int *armed) {
	OK(rp_step_enter(r->h, s, 0, &failure)); /* no worker runs beside: what is still armed is skipped */
	for (size_t i = 0; i < r->weights; i++)
		r->weight[i] = (float)(s * 1000 + i);
	r->scale[0] = (float)s;
	r->rng[0] = s;
	OK(GOOD(r->h, s));
	OK(rp_step_exit(r->h, s, 0, armed, &failure));
}

static uint64_t state(const rank *r, uint32_t slot) { return RP_SLOT_STATE(atomic_load(&r->daemon.control->slot[slot].word)); }

/* Volatile regions belong to the step though they change before the worker comes. */
static void takes_volatile_from_staging(void) {
	rank r;
	int armed;
	rank_start(&r, 5000);
	step(&r, 1, &armed);
	SAME(armed, 1);
	r.scale[0] = 77, r.rng[0] = 77;
	OK(rp_capture(r.h, &failure));
	rpi_place p = rpi_slot(r.h, 1); /* the lowest free one: 0 holds the initial state */
	SAME(state(&r, 1), RP_SEALED);
	CHECK(whole(r.h, p, RPI_PART_REPLICATED, true));
	SAME(p.meta->generation, RP_WORD(1, 1, 0));
	float scale, weight;
	memcpy(&scale, p.bytes + r.h->volatile_offset, 4);
	memcpy(&weight, p.bytes + 4 * 4999, 4);
	CHECK(scale == 1 && weight == 5999);
	SAME(rp_capture(r.h, &failure), RP_EAGAIN);
	rank_end(&r);
}

/* How much of the arena is mapped here. */
static uint64_t paged(const rank *r) {
	uint64_t n = 0, entry;
	int fd = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
	for (uint64_t at = 0; at < r->h->arena_bytes; at += RP_PAGE) {
		CHECK(pread(fd, &entry, sizeof entry, (off_t)(((uintptr_t)r->h->arena + at) / RP_PAGE * sizeof entry)) == sizeof entry);
		n += (entry >> 63) * RP_PAGE; /* present */
	}
	close(fd);
	return n;
}

/* A replacement does not wait for the pages of its slots: the worker maps them, until there is something to capture or it is hurried. */
static void worker_maps_the_slots(void) {
	rank r;
	int armed;
	rank_start(&r, 5000);
	const rp_control *g = &r.h->geo;
	uint64_t rest = g->arena_bytes - g->slots * g->slot_stride;
	SAME(paged(&r), rest + g->slot_stride); /* and the slot of the initial state */
	step(&r, 1, &armed);
	rp_cancel(r.h);
	SAME(rp_capture(r.h, &failure), RP_ECANCELED);
	SAME(rp_capture(r.h, &failure), RP_EAGAIN);
	CHECK(paged(&r) <= rest + 2 * g->slot_stride); /* hurried */
	rp_join_info info;
	fake_order(&r.daemon, 2, RP_ORDER_INIT, 0, 0, 0);
	OK(rank_join(&r, &info));
	off_t last = (off_t)(g->slot_offset + (g->slots - 1) * g->slot_stride);
	CHECK(fallocate(r.daemon.memfd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, last, (off_t)g->slot_stride) == 0);
	uint64_t before = paged(&r);
	SAME(rp_capture(r.h, &failure), RP_EAGAIN);
	SAME(paged(&r), before); /* the daemon has not taken that memory yet: it would be charged to this process */
	CHECK(fallocate(r.daemon.memfd, 0, last, (off_t)g->slot_stride) == 0);
	SAME(rp_capture(r.h, &failure), RP_EAGAIN);
	SAME(paged(&r), g->arena_bytes);
	rank_end(&r);
}

static void needs_good(void) {
	rank r;
	int armed;
	rank_start(&r, 100);
	OK(rp_step_enter(r.h, 1, 0, &failure));
	OK(rp_step_exit(r.h, 1, 0, &armed, &failure));
	SAME(armed, 1);
	SAME(rp_capture(r.h, &failure), RP_EAGAIN);
	SAME(state(&r, 1), RP_FREE);
	OK(GOOD(r.h, 1));
	OK(rp_capture(r.h, &failure));
	SAME(state(&r, 1), RP_SEALED);
	rank_end(&r);
}

/* Where the registered memory is a copy of the live state, nobody copies a step from it before it is there: no worker that is awake, not
 * who seals between two steps, and no rank that joins or leaves. */
static void needs_its_stage(void) {
	rank r;
	int armed;
	rank_start(&r, 100);
	OK(rp_step_enter(r.h, 1, 0, &failure));
	OK(GOOD(r.h, 1));
	OK(rp_step_exit(r.h, 1, RP_STAGED_LATER, &armed, &failure));
	SAME(armed, 1);
	SAME(rp_capture(r.h, &failure), RP_EAGAIN);
	CHECK(strstr(failure.text, "step 1 is not staged yet"));
	OK(STAGED(r.h, 0)); /* another one is */
	SAME(rp_capture(r.h, &failure), RP_EAGAIN);
	SAME(state(&r, 1), RP_FREE);
	OK(STAGED(r.h, 1));
	OK(rp_capture(r.h, &failure));
	SAME(state(&r, 1), RP_SEALED);
	SAME(rpi_slot(r.h, 1).meta->flags & RP_STAGED_LATER, 0);

	atomic_store(&r.daemon.control->cadence.word, 100); /* so that nothing is armed */
	atomic_store(&r.daemon.control->candidate.word, RP_WORD(1, 1, 0));
	OK(rp_step_enter(r.h, 2, 0, &failure));
	OK(GOOD(r.h, 2));
	OK(rp_step_exit(r.h, 2, RP_STAGED_LATER, &armed, &failure));
	SAME(armed, 0);
	SAME(rp_seal_step(r.h, 0, &failure), RP_EAGAIN);
	CHECK(strstr(failure.text, "step 2 is not staged yet"));
	OK(STAGED(r.h, 2));
	OK(rp_seal_step(r.h, 0, &failure));
	SAME(rpi_slot(r.h, 2).meta->generation, RP_WORD(1, 2, 0));

	atomic_store(&r.daemon.control->candidate.word, RP_WORD(1, 3, 0));
	OK(rp_step_enter(r.h, 3, 0, &failure));
	OK(GOOD(r.h, 3));
	OK(rp_step_exit(r.h, 3, RP_STAGED_LATER, &armed, &failure));
	SAME(armed, 1);
	atomic_store(&r.daemon.control->fence.word, 1);
	fake_order(&r.daemon, 2, RP_ORDER_LOAD, 0, 0, 0);
	rp_join_info info;
	OK(rank_join(&r, &info)); /* at once: what is not staged now will not be */
	SAME(state(&r, 3), RP_FREE);
	OK(rp_load(r.h, &failure));
	SAME(STAGED(r.h, 3), RP_OK); /* too late */
	rank_end(&r);
}

static void without_a_slot_skips(void) {
	rank r;
	rank_start(&r, 100);
	for (uint32_t i = 1; i < 4; i++)
		atomic_store(&r.daemon.control->slot[i].word, RP_SLOT(0, RP_SEALED));
	step(&r, 1, NULL);
	SAME(rp_capture(r.h, &failure), RP_ECANCELED);
	rp_stats st = {.struct_size = sizeof st};
	OK(rp_get_stats(r.h, &st));
	SAME(st.skipped, 1);
	SAME(atomic_load(&r.daemon.control->skipped.word), 1);
	step(&r, 2, NULL);
	atomic_store(&r.daemon.control->slot[2].word, RP_SLOT(1, RP_FREE));
	OK(rp_capture(r.h, &failure));
	SAME(rpi_slot(r.h, 2).meta->generation, RP_WORD(1, 2, 0));
	rank_end(&r);
}

static void private_ring_full(void) {
	rank r;
	rank_start(&r, 100);
	for (uint64_t s = 1; s <= 9; s++)
		step(&r, s, NULL);
	rp_stats st = {.struct_size = sizeof st};
	OK(rp_get_stats(r.h, &st));
	SAME(st.private_skipped, 2); /* 8 places: the initial state's and steps 1 to 7 */
	rank_end(&r);
}

/* A rank has a state of its own where the job has none: it says of which step, once. */
static void begins_at_a_step(void) {
	rank r = {.daemon = {.chunk = 4096, .slots = 4, .ring = 8}};
	rp_join_info info;
	fake_start(&r.daemon);
	rank_open(&r, &r.daemon, 100, 0);
	OK(rp_attach(r.h, 20ll * second, &failure));
	SAME(rp_begin_at(r.h, 500, &failure), RP_ESTATE);
	fake_order(&r.daemon, 1, RP_ORDER_INIT, 0, 0, 0);
	OK(rank_join(&r, &info));
	SAME(rp_begin_at(r.h, 1ull << 38, &failure), RP_EINVAL);
	OK(rp_begin_at(r.h, 500, &failure));
	OK(rp_seal_initial(r.h, &failure));
	SAME(atomic_load(&r.daemon.control->step.word), RP_WORD(1, 500, RP_IDLE));
	SAME(rp_begin_at(r.h, 500, &failure), RP_ESTATE);
	fake_order(&r.daemon, 1, RP_ORDER_LOAD, 500, 0, 0);
	OK(rank_join(&r, &info));
	SAME(info.step, 500);
	OK(rp_load(r.h, &failure));
	OK(rp_ready(r.h, 20ll * second, &failure));
	fake_order(&r.daemon, 2, RP_ORDER_INIT, 7, 0, 0); /* of a job that begins at a step */
	OK(rank_join(&r, &info));
	SAME(rp_begin_at(r.h, 8, &failure), RP_ESTATE);
	OK(rp_begin_at(r.h, 7, &failure));
	rank_end(&r);
}

static void start_in_window(rank *r) {
	rp_join_info info;
	*r = (rank){0};
	r->daemon = (fake){.chunk = 4096, .slots = 4, .ring = 8};
	fake_start(&r->daemon);
	rank_open(r, &r->daemon, 100, RP_IN_WINDOW);
	OK(rp_attach(r->h, 20ll * second, &failure));
	fake_order(&r->daemon, 1, RP_ORDER_INIT, 0, 0, 0);
	OK(rank_join(r, &info));
	OK(rp_seal_initial(r->h, &failure));
	fake_order(&r->daemon, 1, RP_ORDER_LOAD, 0, 0, 0);
	OK(rank_join(r, &info));
	OK(rp_load(r->h, &failure));
	OK(rp_ready(r->h, 20ll * second, &failure));
}

static void in_window_private_is_sealed_at_exit(void) {
	rank r;
	start_in_window(&r);
	OK(rp_step_enter(r.h, 1, 0, &failure));
	SAME(RP_SLOT_STATE(atomic_load(&r.daemon.control->place[1].word)), RP_FREE);
	r.rng[0] = 42;
	OK(rp_step_exit(r.h, 1, 0, NULL, &failure));
	SAME(RP_SLOT_STATE(atomic_load(&r.daemon.control->place[1].word)), RP_SEALED);
	uint64_t rng;
	memcpy(&rng, rpi_ring(r.h, 1).bytes, 8);
	SAME(rng, 42);
	rank_end(&r);
}

static uint64_t ring(const rank *r, uint32_t i) { return RP_SLOT_STATE(atomic_load(&r->daemon.control->place[i].word)); }

/* On a device private regions are copied to the registered memory behind the step: their part is sealed once they are there, and the step is good. */
static void private_part_later(void) {
	rank r;
	start_in_window(&r);
	SAME(rp_private_staged(r.h, 1, 1, &failure), RP_EAGAIN);
	OK(rp_step_enter(r.h, 1, 0, &failure));
	OK(rp_step_exit(r.h, 1, RP_STAGED_LATER | RP_PRIVATE_LATER, NULL, &failure));
	SAME(ring(&r, 1), RP_FREE);
	r.rng[0] = 42;
	SAME(rp_private_staged(r.h, 1, 1, &failure), RP_EAGAIN); /* not good yet */
	SAME(rp_seal_step(r.h, RP_PRIVATE_UNCHANGED, &failure), RP_EAGAIN);
	SAME(ring(&r, 1), RP_FREE);
	OK(GOOD(r.h, 1));
	SAME(rp_private_staged(r.h, 1, 2, &failure), RP_EAGAIN);
	SAME(rp_private_staged(r.h, 2, 1, &failure), RP_EFENCED);
	OK(rp_private_staged(r.h, 1, 1, &failure));
	SAME(ring(&r, 1), RP_SEALED);
	uint64_t rng;
	memcpy(&rng, rpi_ring(r.h, 1).bytes, 8);
	SAME(rng, 42);
	OK(rp_staged(r.h, 1, 1));
	OK(rp_capture(r.h, &failure));
	OK(rp_seal_step(r.h, 0, &failure));

	/* Nobody stages that of step 2: it is forgone at the deadline, and when it can't be good any more. */
	rp_stats st = {.struct_size = sizeof st};
	for (uint64_t s = 2; s < 4; s++) {
		OK(rp_step_enter(r.h, s, 0, &failure));
		OK(rp_step_exit(r.h, s, RP_STAGED_LATER | RP_PRIVATE_LATER, NULL, &failure));
	}
	OK(rp_get_stats(r.h, &st));
	SAME(st.private_skipped, 1);
	OK(rp_freeze_good(r.h, 1));
	OK(rp_step_enter(r.h, 4, 3600ll * second, &failure));
	OK(rp_step_exit(r.h, 4, RP_STAGED_LATER | RP_PRIVATE_LATER, NULL, &failure));
	OK(rp_get_stats(r.h, &st));
	SAME(st.private_skipped, 2);
	SAME(rp_private_staged(r.h, 1, 4, &failure), RP_EAGAIN);

	/* A join ends it. */
	atomic_store(&r.daemon.control->fence.word, 1);
	fake_order(&r.daemon, 2, RP_ORDER_LOAD, 0, 0, 0);
	rp_join_info info;
	OK(rank_join(&r, &info));
	SAME(rp_private_staged(r.h, 2, 4, &failure), RP_EAGAIN);
	rank_end(&r);
}

/* Without such a region private parts are copied when a step begins, which nobody can put off. */
static void private_part_at_enter_is_never_late(void) {
	rank r;
	rank_start(&r, 100);
	OK(rp_step_enter(r.h, 1, 0, &failure));
	SAME(rp_step_exit(r.h, 1, RP_PRIVATE_LATER, NULL, &failure), RP_EINVAL);
	OK(rp_step_exit(r.h, 1, 0, NULL, &failure));
	rank_end(&r);
}

static void *fence_soon(void *arg) {
	rank *r = arg;
	while (!atomic_load(&r->h->capture_waiter))
		sched_yield();
	atomic_store(&r->daemon.control->fence.word, 1);
	return NULL;
}

/* A step that waits for what a device still has to do, which may wait for a rank that was lost: the fence ends the wait. What is good and armed is copied by the join. */
static void fenced_while_it_waits(bool private) {
	rank r;
	start_in_window(&r);
	OK(rp_step_enter(r.h, 1, 0, &failure));
	OK(rp_step_exit(r.h, 1, RP_STAGED_LATER | (private ? RP_PRIVATE_LATER : 0), NULL, &failure));
	pthread_t t;
	CHECK(pthread_create(&t, NULL, fence_soon, &r) == 0);
	SAME(rp_step_enter(r.h, 2, 3600ll * second, &failure), RP_EFENCED);
	pthread_join(t, NULL);
	OK(GOOD(r.h, 1));
	SAME(rp_private_staged(r.h, 1, 1, &failure), private ? RP_OK : RP_EAGAIN);
	OK(rp_staged(r.h, 1, 1));
	fake_order(&r.daemon, 2, RP_ORDER_LOAD, 0, 0, 0);
	rp_join_info info;
	OK(rank_join(&r, &info));
	SAME(state(&r, 1), RP_SEALED);
	SAME(rpi_slot(r.h, 1).meta->generation, RP_WORD(1, 1, 0));
	SAME(ring(&r, 1), RP_SEALED);
	rank_end(&r);
}

static void fenced_while_a_capture_waits(void) { fenced_while_it_waits(false); }
static void fenced_while_a_private_part_waits(void) { fenced_while_it_waits(true); }

typedef struct {
	rank *r;
	_Atomic int stop;
} worker;

static void *work(void *arg) {
	worker *w = arg;
	while (!atomic_load(&w->stop))
		if (rp_capture(w->r->h, NULL) == RP_EAGAIN)
			sched_yield();
	return NULL;
}

static void *help(void *arg) {
	worker *w = arg;
	while (!atomic_load(&w->stop))
		rp_help(w->r->h, second / 100);
	return NULL;
}

/* A page that stops whoever reads it, until it is let go: two threads of a busy machine would hardly ever be seen in the middle of a copy. */
static struct {
	uint8_t *page;
	_Atomic int reached, passes;
} gate;

static void at_gate(int number, siginfo_t *info, void *context) {
	(void)context;
	uint8_t *at = info->si_addr;
	if (at < gate.page || at >= gate.page + RP_PAGE) {
		signal(number, SIG_DFL); /* a fault of its own: it comes again */
		return;
	}
	atomic_store(&gate.reached, 1);
	while (!atomic_load(&gate.passes))
		sched_yield();
}

static void close_gate(uint8_t *within) {
	gate.page = (uint8_t *)(((uintptr_t)within + RP_PAGE - 1) & ~(uintptr_t)(RP_PAGE - 1));
	atomic_store(&gate.reached, 0);
	atomic_store(&gate.passes, 0);
	CHECK(mprotect(gate.page, RP_PAGE, PROT_NONE) == 0);
}

static void open_gate(void) {
	CHECK(mprotect(gate.page, RP_PAGE, PROT_READ | PROT_WRITE) == 0);
	atomic_store(&gate.passes, 1);
}

/* Whatever the daemon tears and frees while a worker and two helpers copy, and however often captures are cancelled: what is SEALED is whole. */
static void torn_while_copying(void) {
	rank r;
	rank_start(&r, 200000);
	worker w = {.r = &r};
	pthread_t t, helpers[2];
	CHECK(pthread_create(&t, NULL, work, &w) == 0);
	for (int i = 0; i < 2; i++)
		CHECK(pthread_create(&helpers[i], NULL, help, &w) == 0);
	struct sigaction parked = {.sa_sigaction = at_gate, .sa_flags = SA_SIGINFO}, before;
	CHECK(sigaction(SIGSEGV, &parked, &before) == 0);
	unsigned seed = 1, sealed = 0, torn = 0;
	for (uint64_t s = 1; sealed < 50 || torn < 20; s++) {
		CHECK(s < 100000);
		OK(rp_step_enter(r.h, s, rand_r(&seed) % 3 ? 20ll * second : 0, &failure));
		for (size_t i = 0; i < r.weights; i += 512)
			r.weight[i] = (float)s;
		OK(GOOD(r.h, s));
		bool tear = rand_r(&seed) % 2;
		atomic_store(&r.daemon.control->candidate.word, RP_WORD(1, s, 0)); /* or an odd step would not be copied */
		if (tear)
			close_gate((uint8_t *)(r.weight + rand_r(&seed) % (r.weights - 2048)));
		OK(rp_step_exit(r.h, s, 0, NULL, &failure));
		while (tear && !atomic_load(&gate.reached) && atomic_load(&r.h->capture) != RPI_NONE)
			sched_yield();
		do { /* until the capture is over; in every second step the daemon declares it torn, in the middle of the copy */
			for (uint32_t i = 1; i < 4 && tear; i++) {
				uint64_t seen = atomic_load(&r.daemon.control->slot[i].word);
				if (RP_SLOT_STATE(seen) == RP_COPYING || RP_SLOT_STATE(seen) == RP_COPIED)
					torn += atomic_compare_exchange_strong(&r.daemon.control->slot[i].word, &seen, RP_SLOT(RP_SLOT_COUNT(seen), RP_TORN));
			}
			if (tear && !atomic_load(&gate.passes))
				open_gate();
			sched_yield();
		} while (atomic_load(&r.h->capture) != RPI_NONE);
		for (uint32_t i = 1; i < 4; i++) {
			uint64_t seen = atomic_load(&r.daemon.control->slot[i].word);
			if (RP_SLOT_STATE(seen) != RP_SEALED)
				continue;
			CHECK(whole(r.h, rpi_slot(r.h, i), RPI_PART_REPLICATED, true));
			sealed++;
			atomic_store(&r.daemon.control->slot[i].word, RP_SLOT(RP_SLOT_COUNT(seen) + 1, RP_FREE));
		}
		/* TORN is freed only once the copy is joined: the next step_enter does that. */
		OK(rp_step_enter(r.h, ++s, 20ll * second, &failure));
		for (uint32_t i = 1; i < 4; i++) {
			uint64_t seen = atomic_load(&r.daemon.control->slot[i].word);
			if (RP_SLOT_STATE(seen) == RP_TORN)
				atomic_store(&r.daemon.control->slot[i].word, RP_SLOT(RP_SLOT_COUNT(seen) + 1, RP_FREE));
		}
		OK(GOOD(r.h, s));
		OK(rp_step_exit(r.h, s, 0, NULL, &failure));
	}
	atomic_store(&w.stop, 1);
	pthread_join(t, NULL);
	for (int i = 0; i < 2; i++)
		pthread_join(helpers[i], NULL);
	CHECK(sigaction(SIGSEGV, &before, NULL) == 0);
	fprintf(stderr, "    %u sealed, %u torn\n", sealed, torn);
	rank_end(&r);
}

/* With a cadence of four steps nothing is armed by step 1; asked for, it is sealed at once, with its staged volatile regions. */
static void seals_a_step_out_of_turn(void) {
	rank r;
	int armed;
	rank_start(&r, 5000);
	SAME(rp_seal_step(r.h, 0, &failure), RP_OK); /* step 0 is */
	atomic_store(&r.daemon.control->cadence.word, 4);
	step(&r, 1, &armed);
	SAME(armed, 0);
	r.scale[0] = 77;
	for (uint32_t i = 1; i < 4; i++)
		atomic_store(&r.daemon.control->slot[i].word, RP_SLOT(0, RP_SEALED));
	SAME(rp_seal_step(r.h, 0, &failure), RP_EAGAIN);
	CHECK(strstr(failure.text, "no free slot"));
	atomic_store(&r.daemon.control->slot[2].word, RP_SLOT(1, RP_FREE));
	OK(rp_seal_step(r.h, 0, &failure));
	rpi_place p = rpi_slot(r.h, 2);
	SAME(p.meta->generation, RP_WORD(1, 1, 0));
	CHECK(whole(r.h, p, RPI_PART_REPLICATED, true));
	float scale;
	memcpy(&scale, p.bytes + r.h->volatile_offset, 4);
	CHECK(scale == 1);
	OK(rp_seal_step(r.h, 0, &failure)); /* and not once more */
	rp_stats st = {.struct_size = sizeof st};
	OK(rp_get_stats(r.h, &st));
	CHECK(st.captures == 1 && st.skipped == 0);

	OK(rp_step_enter(r.h, 2, 0, &failure));
	SAME(rp_seal_step(r.h, 0, &failure), RP_ESTATE);
	OK(rp_step_exit(r.h, 2, 0, NULL, &failure));
	SAME(rp_seal_step(r.h, 0, &failure), RP_EAGAIN);
	CHECK(strstr(failure.text, "not known to be good"));
	OK(GOOD(r.h, 2));
	for (uint32_t i = 0; i < r.h->geo.ring; i++)
		atomic_store(&r.daemon.control->place[i].word, RP_SLOT(9, RP_FREE));
	atomic_store(&r.daemon.control->slot[3].word, RP_SLOT(9, RP_FREE));
	SAME(rp_seal_step(r.h, 0, &failure), RP_ECANCELED);
	OK(rp_seal_step(r.h, RP_PRIVATE_UNCHANGED, &failure));
	SAME(rpi_ring(r.h, 0).meta->generation, RP_WORD(1, 2, 0));
	CHECK(whole(r.h, rpi_ring(r.h, 0), RPI_PART_PRIVATE, true));
	atomic_store(&r.daemon.control->fence.word, 1);
	SAME(rp_seal_step(r.h, 0, &failure), RP_EFENCED);
	rank_end(&r);
}

/* Until the daemon has heard that the rank stands still it may free the slot of its last step, and does so with two slots, for a
 * candidate that the rank will not come to. */
static void leaves_with_its_last_step_sealed(void) {
	rank r;
	rank_start(&r, 5000);
	step(&r, 1, NULL);
	OK(rp_capture(r.h, &failure));
	r.daemon.freeing = true;
	OK(rp_leave(r.h, 20ll * second, &failure));
	rpi_place p = rpi_slot(r.h, 0);
	SAME(p.meta->generation, RP_WORD(1, 1, 0));
	CHECK(whole(r.h, p, RPI_PART_REPLICATED, true));
	rank_end(&r);
}

/* However short the slices are in which it waits: it has not left before its last step has a place. */
static void leaves_in_slices(void) {
	rank r;
	rank_start(&r, 5000);
	step(&r, 1, NULL);
	for (uint32_t i = 0; i < r.h->geo.slots; i++)
		atomic_store(&r.daemon.control->slot[i].word, RP_SLOT(0, RP_SEALED));
	for (int i = 0; i < 5; i++) {
		SAME(rp_leave(r.h, second / 50, &failure), RP_ETIMEOUT);
		CHECK(strstr(failure.text, "no place in the arena"));
		CHECK(!r.daemon.left);
	}
	atomic_store(&r.daemon.control->slot[1].word, RP_SLOT(1, RP_FREE));
	OK(rp_leave(r.h, 20ll * second, &failure));
	CHECK(r.daemon.left);
	SAME(rpi_slot(r.h, 1).meta->generation, RP_WORD(1, 1, 0));
	rank_end(&r);
}

/* A cancelled capture leaves its slot COPYING for the same handle; at the next join it is TORN for the daemon. */
static void cancelled_slot(void) {
	rank r;
	rank_start(&r, 5000);
	step(&r, 1, NULL);
	rp_cancel(r.h);
	SAME(rp_capture(r.h, &failure), RP_ECANCELED);
	SAME(state(&r, 1), RP_COPYING);
	step(&r, 2, NULL);
	OK(rp_capture(r.h, &failure));
	SAME(state(&r, 1), RP_SEALED);
	SAME(rpi_slot(r.h, 1).meta->generation, RP_WORD(1, 2, 0));
	step(&r, 3, NULL);
	step(&r, 4, NULL);
	rp_cancel(r.h);
	SAME(rp_capture(r.h, &failure), RP_ECANCELED);
	SAME(state(&r, 2), RP_COPYING);
	atomic_store(&r.daemon.control->fence.word, 1);
	fake_order(&r.daemon, 2, RP_ORDER_LOAD, 0, 0, 0);
	rp_join_info info;
	OK(rank_join(&r, &info));
	SAME(state(&r, 2), RP_TORN);
	rank_end(&r);
}

static void *cancel_soon(void *arg) {
	rank *r = arg;
	while (!atomic_load(&r->h->capture_waiter))
		sched_yield();
	rp_cancel(r->h);
	return NULL;
}

/* A capture that nobody will run, since what stages it has failed: the next step doesn't wait for it once it is cancelled. */
static void cancelled_while_armed(void) {
	rank r;
	rank_start(&r, 100);
	OK(rp_step_enter(r.h, 1, 0, &failure));
	OK(GOOD(r.h, 1));
	OK(rp_step_exit(r.h, 1, RP_STAGED_LATER, NULL, &failure));
	pthread_t t;
	CHECK(pthread_create(&t, NULL, cancel_soon, &r) == 0);
	OK(rp_step_enter(r.h, 2, 3600ll * second, &failure));
	pthread_join(t, NULL);
	SAME(state(&r, 1), RP_FREE);
	rp_stats st = {.struct_size = sizeof st};
	OK(rp_get_stats(r.h, &st));
	SAME(st.skipped, 1);
	OK(GOOD(r.h, 2));
	OK(rp_step_exit(r.h, 2, 0, NULL, &failure));
	OK(rp_capture(r.h, &failure));
	SAME(rpi_slot(r.h, 1).meta->generation, RP_WORD(1, 2, 0));
	rank_end(&r);
}

/* A joining rank lets its last capture be: armed and good, it is finished before the daemon hears STOPPED. */
static void join_finishes_the_capture(void) {
	rank r;
	rank_start(&r, 5000);
	step(&r, 1, NULL);
	atomic_store(&r.daemon.control->fence.word, 1);
	fake_order(&r.daemon, 2, RP_ORDER_LOAD, 0, 0, 0);
	rp_join_info info;
	OK(rank_join(&r, &info));
	SAME(state(&r, 1), RP_SEALED);
	SAME(r.daemon.last.generation, RP_WORD(1, 1, 0));
	OK(rp_load(r.h, &failure));
	CHECK(r.weight[1] == 0 && r.scale[0] == 0 && r.rng[0] == 0);
	SAME(atomic_load(&r.daemon.control->good.word), RP_WORD(2, 0, 0));
	SAME(atomic_load(&r.daemon.control->step.word), RP_WORD(2, 0, RP_IDLE));
	rank_end(&r);
}

/* A rank that was let go and stops again gets no order: it is told that the epoch is open, not that the job waits for others. */
static void join_in_an_open_epoch(void) {
	rank r;
	rp_join_info info = {.struct_size = sizeof info};
	rank_start(&r, 5000); /* its daemon answers every stop with the order to load in epoch 1, as one does that hears of the stop late */
	step(&r, 1, NULL);
	unsigned before = atomic_load(&r.daemon.stopped);
	for (unsigned i = 0; i < 3; i++) {
		SAME(rp_join(r.h, &info, 1000000, &failure), RP_ETIMEOUT);
		CHECK(strstr(failure.text, "epoch 1 is open and rank 2 was let go in it"));
		while (atomic_load(&r.daemon.stopped) <= before + i)
			sched_yield();
	}
	fake_order(&r.daemon, 2, RP_ORDER_LOAD, 0, 0, 0);
	atomic_store(&r.daemon.control->fence.word, 1);
	OK(rp_join(r.h, &info, 20ll * second, &failure));
	SAME(info.epoch, 2);
	rank_end(&r);
}

/* A rank that is shared with another thread looks for its order now and then. The first look finishes the capture. */
static void join_only_looks(void) {
	rank r;
	rp_join_info info = {.struct_size = sizeof info};
	rank_start(&r, 5000);
	step(&r, 1, NULL);
	r.daemon.epoch = 0; /* it answers a stop with nothing */
	atomic_store(&r.daemon.control->fence.word, 1);
	SAME(rp_ordered(r.h), 0);
	SAME(rp_join(r.h, &info, 0, &failure), RP_ETIMEOUT);
	CHECK(strstr(failure.text, "the job waits for other ranks"));
	SAME(state(&r, 1), RP_SEALED);
	SAME(rp_ordered(r.h), 0);
	rp_order load = {.action = RP_ORDER_LOAD, .source = RP_OWN_RAM};
	fake_send(&r.daemon, RP_M_ORDER, 2, 0, &load, sizeof load); /* sent once: answers to several stops would come whenever they like */
	SAME(rp_ordered(r.h), 1);
	OK(rp_join(r.h, &info, 0, &failure));
	SAME(info.epoch, 2);
	SAME(rp_ordered(r.h), 0);
	rank_end(&r);
}

/* Another rank of the group seals what they have in common: this one's memory is no generation's before it has loaded that. */
static void own_part_alone(void) {
	rank r = {0};
	rp_join_info info;
	r.daemon = (fake){.chunk = 4096, .slots = 4, .ring = 8};
	fake_start(&r.daemon);
	rank_open(&r, &r.daemon, 5000, 0);
	OK(rp_attach(r.h, 20ll * second, &failure));
	SAME(rp_seal_own(r.h, &failure), RP_ESTATE);
	fake_order(&r.daemon, 1, RP_ORDER_INIT, 7, 0, 0);
	OK(rank_join(&r, &info));
	OK(rp_seal_own(r.h, &failure));
	rpi_place own = rpi_ring(r.h, 0);
	CHECK(whole(r.h, own, RPI_PART_PRIVATE, true));
	SAME(own.meta->flags, RP_SHARED_ELSEWHERE);
	SAME(own.meta->generation, RP_WORD(1, 7, 0));
	SAME(state(&r, 0), RP_FREE);
	SAME(RP_SLOT_STATE(atomic_load(rpi_frozen(r.h).word)), RP_FREE);
	SAME(atomic_load(&r.daemon.control->good.word), 0);
	SAME(atomic_load(&r.daemon.control->step.word), 0);
	SAME(rpi_capture_live(r.h, RP_WORD(1, 7, 0), &failure), RP_EAGAIN);
	SAME(rp_seal_own(r.h, &failure), RP_ESTATE);
	SAME(rp_seal_initial(r.h, &failure), RP_ESTATE);
	SAME(rp_join(r.h, &info, 0, &failure), RP_ETIMEOUT); /* the order that it has carried out is none */
	fake_order(&r.daemon, 2, RP_ORDER_INIT, 7, 0, 0);
	atomic_store(&r.daemon.control->fence.word, 1);
	OK(rank_join(&r, &info));
	atomic_store(&r.daemon.control->fence.word, 2);
	SAME(rp_seal_own(r.h, &failure), RP_EFENCED);
	atomic_store(&r.daemon.control->fence.word, 1);
	OK(rp_seal_initial(r.h, &failure)); /* who followed may lead in a later epoch */
	CHECK(whole(r.h, rpi_slot(r.h, 0), RPI_PART_REPLICATED, true));
	rank_end(&r);
}

static void load_refuses(void) {
	rank r;
	rp_join_info info;
	rank_start(&r, 5000);
	step(&r, 1, NULL);
	OK(rp_capture(r.h, &failure));
	uint8_t *at[] = {rpi_slot(r.h, 0).bytes + 777, rpi_ring(r.h, 0).bytes + 3, rpi_frozen(r.h).bytes + 1, (uint8_t *)rpi_slot(r.h, 0).meta->digest[2], (uint8_t *)&rpi_slot(r.h, 0).meta->flags, (uint8_t *)&rpi_slot(r.h, 0).meta->generation};
	for (size_t i = 0; i < sizeof at / sizeof *at; i++) {
		atomic_store(&r.daemon.control->fence.word, 1 + i);
		fake_order(&r.daemon, 2 + i, RP_ORDER_LOAD, 0, 0, 0);
		r.daemon.order.generation = RP_WORD(1, 0, 0);
		OK(rank_join(&r, &info));
		*at[i] ^= 1;
		r.weight[5] = -5;
		SAME(rp_load(r.h, &failure), RP_ECORRUPT);
		CHECK(r.weight[5] == -5); /* bad bytes cost no live state */
		SAME(rp_ready(r.h, 0, &failure), RP_ESTATE);
		SAME(atomic_load(&r.daemon.control->good.word), RP_WORD(1, 1, 0));
		*at[i] ^= 1;
	}
	SAME(rp_reject(r.h, "NaN", &failure), RP_ESTATE); /* nothing was loaded that could be bad */
	OK(rp_load(r.h, &failure));
	OK(rp_reject(r.h, "NaN", &failure));
	rank_end(&r);
}

static const rpi_hasher *honest;
static const rpi_layout *broken;

/* Hashes what lies in broken as if the memory had not kept it. */
static void broken_gather(uint8_t *dst, const rpi_layout *l, uint64_t at, uint64_t n, uint8_t digest[16]) {
	honest->gather(dst, l, at, n, digest);
	digest[0] ^= l == broken;
}

/* A load that fails once bytes lie in live state leaves nothing that may be sealed as the step that lay there before; one that fails
 * before leaves that step whole. */
static void failed_load_is_not_sealed(void) {
	rank r;
	rp_join_info info;
	rank_start(&r, 5000);
	step(&r, 1, NULL);
	OK(rp_capture(r.h, &failure));
	atomic_store(&r.daemon.control->fence.word, 1);
	fake_order(&r.daemon, 2, RP_ORDER_LOAD, 0, 0, 0);
	OK(rank_join(&r, &info));
	rpi_slot(r.h, 0).bytes[777] ^= 1;
	SAME(rp_load(r.h, &failure), RP_ECORRUPT);
	rpi_slot(r.h, 0).bytes[777] ^= 1;
	rpi_capture_live(r.h, RP_WORD(1, 1, 0), NULL);
	SAME(state(&r, 2), RP_SEALED);
	CHECK(whole(r.h, rpi_slot(r.h, 2), RPI_PART_REPLICATED, true));

	honest = r.h->hash, broken = &r.h->replicated;
	rpi_hasher h = {.gather = broken_gather, .digest = honest->digest};
	r.h->hash = &h;
	r.weight[5] = -5;
	SAME(rp_load(r.h, &failure), RP_ECORRUPT);
	CHECK(r.weight[5] == 0); /* overwritten */
	r.h->hash = honest;
	rpi_capture_live(r.h, RP_WORD(1, 1, 0), NULL);
	SAME(state(&r, 3), RP_FREE);
	for (unsigned k = 0; k < RP_STAGING; k++)
		SAME(atomic_load(&r.daemon.control->tag[k].word), 0);

	OK(rp_load(r.h, &failure));
	OK(rp_ready(r.h, 20ll * second, &failure)); /* an answer to what was sent last */
	SAME(atomic_load(&r.daemon.unloadable), 1); /* the first load's: what was sealed is good, and the daemon hears of no fault in it */
	OK(rp_step_enter(r.h, 1, 0, &failure));
	rank_end(&r);
}

/* A process that takes over the arena of a dead one finds there whole, good words of a step that it never had in memory. */
static void an_heir_seals_nothing(void) {
	rank r, heir;
	rp_join_info info;
	rank_start(&r, 5000);
	atomic_store(&r.daemon.control->cadence.word, 100); /* so that step 1 is in no slot */
	atomic_store(&r.daemon.control->candidate.word, RP_WORD(1, 100, 0));
	step(&r, 1, NULL);
	SAME(atomic_load(&r.daemon.control->holder.word), 5);
	rp_close(r.h); /* dies IDLE, with good at step 1 */
	atomic_store(&r.daemon.control->fence.word, 1);

	r.daemon.geometry = NULL;
	rank_open(&heir, &r.daemon, 5000, 0);
	OK(rp_attach(heir.h, 20ll * second, &failure));
	rpi_capture_live(heir.h, RP_WORD(1, 1, 0), NULL);
	SAME(state(&r, 1), RP_FREE);
	SAME(atomic_load(&r.daemon.control->holder.word), 0);
	SAME(atomic_load(&r.daemon.control->step.word), 0);
	SAME(atomic_load(&r.daemon.control->good.word), 0);
	r.daemon.order = (rp_order){.action = RP_ORDER_CAPTURE, .step = 1, .generation = RP_WORD(1, 1, 0)};
	r.daemon.epoch = 1;
	info = (rp_join_info){.struct_size = sizeof info};
	SAME(rp_join(heir.h, &info, second / 5, &failure), RP_ETIMEOUT);
	for (uint32_t i = 1; i < 4; i++)
		SAME(state(&r, i), RP_FREE);
	/* Nor by any other way: nothing is sealed of an epoch that was not loaded. */
	uint64_t word;
	CHECK(rpi_take(rpi_ring(heir.h, 5), &word));
	SAME(rpi_fill(heir.h, rpi_ring(heir.h, 5), word, RPI_PART_PRIVATE, &heir.h->private_part, RP_WORD(1, 1, 0), 0, NULL, 0, &failure), RP_ESTATE);
	CHECK(strstr(failure.text, "has not loaded that epoch's state"));

	/* What the dead one sealed is there, and once it is loaded the handle is as good as any. */
	fake_order(&r.daemon, 2, RP_ORDER_LOAD, 0, 0, 0);
	OK(rank_join(&heir, &info));
	OK(rp_load(heir.h, &failure));
	OK(rp_ready(heir.h, 20ll * second, &failure));
	SAME(atomic_load(&r.daemon.control->holder.word), 5);
	atomic_store(&r.daemon.control->candidate.word, RP_WORD(2, 1, 0));
	step(&heir, 1, NULL);
	OK(rp_capture(heir.h, &failure));
	SAME(state(&r, 1), RP_SEALED);
	rp_close(heir.h);
	fake_stop(&r.daemon);
	free(r.weight), free(r.scale), free(r.base), free(heir.weight), free(heir.scale), free(heir.base);
}

/* The daemon hears of bytes that are not the plan's, and of nothing else. */
static void says_what_it_cannot_load(void) {
	rank r;
	rp_join_info info;
	rank_start(&r, 100);
	atomic_store(&r.daemon.control->fence.word, 1);
	fake_order(&r.daemon, 2, RP_ORDER_LOAD, 0, 0, 0);
	OK(rank_join(&r, &info));
	rpi_slot(r.h, 0).bytes[7] ^= 1;
	SAME(rp_load(r.h, &failure), RP_ECORRUPT);
	rpi_slot(r.h, 0).bytes[7] ^= 1;
	OK(rp_load(r.h, &failure));
	OK(rp_ready(r.h, 20ll * second, &failure)); /* an answer to what was sent last */
	SAME(atomic_load(&r.daemon.unloadable), 1);
	rank_end(&r);
}

/* What was loaded is known until the next step begins; what has changed since, to the bit. */
static void is_what_was_loaded(void) {
	rank r;
	rp_join_info info = {sizeof info};
	int same = -1;
	rank_start(&r, 5000);
	uint32_t weight = 0;
	for (uint32_t i = 0; i < r.h->regions; i++)
		weight = r.h->live[i] == (void *)r.weight ? i : weight;
	atomic_store(&r.daemon.control->fence.word, 1);
	fake_order(&r.daemon, 2, RP_ORDER_LOAD, 0, 0, 0);
	OK(rank_join(&r, &info));
	SAME(rp_as_loaded(r.h, weight, &same, &failure), RP_ESTATE);
	OK(rp_load(r.h, &failure));
	OK(rp_ready(r.h, 20ll * second, &failure));
	for (uint32_t i = 0; i < r.h->regions; i++) {
		OK(rp_as_loaded(r.h, i, &same, &failure));
		SAME(same, 1);
	}
	SAME(rp_as_loaded(r.h, r.h->regions, &same, &failure), RP_EINVAL);
	((uint8_t *)r.weight)[19999] ^= 1;
	OK(rp_as_loaded(r.h, weight, &same, &failure));
	SAME(same, 0);
	OK(rp_load_again(r.h, weight, &failure));
	OK(rp_as_loaded(r.h, weight, &same, &failure));
	SAME(same, 1);
	SAME(rp_load_again(r.h, r.h->regions, &failure), RP_EINVAL);
	rp_control *c = r.daemon.control;
	uint64_t word = atomic_load(&c->slot[0].word);
	atomic_store(&c->slot[0].word, RP_SLOT(RP_SLOT_COUNT(word), RP_FREE));
	SAME(rp_as_loaded(r.h, weight, &same, &failure), RP_ESTATE);
	atomic_store(&c->slot[0].word, word);
	OK(rp_step_enter(r.h, info.step + 1, 0, &failure));
	SAME(rp_as_loaded(r.h, weight, &same, &failure), RP_ESTATE);
	SAME(rp_load_again(r.h, weight, &failure), RP_ESTATE);
	rank_end(&r);
}

/* What the caller has where its state lies, by its own account, is in the copy or the copy is not kept; what was changed in place meanwhile says nothing. */
static void is_of_what_the_caller_has(void) {
	rank r;
	int armed;
	rank_start(&r, 5000);
	uint32_t weight = 0, rng = 0;
	for (uint32_t i = 0; i < r.h->regions; i++) {
		weight = r.h->live[i] == (void *)r.weight ? i : weight;
		rng = r.h->live[i] == (void *)r.rng ? i : rng;
	}
	float moved[5000];
	OK(rp_expect(r.h, rng, 8, &r.rng[1], 8, &failure)); /* copied when the step begins */
	OK(rp_step_enter(r.h, 1, 0, &failure));
	SAME(rp_compared(r.h), 1);
	SAME(rp_expect(r.h, weight, 20000 - 4, r.weight, 8, &failure), RP_EINVAL);
	SAME(rp_expect(r.h, rng, 0, r.rng, 8, &failure), RP_ESTATE);
	for (size_t i = 0; i < 5000; i++)
		moved[i] = r.weight[i] = (float)i;
	OK(rp_expect(r.h, weight, 4 * 4000, r.weight + 4000, 4 * 1000, &failure));
	OK(GOOD(r.h, 1));
	OK(rp_step_exit(r.h, 1, 0, &armed, &failure));
	SAME(rp_expect(r.h, weight, 0, r.weight, 4, &failure), RP_ESTATE);
	OK(rp_capture(r.h, &failure));
	SAME(rp_compared(r.h), 2);
	rp_control *c = r.daemon.control;
	atomic_store(&c->slot[0].word, RP_SLOT(RP_SLOT_COUNT(atomic_load(&c->slot[0].word)), RP_FREE));

	OK(rp_step_enter(r.h, 2, 0, &failure));
	moved[4321] = -1; /* trained there, and copied from here */
	OK(rp_expect(r.h, weight, 4 * 4000, moved + 4000, 4 * 1000, &failure));
	OK(GOOD(r.h, 2));
	OK(rp_step_exit(r.h, 2, 0, &armed, &failure));
	SAME(armed, 1);
	SAME(rp_capture(r.h, &failure), RP_ECORRUPT);
	CHECK(strstr(failure.text, "its copy of step 2 differs, from byte 17285 on"));
	SAME(state(&r, 0), RP_COPYING);
	SAME(rp_seal_step(r.h, 0, &failure), RP_ECORRUPT); /* nor by the training thread */
	SAME(state(&r, 0), RP_COPYING);
	moved[4000] = 7; /* changed in place meanwhile */
	OK(rp_seal_step(r.h, 0, &failure));
	SAME(state(&r, 0), RP_SEALED);

	uint64_t other[4] = {1, 2, 3, 4};
	OK(rp_expect(r.h, rng, 0, other, sizeof other, &failure));
	SAME(rp_step_enter(r.h, 3, 0, &failure), RP_ECORRUPT);
	SAME(r.h->step, RP_WORD(1, 2, RP_IDLE));
	rank_end(&r);
}

const test capture_tests[] = {{"takes volatile from staging", takes_volatile_from_staging}, {"worker maps the slots", worker_maps_the_slots}, {"needs good", needs_good}, {"needs its stage", needs_its_stage}, {"is what was loaded", is_what_was_loaded}, {"is of what the caller has", is_of_what_the_caller_has}, {"without a slot skips", without_a_slot_skips}, {"private ring full", private_ring_full},
			      {"in-window private is sealed at exit", in_window_private_is_sealed_at_exit}, {"torn while copying", torn_while_copying}, {"seals a step out of turn", seals_a_step_out_of_turn}, {"leaves with its last step sealed", leaves_with_its_last_step_sealed}, {"leaves in slices", leaves_in_slices}, {"cancelled slot", cancelled_slot}, {"cancelled while armed", cancelled_while_armed}, {"private part later", private_part_later}, {"private part at enter is never late", private_part_at_enter_is_never_late}, {"fenced while a capture waits", fenced_while_a_capture_waits}, {"fenced while a private part waits", fenced_while_a_private_part_waits},
			      {"join finishes the capture", join_finishes_the_capture},
			      {"join in an open epoch", join_in_an_open_epoch}, {"join only looks", join_only_looks}, {"own part alone", own_part_alone}, {"load refuses", load_refuses}, {"failed load is not sealed", failed_load_is_not_sealed},
			      {"begins at a step", begins_at_a_step}, {"an heir seals nothing", an_heir_seals_nothing}, {"says what it cannot load", says_what_it_cannot_load}, {0}};
