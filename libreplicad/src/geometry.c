/* geometry.c: registered regions laid out in their areas (as replica.NewGeometry does), and the arena mapped and compared with
 * them. Lengths and offsets of the arena are copied once and then checked; nothing else of its header is believed. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "internal.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

static const uint8_t dtype_bytes[] = {0, 1, 1, 2, 4, 8, 2, 2, 4, 8, 1, 2, 4, 8, 1, 1};

/* The length of the UTF-8 character that begins at s, of which n bytes are there; 0 if that is none (RFC 3629). */
static size_t character(const uint8_t *s, size_t n) {
	if (s[0] < 0x80)
		return 1;
	size_t len = s[0] >= 0xf0 ? 4 : s[0] >= 0xe0 ? 3 : 2;
	if (s[0] < 0xc2 || s[0] > 0xf4 || len > n)
		return 0;
	for (size_t k = 1; k < len; k++)
		if ((s[k] & 0xc0) != 0x80)
			return 0;
	/* Longer than need be, a surrogate, or beyond the last character. */
	if ((s[0] == 0xe0 && s[1] < 0xa0) || (s[0] == 0xed && s[1] > 0x9f) || (s[0] == 0xf0 && s[1] < 0x90) || (s[0] == 0xf4 && s[1] > 0x8f))
		return 0;
	return len;
}

/* As replica.CheckRegionName: manifests and safetensors headers hold names as UTF-8 text. */
static int check_name(const char *name, size_t i, rp_error *err) {
	size_t n = name ? strnlen(name, 128) : 0;
	if (n == 0 || n > 127)
		return rpi_error(err, RP_EINVAL, "region %zu: want a name of 1 to 127 bytes", i);
	for (size_t k = 0, len; k < n; k += len)
		if (!(len = character((const uint8_t *)name + k, n - k)))
			return rpi_error(err, RP_EINVAL, "region %zu: byte %zu of its name is not UTF-8, and no manifest could hold it: give it another name", i, k);
	if (strcmp(name, "__metadata__") == 0)
		return rpi_error(err, RP_EINVAL, "region %zu is called __metadata__: safetensors files have a key of that name which is no tensor, so nobody could read this region back: give it another name", i);
	for (size_t k = 0; k < n; k++)
		if ((uint8_t)name[k] < 0x20 || name[k] == 0x7f)
			return rpi_error(err, RP_EINVAL, "region %zu: control character at %zu of its name", i, k);
	return RP_OK;
}

static int check_region(const rp_region *r, size_t i, rp_error *err) {
	if (r->struct_size != sizeof *r)
		return rpi_error(err, RP_EVERSION, "region %zu: struct_size %u, want %zu: rebuild the caller against this replicad.h", i, r->struct_size, sizeof *r);
	int rc = check_name(r->name, i, err);
	if (rc != RP_OK)
		return rc;
	if (r->dtype == 0 || r->dtype >= sizeof dtype_bytes)
		return rpi_error(err, RP_EINVAL, "region %s: unknown dtype %u", r->name, r->dtype);
	if (r->kind > RP_PRIVATE || r->cls > RP_FROZEN || (r->flags & ~(uint32_t)RP_IN_WINDOW))
		return rpi_error(err, RP_EINVAL, "region %s: unknown kind %u, class %u or flags %#x", r->name, r->kind, r->cls, r->flags);
	if (r->kind == RP_PRIVATE && r->cls == RP_FROZEN)
		return rpi_error(err, RP_EINVAL, "region %s: a frozen region is captured once for its whole group, so it can't be private: declare it replicated", r->name);
	/* Without the flag the private part is sealed at step_enter: the window's changes would come back a step old, every digest right. */
	if (r->kind == RP_PRIVATE && r->cls == RP_WINDOW && !(r->flags & RP_IN_WINDOW))
		return rpi_error(err, RP_EINVAL,
				 "region %s: private and RP_WINDOW, but a private region is copied when the step begins: set RP_IN_WINDOW if the window changes it, or declare it RP_VOLATILE if it does not", r->name);
	if (r->kind != RP_PRIVATE && (r->flags & RP_IN_WINDOW))
		return rpi_error(err, RP_EINVAL, "region %s: RP_IN_WINDOW is for private regions: replicated ones are copied after the window anyway, leave it out", r->name);
	if (r->ndim > 8)
		return rpi_error(err, RP_EINVAL, "region %s: %u dimensions, at most 8", r->name, r->ndim);
	uint64_t bytes = dtype_bytes[r->dtype];
	for (unsigned d = 0; d < r->ndim; d++)
		if (__builtin_mul_overflow(bytes, r->shape[d], &bytes) || bytes > 1ull << 50)
			return rpi_error(err, RP_EINVAL, "region %s: its shape overflows", r->name);
	if (bytes != r->bytes)
		return rpi_error(err, RP_EINVAL, "region %s: %llu bytes, but its shape and dtype have %llu", r->name, (unsigned long long)r->bytes, (unsigned long long)bytes);
	if (bytes && !r->data)
		return rpi_error(err, RP_EINVAL, "region %s: data is NULL", r->name);
	return RP_OK;
}

static void put_record(uint8_t *rec, const rp_region *r) {
	memset(rec, 0, RPI_RECORD);
	memcpy(rec, r->name, strlen(r->name));
	rec[128] = r->dtype, rec[129] = r->kind, rec[130] = r->cls, rec[131] = r->ndim;
	memcpy(rec + 132, &r->flags, 4);
	memcpy(rec + 136, &r->bytes, 8);
	memcpy(rec + 144, r->shape, 8 * (size_t)r->ndim);
}

static uint64_t record_bytes(const uint8_t *rec) {
	uint64_t n;
	memcpy(&n, rec + 136, 8);
	return n;
}

static int by_name(const void *a, const void *b) { return strcmp(*(const char *const *)a, *(const char *const *)b); }

static int check_unique(const rp_region *regions, size_t n, rp_error *err) {
	const char **names = malloc(n * sizeof *names);
	if (!names)
		return rpi_error(err, RP_ENOMEM, "no memory for %zu regions", n);
	for (size_t i = 0; i < n; i++)
		names[i] = regions[i].name;
	qsort(names, n, sizeof *names, by_name);
	int rc = RP_OK;
	for (size_t i = 1; i < n && rc == RP_OK; i++)
		if (strcmp(names[i - 1], names[i]) == 0)
			rc = rpi_error(err, RP_EINVAL, "region %s is registered twice: names must be unique", names[i]);
	free(names);
	return rc;
}

static int by_address(const void *a, const void *b) {
	uintptr_t x = (uintptr_t)(*(const rp_region *const *)a)->data, y = (uintptr_t)(*(const rp_region *const *)b)->data;
	return x < y ? -1 : x > y;
}

/* Bytes that two regions share would be loaded twice, the second time with what the other region was sealed with: every digest right, and the
 * state no step's. */
static int check_apart(const rp_region *regions, size_t n, rp_error *err) {
	const rp_region **by = malloc(n * sizeof *by);
	if (!by)
		return rpi_error(err, RP_ENOMEM, "no memory for %zu regions", n);
	size_t some = 0;
	for (size_t i = 0; i < n; i++)
		if (regions[i].bytes)
			by[some++] = &regions[i];
	qsort(by, some, sizeof *by, by_address);
	int rc = RP_OK;
	for (size_t i = 1; i < some && rc == RP_OK; i++)
		if ((uintptr_t)by[i]->data - (uintptr_t)by[i - 1]->data < by[i - 1]->bytes)
			rc = rpi_error(err, RP_EINVAL, "regions %s and %s share memory: register it once", by[i - 1]->name, by[i]->name);
	free(by);
	return rc;
}

/* Appends the regions of one kind and class to a layout, in order of registration, each aligned; sets their offsets. */
static int place(rp_handle *h, rpi_layout *l, int kind, int cls, rp_error *err) {
	for (uint32_t i = 0; i < h->regions; i++) {
		uint8_t *rec = h->records + (size_t)i * RPI_RECORD;
		if (rec[129] != kind || (cls >= 0 && rec[130] != cls))
			continue;
		uint64_t n = record_bytes(rec), at = l->bytes;
		memcpy(rec + 208, &at, 8);
		if (n)
			l->segments[l->count++] = (rpi_segment){at, n, h->live[i]};
		l->bytes = (at + n + RPI_ALIGN - 1) & ~(uint64_t)(RPI_ALIGN - 1);
		if (l->bytes > 1ull << 60)
			return rpi_error(err, RP_EINVAL, "region %s: the regions' sizes overflow", (char *)rec);
	}
	return RP_OK;
}

/* The geometry digest of a kind of part: the records of its regions, in order of registration. */
static int digest_records(rp_handle *h, int part, rp_error *err) {
	uint8_t *all = malloc((size_t)h->regions * RPI_RECORD);
	if (!all)
		return rpi_error(err, RP_ENOMEM, "no memory for %u region records", h->regions);
	size_t n = 0;
	for (uint32_t i = 0; i < h->regions; i++) {
		const uint8_t *rec = h->records + (size_t)i * RPI_RECORD;
		if ((rec[129] == RP_PRIVATE) == (part == RPI_PART_PRIVATE) && (part != RPI_PART_FROZEN || rec[130] == RP_FROZEN)) {
			memcpy(all + n, rec, RPI_RECORD);
			n += RPI_RECORD;
		}
	}
	h->hash->digest(all, n, NULL, 0, h->geometry[part]);
	free(all);
	return RP_OK;
}

static int lay_out(rp_handle *h, rp_error *err) {
	rpi_layout *all[] = {&h->replicated, &h->private_part, &h->frozen, &h->staged[0], &h->staged[1]};
	for (size_t i = 0; i < sizeof all / sizeof *all; i++)
		if (!(all[i]->segments = calloc(h->regions, sizeof *all[i]->segments)))
			return rpi_error(err, RP_ENOMEM, "no memory for %u regions", h->regions);
	int rc = place(h, &h->replicated, RP_REPLICATED, RP_WINDOW, err);
	h->volatile_offset = h->replicated.bytes;
	if (rc == RP_OK)
		rc = place(h, &h->replicated, RP_REPLICATED, RP_VOLATILE, err);
	h->volatile_bytes = h->replicated.bytes - h->volatile_offset;
	if (rc == RP_OK)
		rc = place(h, &h->private_part, RP_PRIVATE, -1, err);
	if (rc == RP_OK)
		rc = place(h, &h->frozen, RP_REPLICATED, RP_FROZEN, err);
	for (int part = 0; part < 3 && rc == RP_OK; part++)
		rc = digest_records(h, part, err);
	return rc;
}

int rpi_take_regions(rp_handle *h, const rp_region *regions, size_t n, rp_error *err) {
	if (n == 0 || n > 65536 || !regions)
		return rpi_error(err, RP_EINVAL, "%zu regions: want 1 to 65536", n);
	int rc = RP_OK;
	for (size_t i = 0; i < n && rc == RP_OK; i++)
		rc = check_region(&regions[i], i, err);
	if (rc == RP_OK)
		rc = check_unique(regions, n, err);
	if (rc == RP_OK)
		rc = check_apart(regions, n, err);
	if (rc != RP_OK)
		return rc;
	h->records = malloc(n * RPI_RECORD);
	h->live = malloc(n * sizeof *h->live);
	if (!h->records || !h->live)
		return rpi_error(err, RP_ENOMEM, "no memory for %zu regions", n);
	h->regions = (uint32_t)n;
	for (size_t i = 0; i < n; i++) {
		put_record(h->records + i * RPI_RECORD, &regions[i]);
		h->live[i] = regions[i].data;
		h->private_in_window |= regions[i].kind == RP_PRIVATE && (regions[i].flags & RP_IN_WINDOW);
	}
	return lay_out(h, err);
}

RP_API int rp_register(rp_handle *h, const rp_region *regions, size_t n, rp_error *err) {
	RPI_ENTER(h, err);
	if (atomic_load(&h->life) != RPI_OPEN || h->regions)
		return rpi_error(err, RP_ESTATE, "rp_register: call it once, between rp_open and rp_attach");
	return rpi_take_regions(h, regions, n, err);
}

/* Takes count strides of an area that begins at offset, behind *end where the area before it ends. Areas that lie on each other would have one
 * capture overwrite what another sealed. */
static bool take_area(const rp_control *c, uint64_t *end, uint64_t offset, uint64_t stride, uint64_t count, uint64_t need) {
	uint64_t total;
	if (offset % RP_PAGE || stride % RP_PAGE || need > stride || __builtin_mul_overflow(stride, count, &total) || offset < *end || offset > c->arena_bytes || total > c->arena_bytes - offset)
		return false;
	*end = offset + total;
	return true;
}

static uint64_t pages(uint64_t n) { return (n + RP_PAGE - 1) & ~(uint64_t)(RP_PAGE - 1); }

static int check_header(const rp_handle *h, const rp_control *c, const rp_attached *a, uint64_t size, rp_error *err) {
	if (c->magic != RP_ARENA_MAGIC || c->version != RP_ARENA_VERSION || c->header_bytes != RP_PAGE)
		return rpi_error(err, RP_EVERSION, "arena: magic %#llx, version %u, header of %u bytes: daemon and libreplicad are of different versions", (unsigned long long)c->magic, c->version, c->header_bytes);
	if (c->arena_bytes != size || a->arena_bytes != size)
		return rpi_error(err, RP_ECORRUPT, "arena: header says %llu bytes, message %llu, descriptor %llu", (unsigned long long)c->arena_bytes, (unsigned long long)a->arena_bytes, (unsigned long long)size);
	if (memcmp(c->job, h->welcome.job, 16) || c->rank != h->hello.rank || c->era != h->welcome.era)
		return rpi_error(err, RP_EREFUSED, "arena: belongs to rank %u of another job or era; this is rank %u", c->rank, h->hello.rank);
	if (c->flags & 1)
		return rpi_error(err, RP_EREFUSED, "arena: it is a mirror, which only the daemon writes");
	if (c->slots < 2 || c->slots > RP_MAX_SLOTS || c->ring < 1 || c->ring > RP_MAX_RING || c->staging != RP_STAGING || c->chunk_bytes == 0 || c->chunk_bytes > 1u << 30)
		return rpi_error(err, RP_ECORRUPT, "arena: %u slots, %u ring places, %u staging places, chunks of %u bytes", c->slots, c->ring, c->staging, c->chunk_bytes);
	if (c->replicated_bytes != h->replicated.bytes || c->private_bytes != h->private_part.bytes || c->frozen_bytes != h->frozen.bytes || c->volatile_bytes != h->volatile_bytes ||
	    c->region_count != h->regions || memcmp(c->geometry_replicated, h->geometry[0], 16) || memcmp(c->geometry_private, h->geometry[1], 16) || memcmp(c->geometry_frozen, h->geometry[2], 16))
		return rpi_error(err, RP_EREFUSED, "arena: laid out for %u regions (%llu replicated, %llu private bytes), registered are %u (%llu, %llu): register the same regions as before, or end the job", c->region_count,
				 (unsigned long long)c->replicated_bytes, (unsigned long long)c->private_bytes, h->regions, (unsigned long long)h->replicated.bytes, (unsigned long long)h->private_part.bytes);
	uint64_t big = h->replicated.bytes > h->frozen.bytes ? h->replicated.bytes : h->frozen.bytes;
	uint64_t slot_meta = sizeof(rp_meta) + 16ull * rpi_chunks(big, c->chunk_bytes), ring_meta = sizeof(rp_meta) + 16ull * rpi_chunks(h->private_part.bytes, c->chunk_bytes);
	uint64_t records = (uint64_t)c->region_count * RPI_RECORD, end = RP_PAGE; /* the sizes are those registered: none is near 2^64 */
	bool ok = take_area(c, &end, c->regions_offset, pages(records), 1, records) && take_area(c, &end, c->meta_offset, c->slot_meta_stride, 1 + c->slots, slot_meta) &&
		  take_area(c, &end, end, c->ring_meta_stride, c->ring, ring_meta) && take_area(c, &end, c->frozen_offset, pages(c->frozen_bytes), 1, c->frozen_bytes) &&
		  take_area(c, &end, c->slot_offset, c->slot_stride, c->slots, c->replicated_bytes) && take_area(c, &end, c->ring_offset, c->ring_stride, c->ring, c->private_bytes) &&
		  take_area(c, &end, c->staging_offset, c->staging_stride, c->staging, c->volatile_bytes);
	return ok ? RP_OK : rpi_error(err, RP_ECORRUPT, "arena: an area lies outside its %llu bytes or in another: daemon and libreplicad do not agree: use those of one release", (unsigned long long)c->arena_bytes);
}

/* Maps pages now, so that the first captures cost what the later ones do. 0, or errno. */
static int prefault(uint8_t *p, size_t n) {
	while (n > 0 && madvise(p, n, MADV_POPULATE_WRITE) != 0) {
		if (errno == EINTR || errno == EAGAIN)
			continue;
		if (errno != EINVAL)
			return errno;
		for (size_t i = 0; i < n; i += RP_PAGE)
			__atomic_fetch_or(p + i, 0, __ATOMIC_RELAXED); /* a write that changes nothing, whatever the daemon does meanwhile */
		break;
	}
	return 0;
}

/* A piece takes some milliseconds: that long an armed capture, or rp_close, waits for it. */
#define PREFAULT_PIECE (16u << 20)

/* The daemon takes the slots' memory while the arena is in use. A page that this process touched before would be charged to its cgroup. */
static uint64_t unreserved(const rp_handle *h) {
	struct stat st;
	uint64_t there = fstat(h->arena_fd, &st) == 0 ? (uint64_t)st.st_blocks * 512 : h->arena_bytes;
	return there < h->arena_bytes ? h->arena_bytes - there : 0;
}

/* Waits until the daemon has all memory; false where that makes no headway for a tenth of a second, or there is better to do. */
static bool reserved(rp_handle *h) {
	uint64_t left = unreserved(h);
	for (unsigned idle = 0; left != 0 && idle < 100; idle++) {
		if (atomic_load(&h->capture) == RPI_ARMED || atomic_load(&h->hurried))
			return false;
		nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
		uint64_t now = unreserved(h);
		if (now < left)
			idle = 0;
		left = now;
	}
	return left == 0;
}

/* The slots are nearly all of an arena, and a replacement writes to none of them before it has trained a step: the worker maps them while
 * the state is on its way. Where the kernel refuses, the captures fault the pages in one by one. */
void rpi_prefault_slots(rp_handle *h) {
	uint64_t at, end = h->geo.slot_offset + h->geo.slots * h->geo.slot_stride;
	if (atomic_load(&h->unfaulted) == 0 || !reserved(h))
		return;
	while ((at = atomic_load(&h->unfaulted)) != 0 && atomic_load(&h->capture) != RPI_ARMED && !atomic_load(&h->hurried)) {
		uint64_t n = end - at < PREFAULT_PIECE ? end - at : PREFAULT_PIECE;
		atomic_store(&h->unfaulted, prefault(h->arena + at, n) == 0 && at + n < end ? at + n : 0);
	}
}

/* All but the slots: the training thread itself writes there. */
static int prefault_rest(const rp_handle *h, uint8_t *p, size_t bytes, rp_error *err) {
	uint64_t end = h->geo.slot_offset + h->geo.slots * h->geo.slot_stride;
	int rc = prefault(p, h->geo.slot_offset);
	if (rc == 0)
		rc = prefault(p + end, bytes - end);
	return rc ? rpi_system(err, "prefault the arena", rc) : RP_OK;
}

static void point_staging(rp_handle *h) {
	for (unsigned k = 0; k < RP_STAGING; k++) {
		rpi_layout *l = &h->staged[k];
		l->count = h->replicated.count, l->bytes = h->replicated.bytes;
		for (uint32_t i = 0; i < l->count; i++) {
			l->segments[i] = h->replicated.segments[i];
			if (l->segments[i].offset >= h->volatile_offset)
				l->segments[i].data = h->arena + h->geo.staging_offset + k * h->geo.staging_stride + (l->segments[i].offset - h->volatile_offset);
		}
	}
}

/* Maps the control page of an arena for words that any thread may look at: at an address of its own, or in place of the page that is there. */
static int map_control(rp_control **control, int fd, rp_error *err) {
	void *p = mmap(*control, RP_PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | (*control ? MAP_FIXED : 0), fd, 0);
	if (p == MAP_FAILED)
		return rpi_system(err, "map the arena's control page", errno);
	madvise(p, RP_PAGE, MADV_DONTFORK);
	madvise(p, RP_PAGE, MADV_DONTDUMP);
	*control = p;
	return RP_OK;
}

int rpi_map(rp_handle *h, int fd, const rp_attached *a, rp_error *err) {
	struct stat st;
	if (fstat(fd, &st) != 0)
		return rpi_system(err, "fstat the arena", errno);
	int seals = fcntl(fd, F_GET_SEALS);
	if (seals < 0 || (seals & (F_SEAL_SHRINK | F_SEAL_GROW)) != (F_SEAL_SHRINK | F_SEAL_GROW))
		return rpi_error(err, RP_EREFUSED, "arena: its size is not sealed, a truncation would kill this process: the daemon is not replicad's");
	if (st.st_size < (off_t)RP_PAGE)
		return rpi_error(err, RP_ECORRUPT, "arena: %lld bytes", (long long)st.st_size);
	uint8_t *p = mmap(NULL, (size_t)st.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (p == MAP_FAILED)
		return rpi_system(err, "map the arena", errno);
	madvise(p, (size_t)st.st_size, MADV_DONTFORK);
	madvise(p, (size_t)st.st_size, MADV_DONTDUMP);
	memcpy(&h->geo, p, offsetof(rp_control, step)); /* the header only: once, then it is checked */
	int rc = check_header(h, &h->geo, a, (uint64_t)st.st_size, err);
	if (rc == RP_OK && memcmp(p + h->geo.regions_offset, h->records, (size_t)h->regions * RPI_RECORD) != 0)
		rc = rpi_error(err, RP_EREFUSED, "arena: its region table is not what was registered: register the same regions as before, or end the job");
	if (rc == RP_OK)
		rc = prefault_rest(h, p, (size_t)st.st_size, err);
	if (rc == RP_OK)
		rc = map_control(&h->control, fd, err);
	if (rc != RP_OK) {
		munmap(p, (size_t)st.st_size);
		return rc;
	}
	h->arena = p, h->arena_bytes = (size_t)st.st_size, h->arena_fd = fd;
	point_staging(h);
	atomic_store(&h->unfaulted, h->geo.slot_offset);
	return RP_OK;
}

#define EXCHANGE(a, b)                            \
	do {                                      \
		unsigned char t_[sizeof(a)];      \
		memcpy(t_, &(a), sizeof(a));      \
		memcpy(&(a), &(b), sizeof(a));    \
		memcpy(&(b), t_, sizeof(a));      \
	} while (0)

int rpi_become(rp_handle *h, rp_handle *next, rp_error *err) {
	atomic_store(&h->hurried, true); /* a worker that maps pages lets go after the piece that it is at */
	pthread_rwlock_wrlock(&h->shape);
	/* Onto the page that is there: between two looks of another thread it is this arena's or the next one's, and never none. */
	int rc = map_control(&h->control, next->arena_fd, err);
	if (rc == RP_OK) {
		EXCHANGE(h->records, next->records);
		EXCHANGE(h->live, next->live);
		EXCHANGE(h->regions, next->regions);
		EXCHANGE(h->private_in_window, next->private_in_window);
		EXCHANGE(h->volatile_offset, next->volatile_offset);
		EXCHANGE(h->volatile_bytes, next->volatile_bytes);
		EXCHANGE(h->geometry, next->geometry);
		EXCHANGE(h->replicated, next->replicated);
		EXCHANGE(h->private_part, next->private_part);
		EXCHANGE(h->frozen, next->frozen);
		EXCHANGE(h->staged, next->staged);
		EXCHANGE(h->arena, next->arena);
		EXCHANGE(h->arena_bytes, next->arena_bytes);
		EXCHANGE(h->arena_fd, next->arena_fd);
		EXCHANGE(h->geo, next->geo);
		atomic_store(&h->unfaulted, h->geo.slot_offset);
		atomic_store(&h->notices, 0); /* of places that are no longer this handle's; the daemon reads their words */
		memset(h->expected, 0, sizeof h->expected);
		memset(h->abandoned, 0, sizeof h->abandoned);
		memset(h->frozen_root, 0, sizeof h->frozen_root);
		atomic_store(&h->unstaged, 0);
	}
	pthread_rwlock_unlock(&h->shape);
	atomic_store(&h->hurried, false);
	return rc;
}

void rpi_unmap(rp_handle *h) {
	if (h->control)
		munmap(h->control, RP_PAGE);
	if (h->arena)
		munmap(h->arena, h->arena_bytes);
	if (h->arena_fd >= 0)
		close(h->arena_fd);
	rpi_layout *all[] = {&h->replicated, &h->private_part, &h->frozen, &h->staged[0], &h->staged[1]};
	for (size_t i = 0; i < sizeof all / sizeof *all; i++)
		free(all[i]->segments);
	free(h->records);
	free(h->live);
}
