/* grow.c: other regions between two steps. What the handle is to become is built beside it, and taken over once the daemon has answered: until then, and
 * after any refusal, it has what it had. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "internal.h"

/* The whole of it is built anew for another request: a call that goes on names the same regions. */
void rpi_forget_growth(rp_handle *h) {
	if (!h->next)
		return;
	rpi_unmap(h->next);
	free(h->next->recipe);
	free(h->next);
	h->next = NULL;
	pthread_mutex_lock(&h->io);
	h->hand.request = 0; /* an answer that still comes is nobody's */
	if (h->hand.fd >= 0)
		close(h->hand.fd);
	h->hand.fd = -1;
	pthread_mutex_unlock(&h->io);
}

static int may_grow(rp_handle *h, rp_error *err) {
	uint64_t epoch = atomic_load(&h->epoch), s = RP_WORD_STEP(h->step);
	if (h->control && rp_fenced(h) && atomic_load(&h->life) == RPI_READY)
		return rpi_error(err, RP_EFENCED, "epoch %llu is closed: rp_join", (unsigned long long)epoch);
	if (atomic_load(&h->life) != RPI_READY || h->step != RP_WORD(epoch, s, RP_IDLE))
		return rpi_error(err, RP_ESTATE, "rp_grow: call it between two steps");
	return RP_OK;
}

static int build_next(rp_handle *h, const rp_region *regions, size_t n, const void *recipe, size_t recipe_n, rp_handle **out, rp_error *err) {
	rp_handle *next = calloc(1, sizeof *next);
	if (!next)
		return rpi_error(err, RP_ENOMEM, "no memory for a growth");
	*out = next;
	next->arena_fd = -1;
	next->hash = h->hash, next->welcome = h->welcome, next->hello = h->hello;
	next->grows_epoch = atomic_load(&h->epoch), next->grows_at = RP_WORD_STEP(h->step);
	next->recipe_bytes = (uint32_t)recipe_n;
	if (recipe_n && !(next->recipe = malloc(recipe_n)))
		return rpi_error(err, RP_ENOMEM, "no memory for a recipe of %zu bytes", recipe_n);
	if (recipe_n)
		memcpy(next->recipe, recipe, recipe_n);
	return rpi_take_regions(next, regions, n, err);
}

static bool same_growth(const rp_handle *a, const rp_handle *b) {
	return a->grows_epoch == b->grows_epoch && a->grows_at == b->grows_at && a->regions == b->regions && a->recipe_bytes == b->recipe_bytes &&
	       memcmp(a->records, b->records, (size_t)a->regions * RPI_RECORD) == 0 && memcmp(a->live, b->live, a->regions * sizeof *a->live) == 0 &&
	       (a->recipe_bytes == 0 || memcmp(a->recipe, b->recipe, a->recipe_bytes) == 0);
}

/* Sets what the handle is to become: what a call that was cut had, where this one asks for the same. */
static int prepare_next(rp_handle *h, const rp_region *regions, size_t n, const void *recipe, size_t recipe_n, rp_error *err) {
	rp_handle *next = NULL;
	int rc = build_next(h, regions, n, recipe, recipe_n, &next, err);
	bool again = rc == RP_OK && h->next && same_growth(h->next, next);
	if (next && (rc != RP_OK || again)) {
		rpi_unmap(next);
		free(next->recipe);
		free(next);
	}
	if (rc != RP_OK || again)
		return rc;
	rpi_forget_growth(h);
	h->next = next;
	return RP_OK;
}

/* Sends the recipe, from where the call before was cut; send_regions went before it, on this connection. */
static int send_recipe(rp_handle *h, rp_handle *of, int64_t deadline, rp_error *err) {
	int rc = RP_OK;
	while (of->sent_recipe < of->recipe_bytes && rc == RP_OK) {
		uint32_t left = of->recipe_bytes - of->sent_recipe, count = left < RPI_MAX_VALUE ? left : RPI_MAX_VALUE;
		rp_piece head = {of->sent_recipe, of->recipe_bytes};
		struct iovec body[2] = {{&head, sizeof head}, {of->recipe + of->sent_recipe, count}};
		rc = rpi_send(h, RP_M_RECIPE_PART, 0, body, 2, deadline, err);
		if (rc == RP_OK)
			of->sent_recipe += count;
	}
	return rc;
}

/* Takes the arena that the daemon has answered with. What fails here is this process's alone, while all others go on to the new epoch: it is
 * told as a fault, which takes the growth back. */
static int take_grown(rp_handle *h, rp_error *err) {
	rp_handle *next = h->next;
	rp_attached a;
	rp_error why = {0};
	int fd = h->hand.fd, rc;
	h->hand.fd = -1;
	if (h->hand.length != sizeof a || fd < 0)
		rc = rpi_error(&why, RP_EVERSION, "the daemon's answer to a growth has %u bytes and %s descriptor, want %zu and one", h->hand.length, fd < 0 ? "no" : "a", sizeof a);
	else {
		memcpy(&a, h->hand.body, sizeof a);
		rc = rpi_map(next, fd, &a, &why);
	}
	if (rc != RP_OK && fd >= 0)
		close(fd);
	if (rc == RP_OK)
		rc = rpi_become(h, next, &why);
	rpi_forget_growth(h);
	if (rc == RP_OK)
		return rpi_take_over(h, err);
	struct iovec body = {why.text, strnlen(why.text, sizeof why.text)};
	rpi_send(h, RP_M_FAIL, 0, &body, 1, rpi_deadline(1000000000), NULL);
	if (err)
		*err = why;
	return rc;
}

RP_API int rp_grow(rp_handle *h, const rp_region *regions, size_t n, const void *recipe, size_t recipe_n, int64_t timeout_ns, rp_error *err) {
	RPI_ENTER(h, err);
	int64_t deadline = rpi_deadline(timeout_ns);
	if (deadline < 0)
		return rpi_error(err, RP_EINVAL, "rp_grow: timeout %lld ns is negative", (long long)timeout_ns);
	if (recipe_n > RP_RECIPE_MAX || (recipe_n && !recipe))
		return rpi_error(err, RP_EINVAL, "rp_grow: a recipe of %zu bytes: want at most %d, and not NULL", recipe_n, RP_RECIPE_MAX);
	/* A call that was cut waits for the daemon's answer, whatever became of the epoch: it may be the arena. */
	bool waits = h->next && h->next->grows_epoch == atomic_load(&h->epoch) && atomic_load(&h->life) == RPI_READY && h->step == RP_WORD(h->next->grows_epoch, h->next->grows_at, RP_IDLE);
	int rc = waits ? RP_OK : may_grow(h, err);
	if (rc == RP_OK)
		rc = prepare_next(h, regions, n, recipe, recipe_n, err);
	if (rc != RP_OK)
		return rc;
	rpi_quiesce(h, deadline);
	rp_handle *next = h->next;
	pthread_mutex_lock(&h->io);
	if (next->sent_regions_on != h->connections)
		next->sent_recipe = 0;
	pthread_mutex_unlock(&h->io);
	rc = rpi_send_regions(h, next, deadline, err);
	if (rc == RP_OK)
		rc = send_recipe(h, next, deadline, err);
	rp_growth ask = {next->grows_at, next->regions, next->recipe_bytes};
	if (rc == RP_OK)
		rc = rpi_handshake(h, h->fd, RP_M_GROW, &ask, sizeof ask, -1, RP_M_ATTACHED, deadline, err);
	pthread_mutex_lock(&h->io);
	if (rc == RP_EGONE && next->sent_regions_on == h->connections)
		h->gone = true;
	pthread_mutex_unlock(&h->io);
	if (rc == RP_OK)
		return take_grown(h, err);
	if (rc != RP_ETIMEOUT && rc != RP_EGONE)
		rpi_forget_growth(h);
	return rc;
}

RP_API int rp_recipe(rp_handle *h, void *recipe, size_t *n, int64_t timeout_ns, rp_error *err) {
	RPI_ENTER(h, err);
	int64_t deadline = rpi_deadline(timeout_ns);
	if (deadline < 0 || !n || (*n && !recipe))
		return rpi_error(err, RP_EINVAL, "rp_recipe: timeout %lld ns, or a NULL", (long long)timeout_ns);
	size_t room = *n;
	uint32_t have = 0, total = 0;
	do {
		uint32_t from[2] = {have, 0};
		struct iovec body = {from, sizeof from};
		int rc = rpi_request(h, RP_M_RECIPE, &body, 1, RP_M_RECIPE_IS, deadline, err);
		if (rc != RP_OK)
			return rc;
		rp_piece head;
		uint32_t count = h->reply.length - (uint32_t)sizeof head;
		if (h->reply.length < sizeof head)
			return rpi_error(err, RP_EVERSION, "the daemon's recipe has %u bytes, want at least %zu", h->reply.length, sizeof head);
		memcpy(&head, h->reply.body, sizeof head);
		if (head.offset != have || head.total > RP_RECIPE_MAX || count > head.total - have || (have && head.total != total) || (count == 0 && have < head.total))
			return rpi_error(err, RP_EAGAIN, "the job's recipe has changed while it was read: call again");
		total = head.total;
		*n = total;
		if (total > room)
			return rpi_error(err, RP_EINVAL, "rp_recipe: the recipe has %u bytes, there is room for %zu", total, room);
		if (count)
			memcpy((uint8_t *)recipe + have, h->reply.body + sizeof head, count);
		have += count;
	} while (have < total);
	return RP_OK;
}
