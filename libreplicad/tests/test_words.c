/* test_words.c: the optimizer-step lock. */
#include <sched.h>

#include "harness.h"

static void steps(rank *r, uint64_t from, uint64_t to) {
	for (uint64_t s = from; s <= to; s++) {
		OK(rp_step_enter(r->h, s, 0, &failure));
		r->weight[0] = (float)s;
		OK(GOOD(r->h, s));
		OK(rp_step_exit(r->h, s, 0, NULL, &failure));
		SAME(atomic_load(&r->daemon.control->step.word), RP_WORD(1, s, RP_IDLE));
	}
}

static void in_order(void) {
	rank r;
	rank_start(&r, 100);
	SAME(rp_step_enter(r.h, 2, 0, &failure), RP_ESTATE);
	SAME(rp_step_exit(r.h, 1, 0, NULL, &failure), RP_ESTATE);
	SAME(rp_step_enter(r.h, 0, 0, &failure), RP_ESTATE);
	SAME(rp_step_enter(r.h, 1, -1, &failure), RP_EINVAL);
	OK(rp_step_enter(r.h, 1, 0, &failure));
	SAME(atomic_load(&r.daemon.control->step.word), RP_WORD(1, 1, RP_UPDATING));
	SAME(rp_step_enter(r.h, 1, 0, &failure), RP_ESTATE);
	SAME(GOOD(r.h, 2), RP_ESTATE);
	OK(rp_step_exit(r.h, 1, RP_NO_UPDATE, NULL, &failure));
	rank_end(&r);
}

/* What the job went on from, cut to the room that there is. */
static void says_what_it_resumed_from(void) {
	rank r;
	rank_start(&r, 100);
	char got[16] = "untouched";
	OK(rp_resumed(r.h, got, sizeof got, 20ll * second, &failure));
	CHECK(got[0] == 0);
	r.daemon.resumed = "step 2180 of file:///b/lm";
	OK(rp_resumed(r.h, got, sizeof got, 20ll * second, &failure));
	CHECK(strcmp(got, "step 2180 of fi") == 0);
	char all[1024];
	OK(rp_resumed(r.h, all, sizeof all, 20ll * second, &failure));
	CHECK(strcmp(all, r.daemon.resumed) == 0);
	SAME(rp_resumed(r.h, NULL, 0, second, &failure), RP_EINVAL);
	SAME(rp_resumed(r.h, all, sizeof all, -1, &failure), RP_EINVAL);
	rank_end(&r);
}

/* What the job began with, whole or not at all, and before the rank has attached too. */
static void says_what_it_began_with(void) {
	rank r;
	rank_start(&r, 100);
	char got[16] = "untouched", all[1024];
	OK(rp_from(r.h, got, sizeof got, 20ll * second, &failure));
	CHECK(got[0] == 0);
	r.daemon.from = "{\"url\":\"file:///b\"}";
	SAME(rp_from(r.h, got, sizeof got, 20ll * second, &failure), RP_EINVAL);
	OK(rp_from(r.h, all, strlen(r.daemon.from) + 1, 20ll * second, &failure));
	CHECK(strcmp(all, r.daemon.from) == 0);
	SAME(rp_from(r.h, NULL, 0, second, &failure), RP_EINVAL);
	SAME(rp_from(r.h, all, sizeof all, -1, &failure), RP_EINVAL);
	rank_end(&r);
}

static void backs_out_when_fenced(void) {
	rank r;
	rank_start(&r, 100);
	steps(&r, 1, 3);
	atomic_store(&r.daemon.control->fence.word, 1);
	SAME(rp_step_enter(r.h, 4, 0, &failure), RP_EFENCED);
	SAME(atomic_load(&r.daemon.control->step.word), RP_WORD(1, 3, RP_IDLE));
	/* The private part of the step that was not begun is kept: it is what going on after it needs. */
	bool found = false;
	for (uint32_t i = 0; i < 8; i++) {
		rpi_place p = rpi_ring(r.h, i);
		found |= RP_SLOT_STATE(atomic_load(p.word)) == RP_SEALED && p.meta->generation == RP_WORD(1, 4, 0) && whole(r.h, p, RPI_PART_PRIVATE, true);
	}
	CHECK(found);
	rank_end(&r);
}

/* A word that somebody else changed stays as it is: the handle has lost its arena. */
static void words_of_another_owner(void) {
	rank r;
	rank_start(&r, 100);
	steps(&r, 1, 1);
	atomic_store(&r.daemon.control->step.word, RP_WORD(2, 9, RP_IDLE));
	SAME(rp_step_enter(r.h, 2, 0, &failure), RP_ESTATE);
	SAME(atomic_load(&r.daemon.control->step.word), RP_WORD(2, 9, RP_IDLE));
	atomic_store(&r.daemon.control->good.word, RP_WORD(2, 9, 0));
	atomic_store(&r.daemon.control->step.word, RP_WORD(1, 1, RP_IDLE));
	OK(rp_step_enter(r.h, 2, 0, &failure));
	SAME(GOOD(r.h, 2), RP_ESTATE);
	SAME(atomic_load(&r.daemon.control->good.word), RP_WORD(2, 9, 0));
	OK(rp_step_exit(r.h, 2, 0, NULL, &failure));
	atomic_store(&r.daemon.control->incarnation.word, 6);
	SAME(rp_step_enter(r.h, 3, 0, &failure), RP_ESTOPPED);
	rank_end(&r);
}

static void good_freezes(void) {
	rank r;
	rank_start(&r, 100);
	steps(&r, 1, 2);
	OK(rp_freeze_good(r.h, 1));
	OK(rp_step_enter(r.h, 3, 0, &failure));
	SAME(GOOD(r.h, 3), RP_ECANCELED);
	SAME(atomic_load(&r.daemon.control->good.word), RP_WORD(1, 2, 0));
	rank_end(&r);
}

static void raise_fence(void *control) { atomic_store(&((rp_control *)control)->fence.word, 1); }

/* A fence that is raised in the moment before UPDATING is stored stops the step: whoever raised it has read that the step was not begun. It fails where
 * the fence is read before that store. */
static void fence_before_updating(void) {
	rank r;
	rank_start(&r, 100);
	steps(&r, 1, 1);
	OK(rp_capture(r.h, &failure));
	r.h->private_in_window = true; /* nothing is copied here, so the step word's is the first store */
	before_store(&r.h->control->step.word, raise_fence, r.daemon.control);
	SAME(rp_step_enter(r.h, 2, 0, &failure), RP_EFENCED);
	CHECK(stored());
	SAME(atomic_load(&r.daemon.control->step.word), RP_WORD(1, 1, RP_IDLE));
	rank_end(&r);
}

/* Brings the rank to epoch 2 at step 1, loaded. */
static void load_again(rank *r) {
	rp_join_info info;
	OK(rp_capture(r->h, &failure));
	atomic_store(&r->daemon.control->fence.word, 1);
	fake_order(&r->daemon, 2, RP_ORDER_LOAD, 1, 1, 1);
	OK(rank_join(r, &info));
	OK(rp_load(r->h, &failure));
}

/* What a thread says that epoch 1 has left over counts for nothing in epoch 2, where the same steps come again. */
static void words_of_an_older_epoch(void) {
	rank r;
	rank_start(&r, 100);
	steps(&r, 1, 1);
	load_again(&r);
	OK(rp_ready(r.h, 20ll * second, &failure));
	OK(rp_step_enter(r.h, 2, 0, &failure));
	SAME(rp_set_good(r.h, 1, 2), RP_EFENCED);
	SAME(rp_set_good(r.h, 3, 2), RP_EFENCED);
	SAME(atomic_load(&r.daemon.control->good.word), RP_WORD(2, 1, 0));
	OK(rp_step_exit(r.h, 2, RP_STAGED_LATER, NULL, &failure));
	SAME(rp_staged(r.h, 1, 2), RP_EFENCED);
	SAME(atomic_load(&r.h->unstaged), RP_WORD(2, 2, 0));
	SAME(rp_freeze_good(r.h, 1), RP_EFENCED);
	OK(rp_set_good(r.h, 2, 2));
	SAME(atomic_load(&r.daemon.control->good.word), RP_WORD(2, 2, 0));
	OK(rp_staged(r.h, 2, 2));
	SAME(atomic_load(&r.h->unstaged), 0);
	SAME(rp_set_good(NULL, 2, 2), RP_EINVAL);
	rank_end(&r);
}

/* An epoch that is closed before it is opened lets nobody go, though the word that opens it is on its way. */
static void ready_looks_at_the_fence(void) {
	rank r;
	rank_start(&r, 100);
	steps(&r, 1, 1);
	load_again(&r);
	atomic_store(&r.daemon.control->fence.word, 2);
	SAME(rp_ready(r.h, 20ll * second, &failure), RP_EFENCED);
	CHECK(strstr(failure.text, "epoch 2 was closed before it was opened"));
	rank_end(&r);
}

typedef struct {
	rank *r;
	_Atomic uint64_t round;
	uint64_t seen_after_fence;
	_Atomic int done;
} duel;

/* The daemon's half: raises the fence, then looks. What it sees as not begun must never be begun. */
static void *fencer(void *arg) {
	duel *d = arg;
	while (atomic_load(&d->round) == 0)
		;
	atomic_store(&d->r->daemon.control->fence.word, 1);
	d->seen_after_fence = atomic_load(&d->r->daemon.control->step.word);
	atomic_store(&d->done, 1);
	return NULL;
}

static void fence_against_enter(void) {
	rank r;
	rank_start(&r, 10);
	uint64_t s = 1;
	for (int round = 0; round < 300; round++) {
		duel d = {.r = &r};
		pthread_t t;
		CHECK(pthread_create(&t, NULL, fencer, &d) == 0);
		atomic_store(&d.round, 1);
		for (int spin = 0; spin < round % 37; spin++)
			sched_yield();
		int rc = rp_step_enter(r.h, s, 0, &failure);
		pthread_join(t, NULL);
		CHECK(rc == RP_OK || rc == RP_EFENCED);
		if (rc == RP_OK) {
			SAME(d.seen_after_fence, RP_WORD(1, s, RP_UPDATING));
			OK(rp_step_exit(r.h, s++, 0, NULL, &failure));
		} else
			SAME(atomic_load(&r.daemon.control->step.word), RP_WORD(1, s - 1, RP_IDLE));
		atomic_store(&r.daemon.control->fence.word, 0); /* a next round on the same epoch: the test's privilege */
	}
	rank_end(&r);
}

const test words_tests[] = {{"in order", in_order}, {"says what it resumed from", says_what_it_resumed_from}, {"says what it began with", says_what_it_began_with}, {"backs out when fenced", backs_out_when_fenced}, {"words of another owner", words_of_another_owner}, {"good freezes", good_freezes}, {"fence against enter", fence_against_enter}, {"fence before UPDATING", fence_before_updating}, {"words of an older epoch", words_of_an_older_epoch}, {"ready looks at the fence", ready_looks_at_the_fence}, {0}};
