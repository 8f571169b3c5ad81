/* test_grow.c: other regions between two steps. */
#include <sys/wait.h>
#include <unistd.h>

#include "harness.h"

/* A region more, another order, and one that goes. */
typedef struct {
	float late[500];
	rp_region regions[5];
} grown;

static rp_region named(const char *name, int dtype, int kind, int cls, void *data, uint64_t n, uint64_t size) {
	return (rp_region){.struct_size = sizeof(rp_region), .dtype = (uint8_t)dtype, .kind = (uint8_t)kind, .cls = (uint8_t)cls, .ndim = 1, .name = name, .data = data, .bytes = n * size, .shape = {n}};
}

static void grown_regions(rank *r, grown *g) {
	g->regions[0] = named("late", RP_F32, RP_REPLICATED, RP_WINDOW, g->late, 500, 4);
	g->regions[1] = named("weight", RP_F32, RP_REPLICATED, RP_WINDOW, r->weight, r->weights, 4);
	g->regions[2] = named("rng", RP_U64, RP_PRIVATE, RP_VOLATILE, r->rng, 4, 8);
	g->regions[3] = named("scale", RP_F32, RP_REPLICATED, RP_VOLATILE, r->scale, 17, 4);
	g->regions[4] = named("base", RP_F32, RP_REPLICATED, RP_FROZEN, r->base, 300, 4);
}

/* Brings a rank to step n, which is committed. */
static void at_step(rank *r, uint64_t n) {
	for (uint64_t s = 1; s <= n; s++) {
		OK(rp_step_enter(r->h, s, 0, &failure));
		r->weight[0] += 1;
		r->rng[0] = s;
		OK(GOOD(r->h, s));
		OK(rp_step_exit(r->h, s, 0, NULL, &failure));
		OK(rp_capture(r->h, &failure));
		atomic_store(&r->daemon.control->committed.word, RP_WORD(1, s, 0));
		for (uint32_t i = 0; i < 4; i++) { /* the daemon frees what is committed */
			uint64_t w = atomic_load(&r->daemon.control->slot[i].word);
			if (RP_SLOT_STATE(w) == RP_SEALED && RP_WORD_STEP(rpi_slot(r->h, i).meta->generation) < s)
				atomic_store(&r->daemon.control->slot[i].word, RP_SLOT(RP_SLOT_COUNT(w) + 1, RP_FREE));
		}
		for (uint32_t i = 0; i < 8; i++) {
			uint64_t w = atomic_load(&r->daemon.control->place[i].word);
			if (RP_SLOT_STATE(w) == RP_SEALED && RP_WORD_STEP(rpi_ring(r->h, i).meta->generation) < s)
				atomic_store(&r->daemon.control->place[i].word, RP_SLOT(RP_SLOT_COUNT(w) + 1, RP_FREE));
		}
	}
}

static int grows(rank *r, grown *g, int64_t timeout) { return rp_grow(r->h, g->regions, 5, "recipe", 6, timeout, &failure); }

/* From the daemon's answer to the next step: sealed, loaded, opened. */
static void goes_on(rank *r, grown *g, uint64_t epoch, uint64_t step) {
	rp_join_info info;
	SAME(atomic_load(&r->h->life), RPI_ATTACHED);
	SAME(rp_fenced(r->h), 1);
	SAME(rp_committed(r->h), step);
	fake_order(&r->daemon, epoch, RP_ORDER_INIT, step, 0, 0);
	OK(rank_join(r, &info));
	SAME(info.action, RP_INIT);
	SAME(info.step, step);
	OK(rp_seal_initial(r->h, &failure));
	CHECK(whole(r->h, rpi_slot(r->h, 0), RPI_PART_REPLICATED, true) && whole(r->h, rpi_ring(r->h, 0), RPI_PART_PRIVATE, true) && whole(r->h, rpi_frozen(r->h), RPI_PART_FROZEN, true));
	SAME(rpi_slot(r->h, 0).meta->generation, RP_WORD(epoch, step, 0));
	float first = r->weight[0], late = g->late[3];
	r->weight[0] = -1, g->late[3] = -1;
	fake_order(&r->daemon, epoch, RP_ORDER_LOAD, step, 0, 0);
	OK(rank_join(r, &info));
	SAME(info.action, RP_LOAD);
	OK(rp_load(r->h, &failure));
	CHECK(r->weight[0] == first && g->late[3] == late); /* the new regions are loaded, too */
	OK(rp_ready(r->h, 20ll * second, &failure));
	OK(rp_step_enter(r->h, step + 1, 0, &failure));
	g->late[3]++;
	OK(GOOD(r->h, step + 1));
	OK(rp_step_exit(r->h, step + 1, 0, NULL, &failure));
	OK(rp_capture(r->h, &failure));
	CHECK(whole(r->h, rpi_slot(r->h, 1), RPI_PART_REPLICATED, true));
}

static void takes_other_regions(void) {
	rank r;
	static grown g;
	rank_start(&r, 3000);
	at_step(&r, 4);
	grown_regions(&r, &g);
	g.late[3] = 7;
	r.daemon.grows = true;
	int fd = rp_fd(r.h);
	OK(grows(&r, &g, 20ll * second));
	SAME(rp_fd(r.h), fd);
	SAME(r.daemon.growth.step, 4);
	SAME(r.daemon.growth.regions, 5);
	SAME(r.daemon.growth.recipe, 6);
	CHECK(!r.h->next && r.h->regions == 5);
	goes_on(&r, &g, 2, 4);
	rank_end(&r);
}

static void out_of_order(void) {
	rank r;
	static grown g;
	rank_start(&r, 100);
	grown_regions(&r, &g);
	r.daemon.grows = true;
	atomic_store(&r.daemon.control->committed.word, RP_WORD(1, 0, 0));
	SAME(rp_grow(r.h, g.regions, 5, NULL, 1, second, &failure), RP_EINVAL);
	SAME(rp_grow(r.h, g.regions, 5, "", RP_RECIPE_MAX + 1, second, &failure), RP_EINVAL);
	SAME(rp_grow(r.h, g.regions, 5, NULL, 0, -1, &failure), RP_EINVAL);
	SAME(rp_grow(r.h, g.regions, 0, NULL, 0, second, &failure), RP_EINVAL);
	g.regions[1].name = "late"; /* as rp_register checks */
	SAME(grows(&r, &g, second), RP_EINVAL);
	CHECK(strstr(failure.text, "twice"));
	g.regions[1].name = "weight";
	OK(rp_step_enter(r.h, 1, 0, &failure));
	SAME(grows(&r, &g, second), RP_ESTATE);
	OK(GOOD(r.h, 1));
	OK(rp_step_exit(r.h, 1, 0, NULL, &failure));
	atomic_store(&r.daemon.control->fence.word, 1);
	SAME(grows(&r, &g, second), RP_EFENCED);
	SAME(atomic_load(&r.daemon.asked_to_grow), 0);
	CHECK(!r.h->next);
	rank_end(&r);
}

/* Nothing has changed: the rank trains on, and may ask again, for something else too. */
static void refused(void) {
	rank r;
	static grown g;
	rank_start(&r, 100);
	at_step(&r, 1);
	grown_regions(&r, &g);
	r.daemon.grow_refuse = RP_EREFUSED;
	SAME(grows(&r, &g, 20ll * second), RP_EREFUSED);
	CHECK(strcmp(failure.text, "no.") == 0 && !r.h->next);
	r.daemon.grow_refuse = RP_EFENCED;
	SAME(grows(&r, &g, 20ll * second), RP_EFENCED);
	SAME(r.h->regions, 5);
	CHECK(strcmp((char *)r.h->records, "weight") == 0);
	OK(rp_step_enter(r.h, 2, 0, &failure));
	OK(GOOD(r.h, 2));
	OK(rp_step_exit(r.h, 2, 0, NULL, &failure));
	OK(rp_capture(r.h, &failure));
	atomic_store(&r.daemon.control->committed.word, RP_WORD(1, 2, 0));
	r.daemon.grow_refuse = 0, r.daemon.grows = true;
	OK(grows(&r, &g, 20ll * second));
	goes_on(&r, &g, 2, 2);
	rank_end(&r);
}

/* A call that was cut goes on, whatever the fence says meanwhile: the answer may be the arena. */
static void cut_and_called_again(void) {
	rank r;
	static grown g;
	rank_start(&r, 100);
	at_step(&r, 1);
	grown_regions(&r, &g);
	SAME(grows(&r, &g, 50000000), RP_ETIMEOUT);
	SAME(grows(&r, &g, 0), RP_ETIMEOUT);
	SAME(atomic_load(&r.daemon.asked_to_grow), 1); /* it waits for the answer to what it asked */
	SAME(atomic_load(&r.daemon.pieces), 3);        /* of rp_attach, and once of this */
	SAME(rp_grow(r.h, g.regions, 4, "recipe", 6, 0, &failure), RP_ETIMEOUT); /* another growth is another request */
	SAME(r.h->next->regions, 4);
	atomic_store(&r.daemon.control->fence.word, 1);
	SAME(rp_grow(r.h, g.regions, 4, "recipe", 6, 0, &failure), RP_ETIMEOUT);
	r.daemon.grow_refuse = RP_EFENCED;
	SAME(grows(&r, &g, 20ll * second), RP_EFENCED);
	rp_join_info info;
	fake_order(&r.daemon, 2, RP_ORDER_LOAD, 1, 1, 1);
	OK(rank_join(&r, &info));
	rank_end(&r);
}

/* The daemon is away in the middle: after rp_reconnect all is sent again. */
static void daemon_restarts(void) {
	rank r;
	static grown g;
	rank_start(&r, 100);
	at_step(&r, 1);
	grown_regions(&r, &g);
	SAME(grows(&r, &g, 50000000), RP_ETIMEOUT);
	fake_hang_up(&r.daemon);
	SAME(grows(&r, &g, 20ll * second), RP_EGONE);
	fake_start(&r.daemon);
	OK(rp_reconnect(r.h, 20ll * second, &failure));
	unsigned before = atomic_load(&r.daemon.pieces);
	r.daemon.grows = true;
	OK(grows(&r, &g, 20ll * second));
	SAME(atomic_load(&r.daemon.pieces), before + 2);
	goes_on(&r, &g, 2, 1);
	rank_end(&r);
}

/* Who goes on to another order has given the growth up; an answer that still comes is nobody's. */
static void given_up(void) {
	rank r;
	static grown g;
	rank_start(&r, 100);
	at_step(&r, 1);
	grown_regions(&r, &g);
	SAME(grows(&r, &g, 50000000), RP_ETIMEOUT);
	atomic_store(&r.daemon.control->fence.word, 1);
	rp_join_info info;
	fake_order(&r.daemon, 2, RP_ORDER_LOAD, 1, 1, 1);
	OK(rank_join(&r, &info));
	CHECK(!r.h->next && !r.h->hand.request);
	rank_end(&r);
}

/* What this process can't take is a fault of its own. */
static void bad_arena(void) {
	rank r;
	static grown g;
	rank_start(&r, 100);
	at_step(&r, 1);
	grown_regions(&r, &g);
	r.daemon.grows = r.daemon.garbage = true;
	SAME(grows(&r, &g, 20ll * second), RP_ECORRUPT);
	CHECK(strstr(failure.text, "descriptor"));
	OK(rp_kv_set(r.h, "k", "v", 1, 20ll * second, &failure)); /* answered after what was sent before it */
	SAME(atomic_load(&r.daemon.failed), 1);
	CHECK(!r.h->next);
	rank_end(&r);
}

/* A process that starts after a growth reads the recipe before it registers. */
static void reads_the_recipe(void) {
	rank r = {0};
	r.daemon = (fake){.chunk = 4096, .slots = 4, .ring = 8, .recipe = ""};
	fake_start(&r.daemon);
	rank_open(&r, &r.daemon, 100, 0);
	char got[16] = "untouched";
	size_t n = sizeof got;
	OK(rp_recipe(r.h, got, &n, 20ll * second, &failure));
	CHECK(n == 0 && strcmp(got, "untouched") == 0);
	r.daemon.recipe = "groups=2,late";
	n = sizeof got;
	OK(rp_recipe(r.h, got, &n, 20ll * second, &failure));
	CHECK(n == 13 && memcmp(got, "groups=2,late", 13) == 0);
	n = 5;
	SAME(rp_recipe(r.h, got, &n, 20ll * second, &failure), RP_EINVAL);
	SAME(n, 13);
	n = 0;
	SAME(rp_recipe(r.h, NULL, &n, 20ll * second, &failure), RP_EINVAL);
	SAME(n, 13);
	SAME(rp_recipe(r.h, NULL, NULL, second, &failure), RP_EINVAL);
	rank_end(&r);
}

/* The worker's calls, and those of any thread, while the arena is exchanged. */
static _Atomic bool enough;
static void *works(void *arg) {
	rank *r = arg;
	while (!atomic_load(&enough)) {
		rp_capture(r->h, NULL);
		rp_notify(r->h);
		rp_fenced(r->h);
		rp_committed(r->h);
		rp_help(r->h, 0);
	}
	return NULL;
}

static void beside_a_worker(void) {
	for (int round = 0; round < 5; round++) {
		rank r;
		static grown g;
		rank_start(&r, 100000);
		at_step(&r, 1);
		grown_regions(&r, &g);
		r.daemon.grows = true;
		pthread_t worker[2];
		atomic_store(&enough, false);
		for (int i = 0; i < 2; i++)
			CHECK(pthread_create(&worker[i], NULL, works, &r) == 0);
		OK(grows(&r, &g, 20ll * second));
		atomic_store(&enough, true);
		for (int i = 0; i < 2; i++)
			pthread_join(worker[i], NULL);
		goes_on(&r, &g, 2, 1);
		rank_end(&r);
	}
}

static void child_grows_nothing(void) {
	rank r;
	static grown g;
	rank_start(&r, 100);
	grown_regions(&r, &g);
	pid_t pid = fork();
	CHECK(pid >= 0);
	if (pid == 0) {
		size_t n = 0;
		_exit(rp_grow(r.h, g.regions, 5, NULL, 0, 0, NULL) == RP_EFORK && rp_recipe(r.h, NULL, &n, 0, NULL) == RP_EFORK ? 0 : 1);
	}
	int status;
	CHECK(waitpid(pid, &status, 0) == pid);
	SAME(status, 0);
	rank_end(&r);
}

const test grow_tests[] = {
	{"a growth takes other regions at the same step", takes_other_regions},
	{"a growth comes between two steps", out_of_order},
	{"a growth that is refused changes nothing", refused},
	{"a growth that was cut is called again", cut_and_called_again},
	{"a daemon restarts in the middle of a growth", daemon_restarts},
	{"a growth that is given up", given_up},
	{"a growth with a bad arena is a fault", bad_arena},
	{"a recipe is read before regions are registered", reads_the_recipe},
	{"a growth beside a worker", beside_a_worker},
	{"a forked child grows nothing", child_grows_nothing},
	{NULL, NULL},
};
