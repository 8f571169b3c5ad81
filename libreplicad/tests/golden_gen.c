/* Writes the golden vectors of layout.h into the directory named by its argument: NAME.bin is the bytes, NAME.txt says field by
 * field what they mean. internal/wire and internal/shm read the same files, so C and Go can't drift apart unnoticed. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../include/replicad.h"
#include "../src/layout.h"
#define XXH_INLINE_ALL
#include "../third_party/xxhash/xxhash.h"

static FILE *text;
static uint8_t buffer[RP_MAX_MESSAGE];
static size_t used;
static const char *directory, *name;

static FILE *create(const char *suffix) {
	char path[512];
	snprintf(path, sizeof path, "%s/%s%s", directory, name, suffix);
	FILE *f = fopen(path, "wb");
	if (!f) {
		fprintf(stderr, "golden_gen: create %s: %s\n", path, strerror(errno));
		exit(1);
	}
	return f;
}

static void begin(const char *n) {
	name = n;
	used = 0;
	memset(buffer, 0, sizeof buffer);
	text = create(".txt");
}

static void end(void) {
	FILE *f = create(".bin");
	if (fwrite(buffer, 1, used, f) != used || fclose(f) || fclose(text)) {
		fprintf(stderr, "golden_gen: write %s: %s\n", name, strerror(errno));
		exit(1);
	}
}

static void add(const void *p, size_t n) {
	memcpy(buffer + used, p, n);
	used += n;
}

static void hex(const char *field, const uint8_t *p, size_t n) {
	fprintf(text, "%s ", field);
	for (size_t i = 0; i < n; i++)
		fprintf(text, "%02x", p[i]);
	fputc('\n', text);
}

static void fill(uint8_t *p, size_t n, uint8_t from) {
	for (size_t i = 0; i < n; i++)
		p[i] = (uint8_t)(from + i);
}

#define NUM(s, f) fprintf(text, "%s %llu\n", #f, (unsigned long long)(s).f)
#define INT(s, f) fprintf(text, "%s %lld\n", #f, (long long)(s).f)
#define HEX(s, f) hex(#f, (s).f, sizeof(s).f)
#define STR(s, f) fprintf(text, "%s %s\n", #f, (s).f)

static void message(const char *n, uint16_t type) {
	begin(n);
	rp_header h = {.magic = RP_MESSAGE_MAGIC, .version = RP_MESSAGE_VERSION, .type = type, .request = 0x01020304, .epoch = 7, .incarnation = 0x1122334455667788};
	add(&h, sizeof h);
}

static void sent(void) {
	rp_header h;
	memcpy(&h, buffer, sizeof h);
	h.length = (uint32_t)used;
	memcpy(buffer, &h, sizeof h);
	NUM(h, type);
	NUM(h, length);
	NUM(h, request);
	NUM(h, epoch);
	NUM(h, incarnation);
	end();
}

static void plain(const char *n, uint16_t type) {
	message(n, type);
	sent();
}

static void code_text(const char *n, uint16_t type, int32_t code, const char *t) {
	message(n, type);
	int32_t head[2] = {code, 0};
	add(head, sizeof head);
	add(t, strlen(t));
	fprintf(text, "code %d\ntext %s\n", code, t);
	sent();
}

/* The record of replica.AppendRegion. */
static void record(uint8_t rec[256], const char *n, uint8_t dtype, uint8_t kind, uint8_t cls, uint32_t flags, uint64_t bytes, uint8_t ndim, const uint64_t *shape, uint64_t offset) {
	memset(rec, 0, 256);
	memcpy(rec, n, strlen(n));
	rec[128] = dtype, rec[129] = kind, rec[130] = cls, rec[131] = ndim;
	memcpy(rec + 132, &flags, 4);
	memcpy(rec + 136, &bytes, 8);
	memcpy(rec + 144, shape, 8 * ndim);
	memcpy(rec + 208, &offset, 8);
}

static uint8_t records[5][256];

/* Five regions: two window, one volatile, one frozen, one private; offsets as replica.NewGeometry lays them out. */
static void make_records(void) {
	record(records[0], "layers.0.weight", RP_F32, RP_REPLICATED, RP_WINDOW, 0, 1200, 2, (uint64_t[]){30, 10}, 0);
	record(records[1], "embed.frozen", RP_BF16, RP_REPLICATED, RP_FROZEN, 0, 2000, 1, (uint64_t[]){1000}, 0);
	record(records[2], "rng", RP_U64, RP_PRIVATE, RP_WINDOW, RP_IN_WINDOW, 32, 1, (uint64_t[]){4}, 0);
	record(records[3], "running.mean", RP_F32, RP_REPLICATED, RP_VOLATILE, 0, 40, 1, (uint64_t[]){10}, 1280);
	record(records[4], "step.count", RP_U64, RP_REPLICATED, RP_WINDOW, 0, 8, 0, NULL, 1216);
}

static void describe_records(void) {
	for (int i = 0; i < 5; i++) {
		uint64_t bytes, offset;
		uint32_t flags;
		memcpy(&flags, records[i] + 132, 4);
		memcpy(&bytes, records[i] + 136, 8);
		memcpy(&offset, records[i] + 208, 8);
		fprintf(text, "region %s dtype %u kind %u class %u flags %u bytes %llu ndim %u offset %llu\n", (char *)records[i], records[i][128], records[i][129], records[i][130], flags, (unsigned long long)bytes, records[i][131], (unsigned long long)offset);
	}
}

static void digest_of(const void *p, size_t n, uint8_t out[16]) {
	XXH128_canonical_t c;
	XXH128_canonicalFromHash(&c, XXH3_128bits(p, n));
	memcpy(out, c.digest, 16);
}

static void geometry(int kind, uint8_t out[16]) {
	uint8_t all[sizeof records];
	size_t n = 0;
	for (int i = 0; i < 5; i++) {
		int private = records[i][129] == RP_PRIVATE;
		if (private == (kind == 1) && (kind != 2 || records[i][130] == RP_FROZEN)) {
			memcpy(all + n, records[i], 256);
			n += 256;
		}
	}
	digest_of(all, n, out);
}

static rp_hello hello(void) {
	rp_hello b = {.abi = RP_ABI_VERSION, .rank = 3, .world = 4, .group = 1, .nonce = 0xfeedfacecafebeef, .pid = 4711};
	strcpy(b.job, "opticks");
	strcpy(b.token, "secret-token");
	NUM(b, abi); NUM(b, rank); NUM(b, world); NUM(b, group); NUM(b, nonce); NUM(b, pid); STR(b, job); STR(b, token);
	return b;
}

static void kv_bytes(const char *n, uint16_t type, const char *key, const void *value, size_t bytes, uint32_t members, uint32_t once) {
	message(n, type);
	rp_kv b = {.key_bytes = (uint32_t)strlen(key), .value_bytes = (uint32_t)bytes, .members = members, .once = once};
	add(&b, sizeof b);
	add(key, strlen(key));
	add(value, bytes);
	NUM(b, key_bytes); NUM(b, value_bytes); NUM(b, members); NUM(b, once);
	fprintf(text, "key %s\n", key);
}

static void kv(const char *n, uint16_t type, const char *key, const char *value, uint32_t members, uint32_t once) {
	kv_bytes(n, type, key, value, strlen(value), members, once);
	fprintf(text, "value %s\n", value);
	sent();
}

static void from_rank(void) {
	message("hello", RP_M_HELLO);
	rp_hello h = hello();
	add(&h, sizeof h);
	sent();

	message("reattach", RP_M_REATTACH);
	h = hello();
	add(&h, sizeof h);
	sent();

	message("regions", RP_M_REGIONS);
	uint32_t head[2] = {128, 5};
	add(head, sizeof head);
	fprintf(text, "first 128\ncount 5\n");
	for (int i = 0; i < 5; i++) {
		uint8_t r[256];
		memcpy(r, records[i], 256);
		memset(r + 208, 0, 8);
		add(r, 256);
	}
	sent();

	message("attach", RP_M_ATTACH);
	head[0] = 133, head[1] = 0;
	add(head, sizeof head);
	fprintf(text, "regions 133\n");
	sent();

	message("sealed", RP_M_SEALED);
	rp_sealed s = {.kind = 1, .index = 5, .word = RP_SLOT(42, RP_SEALED), .generation = RP_WORD(7, 1234567, 0)};
	add(&s, sizeof s);
	NUM(s, kind); NUM(s, index); NUM(s, word); NUM(s, generation);
	sent();

	message("stopped", RP_M_STOPPED);
	uint64_t live = RP_WORD(7, 1234568, RP_UPDATED);
	add(&live, sizeof live);
	fprintf(text, "live %llu\n", (unsigned long long)live);
	sent();

	message("loaded", RP_M_LOADED);
	rp_loaded l = {.generation = RP_WORD(6, 99, 0)};
	fill(l.replicated_root, 16, 0x10);
	fill(l.private_root, 16, 0x30);
	add(&l, sizeof l);
	NUM(l, generation); HEX(l, replicated_root); HEX(l, private_root);
	sent();

	message("fail", RP_M_FAIL);
	const char *why = "exception in forward";
	add(why, strlen(why));
	fprintf(text, "text %s\n", why);
	sent();

	message("reject", RP_M_REJECT);
	const char *bad = "embedding.weight holds a NaN";
	add(bad, strlen(bad));
	fprintf(text, "text %s\n", bad);
	sent();

	message("pause", RP_M_PAUSE);
	uint64_t most = 90000000000;
	add(&most, sizeof most);
	fprintf(text, "most %llu\n", (unsigned long long)most);
	sent();

	message("recipe_part", RP_M_RECIPE_PART);
	rp_piece piece = {.offset = 4, .total = 12};
	add(&piece, sizeof piece);
	add("groups=2", 8);
	NUM(piece, offset); NUM(piece, total);
	fprintf(text, "bytes groups=2\n");
	sent();

	message("grow", RP_M_GROW);
	rp_growth growth = {.step = 41, .regions = 5, .recipe = 12};
	add(&growth, sizeof growth);
	NUM(growth, step); NUM(growth, regions); NUM(growth, recipe);
	sent();

	message("recipe", RP_M_RECIPE);
	uint32_t from[2] = {8, 0};
	add(from, sizeof from);
	fprintf(text, "offset 8\n");
	sent();

	message("ending", RP_M_ENDING);
	most = 180000000000;
	add(&most, sizeof most);
	fprintf(text, "most %llu\n", (unsigned long long)most);
	sent();

	message("lacks", RP_M_LACKS);
	const char *what = "model.teacher.0.weight";
	add(what, strlen(what));
	fprintf(text, "text %s\n", what);
	sent();

	message("said", RP_M_SAID);
	const struct { rp_said_remark head; const char *name, *text; } said[] = {{{.kind = RP_NOTE}, "data", "v2"}, {{.kind = RP_METRIC, .step = 1234567, .value = 0.25}, "loss", ""}, {{.kind = RP_LOADER_EPOCH, .step = 1234000, .value = 3}, "data", ""}};
	for (size_t i = 0; i < sizeof said / sizeof said[0]; i++) {
		rp_said_remark s = said[i].head;
		s.name_bytes = (uint16_t)strlen(said[i].name);
		s.text_bytes = (uint32_t)strlen(said[i].text);
		add(&s, sizeof s);
		add(said[i].name, s.name_bytes);
		add(said[i].text, s.text_bytes);
		fprintf(text, "kind %u\nname %s\ntext %s\nstep %llu\nvalue %g\n", s.kind, said[i].name, said[i].text, (unsigned long long)s.step, s.value);
	}
	sent();

	plain("leave", RP_M_LEAVE);
	kv("kv_set", RP_M_KV_SET, "addr/3", "127.0.0.1:4000", 0, 9);
	kv("kv_get", RP_M_KV_GET, "addr/3", "", 0, 0);
	kv("barrier", RP_M_BARRIER, "up", "", 4, 0);
	int64_t delta = -3;
	kv_bytes("kv_add", RP_M_KV_ADD, "came", &delta, sizeof delta, 0, 10);
	fprintf(text, "delta -3\n");
	sent();
	kv("kv_check", RP_M_KV_CHECK, "came", "", 0, 0);
	kv("kv_compare_set", RP_M_KV_COMPARE_SET, "who", "mineyours", 4, 11);
	kv("kv_delete", RP_M_KV_DELETE, "who", "", 0, 12);
	plain("scope", RP_M_SCOPE);
	plain("resumed", RP_M_RESUMED);
	plain("from", RP_M_FROM);
}

static void from_daemon(void) {
	message("welcome", RP_M_WELCOME);
	rp_welcome w = {.abi = 1, .rank = 3, .era = 2, .chunk_bytes = 4 << 20};
	fill(w.cluster, 16, 0xa0);
	fill(w.job, 16, 0xb0);
	add(&w, sizeof w);
	NUM(w, abi); NUM(w, rank); HEX(w, cluster); HEX(w, job); NUM(w, era); NUM(w, chunk_bytes);
	sent();

	code_text("refused", RP_M_REFUSED, RP_EREFUSED, "rank 3 is held by process 4000: wait for it to exit");

	message("attached", RP_M_ATTACHED);
	rp_attached a = {.arena_bytes = 1 << 20, .incarnation = 12, .slots = 4, .ring = 16, .fence = 6};
	fill(a.job, 16, 0xb0);
	add(&a, sizeof a);
	NUM(a, arena_bytes); NUM(a, incarnation); NUM(a, slots); NUM(a, ring); NUM(a, fence); HEX(a, job);
	sent();

	plain("fence", RP_M_FENCE);

	message("order", RP_M_ORDER);
	rp_order o = {.action = RP_ORDER_LOAD, .source = RP_PEER_RAM, .step = 1234567, .generation = RP_WORD(6, 1234567, 0), .slot = 2, .place = 9, .code = RP_ESTOPPED};
	fill(o.replicated_root, 16, 0x50);
	fill(o.private_root, 16, 0x70);
	strcpy(o.text, "why");
	add(&o, sizeof o);
	NUM(o, action); NUM(o, source); NUM(o, step); NUM(o, generation); NUM(o, slot); NUM(o, place); HEX(o, replicated_root); HEX(o, private_root); INT(o, code); STR(o, text);
	sent();

	plain("bye", RP_M_BYE);
	code_text("kv_ok", RP_M_KV_OK, RP_EFENCED, "");

	message("kv_value", RP_M_KV_VALUE);
	int32_t head[2] = {RP_OK, 14};
	add(head, sizeof head);
	add("127.0.0.1:4000", 14);
	fprintf(text, "code 0\nlength 14\nvalue 127.0.0.1:4000\n");
	sent();

	message("kv_total", RP_M_KV_TOTAL);
	head[1] = 0;
	add(head, sizeof head);
	int64_t total = -3;
	add(&total, sizeof total);
	fprintf(text, "code 0\ntotal -3\n");
	sent();

	message("scoped", RP_M_SCOPED);
	uint64_t scope = 8;
	add(&scope, sizeof scope);
	fprintf(text, "epoch 8\n");
	sent();

	plain("paused", RP_M_PAUSED);

	message("resumed_is", RP_M_RESUMED_IS);
	add("step 2180 of file:///b/lm", 25);
	fprintf(text, "text step 2180 of file:///b/lm\n");
	sent();

	message("from_is", RP_M_FROM_IS);
	add("{\"job\":\"lm\"}", 12);
	fprintf(text, "text {\"job\":\"lm\"}\n");
	sent();

	message("recipe_is", RP_M_RECIPE_IS);
	rp_piece piece = {.offset = 8, .total = 12};
	add(&piece, sizeof piece);
	add("ps=2", 4);
	NUM(piece, offset); NUM(piece, total);
	fprintf(text, "bytes ps=2\n");
	sent();
}

static void launcher(void) {
	message("run_hello", RP_M_RUN_HELLO);
	rp_run_hello h = {.abi = 1, .world = 4, .capacity = 2, .spare = 0, .ranks = 2, .groups = 4, .min_copies = 2, .cadence = 1, .slots = 4, .chunk_bytes = 1 << 20, .durable_every = 50, .flags = 0};
	strcpy(h.job, "opticks");
	strcpy(h.token, "secret-token");
	add(&h, sizeof h);
	add((uint32_t[]){0, 3}, 8);
	add((uint32_t[]){0, 1, 0, 1}, 16);
	NUM(h, abi); NUM(h, world); NUM(h, capacity); NUM(h, spare); NUM(h, ranks); NUM(h, groups); NUM(h, min_copies); NUM(h, cadence); NUM(h, slots); NUM(h, chunk_bytes); NUM(h, durable_every); NUM(h, flags); STR(h, job); STR(h, token);
	fprintf(text, "rank 0\nrank 3\ngroup 0\ngroup 1\ngroup 0\ngroup 1\n");
	sent();

	message("run_exited", RP_M_RUN_EXITED);
	rp_run_exited e = {.rank = 3, .status = 137, .pid = 4711};
	add(&e, sizeof e);
	NUM(e, rank); INT(e, status); NUM(e, pid);
	sent();

	message("run_ok", RP_M_RUN_OK);
	rp_welcome w = {.abi = 1, .rank = 0, .era = 2, .chunk_bytes = 1 << 20};
	fill(w.cluster, 16, 0xa0);
	fill(w.job, 16, 0xb0);
	add(&w, sizeof w);
	NUM(w, abi); NUM(w, rank); HEX(w, cluster); HEX(w, job); NUM(w, era); NUM(w, chunk_bytes);
	sent();

	message("run_start", RP_M_RUN_START);
	rp_run_start s = {.rank = 3, .world = 4, .group = 1, .early = 2};
	add(&s, sizeof s);
	NUM(s, rank); NUM(s, world); NUM(s, group); NUM(s, early);
	sent();

	message("run_stop", RP_M_RUN_STOP);
	uint32_t stop[2] = {3, 9};
	add(stop, sizeof stop);
	fprintf(text, "rank 3\nsignal 9\n");
	sent();

	code_text("run_done", RP_M_RUN_DONE, 4, "no progress since step 12");
}

static void regions(void) {
	begin("region_records");
	add(records, sizeof records);
	describe_records();
	uint8_t d[16];
	static const char *const field[] = {"geometry_replicated", "geometry_private", "geometry_frozen"};
	for (int kind = 0; kind < 3; kind++) {
		geometry(kind, d);
		hex(field[kind], d, 16);
	}
	fprintf(text, "replicated_bytes 1344\nvolatile_offset 1280\nvolatile_bytes 64\nprivate_bytes 64\nfrozen_bytes 2048\n");
	end();
}

#define WORD(f, v) do { atomic_store(&c.f.word, (v)); fprintf(text, "%s %llu\n", #f, (unsigned long long)(v)); } while (0)

/* A control page for the five regions, chunks of 4096 bytes, 4 slots, 16 places. */
static void control(void) {
	begin("control");
	static rp_control c;
	c.magic = RP_ARENA_MAGIC, c.version = RP_ARENA_VERSION, c.header_bytes = RP_PAGE;
	fill(c.cluster, 16, 0xa0);
	fill(c.job, 16, 0xb0);
	c.era = 2, c.rank = 3, c.chunk_bytes = 4096, c.slots = 4, c.ring = 16, c.staging = 2;
	c.regions_offset = 4096, c.region_count = 5;
	c.meta_offset = 8192, c.slot_meta_stride = 4096, c.ring_meta_stride = 4096;
	c.frozen_offset = 94208, c.frozen_bytes = 2048;
	c.slot_offset = 98304, c.slot_stride = 4096, c.replicated_bytes = 1344;
	c.ring_offset = 114688, c.ring_stride = 4096, c.private_bytes = 64;
	c.staging_offset = 180224, c.staging_stride = 4096, c.volatile_bytes = 64;
	c.arena_bytes = 188416;
	geometry(0, c.geometry_replicated);
	geometry(1, c.geometry_private);
	geometry(2, c.geometry_frozen);
	NUM(c, magic); NUM(c, version); NUM(c, header_bytes); HEX(c, cluster); HEX(c, job); NUM(c, era); NUM(c, rank); NUM(c, arena_bytes); NUM(c, chunk_bytes); NUM(c, slots); NUM(c, ring); NUM(c, staging);
	NUM(c, meta_offset); NUM(c, slot_meta_stride); NUM(c, ring_meta_stride); NUM(c, frozen_offset); NUM(c, frozen_bytes); NUM(c, slot_offset); NUM(c, slot_stride); NUM(c, replicated_bytes); NUM(c, ring_offset); NUM(c, ring_stride); NUM(c, private_bytes); NUM(c, staging_offset); NUM(c, staging_stride); NUM(c, volatile_bytes);
	HEX(c, geometry_replicated); HEX(c, geometry_private); HEX(c, geometry_frozen); NUM(c, regions_offset); NUM(c, region_count); NUM(c, flags);
	WORD(step, RP_WORD(7, 41, RP_UPDATING));
	WORD(good, RP_WORD(7, 40, 0));
	WORD(fence, 6ull);
	WORD(committed, RP_WORD(7, 38, 0));
	WORD(candidate, RP_WORD(7, 39, 0));
	WORD(cadence, 1ull);
	WORD(incarnation, 12ull);
	WORD(pid, 4711ull);
	WORD(start, 123456ull);
	WORD(skipped, 2ull);
	WORD(captured, 37ull);
	WORD(holder, 12ull);
	for (unsigned i = 0; i < RP_MAX_SLOTS; i++) {
		atomic_store(&c.slot[i].word, RP_SLOT(10 + i, i));
		fprintf(text, "slot[%u] %llu\n", i, (unsigned long long)RP_SLOT(10 + i, i));
	}
	for (unsigned i = 0; i < RP_MAX_RING; i++) {
		atomic_store(&c.place[i].word, RP_SLOT(100 + i, i % 5));
		fprintf(text, "place[%u] %llu\n", i, (unsigned long long)RP_SLOT(100 + i, i % 5));
	}
	WORD(frozen, RP_SLOT(1, RP_SEALED));
	WORD(tag[0], RP_WORD(7, 40, 0));
	WORD(tag[1], RP_WORD(7, 39, 0));
	add(&c, sizeof c);
	end();
}

/* A replicated part of 1344 bytes b[i] = i*7+3 in chunks of 512 bytes, and its root with and without RP_NO_UPDATE. */
static void meta_and_root(void) {
	uint8_t part[1344], input[72 + 3 * 16], frozen[2048], digest[3][16], root[16];
	for (size_t i = 0; i < sizeof part; i++)
		part[i] = (uint8_t)(i * 7 + 3);
	for (size_t i = 0; i < sizeof frozen; i++)
		frozen[i] = i < 2000 ? (uint8_t)(i * 5 + 1) : 0;
	for (int i = 0; i < 3; i++)
		digest_of(part + 512 * i, i < 2 ? 512 : 1344 - 1024, digest[i]);

	begin("part");
	add(part, sizeof part);
	fprintf(text, "bytes 1344\nchunk_bytes 512\n");
	for (int i = 0; i < 3; i++)
		hex("digest", digest[i], 16);
	uint8_t whole[16];
	digest_of(part, sizeof part, whole);
	hex("xxh3_128_of_all", whole, 16);
	digest_of(part, 0, whole);
	hex("xxh3_128_of_nothing", whole, 16);
	end();

	begin("root");
	rp_meta m = {.generation = RP_WORD(7, 40, 0), .flags = RP_NO_UPDATE, .chunks = 3, .bytes = 1344, .use_count = 10, .incarnation = 12, .pin_term = 5, .pin_n = 6, .rank = 3};
	digest_of(frozen, sizeof frozen, m.frozen_root); /* stands for any root */
	uint32_t numbers[4] = {0, 3, 512, RP_NO_UPDATE};
	memcpy(input, "RPROOT01", 8);
	geometry(0, input + 8);
	memcpy(input + 24, numbers, 16);
	memcpy(input + 40, &m.bytes, 8);
	memcpy(input + 48, m.frozen_root, 16);
	memcpy(input + 64, digest, sizeof digest);
	size_t n = 64 + sizeof digest;
	digest_of(input, n, root);
	add(input, n);
	hex("root", root, 16);
	memcpy(m.root, root, 16);
	end();

	begin("meta");
	add(&m, sizeof m);
	add(digest, sizeof digest);
	NUM(m, generation); NUM(m, flags); NUM(m, chunks); NUM(m, bytes); NUM(m, use_count); HEX(m, root); HEX(m, frozen_root); NUM(m, incarnation); NUM(m, pin_term); NUM(m, pin_n); NUM(m, rank);
	for (int i = 0; i < 3; i++)
		hex("digest", digest[i], 16);
	end();
}

int main(int argc, char **argv) {
	if (argc != 2) {
		fprintf(stderr, "usage: golden_gen DIR\n");
		return 2;
	}
	directory = argv[1];
	make_records();
	from_rank();
	from_daemon();
	launcher();
	regions();
	control();
	meta_and_root();
	return 0;
}
