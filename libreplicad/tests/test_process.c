/* test_process.c: forks, kills, and a daemon that goes away. */
#include <math.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "harness.h"

static void child_touches_nothing(void) {
	rank r;
	rank_start(&r, 100);
	pid_t pid = fork();
	CHECK(pid >= 0);
	if (pid == 0) {
		rp_error e;
		rp_join_info info = {.struct_size = sizeof info};
		size_t n = 0;
		int armed;
		bool ok = rp_step_enter(r.h, 1, 0, &e) == RP_EFORK && rp_step_exit(r.h, 1, 0, &armed, &e) == RP_EFORK && rp_join(r.h, &info, 0, &e) == RP_EFORK && rp_load(r.h, &e) == RP_EFORK &&
			  rp_ready(r.h, 0, &e) == RP_EFORK && rp_capture(r.h, &e) == RP_EFORK && rp_notify(r.h) == RP_EFORK && rp_reconnect(r.h, 0, &e) == RP_EFORK && rp_seal_initial(r.h, &e) == RP_EFORK &&
			  GOOD(r.h, 1) == RP_EFORK && STAGED(r.h, 1) == RP_EFORK && rp_freeze_good(r.h, 1) == RP_EFORK && rp_kv_set(r.h, "k", "v", 1, 0, &e) == RP_EFORK && rp_kv_get(r.h, "k", NULL, &n, 0, &e) == RP_EFORK &&
			  rp_barrier(r.h, "b", 1, 0, &e) == RP_EFORK && rp_scope(r.h, NULL, 0, &e) == RP_EFORK && rp_kv_check(r.h, "k", 0, &e) == RP_EFORK && rp_kv_add(r.h, "k", 1, NULL, 0, &e) == RP_EFORK &&
			  rp_kv_compare_set(r.h, "k", "", 0, "", 0, NULL, &n, 0, &e) == RP_EFORK && rp_kv_delete(r.h, "k", NULL, 0, &e) == RP_EFORK && rp_fail(r.h, "x", &e) == RP_EFORK && rp_reject(r.h, "x", &e) == RP_EFORK && rp_pause(r.h, 1, &e) == RP_EFORK && rp_ending(r.h, 1, &e) == RP_EFORK && rp_lacks(r.h, "x", &e) == RP_EFORK && rp_say(r.h, NULL, 0, &e) == RP_EFORK && rp_seal_step(r.h, 0, &e) == RP_EFORK && rp_leave(r.h, 0, &e) == RP_EFORK && rp_attach(r.h, 0, &e) == RP_EFORK && rp_set_group(r.h, 0, &e) == RP_EFORK && rp_fenced(r.h) == 0 && rp_ordered(r.h) == 0 &&
			  rp_committed(r.h) == 0 && rp_fd(r.h) == -1;
		rp_cancel(r.h);
		rp_close(r.h);
		/* The arena is not mapped here: msync of it fails. */
		_exit(ok && msync(r.h->arena, RP_PAGE, MS_ASYNC) != 0 ? 0 : 1);
	}
	int status;
	CHECK(waitpid(pid, &status, 0) == pid);
	SAME(status, 0);
	OK(rp_step_enter(r.h, 1, 0, &failure)); /* the parent goes on */
	rank_end(&r);
}

/* The child is killed at seeded moments while it trains and copies. Its words and places are then all that is left: what is SEALED
 * is whole, and what is COPIED could be sealed by the daemon. */
static void killed_while_copying(void) {
	rank r;
	rank_start(&r, 300000);
	unsigned seed = 7, at[5] = {0};
	for (int round = 0; round < 25; round++) {
		fflush(NULL);
		pid_t pid = fork();
		CHECK(pid >= 0);
		if (pid == 0) {
			rank c = {0};
			rp_join_info info;
			rank_open(&c, &r.daemon, r.weights, 0);
			bool ok = rp_attach(c.h, 20ll * second, NULL) == RP_OK && rank_join(&c, &info) == RP_OK && rp_load(c.h, NULL) == RP_OK && rp_ready(c.h, 20ll * second, NULL) == RP_OK;
			for (uint64_t s = 1; ok; s++) {
				ok = rp_step_enter(c.h, s, 0, NULL) == RP_OK && GOOD(c.h, s) == RP_OK && rp_step_exit(c.h, s, 0, NULL, NULL) == RP_OK;
				rp_capture(c.h, NULL);
				for (uint32_t i = 1; i < 4; i++) { /* the daemon's part: keeps slots coming */
					uint64_t w = atomic_load(&r.daemon.control->slot[i].word);
					if (RP_SLOT_STATE(w) == RP_SEALED)
						atomic_compare_exchange_strong(&r.daemon.control->slot[i].word, &w, RP_SLOT(RP_SLOT_COUNT(w) + 1, RP_FREE));
				}
			}
			_exit(1);
		}
		struct timespec t = {0, 2000000 + rand_r(&seed) % 20000000};
		nanosleep(&t, NULL);
		CHECK(kill(pid, SIGKILL) == 0);
		int status;
		CHECK(waitpid(pid, &status, 0) == pid && WIFSIGNALED(status));
		for (uint32_t i = 1; i < 4; i++) {
			rpi_place p = rpi_slot(r.h, i);
			uint64_t w = atomic_load(p.word);
			at[RP_SLOT_STATE(w)]++;
			if (RP_SLOT_STATE(w) == RP_COPIED || RP_SLOT_STATE(w) == RP_SEALED) {
				CHECK(whole(r.h, p, RPI_PART_REPLICATED, RP_SLOT_STATE(w) == RP_SEALED));
				CHECK(rpi_good(r.h, p.meta->generation));
			}
			atomic_store(p.word, RP_SLOT(RP_SLOT_COUNT(w) + 1, RP_FREE));
		}
		for (uint32_t i = 1; i < 8; i++) {
			rpi_place p = rpi_ring(r.h, i);
			uint64_t w = atomic_load(p.word);
			CHECK(RP_SLOT_STATE(w) != RP_SEALED || whole(r.h, p, RPI_PART_PRIVATE, true));
			atomic_store(p.word, RP_SLOT(RP_SLOT_COUNT(w) + 1, RP_FREE));
		}
		CHECK(whole(r.h, rpi_slot(r.h, 0), RPI_PART_REPLICATED, true)); /* what was committed is intact */
	}
	fprintf(stderr, "    found free %u, copying %u, copied %u, sealed %u\n", at[0], at[1], at[2], at[3]);
	CHECK(at[RP_COPYING] + at[RP_COPIED] > 0);
	rank_end(&r);
}

static void daemon_goes_away(void) {
	rank r;
	rank_start(&r, 100);
	fake_hang_up(&r.daemon);
	OK(rp_step_enter(r.h, 1, 0, &failure));
	OK(GOOD(r.h, 1));
	OK(rp_step_exit(r.h, 1, 0, NULL, &failure));
	SAME(rp_capture(r.h, &failure), RP_EGONE);
	SAME(RP_SLOT_STATE(atomic_load(&r.daemon.control->slot[1].word)), RP_SEALED);
	SAME(rp_notify(r.h), RP_EGONE);
	SAME(rp_reconnect(r.h, 0, &failure), RP_EGONE);
	SAME(rp_kv_set(r.h, "k", "v", 1, second, &failure), RP_EGONE);
	unsigned before = atomic_load(&r.daemon.sealed);
	fake_start(&r.daemon);
	int fd = rp_fd(r.h);
	OK(rp_reconnect(r.h, 20ll * second, &failure));
	SAME(rp_fd(r.h), fd);
	OK(rp_notify(r.h));
	OK(rp_kv_set(r.h, "k", "v", 1, 20ll * second, &failure)); /* answered after what was sent before it */
	SAME(atomic_load(&r.daemon.sealed), before + 2);
	OK(rp_step_enter(r.h, 2, 0, &failure));
	rank_end(&r);
}

/* A daemon that takes the rank for another incarnation, newer or older, has another process for it: the handle is at its end. */
static void reconnect_to_another_incarnation(void) {
	for (uint64_t other = 4; other <= 6; other++) {
		rank r;
		rank_start(&r, 100);
		fake_hang_up(&r.daemon);
		SAME(rp_notify(r.h), RP_EGONE);
		r.daemon.granted = other;
		fake_start(&r.daemon);
		SAME(rp_reconnect(r.h, 20ll * second, &failure), other == 5 ? RP_OK : RP_ESTOPPED);
		rp_join_info info = {.struct_size = sizeof info};
		if (other != 5)
			SAME(rp_join(r.h, &info, 1000000, &failure), RP_ESTOPPED);
		rank_end(&r);
	}
}

static const rpi_hasher *plain;
static rp_control *moving;

/* The good word moves to another epoch while the last chunk is copied. */
static void gather_and_move(uint8_t *dst, const rpi_layout *l, uint64_t at, uint64_t n, uint8_t digest[16]) {
	plain->gather(dst, l, at, n, digest);
	if (at + n == l->bytes)
		atomic_store(&moving->good.word, RP_WORD(2, 9, 0));
}

/* What was good when its copy began need not be when it ends: COPIED asks again, or a daemon would seal it in a dead rank's name. */
static void good_is_asked_again_when_copied(void) {
	rank r;
	int armed;
	rank_start(&r, 5000);
	OK(rp_step_enter(r.h, 1, 0, &failure));
	OK(GOOD(r.h, 1));
	OK(rp_step_exit(r.h, 1, 0, &armed, &failure));
	SAME(armed, 1);
	plain = r.h->hash, moving = r.h->control;
	rpi_hasher h = {.gather = gather_and_move, .digest = plain->digest};
	r.h->hash = &h;
	SAME(rp_capture(r.h, &failure), RP_ECANCELED);
	r.h->hash = plain;
	for (uint32_t i = 1; i < r.h->geo.slots; i++) {
		unsigned state = RP_SLOT_STATE(atomic_load(rpi_slot(r.h, i).word));
		CHECK(state != RP_COPIED && state != RP_SEALED);
	}
	rank_end(&r);
}

static void refused_then_attached(void) {
	rank r = {0};
	r.daemon = (fake){.chunk = 4096, .slots = 2, .ring = 4, .refuse = RP_EAGAIN};
	fake_start(&r.daemon);
	rank_open(&r, &r.daemon, 100, 0);
	SAME(rp_step_enter(r.h, 1, 0, &failure), RP_ESTATE);
	SAME(rp_attach(r.h, 20ll * second, &failure), RP_EAGAIN);
	CHECK(strcmp(failure.text, "refused by the daemon: no.") == 0);
	r.daemon.refuse = RP_EREFUSED;
	SAME(rp_attach(r.h, 20ll * second, &failure), RP_EREFUSED);
	CHECK(strcmp(failure.text, "no.") == 0); /* "refused by the daemon" is rp_strerror's */
	OK(rp_attach(r.h, 20ll * second, &failure));
	SAME(rp_attach(r.h, 0, &failure), RP_ESTATE);
	rp_join_info info = {.struct_size = sizeof info};
	SAME(rp_join(r.h, &info, 1000000, &failure), RP_ETIMEOUT);
	rank_end(&r);
}

/* The reason of a refusal arrives whatever of this side's messages the daemon has read when it hangs up. */
static void refused_before_it_hung_up(void) {
	rank r = {0};
	r.daemon = (fake){.chunk = 4096, .slots = 2, .ring = 4};
	fake_start(&r.daemon);
	rp_handle *h;
	rp_options o = {.struct_size = sizeof o, .world = 4, .socket_path = r.daemon.path, .job = "opticks", .rank = 2, .timeout_ns = 20ll * second};
	static const int codes[] = {RP_EREFUSED, RP_EAGAIN, RP_EVERSION};
	for (size_t i = 0; i < sizeof codes / sizeof *codes; i++) {
		r.daemon.part_with = codes[i]; /* as soon as it is connected; its hello stays unread */
		SAME(rp_open(&o, &h, &failure), codes[i]);
		CHECK(strstr(failure.text, "no."));
	}
	r.daemon.part_with = -1;
	SAME(rp_open(&o, &h, &failure), RP_EGONE);
	rank_open(&r, &r.daemon, 100, 0);
	r.daemon.part_at = RP_M_REGIONS; /* the attach behind it stays unread */
	r.daemon.part_with = RP_EINVAL;
	SAME(rp_attach(r.h, 20ll * second, &failure), RP_EINVAL);
	CHECK(strcmp(failure.text, "refused by the daemon: no.") == 0);
	r.daemon.part_with = -1;
	SAME(rp_attach(r.h, 20ll * second, &failure), RP_EGONE);
	OK(rp_attach(r.h, 20ll * second, &failure));
	rank_end(&r);
}

/* Another user's process that answers on the socket hears nothing, unless the launcher named that user. */
static void a_stranger_answers(void) {
	if (geteuid() != 0)
		return; /* only root can be another user */
	struct sockaddr_un a = {.sun_family = AF_UNIX};
	snprintf(a.sun_path, sizeof a.sun_path, "/tmp/replicad-c-test-stranger-%d", (int)getpid());
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	CHECK(fd >= 0 && bind(fd, (struct sockaddr *)&a, sizeof a) == 0);
	CHECK(seteuid(61002) == 0 && listen(fd, 8) == 0 && seteuid(0) == 0); /* the kernel says who listens */
	rp_handle *h;
	rp_options o = {.struct_size = sizeof o, .world = 4, .socket_path = a.sun_path, .job = "opticks", .rank = 2, .timeout_ns = 20ll * second};
	SAME(rp_open(&o, &h, &failure), RP_EINVAL);
	CHECK(strstr(failure.text, "user 61002") && strstr(failure.text, "daemon_user"));
	char byte;
	int c = accept4(fd, NULL, NULL, SOCK_CLOEXEC);
	CHECK(c >= 0 && recv(c, &byte, 1, 0) <= 0);
	close(c);
	setenv("REPLICAD_DAEMON_UID", "61002", 1);
	o.timeout_ns = second / 20;
	SAME(rp_open(&o, &h, &failure), RP_ETIMEOUT); /* it is heard, and says nothing */
	unsetenv("REPLICAD_DAEMON_UID");
	close(fd);
	unlink(a.sun_path);
}

/* And it arrives where only something that expects no answer was said. */
static void refused_while_training(void) {
	rank r;
	rank_start(&r, 100);
	r.daemon.part_at = RP_M_PAUSE;
	r.daemon.part_with = RP_EINVAL;
	int rc;
	while ((rc = rp_pause(r.h, second, &failure)) == RP_OK)
		;
	SAME(rc, RP_EINVAL);
	CHECK(strcmp(failure.text, "refused by the daemon: no.") == 0);
	OK(rp_reconnect(r.h, 20ll * second, &failure));
	OK(rp_pause(r.h, 0, &failure));
	rank_end(&r);
}

/* What the daemon heard, once it has answered something that was sent later. */
static const char *heard(rank *r, unsigned times) {
	OK(rp_kv_set(r->h, "k", "v", 1, 20ll * second, &failure));
	SAME(atomic_load(&r->daemon.lacking), times);
	return r->daemon.lacks;
}

static void says_what_its_copies_lack(void) {
	rank r;
	memset(&r, 0, sizeof r);
	r.daemon = (fake){.chunk = 4096, .slots = 4, .ring = 8};
	fake_start(&r.daemon);
	rank_open(&r, &r.daemon, 100, 0);
	r.daemon.scope = 1;
	SAME(rp_lacks(r.h, "x", &failure), RP_ESTATE);
	OK(rp_attach(r.h, 20ll * second, &failure));
	SAME(rp_lacks(r.h, NULL, &failure), RP_EINVAL);
	OK(rp_lacks(r.h, "", &failure)); /* nothing was said before */
	OK(rp_scope(r.h, &(uint64_t){0}, 20ll * second, &failure));
	SAME(atomic_load(&r.daemon.lacking), 0);
	OK(rp_lacks(r.h, "teacher", &failure));
	OK(rp_lacks(r.h, "teacher", &failure)); /* said already */
	CHECK(strcmp(heard(&r, 1), "teacher") == 0);
	char many[RP_MAX_LACKS + 8];
	memset(many, 'x', sizeof many);
	memcpy(many + RP_MAX_LACKS - 1, "\xc3\xa9", 3); /* a character that would end one byte too late */
	OK(rp_lacks(r.h, many, &failure));
	SAME(strlen(heard(&r, 2)), RP_MAX_LACKS - 1);
	OK(rp_lacks(r.h, "", &failure));
	CHECK(strcmp(heard(&r, 3), "") == 0);
	rank_end(&r);
}

/* A daemon that was away hears what was said before, and what was said meanwhile: that nothing is lacking, too. */
static void says_what_its_copies_lack_again(void) {
	rank r;
	rank_start(&r, 100);
	OK(rp_lacks(r.h, "teacher", &failure));
	CHECK(strcmp(heard(&r, 1), "teacher") == 0);
	const char *meanwhile[] = {"teacher", "critic", ""};
	for (unsigned i = 0; i < 3; i++) {
		fake_hang_up(&r.daemon);
		OK(rp_lacks(r.h, meanwhile[i], &failure));
		SAME(rp_notify(r.h), RP_EGONE);
		fake_start(&r.daemon);
		OK(rp_reconnect(r.h, 20ll * second, &failure));
		OK(rp_notify(r.h));
		CHECK(strcmp(heard(&r, 2 + i), meanwhile[i]) == 0);
	}
	rank_end(&r);
}

/* What the daemon heard of pauses, once it has answered something that was sent later. */
static uint64_t heard_pause(rank *r, unsigned times) {
	OK(rp_kv_set(r->h, "k", "v", 1, 20ll * second, &failure));
	SAME(atomic_load(&r->daemon.pausing), times);
	return r->daemon.paused_ns;
}

/* A daemon that was away hears what is left of a pause, and nothing of one that is over. */
static void says_again_that_it_stands_still(void) {
	rank r;
	rank_start(&r, 100);
	uint64_t day = 86400ull * second;
	SAME(rp_pause(r.h, -1, &failure), RP_EINVAL);
	OK(rp_pause(r.h, (int64_t)day, &failure));
	SAME(heard_pause(&r, 1), day);
	fake_hang_up(&r.daemon);
	SAME(rp_notify(r.h), RP_EGONE);
	fake_start(&r.daemon);
	OK(rp_reconnect(r.h, 20ll * second, &failure));
	OK(rp_notify(r.h));
	uint64_t left = heard_pause(&r, 2);
	CHECK(left < day && left > day / 2);
	fake_hang_up(&r.daemon);
	SAME(rp_notify(r.h), RP_EGONE);
	SAME(rp_pause(r.h, (int64_t)day, &failure), RP_EGONE); /* it begins meanwhile */
	fake_start(&r.daemon);
	OK(rp_reconnect(r.h, 20ll * second, &failure));
	CHECK(heard_pause(&r, 3) > day / 2);
	fake_hang_up(&r.daemon);
	SAME(rp_notify(r.h), RP_EGONE);
	SAME(rp_pause(r.h, 0, &failure), RP_EGONE);
	fake_start(&r.daemon);
	OK(rp_reconnect(r.h, 20ll * second, &failure));
	heard_pause(&r, 3);
	rank_end(&r);
}

/* What the daemon heard of a rank's remarks, once it has answered something that was sent later. */
static const fake *heard_said(rank *r, unsigned times) {
	OK(rp_kv_set(r->h, "k", "v", 1, 20ll * second, &failure));
	SAME(atomic_load(&r->daemon.saying), times);
	return &r->daemon;
}

static void says_remarks(void) {
	rank r;
	memset(&r, 0, sizeof r);
	r.daemon = (fake){.chunk = 4096, .slots = 4, .ring = 8};
	fake_start(&r.daemon);
	rank_open(&r, &r.daemon, 100, 0);
	r.daemon.scope = 1;
	rp_remark two[] = {{.kind = RP_NOTE, .name = "data", .text = "v2"}, {.kind = RP_METRIC, .name = "loss", .value = 0.25, .step = 7}};
	SAME(rp_say(r.h, two, 2, &failure), RP_ESTATE);
	OK(rp_attach(r.h, 20ll * second, &failure));
	OK(rp_scope(r.h, &(uint64_t){0}, 20ll * second, &failure));
	char name[RP_MAX_REMARK_NAME + 2] = {0}, text[RP_MAX_REMARK_TEXT + 2] = {0};
	memset(name, 'n', sizeof name - 1);
	memset(text, 't', sizeof text - 1);
	const rp_remark bad[] = {{.kind = 9, .name = "x", .text = ""}, {.kind = RP_NOTE, .text = ""}, {.kind = RP_NOTE, .name = "", .text = ""}, {.kind = RP_NOTE, .name = name, .text = ""}, {.kind = RP_NOTE, .name = "x", .text = text},
				 {.kind = RP_NOTE, .name = "x"}, {.kind = RP_METRIC, .name = "x", .text = ""}, {.kind = RP_VERSION, .name = "x", .text = "", .step = 1}, {.kind = RP_METRIC, .name = "x", .value = HUGE_VAL}, {.kind = RP_LOADER_EPOCH, .name = "x", .value = NAN}};
	for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
		SAME(rp_say(r.h, &bad[i], 1, &failure), RP_EINVAL);
	SAME(rp_say(r.h, NULL, 1, &failure), RP_EINVAL);
	SAME(rp_say(r.h, two, RP_MAX_REMARKS + 1, &failure), RP_EINVAL);
	SAME(heard_said(&r, 0)->said_bytes, 0);
	OK(rp_say(r.h, two, 2, &failure));
	const fake *d = heard_said(&r, 1);
	rp_said_remark head[2];
	memcpy(&head[0], d->said, sizeof head[0]);
	memcpy(&head[1], d->said + sizeof head[0] + 6, sizeof head[1]);
	SAME(d->said_bytes, 2 * sizeof head[0] + 10);
	CHECK(memcmp(d->said + sizeof head[0], "datav2", 6) == 0 && memcmp(d->said + 2 * sizeof head[0] + 6, "loss", 4) == 0);
	SAME(head[1].step, 7);
	CHECK(head[1].value == 0.25);
	rp_remark none = {.kind = RP_METRIC, .name = "loss", .value = NAN, .step = 8};
	OK(rp_say(r.h, &none, 1, &failure));
	memcpy(&head[0], heard_said(&r, 2)->said, sizeof head[0]);
	CHECK(isnan(head[0].value));
	/* As much as fits, of which a message has room. */
	static char names[RP_MAX_REMARKS][RP_MAX_REMARK_NAME + 1];
	static rp_remark all[RP_MAX_REMARKS];
	name[RP_MAX_REMARK_NAME] = text[RP_MAX_REMARK_TEXT] = 0;
	for (unsigned i = 0; i < RP_MAX_REMARKS; i++) {
		memcpy(names[i], name, sizeof names[i]);
		names[i][0] = (char)('a' + i % 16);
		names[i][1] = (char)('a' + i / 16);
		all[i] = i < 128 ? (rp_remark){.kind = i % 2 ? RP_NOTE : RP_VERSION, .name = names[i], .text = text} : (rp_remark){.kind = i % 2 ? RP_METRIC : RP_LOADER_EPOCH, .name = names[i], .value = 1};
	}
	OK(rp_say(r.h, all, RP_MAX_REMARKS, &failure));
	SAME(heard_said(&r, 3)->said_bytes, RP_MAX_SAID);
	all[200].kind = RP_METRIC; /* one more than there may be */
	SAME(rp_say(r.h, all, RP_MAX_REMARKS, &failure), RP_EINVAL);
	SAME(rp_say(r.h, (rp_remark[]){two[0], two[0]}, 2, &failure), RP_EINVAL);
	/* A daemon that was away hears it again. */
	fake_hang_up(&r.daemon);
	OK(rp_say(r.h, two, 2, &failure));
	SAME(rp_notify(r.h), RP_EGONE);
	fake_start(&r.daemon);
	OK(rp_reconnect(r.h, 20ll * second, &failure));
	SAME(heard_said(&r, 4)->said_bytes, 2 * sizeof head[0] + 10);
	OK(rp_notify(r.h));
	heard_said(&r, 4);
	rank_end(&r);
}

const test process_tests[] = {{"child touches nothing", child_touches_nothing}, {"killed while copying", killed_while_copying}, {"daemon goes away", daemon_goes_away}, {"refused then attached", refused_then_attached}, {"refused before it hung up", refused_before_it_hung_up}, {"refused while training", refused_while_training}, {"a stranger answers", a_stranger_answers}, {"reconnect to another incarnation", reconnect_to_another_incarnation},
			      {"good is asked again when copied", good_is_asked_again_when_copied}, {"says what its copies lack", says_what_its_copies_lack}, {"says what its copies lack again", says_what_its_copies_lack_again}, {"says again that it stands still", says_again_that_it_stands_still}, {"says remarks", says_remarks}, {0}};
