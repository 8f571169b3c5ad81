/* channel.c: datagrams to and from the daemon. Sending needs no lock (a datagram is whole or not there). Receiving is under io: whoever
 * reads puts what it read where its reader looks; a thread that waits polls without the lock. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "internal.h"

static int poll_until(int fd, short events, int64_t deadline, int64_t at_most) {
	int64_t left = deadline - rpi_now();
	if (left > at_most)
		left = at_most;
	if (left < 0)
		left = 0;
	struct pollfd p = {.fd = fd, .events = events};
	return poll(&p, fd >= 0, (int)((left + 999999) / 1000000));
}

/* A REFUSED has a code, a length and a text. */
static int refusal_code(const uint8_t *body, size_t n) {
	int32_t code = RP_EREFUSED;
	if (n >= 8)
		memcpy(&code, body, 4);
	return code >= 0 || code < RP_ECANCELED ? RP_EREFUSED : code;
}

static int refused_with(int code, const char *text, int n, rp_error *err) {
	const char *from = code == RP_EREFUSED && n ? "" : "refused by the daemon: "; /* which that code says by itself, in rp_strerror */
	return rpi_error(err, code, "%s%.*s", from, n, text);
}

/* The error of a connection that the daemon refused before it hung up; RP_OK: it did not. */
static int parted(rp_handle *h, rp_error *err) {
	return h->parting_code ? refused_with(h->parting_code, h->parting, (int)strlen(h->parting), err) : RP_OK;
}

/* Whom the kernel says that a connection is to, as of when he began to listen: a socket's path says nothing, where others may write its folder. Root, this
 * process's user, and the one that the launcher was served by are believed. One that this user namespace has no number for is nobody, unless named. */
static int answered_by(int fd, const char *path, rp_error *err) {
	struct ucred cred;
	socklen_t size = sizeof cred;
	if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &size) != 0)
		return rpi_system(err, "getsockopt SO_PEERCRED", errno);
	char number[16];
	snprintf(number, sizeof number, "%u", (unsigned)cred.uid);
	const char *named = getenv("REPLICAD_DAEMON_UID");
	if (named && strcmp(named, number) == 0)
		return RP_OK;
	if (cred.uid == 65534) /* the kernel's overflowuid, as all systems have it */
		return rpi_error(err, RP_EINVAL, "connect to %s: it is answered by a user that this user namespace does not know (shown as %s): start both in one user namespace, or, if that is the daemon, set REPLICAD_DAEMON_UID=%s", path, number, number);
	if (cred.uid == 0 || cred.uid == geteuid())
		return RP_OK;
	return rpi_error(err, RP_EINVAL, "connect to %s: it is answered by a process of user %s, and this one, of user %u, believes its own user and root: if that is the daemon, name it as daemon_user in the launcher's configuration, or set REPLICAD_DAEMON_UID=%s", path, number, (unsigned)geteuid(), number);
}

/* Tries until the deadline: a daemon that restarts is away for a moment. A deadline that has passed allows one try. */
int rpi_connect(const char *path, int64_t deadline, int *out, rp_error *err) {
	struct sockaddr_un addr = {.sun_family = AF_UNIX};
	memcpy(addr.sun_path, path, strlen(path));
	for (;;) {
		int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
		if (fd < 0)
			return rpi_system(err, "socket", errno);
		int size = 1 << 20;
		setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &size, sizeof size);
		if (connect(fd, (struct sockaddr *)&addr, sizeof addr) == 0) {
			int rc = answered_by(fd, path, err);
			if (rc != RP_OK)
				return close(fd), rc;
			*out = fd;
			return RP_OK;
		}
		int number = errno;
		close(fd);
		if (number == EACCES)
			return rpi_error(err, RP_ESYS, "connect to %s: user %u may not connect, with the groups of this process: be one whom rank_users of the node's configuration names, and have the socket's group (see id; containers have --group-add)", path, (unsigned)geteuid());
		if (number != ECONNREFUSED && number != ENOENT && number != EAGAIN && number != EINTR)
			return rpi_error(err, RP_ESYS, "connect to %s: errno %d: is this the daemon's socket, and may this user use it?", path, number);
		if (rpi_now() >= deadline)
			return rpi_error(err, RP_EGONE, "connect to %s: %s: start the daemon of this node, or correct REPLICAD_SOCKET", path, number == ENOENT ? "no such socket" : "nobody answers");
		poll_until(-1, 0, deadline, 20000000);
	}
}

/* The rendezvous is asked for its scope, all else is said of the epoch that is worked under. */
static uint64_t epoch_of(const rp_handle *h, uint16_t type) {
	switch (type) {
	case RP_M_KV_SET:
	case RP_M_KV_GET:
	case RP_M_KV_ADD:
	case RP_M_KV_CHECK:
	case RP_M_KV_COMPARE_SET:
	case RP_M_KV_DELETE:
	case RP_M_BARRIER:
		return atomic_load(&h->scope);
	}
	return atomic_load(&h->epoch);
}

int rpi_send_on(rp_handle *h, int fd, uint16_t type, uint32_t request, struct iovec *body, int n, int pass, int64_t deadline) {
	rp_header head = {.magic = RP_MESSAGE_MAGIC, .version = RP_MESSAGE_VERSION, .type = type, .length = sizeof head, .request = request, .epoch = epoch_of(h, type), .incarnation = h->incarnation};
	struct iovec iov[5] = {{&head, sizeof head}};
	for (int i = 0; i < n; i++) {
		iov[1 + i] = body[i];
		head.length += (uint32_t)body[i].iov_len;
	}
	union {
		struct cmsghdr align;
		char bytes[CMSG_SPACE(sizeof(int))];
	} control;
	struct msghdr m = {.msg_iov = iov, .msg_iovlen = (size_t)(1 + n)};
	if (pass >= 0) {
		memset(&control, 0, sizeof control);
		m.msg_control = control.bytes, m.msg_controllen = sizeof control.bytes;
		struct cmsghdr *c = CMSG_FIRSTHDR(&m);
		c->cmsg_level = SOL_SOCKET, c->cmsg_type = SCM_RIGHTS, c->cmsg_len = CMSG_LEN(sizeof(int));
		memcpy(CMSG_DATA(c), &pass, sizeof pass);
	}
	for (;;) {
		if (sendmsg(fd, &m, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0)
			return RP_OK;
		if (errno == EINTR)
			continue;
		if (errno != EAGAIN && errno != ENOBUFS)
			return RP_EGONE;
		if (rpi_now() >= deadline)
			return RP_ETIMEOUT;
		poll_until(fd, POLLOUT, deadline, RPI_POLL_NS);
	}
}

int rpi_send(rp_handle *h, uint16_t type, uint32_t request, struct iovec *body, int n, int64_t deadline, rp_error *err) {
	pthread_mutex_lock(&h->io);
	bool gone = h->gone, stopped = h->stopped;
	h->sent_on = h->connections;
	pthread_mutex_unlock(&h->io);
	if (stopped)
		return rpi_error(err, RP_ESTOPPED, "stopped: %s", h->why);
	int rc = gone ? RP_EGONE : rpi_send_on(h, h->fd, type, request, body, n, -1, deadline);
	if (rc == RP_EGONE) {
		pthread_mutex_lock(&h->io);
		rpi_pump(h); /* what it said before it hung up */
		h->gone |= h->sent_on == h->connections;
		int why = parted(h, err);
		pthread_mutex_unlock(&h->io);
		if (why != RP_OK)
			return why;
		return rpi_error(err, rc, "the daemon is gone from %s: rp_reconnect once it is back", h->path);
	}
	return rc == RP_OK ? rc : rpi_error(err, rc, "message %u was not taken by the daemon in time", type);
}

static void accept_order(rp_handle *h, const rp_header *head, const uint8_t *body, size_t n) {
	rp_order o;
	if (n != sizeof o || (head->incarnation && head->incarnation != h->incarnation))
		return; /* an order to a former owner of the rank */
	memcpy(&o, body, sizeof o);
	o.text[sizeof o.text - 1] = 0;
	switch (o.action) {
	case RP_ORDER_STOP:
		h->stopped = true;
		memcpy(h->why, o.text, sizeof o.text);
		break;
	case RP_ORDER_GO:
		if (head->epoch > h->go_epoch)
			h->go_epoch = head->epoch;
		break;
	case RP_ORDER_CAPTURE:
		h->capture_ordered = o.generation;
		break;
	case RP_ORDER_INIT:
	case RP_ORDER_LOAD:
		if (head->epoch >= h->ordered_epoch) {
			h->ordered = o;
			h->ordered_epoch = head->epoch;
		}
	}
}

static bool accept_reply(rpi_reply *r, const rp_header *head, const uint8_t *body, size_t n, int *fd) {
	if (r->request == 0 || head->request != r->request || r->type)
		return false;
	r->type = head->type;
	r->length = (uint32_t)(n < r->room ? n : r->room);
	memcpy(r->body, body, r->length);
	r->fd = *fd;
	*fd = -1;
	return true;
}

static void accept_parting(rp_handle *h, const uint8_t *body, size_t n) {
	h->parting_code = refusal_code(body, n);
	snprintf(h->parting, sizeof h->parting, "%.*s", n > 8 ? (int)(n - 8) : 0, n > 8 ? (const char *)body + 8 : "");
}

void rpi_dispatch(rp_handle *h, const uint8_t *message, size_t n, int *fd) {
	rp_header head;
	if (n < sizeof head)
		return;
	memcpy(&head, message, sizeof head);
	if (head.magic != RP_MESSAGE_MAGIC || head.version != RP_MESSAGE_VERSION || head.length != n)
		return;
	const uint8_t *body = message + sizeof head;
	n -= sizeof head;
	if (head.type == RP_M_ORDER)
		accept_order(h, &head, body, n);
	else if (head.type == RP_M_REFUSED && head.request == 0)
		accept_parting(h, body, n);
	else if (head.request && !accept_reply(&h->reply, &head, body, n, fd))
		accept_reply(&h->hand, &head, body, n, fd);
}

/* Reads one datagram: 1 if there was one, 0 if none is there, -1 if the other side is gone. */
static int read_one(rp_handle *h, int from) {
	union {
		struct cmsghdr align;
		char bytes[CMSG_SPACE(8 * sizeof(int))];
	} control;
	struct iovec iov = {h->datagram, RP_MAX_MESSAGE};
	struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof control.bytes};
	ssize_t n;
	bool again = true; /* a connection that was reset says so once; what the other side said before comes after that */
	do
		n = recvmsg(from, &m, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
	while (n < 0 && (errno == EINTR || (errno == ECONNRESET && again && !(again = false))));
	if (n < 0 && errno == EAGAIN)
		return 0;
	if (n <= 0)
		return -1;
	int fd = -1;
	for (struct cmsghdr *c = CMSG_FIRSTHDR(&m); c; c = CMSG_NXTHDR(&m, c)) {
		if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
			continue;
		for (size_t i = 0; CMSG_LEN((i + 1) * sizeof(int)) <= c->cmsg_len; i++) {
			int got;
			memcpy(&got, CMSG_DATA(c) + i * sizeof got, sizeof got);
			if (fd < 0)
				fd = got;
			else
				close(got);
		}
	}
	if (!(m.msg_flags & MSG_TRUNC))
		rpi_dispatch(h, h->datagram, (size_t)n, &fd);
	if (fd >= 0)
		close(fd);
	return 1;
}

void rpi_pump(rp_handle *h) {
	for (int i = 0; i < 64 && !h->gone; i++) {
		int rc = read_one(h, h->fd);
		if (rc < 0)
			h->gone = true;
		if (rc <= 0)
			return;
	}
}

int rpi_wait(rp_handle *h, rpi_ready ready, const char *what, int64_t deadline, rp_error *err) {
	pthread_mutex_lock(&h->io);
	int rc;
	for (;;) {
		rpi_pump(h);
		rc = ready(h);
		if (rc != RP_EAGAIN)
			break;
		if (h->stopped)
			rc = rpi_error(err, RP_ESTOPPED, "%s: stopped: %s", what, h->why);
		else if (h->gone && h->parting_code && h->parting_code != RP_EAGAIN)
			rc = parted(h, err);
		else if (h->gone || h->sent_on != h->connections)
			rc = rpi_error(err, RP_EGONE, "%s: the daemon is gone from %s: rp_reconnect, then call again", what, h->path);
		else if (rpi_now() >= deadline)
			rc = rpi_error(err, RP_ETIMEOUT, "%s: no answer from the daemon in time", what);
		if (rc != RP_EAGAIN)
			break;
		h->waiting = true;
		pthread_mutex_unlock(&h->io);
		poll_until(h->fd, POLLIN, deadline, RPI_POLL_NS);
		pthread_mutex_lock(&h->io);
		h->waiting = false;
	}
	pthread_mutex_unlock(&h->io);
	return rc;
}

static int replied_in_epoch(rp_handle *h) {
	if (h->reply.type)
		return RP_OK;
	return rpi_closed(h, h->asked) ? RP_EFENCED : RP_EAGAIN;
}

static int refused(const rpi_reply *r, rp_error *err) {
	int n = r->length > 8 ? (int)r->length - 8 : 0;
	return refused_with(refusal_code(r->body, r->length), n ? (const char *)r->body + 8 : "", n, err);
}

static int check_reply(const rpi_reply *r, uint16_t want, rp_error *err) {
	if (r->type == RP_M_REFUSED)
		return refused(r, err);
	return r->type == want ? RP_OK : rpi_error(err, RP_EVERSION, "the daemon answered with message %u, want %u: daemon and libreplicad are of different versions", r->type, want);
}

enum { AGAIN_WITHIN = 1000000000 }; /* a call that is made again later than that is another call */
static const int64_t PATIENCE = 100000000, MOST_PATIENCE = 10000000000;

static void digest_of(rp_handle *h, const struct iovec *body, int n, uint8_t digest[16]) {
	memset(digest, 0, 16);
	for (int i = 0; i < n; i++) {
		uint8_t before[16];
		memcpy(before, digest, sizeof before);
		h->hash->digest(before, sizeof before, body[i].iov_base, body[i].iov_len, digest);
	}
}

/* Takes up a request that was cut and is made again: true if its answer is still to be waited for. An answer that takes longer than calls
 * last would be missed by each, if each asked anew. A request that was lost is asked anew, after twice as long each time. */
static bool take_up(rp_handle *h, rpi_cut *now) {
	rpi_cut *was = &h->cut;
	now->asked = h->asked, now->connection = h->connections, now->sent = rpi_now(), now->patience = PATIENCE;
	bool same = was->type == now->type && was->asked == now->asked && !memcmp(was->digest, now->digest, sizeof now->digest) && now->sent - was->at < AGAIN_WITHIN;
	if (!same || was->connection != now->connection)
		return false;
	if (h->reply.type || now->sent - was->sent < was->patience) {
		*now = *was;
		return true;
	}
	now->patience = was->patience < MOST_PATIENCE / 2 ? 2 * was->patience : MOST_PATIENCE;
	return false;
}

/* One request, or the wait for the answer to it that was cut. again: it was the latter, and the answer counts as lost: it is to be asked anew. */
static int request_once(rp_handle *h, uint16_t type, struct iovec *body, int n, rpi_cut is, uint16_t want, int64_t deadline, bool *again, rp_error *err) {
	pthread_mutex_lock(&h->io);
	h->asked = type == RP_M_SCOPE ? 0 : epoch_of(h, type);
	bool asked = take_up(h, &is);
	if (!asked) {
		h->request = h->request % 0x7fffffff + 1;
		h->reply.type = 0, h->reply.length = 0, h->reply.request = h->request;
	}
	h->cut.type = 0;
	h->sent_on = h->connections;
	pthread_mutex_unlock(&h->io);
	int rc = asked ? RP_OK : rpi_send(h, type, h->request, body, n, deadline, err);
	bool sent = rc == RP_OK;
	*again = asked && is.sent + is.patience < deadline;
	if (*again)
		deadline = is.sent + is.patience;
	if (sent)
		rc = rpi_wait(h, replied_in_epoch, "request", deadline, err); /* a rank that leaves, too: a fault before all have left needs it again */
	pthread_mutex_lock(&h->io);
	if (sent && rc == RP_ETIMEOUT) {
		is.at = rpi_now();
		h->cut = is;
	} else {
		*again = false;
		h->reply.request = 0;
	}
	if (rc == RP_OK)
		rc = check_reply(&h->reply, want, err);
	else if (rc == RP_EFENCED)
		rpi_error(err, rc, "epoch %llu is closed: rp_join", (unsigned long long)h->asked);
	pthread_mutex_unlock(&h->io);
	return rc;
}

int rpi_request(rp_handle *h, uint16_t type, struct iovec *body, int n, uint16_t want, int64_t deadline, rp_error *err) {
	rpi_cut is = {.type = type};
	digest_of(h, body, n, is.digest);
	bool again;
	int rc;
	do
		rc = request_once(h, type, body, n, is, want, deadline, &again, err);
	while (again);
	return rc;
}

/* One request on a connection that nobody else reads yet. The reply is left in h->hand, and a descriptor in it is the caller's to take. A claim whose
 * answer has not come in time is not made anew on its connection: the next call waits for that answer. */
int rpi_handshake(rp_handle *h, int fd, uint16_t type, const void *body, size_t n, int pass, uint16_t want, int64_t deadline, rp_error *err) {
	bool claims = type == RP_M_ATTACH || type == RP_M_GROW;
	pthread_mutex_lock(&h->io);
	bool asked = claims && h->hand.request && h->claimed_on == h->connections;
	if (!asked) {
		if (h->hand.fd >= 0)
			close(h->hand.fd);
		h->hand.request = 0x80000000u | ++h->hands;
		h->hand.type = 0, h->hand.fd = -1;
		if (fd != h->fd)
			h->parting_code = 0; /* that was another connection's */
	}
	uint32_t request = h->hand.request;
	pthread_mutex_unlock(&h->io);
	struct iovec iov = {(void *)(uintptr_t)body, n};
	int rc = asked ? RP_OK : rpi_send_on(h, fd, type, request, &iov, 1, pass, deadline), why = RP_OK;
	asked = rc == RP_OK;
	while (rc == RP_OK || rc == RP_EGONE) { /* one that has hung up may have said why */
		pthread_mutex_lock(&h->io);
		bool ours = h->hand.request == request; /* else the worker has connected anew meanwhile, and the request went down with the connection */
		int got = ours ? read_one(h, fd) : -1;
		bool done = ours && h->hand.type != 0;
		why = done ? RP_OK : parted(h, err);
		pthread_mutex_unlock(&h->io);
		if (done)
			rc = RP_OK;
		if (done || why != RP_OK)
			break;
		if (got > 0)
			continue;
		if (got < 0 || rc == RP_EGONE) {
			rc = RP_EGONE;
			break;
		}
		if (rpi_now() >= deadline)
			rc = RP_ETIMEOUT;
		else
			poll_until(fd, POLLIN, deadline, RPI_POLL_NS);
	}
	pthread_mutex_lock(&h->io);
	if (claims && asked && rc == RP_ETIMEOUT && h->hand.request == request)
		h->claimed_on = h->connections;
	else if (h->hand.request == request)
		h->hand.request = 0;
	pthread_mutex_unlock(&h->io);
	if (why != RP_OK)
		return why;
	if (rc == RP_EGONE)
		return rpi_error(err, rc, "the daemon at %s hung up", h->path);
	if (rc != RP_OK)
		return rpi_error(err, rc, "the daemon at %s did not answer message %u in time", h->path, type);
	return check_reply(&h->hand, want, err);
}
