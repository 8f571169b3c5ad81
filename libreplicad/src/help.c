/* help.c: the chunks of a part, worked off by one thread or by several.
 *
 * The thread that has the part owns the rpi_chunked, which lies on its stack. Those that help take chunks from its counter; the owner leaves only
 * once the last of them is out. turn is odd while there is something to help with. */
#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "internal.h"

static int futex_wait(_Atomic uint32_t *word, uint32_t value, const struct timespec *most) { return (int)syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, most, NULL, 0); }
static void futex_wake(_Atomic uint32_t *word) { syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0); }

static void work_off(rp_handle *h, rpi_chunked *c) {
	uint32_t i;
	while (atomic_load(&c->stopped) == RPI_WHOLE && (i = atomic_fetch_add(&c->next, 1)) < c->chunks) {
		int how = c->each(h, c, i);
		if (how != RPI_WHOLE) {
			atomic_store(&c->bad, i);
			atomic_store(&c->stopped, how);
		}
	}
}

int rpi_each_chunk(rp_handle *h, rpi_chunked *c) {
	if (!c->shared || c->chunks < 2 || atomic_exchange(&h->sharing, true)) {
		work_off(h, c);
		return atomic_load(&c->stopped);
	}
	h->helped = c;
	atomic_fetch_add(&h->turn, 1);
	if (atomic_load(&h->idle_helpers))
		futex_wake(&h->turn);
	work_off(h, c);
	atomic_fetch_add(&h->turn, 1);
	uint32_t inside;
	while ((inside = atomic_load(&h->helpers)) != 0)
		futex_wait(&h->helpers, inside, NULL);
	atomic_store(&h->sharing, false);
	return atomic_load(&c->stopped);
}

/* Takes part in the work of a turn; false: there is nothing left to take. */
static bool take_part(rp_handle *h, uint32_t turn) {
	bool took = false;
	atomic_fetch_add(&h->helpers, 1);
	if (atomic_load(&h->turn) == turn) { /* and stays so until this one is out: *helped is there */
		rpi_chunked *c = h->helped;
		took = atomic_load(&c->stopped) == RPI_WHOLE && atomic_load(&c->next) < c->chunks;
		if (took)
			work_off(h, c);
	}
	if (atomic_fetch_sub(&h->helpers, 1) == 1 && atomic_load(&h->turn) != turn)
		futex_wake(&h->helpers);
	return took;
}

RP_API int rp_help(rp_handle *h, int64_t timeout_ns) {
	if (!h || timeout_ns < 0)
		return RP_EINVAL;
	if (rpi_forked(h))
		return RP_EFORK;
	if (!h->control)
		return RP_ESTATE;
	for (int64_t deadline = rpi_deadline(timeout_ns);;) {
		uint32_t turn = atomic_load(&h->turn);
		if (turn % 2 && take_part(h, turn))
			return RP_OK;
		int64_t left = deadline - rpi_now();
		if (left <= 0)
			return RP_ETIMEOUT;
		struct timespec t = {left / 1000000000, left % 1000000000};
		atomic_fetch_add(&h->idle_helpers, 1);
		int woken = futex_wait(&h->turn, turn, &t);
		atomic_fetch_sub(&h->idle_helpers, 1);
		if (woken == 0 && atomic_load(&h->turn) == turn)
			return RP_EAGAIN; /* rp_cancel */
	}
}

void rpi_wake_helpers(rp_handle *h) {
	if (atomic_load(&h->idle_helpers))
		futex_wake(&h->turn);
}
