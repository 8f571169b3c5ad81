/* join.c: between epochs. A rank stops, is told where to start, and is let go; or it leaves, or reports its own fault. */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "internal.h"

static int arguments(rp_handle *h, const char *call, int64_t timeout_ns, int64_t *deadline, rp_error *err) {
	*deadline = rpi_deadline(timeout_ns);
	if (*deadline < 0)
		return rpi_error(err, RP_EINVAL, "%s: timeout %lld ns is negative", call, (long long)timeout_ns);
	return h->control ? RP_OK : rpi_error(err, RP_ESTATE, "%s: before rp_attach: the rank has not joined the job yet", call);
}

/* An order counts if its epoch is not closed, and if it is not the initialisation that this handle has done. Nor does one of an epoch
 * that the rank was let go in: the daemon orders anew whenever it hears that the rank has stopped, and the rank says so ten times a second
 * while it waits, so that one more order may come than is taken. Who stops again in that epoch would go back to where it began. */
static int ordered(rp_handle *h) {
	uint64_t epoch = h->ordered_epoch;
	if (h->capture_ordered)
		return RP_OK;
	if (epoch == 0 || epoch <= h->go_epoch || epoch <= atomic_load(&h->control->fence.word))
		return RP_EAGAIN;
	return h->ordered.action == RP_ORDER_INIT && h->initial_epoch == epoch ? RP_EAGAIN : RP_OK;
}

static void tell(const rp_handle *h, rp_join_info *info) {
	const uint8_t *u = h->welcome.job;
	info->action = h->order.action;
	info->epoch = atomic_load(&h->epoch);
	info->step = h->order.step;
	info->incarnation = h->incarnation;
	info->source = h->order.action == RP_ORDER_LOAD ? h->order.source : 0;
	info->rank = h->hello.rank, info->world = h->hello.world, info->group = h->hello.group;
	snprintf(info->job_uuid, sizeof info->job_uuid, "%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", u[0], u[1], u[2], u[3], u[4], u[5], u[6], u[7], u[8], u[9], u[10], u[11], u[12], u[13], u[14], u[15]);
}

/* Waits for INIT or LOAD. Meanwhile the daemon may want the live state sealed: all survivors stand whole at one step that no slot
 * holds, and with it that step can be resumed (protocol section 6, settle). Best effort: the daemon sees whether it was sealed. */
static int await_order(rp_handle *h, int64_t deadline, rp_error *err) {
	for (;;) {
		int rc = rpi_wait(h, ordered, "rp_join", deadline, err);
		if (rc != RP_OK)
			return rc;
		pthread_mutex_lock(&h->io);
		uint64_t generation = h->capture_ordered;
		h->capture_ordered = 0;
		pthread_mutex_unlock(&h->io);
		if (!generation)
			return RP_OK;
		rpi_capture_live(h, generation, NULL);
		rpi_flush(h, deadline);
	}
}

static int no_order(const rp_handle *h, rp_error *err) {
	if (h->go_epoch > atomic_load(&h->control->fence.word))
		return rpi_error(err, RP_ETIMEOUT, "rp_join: epoch %llu is open and rank %u was let go in it: no order comes before it is closed, and no step can be taken after rp_join: report the fault that it is to be closed for (rp_fail), or end the process",
						 (unsigned long long)h->go_epoch, h->hello.rank);
	return rpi_error(err, RP_ETIMEOUT, "rp_join: no order for rank %u in time; the job waits for other ranks, or has no quorum: replicad status says for whom", h->hello.rank);
}

RP_API int rp_join(rp_handle *h, rp_join_info *info, int64_t timeout_ns, rp_error *err) {
	RPI_ENTER(h, err);
	int64_t deadline;
	int rc = arguments(h, "rp_join", timeout_ns, &deadline, err);
	if (rc != RP_OK)
		return rc;
	if (!info || info->struct_size != sizeof *info)
		return rpi_error(err, RP_EVERSION, "rp_join: info's struct_size is not %zu: rebuild the caller against this replicad.h", sizeof *info);
	rpi_forget_growth(h);
	atomic_store(&h->life, RPI_ATTACHED);
	int64_t settled = rpi_deadline(RPI_POLL_NS);
	rpi_quiesce(h, deadline < settled ? settled : deadline);
	rc = rpi_flush(h, deadline);
	uint64_t live = h->step;
	struct iovec body = {&live, sizeof live};
	if (rc == RP_OK || rc == RP_EGONE)
		rc = rpi_send(h, RP_M_STOPPED, 0, &body, 1, deadline, err);
	if (rc == RP_OK)
		rc = await_order(h, deadline, err);
	if (rc != RP_OK)
		return rc == RP_ETIMEOUT ? no_order(h, err) : rc;
	pthread_mutex_lock(&h->io);
	h->order = h->ordered;
	atomic_store(&h->epoch, h->ordered_epoch);
	atomic_store(&h->scope, h->ordered_epoch);
	h->ordered_epoch = 0;
	pthread_mutex_unlock(&h->io);
	atomic_store(&h->hurried, false);
	atomic_store(&h->life, h->order.action == RP_ORDER_INIT ? RPI_INIT : RPI_LOAD);
	tell(h, info);
	return RP_OK;
}

RP_API int rp_resumed(rp_handle *h, char *text, size_t room, int64_t timeout_ns, rp_error *err) {
	RPI_ENTER(h, err);
	int64_t deadline;
	int rc = arguments(h, "rp_resumed", timeout_ns, &deadline, err);
	if (rc == RP_OK && (!text || room == 0))
		rc = rpi_error(err, RP_EINVAL, "rp_resumed: no room for a text");
	if (rc == RP_OK)
		rc = rpi_request(h, RP_M_RESUMED, NULL, 0, RP_M_RESUMED_IS, deadline, err);
	if (rc != RP_OK)
		return rc;
	size_t n = h->reply.length < room ? h->reply.length : room - 1;
	memcpy(text, h->reply.body, n);
	text[n] = 0;
	return RP_OK;
}

RP_API int rp_from(rp_handle *h, char *text, size_t room, int64_t timeout_ns, rp_error *err) {
	RPI_ENTER(h, err);
	int64_t deadline = rpi_deadline(timeout_ns);
	if (deadline < 0 || !text || room == 0)
		return rpi_error(err, RP_EINVAL, "rp_from: timeout %lld ns, or no room for a text", (long long)timeout_ns);
	int rc = rpi_request(h, RP_M_FROM, NULL, 0, RP_M_FROM_IS, deadline, err);
	if (rc != RP_OK)
		return rc;
	if (h->reply.length >= room)
		return rpi_error(err, RP_EINVAL, "rp_from: the text has %u bytes, there is room for %zu", h->reply.length, room - 1);
	memcpy(text, h->reply.body, h->reply.length);
	text[h->reply.length] = 0;
	return RP_OK;
}

RP_API int rp_ordered(rp_handle *h) {
	if (!h || rpi_forked(h) || !h->control)
		return 0;
	pthread_mutex_lock(&h->io);
	if (!h->waiting) /* else the thread that waits reads */
		rpi_pump(h);
	bool now = h->stopped || h->gone || ordered(h) == RP_OK;
	pthread_mutex_unlock(&h->io);
	return now;
}

static int opened(rp_handle *h) {
	uint64_t epoch = atomic_load(&h->epoch);
	if (atomic_load(&h->control->fence.word) >= epoch)
		return RP_EFENCED;
	return h->go_epoch == epoch ? RP_OK : RP_EAGAIN;
}

RP_API int rp_ready(rp_handle *h, int64_t timeout_ns, rp_error *err) {
	RPI_ENTER(h, err);
	int64_t deadline;
	int rc = arguments(h, "rp_ready", timeout_ns, &deadline, err);
	if (rc == RP_OK && atomic_load(&h->life) != RPI_LOADED)
		rc = rpi_error(err, RP_ESTATE, "rp_ready: call it after rp_load");
	rp_loaded l = {.generation = h->order.generation};
	memcpy(l.replicated_root, h->order.replicated_root, 16);
	memcpy(l.private_root, h->order.private_root, 16);
	struct iovec body = {&l, sizeof l};
	if (rc == RP_OK)
		rc = rpi_send(h, RP_M_LOADED, 0, &body, 1, deadline, err);
	if (rc == RP_OK)
		rc = rpi_wait(h, opened, "rp_ready", deadline, err);
	if (rc == RP_OK)
		atomic_store(&h->life, RPI_READY);
	else if (rc == RP_EFENCED)
		rpi_error(err, rc, "epoch %llu was closed before it was opened: rp_join", (unsigned long long)atomic_load(&h->epoch));
	return rc;
}

RP_API int rp_fail(rp_handle *h, const char *text, rp_error *err) {
	RPI_ENTER(h, err);
	if (!h->control)
		return rpi_error(err, RP_ESTATE, "rp_fail: before rp_attach");
	size_t n = text ? strnlen(text, 4096) : 0;
	struct iovec body = {(void *)(uintptr_t)text, n};
	return rpi_send(h, RP_M_FAIL, 0, &body, 1, rpi_deadline(1000000000), err);
}

RP_API int rp_reject(rp_handle *h, const char *text, rp_error *err) {
	RPI_ENTER(h, err);
	if (atomic_load(&h->life) != RPI_LOADED)
		return rpi_error(err, RP_ESTATE, "rp_reject: call it between rp_load and rp_ready");
	size_t n = text ? strnlen(text, 4096) : 0;
	struct iovec body = {(void *)(uintptr_t)text, n};
	return rpi_send(h, RP_M_REJECT, 0, &body, 1, rpi_deadline(1000000000), err);
}

/* Sends a time for which this rank is not to be taken for a hang. */
static int say_time(rp_handle *h, uint16_t type, const char *call, int64_t most_ns, rp_error *err) {
	if (most_ns < 0 || most_ns > 24ll * 3600 * 1000000000)
		return rpi_error(err, RP_EINVAL, "%s: %lld ns: want 0 to a day", call, (long long)most_ns);
	if (!h->control)
		return rpi_error(err, RP_ESTATE, "%s: before rp_attach", call);
	if (type == RP_M_PAUSE) {
		pthread_mutex_lock(&h->io);
		h->paused_until = most_ns ? rpi_now() + most_ns : 0;
		h->paused_on = h->connections; /* where it does not come through another one follows */
		pthread_mutex_unlock(&h->io);
	}
	uint64_t ns = (uint64_t)most_ns;
	struct iovec body = {&ns, sizeof ns};
	return rpi_send(h, type, 0, &body, 1, rpi_deadline(1000000000), err);
}

/* The handle keeps the end of the pause: a daemon that was away has forgotten it, and would take the rank for one that hangs. */
int rpi_tell_pause(rp_handle *h) {
	int64_t left = h->paused_until ? h->paused_until - rpi_now() : 0;
	if (left <= 0 || h->gone || h->paused_on == h->connections)
		return RP_OK;
	uint64_t most_ns = (uint64_t)left;
	struct iovec body = {&most_ns, sizeof most_ns};
	int rc = rpi_send_on(h, h->fd, RP_M_PAUSE, 0, &body, 1, -1, 0);
	if (rc == RP_OK)
		h->paused_on = h->connections;
	return rc;
}

RP_API int rp_pause(rp_handle *h, int64_t most_ns, rp_error *err) {
	RPI_ENTER(h, err);
	return say_time(h, RP_M_PAUSE, "rp_pause", most_ns, err);
}

RP_API int rp_ending(rp_handle *h, int64_t most_ns, rp_error *err) {
	RPI_ENTER(h, err);
	return say_time(h, RP_M_ENDING, "rp_ending", most_ns, err);
}

/* Says that the rank stands still and waits until the daemon knows, once per connection and epoch: a caller that waits in slices has said
 * that it leaves by the next one, and the answer to that is not to come while another is waited for. */
static void say_standing(rp_handle *h, int64_t until) {
	pthread_mutex_lock(&h->io);
	uint64_t connection = h->connections;
	pthread_mutex_unlock(&h->io);
	uint64_t epoch = atomic_load(&h->epoch);
	if (h->standing_epoch == epoch && h->standing_on == connection)
		return;
	h->standing_epoch = epoch, h->standing_on = connection;
	int64_t now = rpi_now();
	uint64_t most_ns = 1;
	struct iovec body = {&most_ns, sizeof most_ns};
	rpi_request(h, RP_M_PAUSE, &body, 1, RP_M_PAUSED, until > now ? now + (until - now) / 2 : now, NULL);
}

/* How long a rank waits for a place for its last step, from the beginning or from the last commit: a place comes free once an older step is
 * committed, and mirrors get a part at 32 MiB a second at least. */
static int64_t leaving_patience(const rp_handle *h) {
	return (30 + (int64_t)((h->replicated.bytes + h->private_part.bytes + h->frozen.bytes) >> 25)) * 1000000000;
}

/* The last step: it is compared with the others' and committed before the job ends. The daemon hears that no later one is to be waited
 * for, and says that it has: before, with two slots, it frees this step's for a candidate that is not to come, sealed as it may be. What
 * may lack is a place, until an older step is committed; without one for so long the job ends without the step. A caller that waits in
 * slices waits for it in all of them: it has not left before. */
static int seal_last(rp_handle *h, int64_t deadline, rp_error *err) {
	uint64_t epoch = atomic_load(&h->epoch);
	if (h->leaving_epoch != epoch)
		h->leaving_epoch = epoch, h->leaving_committed = 0, h->leaving_until = 0;
	int64_t soon = rpi_deadline(5000000000);
	say_standing(h, soon < deadline ? soon : deadline);
	while (rp_seal_step(h, 0, NULL) == RP_EAGAIN) {
		int64_t now = rpi_now();
		uint64_t committed = atomic_load(&h->control->committed.word);
		if (h->leaving_until == 0 || committed != h->leaving_committed)
			h->leaving_committed = committed, h->leaving_until = now + leaving_patience(h);
		if (now >= h->leaving_until)
			break;
		if (now >= deadline)
			return rpi_error(err, RP_ETIMEOUT, "rp_leave: the last step has no place in the arena until an older one is committed: call it again");
		nanosleep(&(struct timespec){0, 1000000}, NULL);
	}
	return RP_OK;
}

RP_API int rp_leave(rp_handle *h, int64_t timeout_ns, rp_error *err) {
	RPI_ENTER(h, err);
	int64_t deadline;
	int rc = arguments(h, "rp_leave", timeout_ns, &deadline, err);
	if (rc != RP_OK)
		return rc;
	uint64_t epoch = atomic_load(&h->epoch);
	if (epoch && atomic_load(&h->control->fence.word) >= epoch)
		return rpi_error(err, RP_EFENCED, "epoch %llu is closed: rp_join", (unsigned long long)epoch);
	rpi_quiesce(h, deadline);
	rc = seal_last(h, deadline, err);
	if (rc != RP_OK)
		return rc;
	rc = rpi_flush(h, deadline);
	return rc == RP_OK || rc == RP_EGONE ? rpi_request(h, RP_M_LEAVE, NULL, 0, RP_M_BYE, deadline, err) : rc;
}
