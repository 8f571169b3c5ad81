/* test_kv.c: the rendezvous: what it is asked for, when, and what counts once. */
#include "harness.h"

enum { soon = 1000000, patient = 20 };

static int64_t add(rank *r, const char *key, int64_t delta) {
	int64_t total = -99;
	OK(rp_kv_add(r->h, key, delta, &total, (int64_t)patient * second, &failure));
	return total;
}

/* A call that was not answered goes on as the same write; any other write gives it up. */
static void writes_count_once(void) {
	rank r;
	rank_start(&r, 100);
	SAME(add(&r, "n", 5), 5);
	SAME(add(&r, "n", 5), 10); /* an answered one is over */
	r.daemon.total = 0;
	uint32_t before = r.daemon.kv.once;

	r.daemon.drop = 1; /* taken, and counted by somebody, but the answer is lost */
	SAME(rp_kv_add(r.h, "n", 7, NULL, soon, &failure), RP_ETIMEOUT);
	SAME(add(&r, "n", 7), 7);
	SAME(r.daemon.kv.once, before + 1);

	r.daemon.drop = 1;
	SAME(rp_kv_add(r.h, "n", 7, NULL, soon, &failure), RP_ETIMEOUT);
	SAME(add(&r, "n", 8), 15);
	SAME(r.daemon.kv.once, before + 3);
	SAME(add(&r, "n", 7), 22);
	SAME(r.daemon.kv.once, before + 4);

	r.daemon.drop = 1;
	SAME(rp_kv_add(r.h, "n", 1, NULL, soon, &failure), RP_ETIMEOUT);
	SAME(rp_kv_check(r.h, "k", (int64_t)patient * second, &failure), RP_EAGAIN); /* a read gives nothing up */
	SAME(r.daemon.kv.once, 0);
	SAME(add(&r, "n", 1), 23);
	SAME(r.daemon.kv.once, before + 5);
	r.daemon.drop = 1;
	SAME(rp_kv_add(r.h, "n", 1, NULL, soon, &failure), RP_ETIMEOUT);
	SAME(add(&r, "m", 1), 24);
	SAME(r.daemon.kv.once, before + 7); /* another key is another write */

	r.h->once = UINT32_MAX;
	SAME(add(&r, "n", 1), 25);
	SAME(r.daemon.kv.once, 1);
	rank_end(&r);
}

static void compares_and_deletes(void) {
	rank r;
	rank_start(&r, 100);
	char value[8];
	size_t n = sizeof value;
	SAME(rp_kv_check(r.h, "k", (int64_t)patient * second, &failure), RP_EAGAIN);
	OK(rp_kv_compare_set(r.h, "k", NULL, 0, "one", 3, value, &n, (int64_t)patient * second, &failure));
	CHECK(n == 3 && memcmp(value, "one", 3) == 0);
	OK(rp_kv_check(r.h, "k", (int64_t)patient * second, &failure));
	n = sizeof value;
	OK(rp_kv_compare_set(r.h, "k", "two", 3, "three", 5, value, &n, (int64_t)patient * second, &failure));
	CHECK(n == 3 && memcmp(value, "one", 3) == 0);
	n = 2;
	SAME(rp_kv_compare_set(r.h, "k", "one", 3, "two", 3, value, &n, (int64_t)patient * second, &failure), RP_EINVAL);
	SAME(n, 3);
	int deleted;
	OK(rp_kv_delete(r.h, "k", &deleted, (int64_t)patient * second, &failure));
	SAME(deleted, 1);
	OK(rp_kv_delete(r.h, "k", &deleted, (int64_t)patient * second, &failure));
	SAME(deleted, 0);
	static char big[RPI_MAX_VALUE];
	SAME(rp_kv_compare_set(r.h, "k", big, sizeof big, "x", 1, value, &n, 0, &failure), RP_EINVAL);
	SAME(rp_kv_compare_set(r.h, "k", "x", SIZE_MAX, "x", 1, value, &n, 0, &failure), RP_EINVAL);
	SAME(rp_kv_compare_set(r.h, "k", NULL, 1, "x", 1, value, &n, 0, &failure), RP_EINVAL);
	rank_end(&r);
}

/* New processes meet before they know what they register. */
static void scope_before_attach(void) {
	rank r = {0};
	uint64_t epoch = 0;
	r.daemon = (fake){.chunk = 4096, .slots = 2, .ring = 4, .scope = 8};
	fake_start(&r.daemon);
	rank_open(&r, &r.daemon, 100, 0);
	SAME(rp_kv_set(r.h, "k", "v", 1, 0, &failure), RP_ESTATE);
	OK(rp_scope(r.h, &epoch, (int64_t)patient * second, &failure));
	SAME(epoch, 8);
	OK(rp_kv_set(r.h, "k", "v", 1, (int64_t)patient * second, &failure));
	SAME(r.daemon.kv_epoch, 8);
	SAME(rp_fenced(r.h), 0);

	fake_hang_up(&r.daemon); /* the daemon comes back: there is no arena to offer, only a hello to say again */
	SAME(rp_kv_set(r.h, "k", "v", 1, second, &failure), RP_EGONE);
	SAME(rp_reconnect(r.h, 0, &failure), RP_EGONE);
	fake_start(&r.daemon);
	OK(rp_reconnect(r.h, (int64_t)patient * second, &failure));
	OK(rp_barrier(r.h, "b", 2, (int64_t)patient * second, &failure));
	fake_hang_up(&r.daemon);
	r.daemon.scope = 9;
	fake_start(&r.daemon);
	OK(rp_scope(r.h, &epoch, (int64_t)patient * second, &failure));
	SAME(epoch, 9);
	OK(rp_attach(r.h, (int64_t)patient * second, &failure));
	OK(rp_kv_set(r.h, "k", "v", 1, (int64_t)patient * second, &failure));
	SAME(r.daemon.kv_epoch, 9);
	atomic_store(&r.daemon.control->fence.word, 9);
	SAME(rp_kv_set(r.h, "k", "v", 1, (int64_t)patient * second, &failure), RP_EFENCED);
	rank_end(&r);
}

/* A survivor meets them after the fence; rp_join goes back to the epoch it names. */
static void scope_after_a_fence(void) {
	rank r;
	rank_start(&r, 100);
	OK(rp_kv_set(r.h, "k", "v", 1, (int64_t)patient * second, &failure));
	SAME(r.daemon.kv_epoch, 1);
	atomic_store(&r.daemon.control->fence.word, 1);
	SAME(rp_kv_add(r.h, "n", 1, NULL, (int64_t)patient * second, &failure), RP_EFENCED);
	r.daemon.scope = 2;
	OK(rp_scope(r.h, NULL, (int64_t)patient * second, &failure));
	CHECK(rp_fenced(r.h)); /* of the epoch it worked under */
	SAME(add(&r, "n", 1), 1);
	SAME(r.daemon.kv_epoch, 2);
	r.daemon.drop = 1; /* a wait ends with the scope's epoch, not with the handle's */
	SAME(rp_kv_get(r.h, "k", NULL, &(size_t){0}, soon, &failure), RP_ETIMEOUT);
	atomic_store(&r.daemon.control->fence.word, 2);
	SAME(rp_kv_get(r.h, "k", NULL, &(size_t){0}, soon, &failure), RP_EFENCED);
	rp_join_info info;
	fake_order(&r.daemon, 3, RP_ORDER_LOAD, 0, 0, 0);
	OK(rank_join(&r, &info));
	OK(rp_kv_set(r.h, "k", "v", 1, (int64_t)patient * second, &failure));
	SAME(r.daemon.kv_epoch, 3);
	r.daemon.scope = 0;
	SAME(rp_scope(r.h, NULL, (int64_t)patient * second, &failure), RP_EVERSION);
	SAME(rp_scope(r.h, NULL, -1, &failure), RP_EINVAL);
	rank_end(&r);
}

const test kv_tests[] = {{"writes count once", writes_count_once}, {"compares and deletes", compares_and_deletes}, {"scope before attach", scope_before_attach}, {"scope after a fence", scope_after_a_fence}, {0}};
