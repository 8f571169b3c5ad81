/* fake.c: a daemon in a thread, as much of one as a rank talks to. */
#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "harness.h"

static const uint8_t job[16] = {2};

static uint64_t pages(uint64_t n) { return (n + RP_PAGE - 1) & ~(uint64_t)(RP_PAGE - 1); }

/* Lays the arena out for the regions of a handle; offsets and digests are the handle's, so these tests do not check them (the
 * vectors and internal/shm do). */
static void lay_out(fake *f) {
	const rp_handle *g = f->geometry;
	rp_control c = {.magic = RP_ARENA_MAGIC, .version = RP_ARENA_VERSION, .header_bytes = RP_PAGE, .era = 1, .rank = 2, .chunk_bytes = f->chunk, .slots = f->slots, .ring = f->ring, .staging = RP_STAGING};
	uint64_t big = g->replicated.bytes > g->frozen.bytes ? g->replicated.bytes : g->frozen.bytes;
	memcpy(c.job, job, 16);
	c.frozen_bytes = g->frozen.bytes, c.replicated_bytes = g->replicated.bytes, c.private_bytes = g->private_part.bytes, c.volatile_bytes = g->volatile_bytes;
	memcpy(c.geometry_replicated, g->geometry[0], 16);
	memcpy(c.geometry_private, g->geometry[1], 16);
	memcpy(c.geometry_frozen, g->geometry[2], 16);
	c.region_count = g->regions, c.regions_offset = RP_PAGE;
	c.slot_meta_stride = pages(sizeof(rp_meta) + 16 * ((big + f->chunk - 1) / f->chunk));
	c.ring_meta_stride = pages(sizeof(rp_meta) + 16 * ((c.private_bytes + f->chunk - 1) / f->chunk));
	c.slot_stride = pages(c.replicated_bytes), c.ring_stride = pages(c.private_bytes), c.staging_stride = pages(c.volatile_bytes);
	c.meta_offset = c.regions_offset + pages(256ull * g->regions);
	c.frozen_offset = c.meta_offset + (1 + f->slots) * c.slot_meta_stride + f->ring * c.ring_meta_stride;
	c.slot_offset = c.frozen_offset + pages(c.frozen_bytes);
	c.ring_offset = c.slot_offset + f->slots * c.slot_stride;
	c.staging_offset = c.ring_offset + f->ring * c.ring_stride;
	c.arena_bytes = f->bytes = c.staging_offset + RP_STAGING * c.staging_stride;
	f->memfd = memfd_create("arena", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	CHECK(f->memfd >= 0 && ftruncate(f->memfd, (off_t)f->bytes) == 0 && posix_fallocate(f->memfd, 0, (off_t)f->bytes) == 0);
	CHECK(fcntl(f->memfd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0);
	f->arena = mmap(NULL, f->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, f->memfd, 0);
	CHECK(f->arena != MAP_FAILED);
	f->control = (rp_control *)(void *)f->arena;
	memcpy(f->control, &c, offsetof(rp_control, step));
	atomic_store(&f->control->cadence.word, 1);
	atomic_store(&f->control->incarnation.word, 5);
	memcpy(f->arena + c.regions_offset, g->records, 256ull * g->regions);
}

static void send_with(fake *f, uint16_t type, uint64_t epoch, uint32_t request, const void *body, size_t n, int fd) {
	rp_header head = {.magic = RP_MESSAGE_MAGIC, .version = RP_MESSAGE_VERSION, .type = type, .length = (uint32_t)(sizeof head + n), .request = request, .epoch = epoch, .incarnation = 5};
	struct iovec iov[2] = {{&head, sizeof head}, {(void *)(uintptr_t)body, n}};
	char control[CMSG_SPACE(sizeof(int))] = {0};
	struct msghdr m = {.msg_iov = iov, .msg_iovlen = 2};
	if (fd >= 0) {
		m.msg_control = control, m.msg_controllen = sizeof control;
		struct cmsghdr *c = CMSG_FIRSTHDR(&m);
		c->cmsg_level = SOL_SOCKET, c->cmsg_type = SCM_RIGHTS, c->cmsg_len = CMSG_LEN(sizeof fd);
		memcpy(CMSG_DATA(c), &fd, sizeof fd);
	}
	(void)!sendmsg(f->connection, &m, MSG_NOSIGNAL); /* the rank may have gone */
}

void fake_send(fake *f, uint16_t type, uint64_t epoch, uint32_t request, const void *body, size_t n) { send_with(f, type, epoch, request, body, n, -1); }

void fake_order(fake *f, uint64_t epoch, uint32_t action, uint64_t step, uint32_t slot, uint32_t place) {
	f->order = (rp_order){.action = action, .source = RP_OWN_RAM, .step = step, .slot = slot, .place = place};
	if (action == RP_ORDER_LOAD) {
		const rp_meta *m = rpi_slot(f->geometry, slot).meta;
		f->order.generation = m->generation;
		memcpy(f->order.replicated_root, m->root, 16);
		memcpy(f->order.private_root, rpi_ring(f->geometry, place).meta->root, 16);
	}
	f->epoch = epoch;
}

/* Answers a growth with an arena for what the handle is to become, as the daemon does that has closed the epoch. */
static void grow(fake *f, const rp_header *h, const uint8_t *body) {
	atomic_fetch_add(&f->asked_to_grow, 1);
	memcpy(&f->growth, body, sizeof f->growth);
	if (f->grow_refuse) {
		int32_t no[3] = {f->grow_refuse, 0, 0x2e6f6e}; /* "no." */
		fake_send(f, RP_M_REFUSED, 0, h->request, no, 11);
		return;
	}
	if (!f->grows)
		return;
	if (!f->before) {
		f->before = f->arena, f->before_bytes = f->bytes;
		close(f->memfd);
		const rp_handle *was = f->geometry;
		f->geometry = was->next;
		lay_out(f);
		f->geometry = was;
		atomic_store(&f->control->fence.word, h->epoch);
		atomic_store(&f->control->committed.word, RP_WORD(h->epoch, f->growth.step, 0));
	}
	rp_attached a = {.arena_bytes = f->bytes, .incarnation = 5, .slots = f->slots, .ring = f->ring};
	memcpy(a.job, job, 16);
	if (f->garbage)
		a.arena_bytes++;
	send_with(f, RP_M_ATTACHED, 0, h->request, &a, sizeof a, f->memfd);
}

/* The recipe in pieces of four bytes, as long as it is. */
static void recipe(fake *f, const rp_header *h, const uint8_t *body) {
	uint8_t reply[12];
	rp_piece p = {.total = (uint32_t)strlen(f->recipe)};
	memcpy(&p.offset, body, 4);
	uint32_t left = p.offset < p.total ? p.total - p.offset : 0;
	left = left < 4 ? left : 4;
	memcpy(reply, &p, sizeof p);
	memcpy(reply + sizeof p, f->recipe + (p.offset < p.total ? p.offset : p.total), left);
	fake_send(f, RP_M_RECIPE_IS, 0, h->request, reply, sizeof p + left);
}

static void attach(fake *f, const rp_header *h) {
	if (f->refuse) {
		int32_t body[3] = {f->refuse, 0, 0x2e6f6e}; /* "no." */
		f->refuse = 0;
		fake_send(f, RP_M_REFUSED, 0, h->request, body, 11);
		return;
	}
	if (!f->arena)
		lay_out(f);
	rp_attached a = {.arena_bytes = f->bytes, .incarnation = f->granted ? f->granted : 5, .slots = f->slots, .ring = f->ring};
	memcpy(a.job, job, 16);
	send_with(f, RP_M_ATTACHED, 0, h->request, &a, sizeof a, h->type == RP_M_ATTACH ? f->memfd : -1);
}

/* One key and one counter, whatever they are called. */
static void rendezvous(fake *f, const rp_header *h, const uint8_t *body) {
	memcpy(&f->kv, body, sizeof f->kv);
	f->kv_epoch = h->epoch;
	const uint8_t *value = body + sizeof f->kv + f->kv.key_bytes;
	int32_t ok[4] = {RP_OK, 0};
	switch (h->type) {
	case RP_M_KV_CHECK:
		ok[0] = f->size ? RP_OK : RP_EAGAIN;
		fake_send(f, RP_M_KV_OK, 0, h->request, ok, 8);
		return;
	case RP_M_KV_ADD:
		if (f->kv.once != f->once) {
			int64_t delta;
			memcpy(&delta, value, sizeof delta);
			f->total += delta;
		}
		f->once = f->kv.once;
		memcpy(ok + 2, &f->total, sizeof f->total);
		fake_send(f, RP_M_KV_TOTAL, 0, h->request, ok, 16);
		return;
	case RP_M_KV_DELETE:
		ok[2] = f->size > 0;
		f->size = 0;
		fake_send(f, RP_M_KV_TOTAL, 0, h->request, ok, 16);
		return;
	case RP_M_KV_COMPARE_SET:
		if (f->kv.members == f->size && memcmp(value, f->value, f->size) == 0) {
			f->size = f->kv.value_bytes - f->kv.members;
			CHECK(f->size <= sizeof f->value);
			memcpy(f->value, value + f->kv.members, f->size);
		}
		uint8_t reply[8 + sizeof f->value] = {0};
		memcpy(reply + 4, &f->size, 4);
		memcpy(reply + 8, f->value, f->size);
		fake_send(f, RP_M_KV_VALUE, 0, h->request, reply, 8 + f->size);
		return;
	case RP_M_KV_SET:
	case RP_M_BARRIER:
		fake_send(f, RP_M_KV_OK, 0, h->request, ok, 8);
	}
}

static void answer(fake *f, const uint8_t *message) {
	rp_header h;
	memcpy(&h, message, sizeof h);
	rp_welcome w = {.abi = 1, .rank = 2, .era = 1, .chunk_bytes = f->chunk};
	memcpy(w.job, job, 16);
	switch (h.type) {
	case RP_M_HELLO:
		fake_send(f, RP_M_WELCOME, 0, h.request, &w, sizeof w);
		break;
	case RP_M_ATTACH:
	case RP_M_REATTACH:
		attach(f, &h);
		break;
	case RP_M_GROW:
		grow(f, &h, message + sizeof h);
		break;
	case RP_M_REGIONS:
	case RP_M_RECIPE_PART:
		atomic_fetch_add(&f->pieces, 1);
		break;
	case RP_M_FROM:
		fake_send(f, RP_M_FROM_IS, 0, h.request, f->from ? f->from : "", f->from ? (uint32_t)strlen(f->from) : 0);
		break;
	case RP_M_RESUMED:
		fake_send(f, RP_M_RESUMED_IS, 0, h.request, f->resumed ? f->resumed : "", f->resumed ? (uint32_t)strlen(f->resumed) : 0);
		break;
	case RP_M_RECIPE:
		recipe(f, &h, message + sizeof h);
		break;
	case RP_M_FAIL:
		atomic_fetch_add(&f->failed, 1);
		break;
	case RP_M_SEALED:
		memcpy(&f->last, message + sizeof h, sizeof f->last);
		atomic_fetch_add(&f->sealed, 1);
		break;
	case RP_M_STOPPED:
		atomic_fetch_add(&f->stopped, 1);
		if (f->epoch)
			fake_send(f, RP_M_ORDER, f->epoch, 0, &f->order, sizeof f->order);
		break;
	case RP_M_UNLOADABLE:
		atomic_fetch_add(&f->unloadable, 1);
		break;
	case RP_M_LACKS:
		CHECK(h.length - sizeof h <= RP_MAX_LACKS);
		memcpy(f->lacks, message + sizeof h, h.length - sizeof h);
		f->lacks[h.length - sizeof h] = 0;
		atomic_fetch_add(&f->lacking, 1);
		break;
	case RP_M_SAID:
		f->said_bytes = h.length - (uint32_t)sizeof h;
		CHECK(f->said_bytes <= RP_MAX_SAID);
		memcpy(f->said, message + sizeof h, f->said_bytes);
		atomic_fetch_add(&f->saying, 1);
		break;
	case RP_M_LOADED:
		fake_send(f, RP_M_ORDER, f->epoch, 0, &(rp_order){.action = RP_ORDER_GO}, sizeof(rp_order));
		break;
	case RP_M_LEAVE:
		f->left = true;
		fake_send(f, RP_M_BYE, 0, h.request, NULL, 0);
		break;
	case RP_M_PAUSE:
		memcpy(&f->paused_ns, message + sizeof h, sizeof f->paused_ns);
		atomic_fetch_add(&f->pausing, 1);
		if (f->freeing)
			usleep(20000); /* busy: by now a rank that does not wait has seen its step sealed */
		for (uint32_t i = 0; f->freeing && i < f->slots; i++)
			atomic_store(&f->control->slot[i].word, RP_SLOT(9, RP_FREE));
		if (h.request)
			fake_send(f, RP_M_PAUSED, 0, h.request, NULL, 0);
		break;
	case RP_M_SCOPE:
		fake_send(f, RP_M_SCOPED, 0, h.request, &f->scope, sizeof f->scope);
		break;
	default:
		if (f->drop)
			f->drop--;
		else
			rendezvous(f, &h, message + sizeof h);
	}
}

/* Says why, and closes with all that comes after unread: the kernel resets the connection. */
static void part(fake *f, int fd) {
	int32_t body[3] = {f->part_with, 0, 0x2e6f6e}; /* "no." */
	f->part_with = 0;
	f->connection = fd;
	if (body[0] != -1)
		fake_send(f, RP_M_REFUSED, 0, 0, body, 11);
	while (!f->part_at && recv(fd, body, 1, MSG_PEEK) < 0)
		; /* the hello is there, and stays unread */
	if (f->part_at && body[0] != -1)
		usleep(20000); /* whoever reads why may call again before the end is there */
	close(fd);
	f->connection = -1;
}

/* Answers whoever speaks; f->connection is who spoke last. */
static void *serve(void *arg) {
	fake *f = arg;
	struct pollfd p[9] = {{.fd = f->listener, .events = POLLIN}};
	int n = 1;
	static _Thread_local uint8_t message[RP_MAX_MESSAGE];
	while (poll(p, (nfds_t)n, -1) >= 0 && !(p[0].revents & POLLHUP)) {
		for (int i = n - 1; i > 0; i--) {
			if (!p[i].revents)
				continue;
			f->connection = p[i].fd;
			bool heard = recv(p[i].fd, message, sizeof message, 0) > 0;
			rp_header h;
			memcpy(&h, message, sizeof h);
			if (heard && f->part_with && h.type == f->part_at) {
				while (poll(&p[i], 1, 20 * 1000) == 0)
					; /* more is there */
				part(f, p[i].fd);
				p[i] = p[--n];
				continue;
			}
			if (heard) {
				answer(f, message);
				continue;
			}
			close(p[i].fd);
			f->connection = -1;
			p[i] = p[--n];
		}
		if (p[0].revents) {
			CHECK(n < 9);
			p[n] = (struct pollfd){.fd = accept(f->listener, NULL, NULL), .events = POLLIN};
			if (p[n].fd >= 0 && f->part_with && !f->part_at)
				part(f, p[n].fd);
			else
				n += p[n].fd >= 0;
		}
	}
	while (n > 1)
		close(p[--n].fd);
	return NULL;
}

void fake_start(fake *f) {
	snprintf(f->path, sizeof f->path, "/tmp/rp-test-%d-%p", getpid(), (void *)f);
	struct sockaddr_un a = {.sun_family = AF_UNIX};
	memcpy(a.sun_path, f->path, strlen(f->path));
	unlink(f->path);
	f->listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	f->connection = -1;
	CHECK(bind(f->listener, (struct sockaddr *)&a, sizeof a) == 0 && listen(f->listener, 8) == 0);
	CHECK(pthread_create(&f->thread, NULL, serve, f) == 0);
}

void fake_hang_up(fake *f) {
	shutdown(f->listener, SHUT_RDWR);
	pthread_join(f->thread, NULL);
	close(f->listener);
	unlink(f->path);
}

void fake_stop(fake *f) {
	fake_hang_up(f);
	if (f->before)
		munmap(f->before, f->before_bytes);
	if (f->arena)
		munmap(f->arena, f->bytes), close(f->memfd);
}

static rp_region region(const char *name, int dtype, int kind, int cls, uint32_t flags, void *data, uint64_t n, uint64_t size) {
	return (rp_region){.struct_size = sizeof(rp_region), .dtype = (uint8_t)dtype, .kind = (uint8_t)kind, .cls = (uint8_t)cls, .ndim = 1, .flags = flags, .name = name, .data = data, .bytes = n * size, .shape = {n}};
}

void rank_open(rank *r, fake *f, size_t weights, uint32_t rng_flags) {
	r->weights = weights;
	r->weight = calloc(weights, 4), r->scale = calloc(17, 4), r->base = calloc(300, 4);
	rp_options o = {.struct_size = sizeof o, .world = 4, .socket_path = f->path, .job = "opticks", .rank = 2, .timeout_ns = 20ll * second};
	OK(rp_open(&o, &r->h, &failure));
	rp_region regions[] = {
		region("weight", RP_F32, RP_REPLICATED, RP_WINDOW, 0, r->weight, weights, 4),
		region("base", RP_F32, RP_REPLICATED, RP_FROZEN, 0, r->base, 300, 4),
		region("rng", RP_U64, RP_PRIVATE, RP_VOLATILE, rng_flags, r->rng, 4, 8),
		region("scale", RP_F32, RP_REPLICATED, RP_VOLATILE, 0, r->scale, 17, 4),
		region("none", RP_F32, RP_REPLICATED, RP_WINDOW, 0, NULL, 0, 4),
	};
	OK(rp_register(r->h, regions, sizeof regions / sizeof *regions, &failure));
	if (!f->geometry)
		f->geometry = r->h;
}

int rank_join(rank *r, rp_join_info *info) {
	*info = (rp_join_info){.struct_size = sizeof *info};
	return rp_join(r->h, info, 20ll * second, &failure);
}

void rank_start(rank *r, size_t weights) {
	rp_join_info info;
	memset(r, 0, sizeof *r);
	r->daemon = (fake){.chunk = 4096, .slots = 4, .ring = 8};
	fake_start(&r->daemon);
	rank_open(r, &r->daemon, weights, 0);
	OK(rp_attach(r->h, 20ll * second, &failure));
	fake_order(&r->daemon, 1, RP_ORDER_INIT, 0, 0, 0);
	OK(rank_join(r, &info));
	SAME(info.action, RP_INIT);
	OK(rp_seal_initial(r->h, &failure));
	fake_order(&r->daemon, 1, RP_ORDER_LOAD, 0, 0, 0);
	OK(rank_join(r, &info));
	SAME(info.action, RP_LOAD);
	OK(rp_load(r->h, &failure));
	OK(rp_ready(r->h, 20ll * second, &failure));
}

void rank_end(rank *r) {
	rp_close(r->h);
	fake_stop(&r->daemon);
	free(r->weight), free(r->scale), free(r->base);
}

bool whole(const rp_handle *h, rpi_place p, int part, bool sealed) {
	uint8_t d[16];
	rpi_segment all = {0, p.meta->bytes, p.bytes};
	rpi_layout l = {&all, p.meta->bytes > 0, p.meta->bytes};
	for (uint32_t i = 0; i < p.meta->chunks; i++) {
		uint64_t at = (uint64_t)i * h->geo.chunk_bytes, left = l.bytes - at;
		h->hash->gather(NULL, &l, at, left < h->geo.chunk_bytes ? left : h->geo.chunk_bytes, d);
		if (memcmp(d, p.meta->digest[i], 16))
			return false;
	}
	rpi_root(h, part, p.meta, d);
	return p.meta->use_count == RP_SLOT_COUNT(atomic_load(p.word)) && (!sealed || memcmp(d, p.meta->root, 16) == 0);
}
