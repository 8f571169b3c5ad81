/* test_mutations.c: what comes from outside, changed at random under seeds that are the same each time: the daemon's answers as each call reads
 * them, and the arena's header, regions and metas. gcc has no coverage-guided fuzzer, so each input begins as one that is right, with its
 * lengths and request numbers kept, and is changed a little. What finds a fault are the sanitizers. MUTATIONS multiplies the rounds. */
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "harness.h"

static unsigned seed;

static uint32_t below(uint32_t n) { return (uint32_t)rand_r(&seed) % n; }

static int rounds(int n) {
	const char *more = getenv("MUTATIONS");
	return n * (more && atoi(more) > 0 ? atoi(more) : 1);
}

/* Changes a few words or bytes of b: to ends of ranges, to what stands elsewhere in it, by one, by a bit. */
static void mutate(uint8_t *b, size_t n) {
	static const uint64_t odd[] = {0, 1, 3, 4097, 0x7fffffff, 0x80000000, 0xffffffff, 1ull << 40, 1ull << 63, UINT64_MAX, UINT64_MAX - 4095};
	for (uint32_t k = 1 + below(3); k > 0 && n; k--) {
		size_t size = n >= 8 && below(2) ? 8 : n >= 4 && below(2) ? 4 : 1;
		size_t at = below((uint32_t)(n / size)) * size;
		uint64_t v = 0;
		memcpy(&v, b + at, size);
		switch (below(5)) {
		case 0:
			v = odd[below(sizeof odd / sizeof *odd)];
			break;
		case 1:
			v += below(2) ? 1 : UINT64_MAX;
			break;
		case 2:
			v ^= 1ull << below(8 * (uint32_t)size);
			break;
		case 3:
			memcpy(&v, b + below((uint32_t)(n - size + 1)), size);
			break;
		default:
			v = (uint64_t)below(1u << 20) << below(32);
		}
		memcpy(b + at, &v, size);
	}
}

static size_t vector(const char *name, uint8_t *b, size_t room) {
	char path[128];
	snprintf(path, sizeof path, "testdata/%s.bin", name);
	FILE *f = fopen(path, "rb");
	CHECK(f);
	size_t n = fread(b, 1, room, f);
	fclose(f);
	return n;
}

/* Calls whose answer was there before they asked. Each answers within its buffers or with an error of this library. */
static void answers(void) {
	static const struct {
		const char *name;
		uint16_t type; /* of the call's own answer */
	} replies[] = {{"kv_value", RP_M_KV_VALUE}, {"kv_total", RP_M_KV_TOTAL}, {"kv_ok", RP_M_KV_OK}, {"scoped", RP_M_SCOPED}, {"refused", RP_M_REFUSED}, {"order", RP_M_ORDER}, {"fence", RP_M_FENCE}};
	static uint8_t message[RP_MAX_MESSAGE], other[RP_MAX_MESSAGE];
	fake f = {.chunk = 512, .slots = 2, .ring = 2};
	fake_start(&f);
	rp_handle *h;
	rp_options o = {.struct_size = sizeof o, .world = 4, .socket_path = f.path, .job = "opticks", .rank = 2, .timeout_ns = 20ll * second};
	OK(rp_open(&o, &h, &failure));
	int pair[2], taken[8] = {0};
	CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) == 0);
	CHECK(dup3(pair[0], h->fd, O_CLOEXEC) == h->fd);
	close(pair[0]);
	seed = 17;
	for (int round = 0, n = rounds(20000); round < n; round++) {
		size_t which = below(7);
		size_t size = vector(replies[which].name, message, sizeof message);
		rp_header head;
		memcpy(&head, message, sizeof head);
		uint8_t *body = message + sizeof head;
		size -= sizeof head;
		if (below(4) == 0)
			size = below((uint32_t)size + 1);
		if (below(4) == 0)
			size += below(64);
		if (below(8))
			mutate(body, size);
		if (below(16) == 0)
			mutate((uint8_t *)&head.epoch, sizeof head - offsetof(rp_header, epoch));
		head.type = replies[which].type;
		head.length = (uint32_t)(sizeof head + size);
		head.request = below(16) ? h->request % 0x7fffffff + 1 : below(2) * h->request;
		memcpy(message, &head, sizeof head);
		CHECK(send(pair[1], message, head.length, MSG_NOSIGNAL) == (ssize_t)head.length);
		atomic_store(&h->scope, 3);
		/* Its value is as large as the room says: one byte more is past its end. */
		size_t room = below(64), got = room;
		char *value = malloc(room ? room : 1);
		int64_t total;
		int deleted, rc;
		uint64_t epoch;
		switch (below(7)) {
		case 0:
			rc = rp_kv_get(h, "k", value, &got, 0, &failure);
			taken[0] += rc == RP_OK;
			break;
		case 1:
			rc = rp_kv_compare_set(h, "k", "a", 1, "b", 1, value, &got, 0, &failure);
			taken[1] += rc == RP_OK;
			break;
		case 2:
			rc = rp_kv_add(h, "k", 5, &total, 0, &failure);
			taken[2] += rc == RP_OK;
			break;
		case 3:
			rc = rp_kv_delete(h, "k", &deleted, 0, &failure);
			taken[3] += rc == RP_OK;
			break;
		case 4:
			rc = rp_kv_check(h, "k", 0, &failure);
			taken[4] += rc == RP_OK;
			break;
		case 5:
			rc = rp_barrier(h, "b", 2, 0, &failure);
			taken[5] += rc == RP_OK;
			break;
		default:
			atomic_store(&h->life, RPI_ATTACHED); /* before, it would first read what is there */
			rc = rp_scope(h, &epoch, 0, &failure);
			atomic_store(&h->life, RPI_OPEN);
			taken[6] += rc == RP_OK;
		}
		CHECK(rc <= RP_OK && rc >= RP_ECANCELED);
		CHECK(rc != RP_OK || got == room || got + 8 <= size); /* no bytes of an earlier answer */
		free(value);
		h->stopped = false, h->gone = false, h->parting_code = 0; /* an order to stop is for good */
		h->ordered_epoch = h->go_epoch = 0;
		while (recv(pair[1], other, sizeof other, MSG_DONTWAIT) > 0)
			;
		while (recv(h->fd, other, sizeof other, MSG_DONTWAIT) > 0)
			;
	}
	for (int i = 0; i < 7; i++)
		CHECK(taken[i] > 10); /* changed answers were read, not refused alone */
	close(pair[1]);
	rp_close(h);
	fake_stop(&f);
}

/* All that a mapped arena's offsets name: inside, aligned as what lies there wants, and in nobody else's bytes. */
static void check_places(const rp_handle *h) {
	static uint8_t owner[1 << 20];
	CHECK(h->arena_bytes <= sizeof owner);
	memset(owner, 0, h->arena_bytes);
	uint8_t who = 1;
#define OWN(from, n)                                                              \
	do {                                                                      \
		uint64_t at_ = (uint64_t)((const uint8_t *)(from)-h->arena);      \
		CHECK(at_ <= h->arena_bytes && (n) <= h->arena_bytes - at_);      \
		for (uint64_t b_ = 0; b_ < (n); b_++) {                           \
			CHECK(owner[at_ + b_] == 0);                              \
			owner[at_ + b_] = who;                                    \
		}                                                                 \
		who++;                                                            \
	} while (0)
	OWN(h->arena, RP_PAGE);
	OWN(h->arena + h->geo.regions_offset, (uint64_t)h->regions * RPI_RECORD);
	uint64_t bytes[] = {h->replicated.bytes, h->private_part.bytes, h->frozen.bytes};
	for (int kind = RPI_KIND_SLOT; kind <= RPI_KIND_FROZEN; kind++)
		for (uint32_t i = 0; i < (kind == RPI_KIND_SLOT ? h->geo.slots : kind == RPI_KIND_RING ? h->geo.ring : 1); i++) {
			rpi_place p = kind == RPI_KIND_SLOT ? rpi_slot(h, i) : kind == RPI_KIND_RING ? rpi_ring(h, i) : rpi_frozen(h);
			CHECK((uintptr_t)p.meta % _Alignof(rp_meta) == 0);
			OWN(p.meta, sizeof(rp_meta) + 16 * rpi_chunks(bytes[kind], h->geo.chunk_bytes));
			OWN(p.bytes, bytes[kind]);
			CHECK((uintptr_t)p.bytes % RPI_ALIGN == 0);
		}
	for (uint32_t k = 0; k < RP_STAGING; k++)
		OWN(h->arena + h->geo.staging_offset + k * h->geo.staging_stride, h->volatile_bytes);
#undef OWN
}

static void unmap(rp_handle *h) {
	munmap(h->arena, h->arena_bytes);
	h->arena = NULL, h->control = NULL, h->arena_fd = -1;
}

/* The arena's header and records, changed: the library refuses, or every place that it uses is sound. */
static void headers(void) {
	rank r = {0};
	r.daemon = (fake){.chunk = 4096, .slots = 4, .ring = 8};
	fake_start(&r.daemon);
	rank_open(&r, &r.daemon, 5000, 0);
	OK(rp_attach(r.h, 20ll * second, &failure)); /* makes the arena */
	rank o = {0};
	rank_open(&o, &r.daemon, 5000, 0);
	memcpy(o.h->welcome.job, r.h->welcome.job, 16);
	fake *f = &r.daemon;
	static uint8_t page[RP_PAGE];
	memcpy(page, f->arena, sizeof page);
	seed = 23;
	int taken = 0;
	for (int round = 0, n = rounds(20000); round < n; round++) {
		rp_attached a = {.arena_bytes = f->bytes, .incarnation = 5, .slots = f->slots, .ring = f->ring};
		if (round) {
			/* Beyond magic, job and sizes, or anywhere. */
			size_t from = below(4) ? offsetof(rp_control, chunk_bytes) : 0;
			mutate(f->arena + from, offsetof(rp_control, step) - from);
			if (below(16) == 0)
				mutate((uint8_t *)&a, sizeof a);
		}
		int rc = rpi_map(o.h, f->memfd, &a, &failure);
		CHECK(rc == RP_OK || rc == RP_EVERSION || rc == RP_ECORRUPT || rc == RP_EREFUSED);
		if (rc == RP_OK) {
			taken++;
			check_places(o.h);
			unmap(o.h);
		}
		memcpy(f->arena, page, sizeof page);
	}
	CHECK(taken > 100);
	rp_close(o.h);
	free(o.weight), free(o.scale), free(o.base);
	rank_end(&r);
}

/* A sealed slot's and ring place's meta and word, changed: what is ordered is loaded as it was sealed, or not at all. */
static void metas(void) {
	rank r;
	rank_start(&r, 5000);
	rp_handle *h = r.h;
	rpi_place slot = rpi_slot(h, 0), ring = rpi_ring(h, 0);
	size_t n = sizeof(rp_meta) + 16 * slot.meta->chunks, m = sizeof(rp_meta) + 16 * ring.meta->chunks;
	uint8_t *kept = malloc(n + m);
	memcpy(kept, slot.meta, n);
	memcpy(kept + n, ring.meta, m);
	uint64_t words[2] = {atomic_load(slot.word), atomic_load(ring.word)};
	rp_order order = h->order;
	float weight = r.weight[7] = 3;
	seed = 29;
	int loaded = 0;
	for (int round = 0, all = rounds(20000); round < all; round++) {
		uint64_t word = words[0];
		if (below(8) == 0)
			mutate((uint8_t *)&h->order, sizeof h->order);
		else if (below(8) == 0)
			mutate((uint8_t *)&word, sizeof word);
		else if (below(2))
			mutate((uint8_t *)slot.meta, n);
		else
			mutate((uint8_t *)ring.meta, m);
		atomic_store(slot.word, word);
		atomic_store(&h->life, RPI_LOAD);
		r.weight[7] = weight;
		int rc = rp_load(h, &failure);
		CHECK(rc <= RP_OK && rc >= RP_ECANCELED);
		loaded += rc == RP_OK;
		CHECK(rc != RP_OK || r.weight[7] == 0);
		memcpy(slot.meta, kept, n);
		memcpy(ring.meta, kept + n, m);
		atomic_store(slot.word, words[0]), atomic_store(ring.word, words[1]);
		h->order = order;
	}
	CHECK(loaded > 10 && loaded < rounds(20000) / 2);
	free(kept);
	rank_end(&r);
}

const test mutation_tests[] = {{"mutated answers", answers}, {"mutated headers", headers}, {"mutated metas", metas}, {0}};
