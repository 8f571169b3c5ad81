/* words.c: the optimizer-step lock: step word, good word, fence. No system call, no message, no allocation. */
#include "internal.h"

bool rpi_set_step(rp_handle *h, uint64_t to) {
	uint64_t seen = h->step;
	if (!atomic_compare_exchange_strong(&h->control->step.word, &seen, to))
		return false;
	h->step = to;
	return true;
}

bool rpi_set_good(rp_handle *h, uint64_t to) {
	uint64_t seen = h->good;
	if (!atomic_compare_exchange_strong(&h->control->good.word, &seen, to))
		return false;
	h->good = to;
	return true;
}

/* What an earlier process of this rank left in step, good and tag is its own state's, not that of the registered memory. A daemon reads
 * holder before the words, so whoever finds this incarnation there reads words that it wrote. */
bool rpi_disown(rp_handle *h) {
	atomic_store(&h->held, 0);
	atomic_store(&h->control->holder.word, 0);
	for (unsigned k = 0; k < RP_STAGING; k++)
		atomic_store(&h->control->tag[k].word, 0);
	return rpi_set_good(h, 0) && rpi_set_step(h, 0);
}

void rpi_own(rp_handle *h, uint64_t epoch) {
	atomic_store(&h->control->holder.word, h->incarnation);
	atomic_store(&h->held, epoch);
}

static int lost_word(rp_handle *h, rp_error *err) {
	uint64_t w = atomic_load(&h->control->step.word);
	return rpi_error(err, RP_ESTATE, "the step word is epoch %llu step %llu, this handle left it at epoch %llu step %llu: the arena has another owner, exit",
			 (unsigned long long)RP_WORD_EPOCH(w), (unsigned long long)RP_WORD_STEP(w), (unsigned long long)RP_WORD_EPOCH(h->step), (unsigned long long)RP_WORD_STEP(h->step));
}

RP_API int rp_fenced(const rp_handle *h) {
	if (!h || rpi_forked(h) || !h->control)
		return 0;
	return rpi_closed(h, atomic_load(&h->epoch));
}

RP_API uint64_t rp_committed(const rp_handle *h) {
	return h && !rpi_forked(h) && h->control ? RP_WORD_STEP(atomic_load(&h->control->committed.word)) : 0;
}

static int out_of_order(rp_handle *h, const char *call, uint64_t step, rp_error *err) {
	if (rp_fenced(h))
		return rpi_error(err, RP_EFENCED, "epoch %llu is closed: rp_join", (unsigned long long)atomic_load(&h->epoch));
	return rpi_error(err, RP_ESTATE, "%s(%llu): the handle is at step %llu, phase %llu%s", call, (unsigned long long)step, (unsigned long long)RP_WORD_STEP(h->step), (unsigned long long)RP_WORD_PHASE(h->step),
			 atomic_load(&h->life) == RPI_READY ? "" : ", and rp_ready has not opened an epoch");
}

RP_API int rp_step_enter(rp_handle *h, uint64_t step, int64_t timeout_ns, rp_error *err) {
	RPI_ENTER(h, err);
	if (timeout_ns < 0)
		return rpi_error(err, RP_EINVAL, "rp_step_enter: timeout %lld ns is negative", (long long)timeout_ns);
	if (atomic_load(&h->life) != RPI_READY || h->step != RP_WORD(RP_WORD_EPOCH(h->step), step - 1, RP_IDLE) || step == 0)
		return out_of_order(h, "rp_step_enter", step, err);
	uint64_t epoch = atomic_load(&h->epoch), before = h->step;
	if (atomic_load(&h->control->incarnation.word) > h->incarnation)
		return rpi_error(err, RP_ESTOPPED, "rank %u was claimed by a newer incarnation: exit", h->hello.rank);
	if (!h->private_in_window && rpi_private(h, RP_WORD(epoch, step, 0), 0, err) == RP_ECORRUPT)
		return RP_ECORRUPT;
	if (!rpi_capture_wait(h, rpi_deadline(timeout_ns), epoch)) /* what is copied, or waits for a device that waits for the rank that was lost, is no business of a step that can't begin */
		return out_of_order(h, "rp_step_enter", step, err);
	/* Invariant: the store comes before the load, in one order seen by all; so either the daemon's fence is seen here, or UPDATING
	 * is seen by a daemon that has raised it. */
	if (!rpi_set_step(h, RP_WORD(epoch, step, RP_UPDATING)))
		return lost_word(h, err);
	if (atomic_load(&h->control->fence.word) < epoch)
		return RP_OK;
	if (!rpi_set_step(h, before))
		return lost_word(h, err);
	return rpi_error(err, RP_EFENCED, "epoch %llu is closed: step %llu was not begun, rp_join", (unsigned long long)epoch, (unsigned long long)step);
}

RP_API int rp_step_exit(rp_handle *h, uint64_t step, uint32_t flags, int *armed, rp_error *err) {
	RPI_ENTER(h, err);
	int ignored;
	armed = armed ? armed : &ignored;
	*armed = 0;
	if (flags & ~(uint32_t)(RP_NO_UPDATE | RP_STAGED_LATER | RP_PRIVATE_LATER))
		return rpi_error(err, RP_EINVAL, "rp_step_exit: unknown flags %#x", flags);
	if (flags & RP_PRIVATE_LATER && !h->private_in_window)
		return rpi_error(err, RP_EINVAL, "rp_step_exit: RP_PRIVATE_LATER, but no private region has RP_IN_WINDOW, so that they are copied when a step begins");
	uint64_t epoch = RP_WORD_EPOCH(h->step), generation = RP_WORD(epoch, step, 0);
	if (atomic_load(&h->life) != RPI_READY || h->step != RP_WORD(epoch, step, RP_UPDATING))
		return out_of_order(h, "rp_step_exit", step, err);
	if (!rpi_set_step(h, RP_WORD(epoch, step, RP_UPDATED)))
		return lost_word(h, err);
	rpi_stage(h, generation);
	if (flags & RP_PRIVATE_LATER) {
		h->private_generation = generation;
		atomic_store(&h->private_later, RPI_ARMED);
	} else if (h->private_in_window && rpi_private(h, generation, 0, err) == RP_ECORRUPT)
		return RP_ECORRUPT;
	atomic_store(&h->unstaged, flags & RP_STAGED_LATER ? generation : 0); /* before the capture is armed: a worker that is awake runs it at once */
	h->exit_flags = flags & RP_NO_UPDATE;
	rpi_arm(h, generation, h->exit_flags, armed);
	return rpi_set_step(h, RP_WORD(epoch, step, RP_IDLE)) ? RP_OK : lost_word(h, err);
}

/* Whether a word of an epoch is one of the handle's: a thread that was left over from an epoch before speaks of another state, though the
 * numbers of its steps come again. */
static int of_epoch(const rp_handle *h, uint64_t epoch) {
	if (!h)
		return RP_EINVAL;
	if (rpi_forked(h))
		return RP_EFORK;
	return epoch == atomic_load(&h->epoch) ? RP_OK : RP_EFENCED;
}

RP_API int rp_staged(rp_handle *h, uint64_t epoch, uint64_t step) {
	int rc = of_epoch(h, epoch);
	if (rc != RP_OK)
		return rc;
	uint64_t waits = RP_WORD(epoch, step, 0);
	if (waits)
		atomic_compare_exchange_strong(&h->unstaged, &waits, 0);
	return RP_OK;
}

/* Invariant: to is of the epoch that was asked about. A thread that stands still between the look at the epoch and the store raises nothing: the
 * word of a later epoch is above it. */
RP_API int rp_set_good(rp_handle *h, uint64_t epoch, uint64_t step) {
	int rc = of_epoch(h, epoch);
	if (rc != RP_OK)
		return rc;
	if (!h->control || atomic_load(&h->life) != RPI_READY || RP_WORD_EPOCH(h->step) != epoch || step > RP_WORD_STEP(h->step))
		return RP_ESTATE;
	if (atomic_load(&h->good_frozen))
		return RP_ECANCELED;
	uint64_t to = RP_WORD(epoch, step, 0);
	return to <= h->good || rpi_set_good(h, to) ? RP_OK : RP_ESTATE;
}

RP_API int rp_freeze_good(rp_handle *h, uint64_t epoch) {
	int rc = of_epoch(h, epoch);
	if (rc == RP_OK)
		atomic_store(&h->good_frozen, true);
	return rc;
}
