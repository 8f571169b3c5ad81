/* words_and_capture: what the training thread pays for a step, and what a capture costs against memcpy in the same run.
 *
 * The daemon is the C tests' fake one. System calls are counted by a tracing parent between two marks, so that none can hide. */
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <malloc.h>
#include <unistd.h>

#include "../../libreplicad/tests/harness.h"

rp_error failure;

enum { rounds = 200000, traced = 1000, repeats = 9 };

static int by_value(const void *a, const void *b) { return (*(const double *)a > *(const double *)b) - (*(const double *)a < *(const double *)b); }

static double median(double *v, int n) {
	qsort(v, (size_t)n, sizeof *v, by_value);
	return v[n / 2];
}

static rp_region region(const char *name, int kind, int cls, void *data, uint64_t bytes) {
	return (rp_region){.struct_size = sizeof(rp_region), .dtype = RP_U8, .kind = (uint8_t)kind, .cls = (uint8_t)cls, .ndim = 1, .name = name, .data = data, .bytes = bytes, .shape = {bytes}};
}

/* Of a window region: the next one lies apart, so that a copy of one is no copy of two. */
static uint64_t stride(uint64_t bytes) { return (bytes + 127) & ~63ull; }

/* A rank at step 0 of epoch 1 with so many window regions of so many bytes, and small ones of the other kinds. */
static rp_handle *start_with(fake *f, uint8_t *live, uint32_t regions, uint64_t window, uint64_t small) {
	rp_handle *h;
	rp_join_info info = {.struct_size = sizeof info};
	rp_options o = {.struct_size = sizeof o, .world = 4, .socket_path = f->path, .job = "bench", .rank = 2, .timeout_ns = 20ll * second};
	OK(rp_open(&o, &h, &failure));
	rp_region *r = calloc(regions + 2, sizeof *r);
	char(*name)[32] = calloc(regions, sizeof *name);
	CHECK(r && name);
	for (uint32_t i = 0; i < regions; i++) {
		snprintf(name[i], sizeof *name, "window-%05u", i);
		r[i] = region(name[i], RP_REPLICATED, RP_WINDOW, live + i * stride(window), window);
	}
	static uint8_t smalls[2][4096];
	CHECK(small <= sizeof *smalls);
	r[regions] = region("private", RP_PRIVATE, RP_VOLATILE, smalls[0], small);
	r[regions + 1] = region("volatile", RP_REPLICATED, RP_VOLATILE, smalls[1], small);
	OK(rp_register(h, r, regions + 2, &failure));
	free(name), free(r);
	if (!f->geometry)
		f->geometry = h;
	OK(rp_attach(h, 60ll * second, &failure));
	if (f->epoch == 0) {
		fake_order(f, 1, RP_ORDER_INIT, 0, 0, 0);
		OK(rp_join(h, &info, 20ll * second, &failure));
		OK(rp_seal_initial(h, &failure));
		fake_order(f, 1, RP_ORDER_LOAD, 0, 0, 0);
	}
	OK(rp_join(h, &info, 20ll * second, &failure));
	OK(rp_load(h, &failure));
	OK(rp_ready(h, 20ll * second, &failure));
	return h;
}

static rp_handle *start(fake *f, uint8_t *live, uint64_t window, uint64_t small) { return start_with(f, live, 1, window, small); }

static void free_places(fake *f, bool full) {
	for (uint32_t i = 1; i < f->ring; i++) {
		uint64_t w = atomic_load(&f->control->place[i].word);
		atomic_store(&f->control->place[i].word, full ? RP_SLOT(RP_SLOT_COUNT(w), RP_SEALED) : RP_SLOT(RP_SLOT_COUNT(w) + 1, RP_FREE));
	}
}

static void step(rp_handle *h, uint64_t s) {
	OK(rp_step_enter(h, s, 0, &failure));
	OK(GOOD(h, s));
	OK(rp_step_exit(h, s, 0, NULL, &failure));
}

/* ns a step, of the step words of one handle; no capture is due, so that nobody waits for a worker. full: the ring has no place, nothing is copied. */
static double steps_ns(fake *f, rp_handle *h, uint64_t *s, int n, bool full) {
	int64_t spent = 0;
	for (int i = 0; i < n; i += 8) {
		free_places(f, full);
		int64_t began = rpi_now();
		for (int j = 0; j < 8; j++)
			step(h, ++*s);
		spent += rpi_now() - began;
	}
	return (double)spent / n;
}

static double step_ns(fake *f, rp_handle *h, uint64_t *s, bool full) {
	double ns[repeats];
	for (int k = 0; k < repeats; k++)
		ns[k] = steps_ns(f, h, s, rounds / repeats / 8 * 8, full);
	return median(ns, repeats);
}

static void words(uint64_t small) {
	fake f = {.chunk = 4 << 20, .slots = 4, .ring = 16};
	uint8_t *live = calloc(1, 1 << 20);
	fake_start(&f);
	rp_handle *h = start(&f, live, 4096, small);
	atomic_store(&f.control->cadence.word, 1ull << 37);
	uint64_t s = 0;
	if (small == 0)
		printf("words alone: step_enter + set_good + step_exit         %8.0f ns\n", step_ns(&f, h, &s, true));
	else {
		printf("... with %llu bytes of volatile regions staged         %8.0f ns\n", (unsigned long long)small, step_ns(&f, h, &s, true));
		printf("... and a private part of %llu bytes sealed            %8.0f ns\n", (unsigned long long)small, step_ns(&f, h, &s, false));
	}
	struct mallinfo2 before = mallinfo2();
	for (int i = 0; i < traced; i++)
		step(h, ++s);
	struct mallinfo2 after = mallinfo2();
	printf("    heap bytes after %d steps more than before: %lld\n", traced, (long long)after.uordblks - (long long)before.uordblks);
	rp_close(h);
	fake_stop(&f);
	free(live);
}

static void mark(void) { syscall(SYS_getppid); }

/* Counts the system calls a child makes between its marks, while it steps. */
static void system_calls(void) {
	fake f = {.chunk = 4 << 20, .slots = 4, .ring = 16};
	uint8_t *live = calloc(1, 1 << 20);
	fake_start(&f);
	rp_handle *mine = start(&f, live, 4096, 4096);
	atomic_store(&f.control->cadence.word, 1ull << 37);
	fflush(NULL);
	pid_t pid = fork();
	CHECK(pid >= 0);
	if (pid == 0) {
		rp_handle *h = start(&f, live, 4096, 4096);
		uint64_t s = 0;
		step(h, ++s); /* pages of code */
		CHECK(ptrace(PTRACE_TRACEME, 0, NULL, NULL) == 0);
		raise(SIGSTOP);
		mark();
		for (int i = 0; i < traced; i++)
			step(h, ++s);
		mark();
		_exit(0);
	}
	int status, marks = 0, calls = 0;
	CHECK(waitpid(pid, &status, 0) == pid && WIFSTOPPED(status));
	for (bool entry = true;; entry = !entry) {
		CHECK(ptrace(PTRACE_SYSCALL, pid, NULL, NULL) == 0 && waitpid(pid, &status, 0) == pid);
		if (!WIFSTOPPED(status))
			break;
		struct user_regs_struct regs;
		if (!entry)
			continue;
		CHECK(ptrace(PTRACE_GETREGS, pid, NULL, &regs) == 0);
		if (regs.orig_rax == SYS_getppid)
			marks++;
		else if (marks == 1)
			calls++;
	}
	CHECK(marks == 2);
	printf("system calls in %d steps: %d\n", traced, calls);
	rp_close(mine);
	fake_stop(&f);
	free(live);
}

static void *sleeper(void *arg) {
	pthread_mutex_t *m = arg;
	pthread_cond_t *c = (pthread_cond_t *)(m + 1);
	_Atomic int *turn = (_Atomic int *)(c + 1);
	pthread_mutex_lock(m);
	while (atomic_load(turn) >= 0) {
		pthread_cond_wait(c, m);
		atomic_fetch_add(turn, 1);
	}
	pthread_mutex_unlock(m);
	return NULL;
}

/* What it costs the training thread to wake a sleeping worker, however the integration does it. */
static void wake(void) {
	struct {
		pthread_mutex_t m;
		pthread_cond_t c;
		_Atomic int turn;
	} w = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0};
	pthread_t t;
	CHECK(pthread_create(&t, NULL, sleeper, &w) == 0);
	enum { n = 2000 };
	double ns[n];
	usleep(1000);
	for (int i = 0; i < n; i++) {
		int before = atomic_load(&w.turn);
		pthread_mutex_lock(&w.m); /* the sleeper waits */
		pthread_mutex_unlock(&w.m);
		int64_t began = rpi_now();
		pthread_cond_signal(&w.c);
		ns[i] = (double)(rpi_now() - began);
		while (atomic_load(&w.turn) == before)
			;
		usleep(20);
	}
	atomic_store(&w.turn, -10);
	pthread_mutex_lock(&w.m);
	pthread_cond_signal(&w.c);
	pthread_mutex_unlock(&w.m);
	pthread_join(t, NULL);
	printf("waking a sleeping worker (pthread_cond_signal)          %8.0f ns\n", median(ns, n));
}

/* A rank that captures, by the thread that calls and by helpers. */
typedef struct {
	fake f;
	rp_handle *h;
	uint8_t *live;
	uint32_t regions;
	uint64_t window; /* bytes of a region */
	_Atomic bool over;
} rank_at_work;

/* What one thread copies by memcpy: some of the regions. */
typedef struct {
	rank_at_work *r;
	uint32_t from, to;
	pthread_t thread;
} share;

static void *copy(void *arg) {
	const share *s = arg;
	rank_at_work *r = s->r;
	uint8_t *to = rpi_slot(r->h, 0).bytes; /* of the initial state, which nobody reads again */
	for (uint32_t i = s->from; i < s->to; i++)
		memcpy(to + i * r->window, r->live + i * stride(r->window), r->window);
	return NULL;
}

/* Seconds that so many threads take to copy all regions. */
static double copied(rank_at_work *r, int threads) {
	share s[64];
	for (int i = 0; i < threads; i++)
		s[i] = (share){r, r->regions * (uint32_t)i / (uint32_t)threads, r->regions * (uint32_t)(i + 1) / (uint32_t)threads, 0};
	int64_t began = rpi_now();
	for (int i = 1; i < threads; i++)
		CHECK(pthread_create(&s[i].thread, NULL, copy, &s[i]) == 0);
	copy(&s[0]);
	for (int i = 1; i < threads; i++)
		CHECK(pthread_join(s[i].thread, NULL) == 0);
	return (double)(rpi_now() - began) / second;
}

static void *help(void *arg) {
	rank_at_work *r = arg;
	while (!atomic_load(&r->over))
		rp_help(r->h, second / 10);
	return NULL;
}

/* GB/s of memcpy and of captures, by turns, of so many bytes in so many regions, by so many threads. What each did first counts for
 * nothing. */
static void captures(uint64_t bytes, int threads, uint32_t regions, int n, double *memcpys, double *captured) {
	rank_at_work *r = calloc(1, sizeof *r);
	CHECK(r);
	r->f = (fake){.chunk = 4 << 20, .slots = 2, .ring = 4}, r->regions = regions, r->window = bytes / regions;
	uint64_t room = (regions * stride(r->window) + (2 << 20)) & ~((2ull << 20) - 1);
	r->live = aligned_alloc(2 << 20, room);
	CHECK(r->live);
	for (uint64_t at = 0; at < room; at += 8)
		memcpy(r->live + at, &(uint64_t){at * 0x9e3779b97f4a7c15}, 8);
	fake_start(&r->f);
	r->h = start_with(&r->f, r->live, regions, r->window, r->window < 4096 ? r->window : 4096);
	pthread_t helpers[64];
	for (int i = 1; i < threads; i++)
		CHECK(pthread_create(&helpers[i], NULL, help, r) == 0);
	double gigabytes = (double)(bytes / regions * regions) / 1e9;
	for (int k = -1; k < n; k++) {
		double plain = copied(r, threads);
		uint64_t s = (uint64_t)k + 2;
		atomic_store(&r->f.control->candidate.word, RP_WORD(1, s, 0));
		free_places(&r->f, false);
		step(r->h, s);
		int64_t began = rpi_now();
		OK(rp_capture(r->h, &failure));
		double ours = (double)(rpi_now() - began) / second;
		uint64_t w = atomic_load(&r->f.control->slot[1].word);
		CHECK(RP_SLOT_STATE(w) == RP_SEALED);
		atomic_store(&r->f.control->slot[1].word, RP_SLOT(RP_SLOT_COUNT(w) + 1, RP_FREE));
		if (k >= 0)
			memcpys[k] = gigabytes / plain, captured[k] = gigabytes / ours;
	}
	atomic_store(&r->over, true);
	for (int i = 1; i < threads; i++)
		CHECK(pthread_join(helpers[i], NULL) == 0);
	rp_close(r->h);
	fake_stop(&r->f);
	free(r->live);
	free(r);
}

static void capture(uint64_t bytes, int threads) {
	double plain[repeats], ours[repeats];
	captures(bytes, threads, 2, repeats, plain, ours);
	double m = median(plain, repeats), c = median(ours, repeats);
	printf("capture of %llu MiB, %d thread%s: %5.1f GB/s; memcpy %5.1f GB/s; ratio %.2f (medians of %d)\n", (unsigned long long)bytes >> 20, threads, threads > 1 ? "s" : "", c, m, c / m, repeats);
}

/* ns of a step and of the cheapest system call, by turns. */
static void step_rounds(bool copies, int n, double *calls, double *steps) {
	enum { each = 20000 };
	fake f = {.chunk = 4 << 20, .slots = 4, .ring = 16};
	uint8_t *live = calloc(1, 1 << 20);
	fake_start(&f);
	rp_handle *h = start(&f, live, 4096, copies ? 4096 : 0);
	atomic_store(&f.control->cadence.word, 1ull << 37);
	uint64_t s = 0;
	for (int k = -1; k < n; k++) {
		int64_t began = rpi_now();
		for (int i = 0; i < each; i++)
			mark();
		double call = (double)(rpi_now() - began) / each, ours = steps_ns(&f, h, &s, each, !copies);
		if (k >= 0)
			calls[k] = call, steps[k] = ours;
	}
	rp_close(h);
	fake_stop(&f);
	free(live);
}

static void json_list(const char *name, const double *v, int n, const char *end) {
	printf("\"%s\":[", name);
	for (int i = 0; i < n; i++)
		printf("%s%.6g", i ? "," : "", v[i]);
	printf("]%s", end);
}

/* For replicad bench: one line {"values":[...],"limits":[...]}, a number for each round.
 *   step ROUNDS COPIES                        ns a step, without copies (0) or with 4 KiB of both kinds (1), beside a system call
 *   capture ROUNDS BYTES THREADS REGIONS      GB/s beside memcpy */
static int json(int argc, char **argv) {
	double limits[1000], values[1000];
	long n = argc > 2 ? atol(argv[2]) : 0;
	if (n < 1 || n > 1000)
		return 2;
	if (argc == 4 && strcmp(argv[1], "step") == 0) {
		step_rounds(atoi(argv[3]) != 0, (int)n, limits, values);
	} else if (argc == 6 && strcmp(argv[1], "capture") == 0) {
		long long bytes = atoll(argv[3]);
		int threads = atoi(argv[4]), regions = atoi(argv[5]);
		if (threads < 1 || threads > 64 || regions < threads || regions % threads || bytes < 8ll * regions || bytes % (8ll * regions))
			return 2;
		captures((uint64_t)bytes, threads, (uint32_t)regions, (int)n, limits, values);
	} else {
		return 2;
	}
	printf("{");
	json_list("values", values, (int)n, ",");
	json_list("limits", limits, (int)n, "}\n");
	return 0;
}

int main(int argc, char **argv) {
	setvbuf(stdout, NULL, _IOLBF, 0);
	if (argc == 2 && strcmp(argv[1], "capture") == 0) {
		capture(256 << 20, 1);
		capture(256 << 20, 2);
		return 0;
	}
	if (argc > 1) {
		int rc = json(argc, argv);
		if (rc)
			fprintf(stderr, "words_and_capture: want step ROUNDS 0|1, or capture ROUNDS BYTES THREADS REGIONS with bytes that divide into as many regions of whole words, or nothing\n");
		return rc;
	}
	words(0);
	words(4096);
	system_calls();
	wake();
	capture(256 << 20, 1);
	capture(256 << 20, 2);
	return 0;
}
