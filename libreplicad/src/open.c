/* open.c: a handle's birth, the claim of its rank, the way back to a daemon that was away, and its end. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>

#include "internal.h"

#ifndef MADV_WIPEONFORK
#define MADV_WIPEONFORK 18
#endif

static int option(const char *given, const char *env, const char *what, char *out, size_t room, bool must, rp_error *err) {
	const char *s = given ? given : getenv(env);
	if (!s || !*s)
		return must ? rpi_error(err, RP_EINVAL, "no %s: pass it or set %s", what, env) : RP_OK;
	if (strlen(s) >= room)
		return rpi_error(err, RP_EINVAL, "%s of %zu bytes, at most %zu", what, strlen(s), room - 1);
	memcpy(out, s, strlen(s));
	return RP_OK;
}

static int rank_option(int32_t given, uint32_t *out, rp_error *err) {
	if (given >= 0) {
		*out = (uint32_t)given;
		return RP_OK;
	}
	const char *s = getenv("REPLICAD_RANK");
	char *end = NULL;
	unsigned long v = s && *s ? strtoul(s, &end, 10) : 0;
	if (!end || *end || v > 1u << 20)
		return rpi_error(err, RP_EINVAL, "rank %d, and REPLICAD_RANK is \"%s\": pass the rank or set it", given, s ? s : "");
	*out = (uint32_t)v;
	return RP_OK;
}

static int options(rp_handle *h, const rp_options *o, rp_error *err) {
	int rc = option(o->socket_path, "REPLICAD_SOCKET", "socket path", h->path, sizeof h->path, true, err);
	if (rc == RP_OK)
		rc = option(o->job, "REPLICAD_JOB", "job name", h->hello.job, sizeof h->hello.job, true, err);
	if (rc == RP_OK)
		rc = option(o->token, "REPLICAD_TOKEN", "job token", h->hello.token, sizeof h->hello.token, false, err);
	if (rc == RP_OK)
		rc = rank_option(o->rank, &h->hello.rank, err);
	if (rc == RP_OK && (o->world == 0 || h->hello.rank >= o->world))
		rc = rpi_error(err, RP_EINVAL, "rank %u of a world of %u", h->hello.rank, o->world);
	h->hello.abi = RP_ABI_VERSION;
	h->hello.world = o->world;
	h->hello.group = o->group;
	h->hello.pid = (uint64_t)h->pid;
	return rc;
}

static int new_handle(rp_handle **out, rp_error *err) {
	rp_handle *h = calloc(1, sizeof *h);
	if (!h)
		return rpi_error(err, RP_ENOMEM, "no memory for a handle");
	h->fd = h->arena_fd = h->hand.fd = h->reply.fd = -1;
	h->pid = getpid();
	h->hash = rpi_hash();
	pthread_mutex_init(&h->io, NULL);
	pthread_rwlock_init(&h->shape, NULL);
	h->reply.room = RP_MAX_MESSAGE, h->hand.room = 1024;
	h->reply.body = malloc(h->reply.room);
	h->hand.body = malloc(h->hand.room);
	h->datagram = malloc(RP_MAX_MESSAGE);
	h->mark = mmap(NULL, RP_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	*out = h;
	if (h->mark == MAP_FAILED || !h->reply.body || !h->hand.body || !h->datagram) {
		h->mark = h->mark == MAP_FAILED ? NULL : h->mark;
		return rpi_error(err, RP_ENOMEM, "no memory for a handle");
	}
	*h->mark = madvise(h->mark, RP_PAGE, MADV_WIPEONFORK) == 0 ? 1 : 2;
	ssize_t n;
	do
		n = getrandom(&h->hello.nonce, sizeof h->hello.nonce, 0);
	while (n < 0 && errno == EINTR);
	return n == (ssize_t)sizeof h->hello.nonce ? RP_OK : rpi_system(err, "getrandom", errno);
}

static void release(rp_handle *h) {
	rpi_forget_growth(h);
	rpi_unmap(h);
	if (h->fd >= 0)
		close(h->fd);
	if (h->hand.fd >= 0)
		close(h->hand.fd);
	if (h->mark)
		munmap(h->mark, RP_PAGE);
	pthread_mutex_destroy(&h->io);
	pthread_rwlock_destroy(&h->shape);
	free(h->reply.body);
	free(h->hand.body);
	free(h->datagram);
	free(h);
}

/* Says hello on a new connection; the connection becomes the handle's. */
static int greet(rp_handle *h, int64_t deadline, rp_error *err) {
	int fd;
	int rc = rpi_connect(h->path, deadline, &fd, err);
	if (rc != RP_OK)
		return rc;
	rc = rpi_handshake(h, fd, RP_M_HELLO, &h->hello, sizeof h->hello, -1, RP_M_WELCOME, deadline, err);
	if (rc == RP_OK && h->hand.length != sizeof h->welcome)
		rc = rpi_error(err, RP_EVERSION, "the daemon's welcome has %u bytes, want %zu", h->hand.length, sizeof h->welcome);
	if (rc != RP_OK) {
		close(fd);
		return rc;
	}
	memcpy(&h->welcome, h->hand.body, sizeof h->welcome);
	pthread_mutex_lock(&h->io);
	if (h->fd < 0)
		h->fd = fd;
	else {
		dup3(fd, h->fd, O_CLOEXEC);
		close(fd);
	}
	h->gone = false;
	h->connections++;
	pthread_mutex_unlock(&h->io);
	return RP_OK;
}

int rpi_greet_again(rp_handle *h, int64_t deadline, rp_error *err) {
	pthread_mutex_lock(&h->io);
	rpi_pump(h);
	bool gone = h->gone;
	pthread_mutex_unlock(&h->io);
	return gone ? greet(h, deadline, err) : RP_OK;
}

RP_API int rp_open(const rp_options *opt, rp_handle **out, rp_error *err) {
	if (!opt || !out)
		return rpi_error(err, RP_EINVAL, "rp_open: options or out is NULL");
	*out = NULL;
	if (opt->struct_size != sizeof *opt)
		return rpi_error(err, RP_EVERSION, "options: struct_size %u, want %zu: rebuild the caller against this replicad.h", opt->struct_size, sizeof *opt);
	int64_t deadline = rpi_deadline(opt->timeout_ns);
	if (deadline < 0)
		return rpi_error(err, RP_EINVAL, "rp_open: timeout %lld ns is negative", (long long)opt->timeout_ns);
	rp_handle *h = NULL;
	int rc = new_handle(&h, err);
	if (rc == RP_OK)
		rc = options(h, opt, err);
	if (rc == RP_OK)
		rc = greet(h, deadline, err);
	if (rc != RP_OK) {
		if (h)
			release(h);
		return rc;
	}
	*out = h;
	return RP_OK;
}

RP_API int rp_set_group(rp_handle *h, uint32_t group, rp_error *err) {
	RPI_ENTER(h, err);
	if (atomic_load(&h->life) != RPI_OPEN)
		return rpi_error(err, RP_ESTATE, "rp_set_group: after rp_attach");
	if (group >= h->hello.world)
		return rpi_error(err, RP_EINVAL, "rp_set_group: group %u of a world of %u", group, h->hello.world);
	h->hello.group = group;
	return RP_OK;
}

enum { records_a_message = 128 };

/* Sends the geometry, from where the call before was cut: on one connection each record is sent once. */
int rpi_send_regions(rp_handle *h, rp_handle *of, int64_t deadline, rp_error *err) {
	uint8_t *batch = malloc((size_t)records_a_message * RPI_RECORD);
	if (!batch)
		return rpi_error(err, RP_ENOMEM, "no memory for region records");
	if (of->sent_regions_on != h->connections)
		of->sent_regions_on = h->connections, of->sent_regions = 0;
	int rc = RP_OK;
	while (of->sent_regions < of->regions && rc == RP_OK) {
		uint32_t first = of->sent_regions, count = of->regions - first < records_a_message ? of->regions - first : records_a_message;
		memcpy(batch, of->records + (size_t)first * RPI_RECORD, (size_t)count * RPI_RECORD);
		for (uint32_t i = 0; i < count; i++)
			memset(batch + (size_t)i * RPI_RECORD + 208, 0, 8); /* offsets are the daemon's to compute too */
		uint32_t head[2] = {first, count};
		struct iovec body[2] = {{head, sizeof head}, {batch, (size_t)count * RPI_RECORD}};
		rc = rpi_send(h, RP_M_REGIONS, 0, body, 2, deadline, err);
		if (rc == RP_OK)
			of->sent_regions += count;
	}
	free(batch);
	return rc;
}

/* The arena may be that of an earlier process of this rank: its sealed places stay, its words go. */
int rpi_take_over(rp_handle *h, rp_error *err) {
	h->step = atomic_load(&h->control->step.word);
	h->good = atomic_load(&h->control->good.word);
#ifdef RP_CHAOS_HEIR /* the negative control of chaos/: as it was before 2026-11-23, when a process that had loaded nothing took these words for its own */
	rpi_own(h, RP_WORD_EPOCH(h->step));
	atomic_store(&h->life, RPI_ATTACHED);
	return RP_OK;
#endif
	if (!rpi_disown(h))
		return rpi_error(err, RP_ESTATE, "rp_attach: somebody else writes the words of rank %u's arena: an earlier process of the rank still runs, end it", h->hello.rank);
	atomic_store(&h->life, RPI_ATTACHED);
	return RP_OK;
}

RP_API int rp_attach(rp_handle *h, int64_t timeout_ns, rp_error *err) {
	RPI_ENTER(h, err);
	int64_t deadline = rpi_deadline(timeout_ns);
	if (deadline < 0)
		return rpi_error(err, RP_EINVAL, "rp_attach: timeout %lld ns is negative", (long long)timeout_ns);
	if (atomic_load(&h->life) != RPI_OPEN || !h->regions)
		return rpi_error(err, RP_ESTATE, "rp_attach: call it once, after rp_register");
	int rc = rpi_greet_again(h, deadline, err);
	if (rc == RP_OK)
		rc = rpi_send_regions(h, h, deadline, err);
	uint32_t count[2] = {h->regions, h->hello.group + 1}; /* the group may have been named since the hello; 0: it was not */
	if (rc == RP_OK)
		rc = rpi_handshake(h, h->fd, RP_M_ATTACH, count, sizeof count, -1, RP_M_ATTACHED, deadline, err);
	pthread_mutex_lock(&h->io);
	if (rc == RP_EGONE || h->parting_code) /* the daemon hangs up behind its parting word: another call may come before it has */
		h->gone = true;
	pthread_mutex_unlock(&h->io);
	if (rc != RP_OK && rc != RP_ETIMEOUT)
		h->sent_regions = 0; /* whoever asks after a refusal begins anew */
	if (rc != RP_OK)
		return rc;
	rp_attached a;
	int fd = h->hand.fd;
	h->hand.fd = -1;
	if (h->hand.length != sizeof a || fd < 0) {
		if (fd >= 0)
			close(fd);
		return rpi_error(err, RP_EVERSION, "the daemon's answer to attach has %u bytes and %s descriptor, want %zu and one", h->hand.length, fd < 0 ? "no" : "a", sizeof a);
	}
	memcpy(&a, h->hand.body, sizeof a);
	memcpy(h->welcome.job, a.job, 16); /* a job may have been created since the welcome */
	rc = rpi_map(h, fd, &a, err);
	if (rc != RP_OK) {
		close(fd);
		return rc;
	}
	h->incarnation = a.incarnation;
	return rpi_take_over(h, err);
}

/* Final for the handle: every call that would wait for the daemon says so from now on. */
static void stop(rp_handle *h, const char *why) {
	pthread_mutex_lock(&h->io);
	if (!h->stopped)
		snprintf(h->why, sizeof h->why, "%.*s", (int)sizeof h->why - 1, why);
	h->stopped = true;
	pthread_mutex_unlock(&h->io);
}

RP_API int rp_reconnect(rp_handle *h, int64_t timeout_ns, rp_error *err) {
	RPI_ENTER(h, err);
	int64_t deadline = rpi_deadline(timeout_ns);
	if (deadline < 0)
		return rpi_error(err, RP_EINVAL, "rp_reconnect: timeout %lld ns is negative", (long long)timeout_ns);
	if (atomic_load(&h->life) == RPI_OPEN)
		return rpi_greet_again(h, deadline, err);
	pthread_mutex_lock(&h->io);
	rpi_pump(h);
	bool gone = h->gone;
	pthread_mutex_unlock(&h->io);
	if (!gone)
		return RP_OK;
	int fd;
	int rc = rpi_connect(h->path, 0, &fd, err);
	if (rc != RP_OK)
		return rc;
	pthread_rwlock_rdlock(&h->shape); /* a growth takes another arena meanwhile, and closes this one's descriptor */
	rc = rpi_handshake(h, fd, RP_M_REATTACH, &h->hello, sizeof h->hello, h->arena_fd, RP_M_ATTACHED, deadline, err);
	pthread_rwlock_unlock(&h->shape);
	rp_attached a = {0};
	if (rc == RP_ESTOPPED)
		stop(h, err ? err->text : "the daemon refused to take the rank back");
	if (rc == RP_OK) {
		if (h->hand.length == sizeof a)
			memcpy(&a, h->hand.body, sizeof a);
		if (a.incarnation != h->incarnation) {
			stop(h, "the rank belongs to a newer incarnation");
			rc = rpi_error(err, RP_ESTOPPED, "rank %u now belongs to incarnation %llu, this handle is %llu: exit", h->hello.rank, (unsigned long long)a.incarnation, (unsigned long long)h->incarnation);
		}
	}
	if (rc == RP_OK) {
		/* Onto the old number, so that rp_fd stays what it was. */
		pthread_mutex_lock(&h->io);
		dup3(fd, h->fd, O_CLOEXEC);
		h->gone = false;
		h->connections++;
		rpi_tell_lacks(h);
		rpi_tell_said(h);
		rpi_tell_pause(h);
		pthread_mutex_unlock(&h->io);
		atomic_fetch_add(&h->reconnects, 1);
	}
	close(fd);
	return rc;
}

RP_API int rp_fd(const rp_handle *h) { return h && !rpi_forked(h) ? h->fd : -1; }

RP_API int rp_get_stats(const rp_handle *h, rp_stats *out) {
	if (!h || !out || out->struct_size != sizeof *out)
		return RP_EINVAL;
	if (rpi_forked(h))
		return RP_EFORK;
	out->pad = 0;
	out->captures = atomic_load(&h->captures);
	out->skipped = atomic_load(&h->skipped);
	out->canceled = atomic_load(&h->canceled);
	out->private_skipped = atomic_load(&h->private_skipped);
	out->capture_bytes = atomic_load(&h->capture_bytes);
	out->capture_ns = atomic_load(&h->capture_ns);
	out->reconnects = atomic_load(&h->reconnects);
	return RP_OK;
}

RP_API void rp_close(rp_handle *h) {
	if (!h || rpi_forked(h))
		return;
	if (h->control)
		rpi_quiesce(h, 0);
	release(h);
}
