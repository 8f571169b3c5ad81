/* test_help.c: captures and loads that several threads copy, and of the smallest and the largest parts. */
#include <sys/mman.h>
#include <unistd.h>

#include "harness.h"

static const rpi_hasher *honest;
static pthread_barrier_t both;
static _Atomic int copying;

/* The first two chunks wait for each other. */
static void gather_together(uint8_t *dst, const rpi_layout *l, uint64_t at, uint64_t n, uint8_t digest[16]) {
	if (atomic_fetch_add(&copying, 1) < 2)
		pthread_barrier_wait(&both);
	honest->gather(dst, l, at, n, digest);
}

static void *help_once(void *arg) {
	rank *r = arg;
	int rc;
	while ((rc = rp_help(r->h, 20ll * second)) == RP_EAGAIN) {
	}
	SAME(rc, RP_OK);
	return NULL;
}

static void take_step(rank *r, uint64_t s) {
	OK(rp_step_enter(r->h, s, 20ll * second, &failure));
	for (size_t i = 0; i < r->weights; i += 512)
		r->weight[i] = (float)s;
	OK(GOOD(r->h, s));
	OK(rp_step_exit(r->h, s, 0, NULL, &failure));
}

/* Worker and helper copy at the same time: neither gets beyond its first chunk alone. */
static void two_threads_copy_one_capture(void) {
	rank r;
	rank_start(&r, 200000);
	SAME(rp_help(r.h, 0), RP_ETIMEOUT); /* nothing is armed */
	honest = r.h->hash;
	rpi_hasher h = {.gather = gather_together, .digest = honest->digest};
	CHECK(pthread_barrier_init(&both, NULL, 2) == 0);
	pthread_t t;
	CHECK(pthread_create(&t, NULL, help_once, &r) == 0);
	take_step(&r, 1);
	r.h->hash = &h;
	OK(rp_capture(r.h, &failure));
	r.h->hash = honest;
	pthread_join(t, NULL);
	pthread_barrier_destroy(&both);
	SAME(RP_SLOT_STATE(atomic_load(&r.daemon.control->slot[1].word)), RP_SEALED);
	CHECK(whole(r.h, rpi_slot(r.h, 1), RPI_PART_REPLICATED, true));
	SAME(rp_help(r.h, 0), RP_ETIMEOUT);
	SAME(rp_help(r.h, -1), RP_EINVAL);
	SAME(rp_help(NULL, 0), RP_EINVAL);
	rank_end(&r);
}

static _Atomic int loading, loaded;
static const rpi_layout *live_layout;

/* The first two chunks of what is sealed wait for each other, and so do the first two of what is live. */
static void gather_each_pass(uint8_t *dst, const rpi_layout *l, uint64_t at, uint64_t n, uint8_t digest[16]) {
	if (atomic_fetch_add(l == live_layout ? &loading : &copying, 1) < 2)
		pthread_barrier_wait(&both);
	honest->gather(dst, l, at, n, digest);
}

static void *help_the_load(void *arg) {
	while (!atomic_load(&loaded))
		rp_help(((rank *)arg)->h, 20ll * second);
	return NULL;
}

/* The same of a load, which passes twice over the bytes: neither thread gets beyond its first chunk alone. */
static void two_threads_load(void) {
	rank r;
	rp_join_info info;
	rank_start(&r, 200000);
	take_step(&r, 1);
	OK(rp_capture(r.h, &failure));
	atomic_store(&r.daemon.control->fence.word, 1);
	fake_order(&r.daemon, 2, RP_ORDER_LOAD, 1, 1, 1);
	OK(rank_join(&r, &info));
	honest = r.h->hash, live_layout = &r.h->replicated;
	rpi_hasher h = {.gather = gather_each_pass, .digest = honest->digest};
	CHECK(pthread_barrier_init(&both, NULL, 2) == 0);
	memset(r.weight, 0xee, r.weights * sizeof *r.weight);
	atomic_store(&copying, 0);
	r.h->hash = &h;
	pthread_t t;
	CHECK(pthread_create(&t, NULL, help_the_load, &r) == 0);
	OK(rp_load(r.h, &failure));
	atomic_store(&loaded, 1);
	while (pthread_tryjoin_np(t, NULL) != 0)
		rp_cancel(r.h);
	r.h->hash = honest;
	pthread_barrier_destroy(&both);
	for (size_t i = 0; i < r.weights; i++)
		CHECK(r.weight[i] == (i % 512 ? 0 : 1.0f));
	rank_end(&r);
}

static void *help_and_return(void *arg) {
	SAME(rp_help(((rank *)arg)->h, 3600ll * second), RP_EAGAIN);
	return NULL;
}

/* Whoever waits for something to help with is woken to look whether it is to end. */
static void cancel_wakes_helpers(void) {
	rank r;
	rank_start(&r, 100);
	pthread_t t[3];
	for (int i = 0; i < 3; i++)
		CHECK(pthread_create(&t[i], NULL, help_and_return, &r) == 0);
	for (int i = 0; i < 3; i++)
		while (pthread_tryjoin_np(t[i], NULL) != 0) /* one may be between its count and its sleep: it is told again */
			rp_cancel(r.h);
	rank_end(&r);
}

static int touched;

static int touch(rp_handle *h, rpi_chunked *c, uint32_t i) {
	(void)h, (void)c, (void)i;
	touched++;
	return RPI_WHOLE;
}

static void leaves(void *handle) { atomic_fetch_add(&((rp_handle *)handle)->turn, 1); }

/* The owner of a part leaves in the moment before a helper is counted: its part is gone then, with the stack that it lay on. */
static void helps_in_no_other_turn(void) {
	rank r;
	rank_start(&r, 100);
	rpi_chunked c = {.each = touch, .shared = true, .chunks = 2};
	r.h->helped = &c;
	atomic_fetch_add(&r.h->turn, 1);
	before_store(&r.h->helpers, leaves, r.h);
	SAME(rp_help(r.h, 0), RP_ETIMEOUT);
	CHECK(stored());
	SAME(touched, 0);
	SAME(atomic_load(&r.h->helpers), 0);
	rank_end(&r);
}

/* A rank whose replicated part is n regions of so many bytes, beside one that is not window's. */
static rp_handle *rank_of(fake *f, uint8_t *live, size_t n, uint64_t bytes) {
	rp_handle *h;
	rp_join_info info = {.struct_size = sizeof info};
	fake_start(f);
	rp_options o = {.struct_size = sizeof o, .world = 4, .socket_path = f->path, .job = "sizes", .rank = 2, .timeout_ns = 20ll * second};
	OK(rp_open(&o, &h, &failure));
	rp_region *regions = calloc(n, sizeof *regions);
	char(*names)[24] = calloc(n, sizeof *names);
	CHECK(regions && names);
	for (size_t i = 0; i < n; i++) {
		snprintf(names[i], sizeof names[i], "w%zu", i);
		regions[i] = (rp_region){.struct_size = sizeof(rp_region), .dtype = RP_U8, .ndim = 1, .name = names[i], .data = live + i * bytes, .bytes = bytes, .shape = {bytes}};
	}
	OK(rp_register(h, regions, n, &failure));
	free(regions), free(names);
	f->geometry = h;
	OK(rp_attach(h, 20ll * second, &failure));
	fake_order(f, 1, RP_ORDER_INIT, 0, 0, 0);
	OK(rp_join(h, &info, 20ll * second, &failure));
	OK(rp_seal_initial(h, &failure));
	fake_order(f, 1, RP_ORDER_LOAD, 0, 0, 0);
	OK(rp_join(h, &info, 20ll * second, &failure));
	OK(rp_load(h, &failure));
	OK(rp_ready(h, 20ll * second, &failure));
	return h;
}

/* Captures step 1 and loads it, and compares what is sealed with the live state, region by region. */
static void captures(size_t n, uint64_t bytes, uint32_t chunk) {
	fake f = {.chunk = chunk, .slots = 2, .ring = 2};
	uint8_t *live = mmap(NULL, n * bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	CHECK(live != MAP_FAILED);
	rp_handle *h = rank_of(&f, live, n, bytes);
	atomic_store(&f.control->candidate.word, RP_WORD(1, 1, 0));
	OK(rp_step_enter(h, 1, 0, &failure));
	for (size_t i = 0; i < n; i++) {
		live[i * bytes] = (uint8_t)(i + 1);
		live[(i + 1) * bytes - 1] ^= (uint8_t)(i % 251);
	}
	OK(GOOD(h, 1));
	OK(rp_step_exit(h, 1, 0, NULL, &failure));
	OK(rp_capture(h, &failure));
	rpi_place p = rpi_slot(h, 1);
	SAME(RP_SLOT_STATE(atomic_load(p.word)), RP_SEALED);
	SAME(h->replicated.count, n);
	for (size_t i = 0; i < n; i++)
		CHECK(memcmp(p.bytes + h->replicated.segments[i].offset, live + i * bytes, bytes) == 0);
	CHECK(whole(h, p, RPI_PART_REPLICATED, true));
	/* And back. */
	atomic_store(&f.control->fence.word, 1);
	fake_order(&f, 2, RP_ORDER_LOAD, 1, 1, 1);
	rp_join_info info = {.struct_size = sizeof info};
	OK(rp_join(h, &info, 20ll * second, &failure));
	for (size_t i = 0; i < n; i++)
		live[i * bytes] ^= 1, live[(i + 1) * bytes - 1] ^= 2;
	OK(rp_load(h, &failure));
	for (size_t i = 0; i < n; i++)
		CHECK(memcmp(p.bytes + h->replicated.segments[i].offset, live + i * bytes, bytes) == 0);
	p.bytes[h->replicated.segments[n - 1].offset + bytes - 1] ^= 1;
	CHECK(!whole(h, p, RPI_PART_REPLICATED, true));
	rp_close(h);
	fake_stop(&f);
	munmap(live, n * bytes);
}

/* A window region and a volatile one that share memory would be loaded as no step had them. */
static void overlapping_regions(void) {
	fake f = {.chunk = 4096, .slots = 2, .ring = 2};
	static uint8_t live[3 * 4096];
	rp_handle *h;
	fake_start(&f);
	rp_options o = {.struct_size = sizeof o, .world = 4, .socket_path = f.path, .job = "sizes", .rank = 2, .timeout_ns = 20ll * second};
	OK(rp_open(&o, &h, &failure));
	rp_region regions[] = {{.struct_size = sizeof(rp_region), .dtype = RP_U8, .ndim = 1, .name = "v", .cls = RP_VOLATILE, .data = live + 4096, .bytes = 4096, .shape = {4096}},
			       {.struct_size = sizeof(rp_region), .dtype = RP_U8, .ndim = 1, .name = "w", .data = live, .bytes = 4097, .shape = {4097}},
			       {.struct_size = sizeof(rp_region), .dtype = RP_U8, .ndim = 1, .name = "empty", .data = live, .bytes = 0, .shape = {0}}};
	SAME(rp_register(h, regions, 3, &failure), RP_EINVAL);
	CHECK(strstr(failure.text, "regions w and v share memory"));
	regions[1].bytes = regions[1].shape[0] = 4096;
	OK(rp_register(h, regions, 3, &failure));
	rp_close(h);
	fake_stop(&f);
}

/* A replicated part of nothing. */
static void one_region_of_no_bytes(void) {
	fake f = {.chunk = 4096, .slots = 2, .ring = 2};
	static uint8_t live[1];
	rp_handle *h = rank_of(&f, live, 1, 0);
	rp_join_info info = {.struct_size = sizeof info};
	atomic_store(&f.control->candidate.word, RP_WORD(1, 1, 0));
	OK(rp_step_enter(h, 1, 0, &failure));
	OK(GOOD(h, 1));
	OK(rp_step_exit(h, 1, 0, NULL, &failure));
	OK(rp_capture(h, &failure));
	CHECK(whole(h, rpi_slot(h, 1), RPI_PART_REPLICATED, true));
	atomic_store(&f.control->fence.word, 1);
	fake_order(&f, 2, RP_ORDER_LOAD, 1, 1, 1);
	OK(rp_join(h, &info, 20ll * second, &failure));
	OK(rp_load(h, &failure));
	rp_close(h);
	fake_stop(&f);
}

static void one_region_of_1_byte(void) { captures(1, 1, 4096); }
static void one_region_of_a_chunk(void) { captures(1, 4096, 4096); }
static void one_region_of_8_bytes(void) { captures(1, 8, 4096); }
static void ten_thousand_regions(void) { captures(10000, 200, 65536); }

/* 13 GB of memory. */
static void more_than_4_gib(void) {
	if (!getenv("REPLICAD_LARGE"))
		fprintf(stderr, "    not run: set REPLICAD_LARGE=1 where 13 GB of memory are free\n");
	else
		captures(1, (4ull << 30) + 4097, 4 << 20);
}

const test help_tests[] = {{"two threads copy one capture", two_threads_copy_one_capture}, {"two threads load", two_threads_load}, {"cancel wakes helpers", cancel_wakes_helpers}, {"helps in no other turn", helps_in_no_other_turn}, {"one region of 8 bytes", one_region_of_8_bytes}, {"one region of no bytes", one_region_of_no_bytes}, {"one region of 1 byte", one_region_of_1_byte}, {"one region of a chunk", one_region_of_a_chunk}, {"overlapping regions", overlapping_regions}, {"10,000 regions", ten_thousand_regions}, {"more than 4 GiB", more_than_4_gib}, {0}};
