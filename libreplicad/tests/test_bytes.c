/* test_bytes.c: hashes against the plain one, the golden vectors, and bytes that no daemon would send. */
#include <dirent.h>
#include <unistd.h>

#include "harness.h"
#define XXH_INLINE_ALL
#include "xxhash.h"

static void plain(const void *p, size_t n, uint8_t d[16]) {
	XXH128_canonical_t c;
	XXH128_canonicalFromHash(&c, XXH3_128bits(p, n));
	memcpy(d, c.digest, 16);
}

/* Parts scattered at random, gathered chunk by chunk by each of the inner loops: bytes and digests are those of the contiguous part. */
static void gathers(void) {
	unsigned seed = 3;
	static uint8_t live[400000], part[400000];
	static _Alignas(64) uint8_t copy[400000]; /* as an arena's places are */
	for (size_t i = 0; i < sizeof live; i++)
		live[i] = (uint8_t)rand_r(&seed);
	const rpi_hasher *hashers[] = {&hasher_portable, &rpi_hasher_base, rpi_hash(), rpi_hash()}; /* the last two are one of those where there is none better */
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
	if (rpi_hash() == &rpi_hasher_avx512)
		hashers[3] = &rpi_hasher_avx2;
#endif
	enum { n_hashers = sizeof hashers / sizeof *hashers };
	for (int round = 0; round < 200; round++) {
		rpi_segment s[20];
		rpi_layout l = {s, 0, 0};
		size_t from = 0;
		memset(part, 0, sizeof part);
		for (int k = rand_r(&seed) % 20; k >= 0; k--) {
			size_t n = 1 + rand_r(&seed) % (round % 3 ? 300 : 18000);
			from += rand_r(&seed) % 7; /* sources are not aligned */
			s[l.count++] = (rpi_segment){l.bytes, n, live + from};
			memcpy(part + l.bytes, live + from, n);
			from += n;
			l.bytes = (l.bytes + n + RPI_ALIGN - 1) & ~(uint64_t)(RPI_ALIGN - 1);
		}
		uint64_t chunk = 1 + rand_r(&seed) % (round % 5 ? 9000 : 200000); /* of several pieces */
		if (round % 2)
			chunk = (chunk + RPI_ALIGN - 1) & ~(uint64_t)(RPI_ALIGN - 1); /* chunks of real parts */
		uint8_t both[n_hashers][16];
		for (int k = 0; k < n_hashers; k++) {
			memset(copy, 0xee, sizeof copy);
			hashers[k]->digest(part, chunk % sizeof part, live, (size_t)round, both[k]);
			CHECK(memcmp(both[k], both[0], 16) == 0);
			for (uint64_t at = 0; at < l.bytes; at += chunk) {
				uint8_t got[16], want[16];
				uint64_t n = l.bytes - at < chunk ? l.bytes - at : chunk;
				hashers[k]->gather(copy + at, &l, at, n, got);
				plain(part + at, n, want);
				CHECK(memcmp(got, want, 16) == 0);
				hashers[k]->gather(NULL, &l, at, n, got);
				CHECK(memcmp(got, want, 16) == 0);
			}
			CHECK(memcmp(copy, part, l.bytes) == 0 && copy[l.bytes] == 0xee);
		}
	}
}

static size_t golden(const char *name, uint8_t *b, size_t room) {
	char path[256];
	snprintf(path, sizeof path, "testdata/%s.bin", name);
	FILE *f = fopen(path, "rb");
	CHECK(f);
	size_t n = fread(b, 1, room, f);
	fclose(f);
	return n;
}

static void golden_text(const char *name, const char *field, uint8_t d[16]) {
	char path[256], line[256];
	snprintf(path, sizeof path, "testdata/%s.txt", name);
	FILE *f = fopen(path, "r");
	CHECK(f);
	size_t n = strlen(field);
	while (fgets(line, sizeof line, f))
		if (strncmp(line, field, n) == 0 && line[n] == ' ') {
			for (int i = 0; i < 16; i++)
				CHECK(sscanf(line + n + 1 + 2 * i, "%2hhx", &d[i]) == 1);
			fclose(f);
			return;
		}
	CHECK(!"field is in the golden text");
}

/* The library, given the vectors' regions, lays them out and digests them as the vectors say; and so the root. */
static void geometry_and_root(void) {
	uint8_t records[5][256], want[16], got[16];
	SAME(golden("region_records", records[0], sizeof records), sizeof records);
	rp_region regions[5];
	uint8_t data[5][2048];
	for (int i = 0; i < 5; i++) {
		regions[i] = (rp_region){.struct_size = sizeof(rp_region), .dtype = records[i][128], .kind = records[i][129], .cls = records[i][130], .ndim = records[i][131], .name = (char *)records[i], .data = data[i]};
		memcpy(&regions[i].flags, records[i] + 132, 4);
		memcpy(&regions[i].bytes, records[i] + 136, 8);
		memcpy(regions[i].shape, records[i] + 144, 64);
	}
	fake f = {.chunk = 512, .slots = 2, .ring = 2};
	fake_start(&f);
	rp_handle *h;
	rp_options o = {.struct_size = sizeof o, .world = 4, .socket_path = f.path, .job = "opticks", .rank = 2, .timeout_ns = 20ll * second};
	OK(rp_open(&o, &h, &failure));
	OK(rp_register(h, regions, 5, &failure));
	CHECK(memcmp(h->records, records, sizeof records) == 0);
	static const char *const fields[] = {"geometry_replicated", "geometry_private", "geometry_frozen"};
	for (int part = 0; part < 3; part++) {
		golden_text("region_records", fields[part], want);
		CHECK(memcmp(h->geometry[part], want, 16) == 0);
	}
	SAME(h->replicated.bytes, 1344);
	SAME(h->volatile_offset, 1280);
	_Alignas(8) uint8_t meta[176];
	SAME(golden("meta", meta, sizeof meta), sizeof meta);
	h->geo.chunk_bytes = 512;
	rpi_root(h, RPI_PART_REPLICATED, (rp_meta *)(void *)meta, got);
	golden_text("root", "root", want);
	CHECK(memcmp(got, want, 16) == 0 && memcmp(((rp_meta *)(void *)meta)->root, want, 16) == 0);
	rp_close(h);
	fake_stop(&f);
}

static void register_refuses(void) {
	fake f = {.chunk = 512, .slots = 2, .ring = 2};
	fake_start(&f);
	rp_handle *h;
	rp_options o = {.struct_size = sizeof o, .world = 4, .socket_path = f.path, .job = "opticks", .rank = 2, .timeout_ns = 20ll * second};
	OK(rp_open(&o, &h, &failure));
	float data[4];
	rp_region good = {.struct_size = sizeof good, .dtype = RP_F32, .ndim = 1, .name = "w", .data = data, .bytes = 16, .shape = {4}};
#define REFUSED(code, ...)                                       \
	do {                                                     \
		rp_region bad = good;                            \
		__VA_ARGS__;                                     \
		SAME(rp_register(h, &bad, 1, &failure), (code)); \
	} while (0)
	REFUSED(RP_EVERSION, bad.struct_size = 8);
	REFUSED(RP_EINVAL, bad.name = NULL);
	REFUSED(RP_EINVAL, bad.name = "a\nb");
	REFUSED(RP_EINVAL, bad.name = "__metadata__");
	CHECK(strstr(failure.text, "region 0 is called __metadata__") && strstr(failure.text, "give it another name"));
	static const char *const no_text[] = {"a\xff", "\xc3", "\x80", "\xc0\x80", "\xe0\x9f\xbf", "\xed\xa0\x80", "\xf0\x8f\xbf\xbf", "\xf4\x90\x80\x80", "\xf5\x80\x80\x80", "\xe2\x82", "\xe2\x82w"};
	for (size_t i = 0; i < sizeof no_text / sizeof *no_text; i++) {
		REFUSED(RP_EINVAL, bad.name = no_text[i]);
		CHECK(strstr(failure.text, "not UTF-8"));
	}
	REFUSED(RP_EINVAL, bad.dtype = 0);
	REFUSED(RP_EINVAL, bad.dtype = 16);
	REFUSED(RP_EINVAL, bad.kind = 2);
	REFUSED(RP_EINVAL, bad.cls = 3);
	REFUSED(RP_EINVAL, bad.flags = 2);
	REFUSED(RP_EINVAL, bad.kind = RP_PRIVATE; bad.cls = RP_FROZEN);
	REFUSED(RP_EINVAL, bad.kind = RP_PRIVATE; bad.cls = RP_WINDOW);
	CHECK(strstr(failure.text, "region w: private and RP_WINDOW") && strstr(failure.text, "RP_IN_WINDOW") && strstr(failure.text, "RP_VOLATILE"));
	REFUSED(RP_EINVAL, bad.kind = RP_REPLICATED; bad.flags = RP_IN_WINDOW);
	CHECK(strstr(failure.text, "region w: RP_IN_WINDOW is for private regions"));
	REFUSED(RP_EINVAL, bad.ndim = 9);
	REFUSED(RP_EINVAL, bad.bytes = 12);
	REFUSED(RP_EINVAL, bad.shape[0] = 1ull << 62);
	REFUSED(RP_EINVAL, bad.data = NULL);
	rp_region twice[] = {good, good};
	SAME(rp_register(h, twice, 2, &failure), RP_EINVAL);
	good.name = "\xc3\xa9 \xe2\x82\xac \xed\x9f\xbf \xef\xbf\xbf \xf0\x90\x80\x80 \xf4\x8f\xbf\xbf __metadata__"; /* the edges of what is UTF-8 */
	OK(rp_register(h, &good, 1, &failure));
	SAME(rp_register(h, &good, 1, &failure), RP_ESTATE);
	rp_close(h);
	fake_stop(&f);
}

/* Every vector, cut and flipped, given to the reader of messages: nothing is read or written out of bounds, no order is taken from
 * a message whose header is wrong. */
static void hostile_messages(void) {
	static uint8_t reply[RP_MAX_MESSAGE], hand[1024], message[RP_MAX_MESSAGE];
	rp_handle h = {.fd = -1, .incarnation = 0x1122334455667788};
	h.reply.body = reply, h.reply.room = sizeof reply;
	h.hand.body = hand, h.hand.room = sizeof hand;
	DIR *d = opendir("testdata");
	CHECK(d);
	unsigned seed = 11, files = 0;
	for (struct dirent *e; (e = readdir(d));) {
		char *dot = strstr(e->d_name, ".bin");
		if (!dot)
			continue;
		*dot = 0;
		size_t n = golden(e->d_name, message, sizeof message);
		files++;
		for (int round = 0; round < 500; round++) {
			uint8_t *cut = malloc(n ? n : 1);
			size_t k = round ? rand_r(&seed) % (n + 1) : n;
			memcpy(cut, message, k);
			for (int flips = round ? rand_r(&seed) % 4 : 0; flips > 0 && k; flips--)
				cut[rand_r(&seed) % k] ^= (uint8_t)(1 << rand_r(&seed) % 8);
			if (round % 3 == 0 && k >= 12)
				memcpy(cut + 8, &(uint32_t){(uint32_t)k}, 4); /* so that cut ones get past the length check */
			int fd = -1;
			h.reply.request = 0x01020304, h.reply.type = 0;
			h.hand.request = 0x01020305, h.hand.type = 0;
			rpi_dispatch(&h, cut, k, &fd);
			CHECK(h.reply.length <= sizeof reply && h.hand.length <= sizeof hand);
			free(cut);
		}
	}
	closedir(d);
	CHECK(files > 25);
	/* An order to another incarnation is nobody's. */
	size_t n = golden("order", message, sizeof message);
	h.ordered_epoch = 0, h.incarnation = 1;
	int fd = -1;
	rpi_dispatch(&h, message, n, &fd);
	SAME(h.ordered_epoch, 0);
	h.incarnation = 0x1122334455667788;
	rpi_dispatch(&h, message, n, &fd);
	SAME(h.ordered_epoch, 7);
}

static void strange_arenas(void) {
	struct {
		size_t at;
		uint64_t xor;
	} changes[] = {{offsetof(rp_control, magic), 1}, {offsetof(rp_control, version), 2}, {offsetof(rp_control, rank), 1}, {offsetof(rp_control, arena_bytes), 4096}, {offsetof(rp_control, slots), 64}, {offsetof(rp_control, ring), 64},
		       {offsetof(rp_control, meta_offset), 1ull << 40}, {offsetof(rp_control, slot_stride), 1ull << 60}, {offsetof(rp_control, slot_offset), 1ull << 63}, {offsetof(rp_control, staging_offset), 3},
		       {offsetof(rp_control, replicated_bytes), 64}, {offsetof(rp_control, geometry_private), 1}, {offsetof(rp_control, chunk_bytes), 4096}, {offsetof(rp_control, flags), 1}, {offsetof(rp_control, job), 1}};
	rank r = {0};
	r.daemon = (fake){.chunk = 4096, .slots = 4, .ring = 8};
	fake_start(&r.daemon);
	rank_open(&r, &r.daemon, 5000, 0);
	OK(rp_attach(r.h, 20ll * second, &failure)); /* makes the arena */
	for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
		rank o = {0};
		rank_open(&o, &r.daemon, 5000, 0);
		uint64_t v;
		memcpy(&v, r.daemon.arena + changes[i].at, 8);
		v ^= changes[i].xor;
		memcpy(r.daemon.arena + changes[i].at, &v, 8);
		int rc = rp_attach(o.h, 20ll * second, &failure);
		CHECK(rc == RP_EVERSION || rc == RP_ECORRUPT || rc == RP_EREFUSED);
		v ^= changes[i].xor;
		memcpy(r.daemon.arena + changes[i].at, &v, 8);
		rp_close(o.h);
		free(o.weight), free(o.scale), free(o.base);
	}
	rank_end(&r);
}

const test bytes_tests[] = {{"gathers", gathers}, {"geometry and root", geometry_and_root}, {"register refuses", register_refuses}, {"hostile messages", hostile_messages}, {"strange arenas", strange_arenas}, {0}};
