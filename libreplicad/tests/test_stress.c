/* test_stress.c: captures and loads under helpers that come late and leave early, cancels, and a daemon that tears and frees slots meanwhile. */
#include <sched.h>
#include <time.h>
#include <unistd.h>

#include "harness.h"

typedef struct {
	rank r;
	_Atomic bool quit;
	_Atomic unsigned sealed, torn;
	_Atomic uint64_t keep; /* generation that the daemon does not free */
} stress;

static unsigned draw(unsigned *seed) {
	*seed = *seed * 1664525u + 1013904223u;
	return *seed >> 8;
}

static void *helps(void *arg) {
	stress *s = arg;
	unsigned seed = (unsigned)(uintptr_t)&seed;
	while (!atomic_load(&s->quit)) {
		rp_help(s->r.h, draw(&seed) % 3 ? draw(&seed) % 200000 : 0);
		if (draw(&seed) % 5 == 0)
			sched_yield();
	}
	return NULL;
}

static void *works(void *arg) {
	stress *s = arg;
	while (!atomic_load(&s->quit)) {
		rp_capture(s->r.h, NULL);
		sched_yield();
	}
	return NULL;
}

static void *cancels(void *arg) {
	stress *s = arg;
	unsigned seed = 7;
	while (!atomic_load(&s->quit)) {
		nanosleep(&(struct timespec){0, draw(&seed) % 50000000}, NULL);
		rp_cancel(s->r.h);
	}
	return NULL;
}

/* Looks at what is sealed, and frees it; tears what is being copied, at times. */
static void *daemon_of(void *arg) {
	stress *s = arg;
	unsigned seed = 99;
	while (!atomic_load(&s->quit)) {
		for (uint32_t i = 0; i < s->r.h->geo.slots; i++) {
			rpi_place p = rpi_slot(s->r.h, i);
			uint64_t w = atomic_load(p.word);
			if (RP_SLOT_STATE(w) == RP_SEALED && p.meta->generation != atomic_load(&s->keep)) {
				CHECK(whole(s->r.h, p, RPI_PART_REPLICATED, true));
				float want = (float)RP_WORD_STEP(p.meta->generation), got;
				for (size_t k = 0; k < s->r.weights && RP_WORD_STEP(p.meta->generation); k += 512) {
					memcpy(&got, p.bytes + 4 * k, 4);
					CHECK(got == want);
				}
				atomic_fetch_add(&s->sealed, 1);
				CHECK(atomic_compare_exchange_strong(p.word, &w, RP_SLOT(RP_SLOT_COUNT(w) + 1, RP_FREE)));
			} else if (RP_SLOT_STATE(w) == RP_COPYING && atomic_load(&s->torn) < 2 && draw(&seed) % 200 == 0) {
				if (atomic_compare_exchange_strong(p.word, &w, RP_SLOT(RP_SLOT_COUNT(w), RP_TORN)))
					atomic_fetch_add(&s->torn, 1);
			}
		}
		for (uint32_t i = 0; i < s->r.h->geo.ring; i++) {
			rpi_place p = rpi_ring(s->r.h, i);
			uint64_t w = atomic_load(p.word);
			if (RP_SLOT_STATE(w) == RP_SEALED && p.meta->generation != atomic_load(&s->keep))
				atomic_compare_exchange_strong(p.word, &w, RP_SLOT(RP_SLOT_COUNT(w) + 1, RP_FREE));
		}
		sched_yield();
	}
	return NULL;
}

static void many_threads(void) {
	static stress s;
	memset(&s, 0, sizeof s);
	rank_start(&s.r, 400000);
	pthread_t t[8];
	atomic_store(&s.keep, UINT64_MAX);
	for (int i = 0; i < 4; i++)
		CHECK(pthread_create(&t[i], NULL, helps, &s) == 0);
	CHECK(pthread_create(&t[4], NULL, works, &s) == 0);
	CHECK(pthread_create(&t[5], NULL, cancels, &s) == 0);
	CHECK(pthread_create(&t[6], NULL, daemon_of, &s) == 0);
	unsigned seed = 3;
	uint64_t epoch = 1, step = 0;
	unsigned armed_total = 0;
	int64_t end = rpi_now() + (int64_t)(getenv("STRESS_S") ? atoi(getenv("STRESS_S")) : 3) * second;
	for (unsigned round = 0; rpi_now() < end; round++) {
		step++;
		atomic_store(&s.r.daemon.control->candidate.word, RP_WORD(epoch, step, 0));
		OK(rp_step_enter(s.r.h, step, draw(&seed) % 3 ? 20ll * second : draw(&seed) % 300000, &failure));
		for (size_t i = 0; i < s.r.weights; i++)
			s.r.weight[i] = (float)step;
		OK(GOOD(s.r.h, step));
		int armed;
		OK(rp_step_exit(s.r.h, step, 0, &armed, &failure));
		armed_total += (unsigned)armed;
		if (draw(&seed) % 4 == 0)
			nanosleep(&(struct timespec){0, draw(&seed) % 1000000}, NULL);
	}
	fprintf(stderr, "    %llu steps, %u armed, %u sealed, %u torn\n", (unsigned long long)step, armed_total, atomic_load(&s.sealed), atomic_load(&s.torn));
	atomic_store(&s.quit, true);
	for (int i = 0; i < 7; i++)
		pthread_join(t[i], NULL);
	SAME(atomic_load(&s.r.h->helpers), 0);
	SAME(atomic_load(&s.r.h->turn) % 2, 0);
	rank_end(&s.r);
}

/* Loads again and again under helpers that come and go. */
static void many_loads(void) {
	static stress s;
	memset(&s, 0, sizeof s);
	rank_start(&s.r, 400000);
	OK(rp_step_enter(s.r.h, 1, 0, &failure));
	for (size_t i = 0; i < s.r.weights; i++)
		s.r.weight[i] = (float)i;
	OK(GOOD(s.r.h, 1));
	OK(rp_step_exit(s.r.h, 1, 0, NULL, &failure));
	OK(rp_capture(s.r.h, &failure));
	pthread_t t[6];
	for (int i = 0; i < 4; i++)
		CHECK(pthread_create(&t[i], NULL, helps, &s) == 0);
	CHECK(pthread_create(&t[4], NULL, works, &s) == 0);
	CHECK(pthread_create(&t[5], NULL, cancels, &s) == 0);
	int64_t end = rpi_now() + (int64_t)(getenv("STRESS_S") ? atoi(getenv("STRESS_S")) : 3) * second;
	unsigned n = 0;
	for (uint64_t epoch = 2; rpi_now() < end; epoch++, n++) {
		rp_join_info info;
		atomic_store(&s.r.daemon.control->fence.word, epoch - 1);
		fake_order(&s.r.daemon, epoch, RP_ORDER_LOAD, 1, 1, 1);
		OK(rank_join(&s.r, &info));
		memset(s.r.weight, 0xee, s.r.weights * sizeof *s.r.weight);
		OK(rp_load(s.r.h, &failure));
		for (size_t i = 0; i < s.r.weights; i++)
			CHECK(s.r.weight[i] == (float)i);
	}
	fprintf(stderr, "    %u loads\n", n);
	atomic_store(&s.quit, true);
	for (int i = 0; i < 6; i++)
		pthread_join(t[i], NULL);
	rank_end(&s.r);
}

const test stress_tests[] = {{"stress many threads", many_threads}, {"stress many loads", many_loads}, {0}};
