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

/* A rank at step 0 of epoch 1 with so many bytes of each kind. */
static rp_handle *start(fake *f, uint8_t *live, uint64_t window, uint64_t small) {
	rp_handle *h;
	rp_join_info info = {.struct_size = sizeof info};
	rp_options o = {.struct_size = sizeof o, .world = 4, .socket_path = f->path, .job = "bench", .rank = 2, .timeout_ns = 20ll * second};
	OK(rp_open(&o, &h, &failure));
	rp_region r[] = {region("window", RP_REPLICATED, RP_WINDOW, live, window), region("private", RP_PRIVATE, RP_VOLATILE, live, small), region("volatile", RP_REPLICATED, RP_VOLATILE, live, small)};
	OK(rp_register(h, r, 3, &failure));
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

static void free_places(fake *f, bool full) {
	for (uint32_t i = 1; i < f->ring; i++) {
		uint64_t w = atomic_load(&f->control->place[i].word);
		atomic_store(&f->control->place[i].word, full ? RP_SLOT(RP_SLOT_COUNT(w), RP_SEALED) : RP_SLOT(RP_SLOT_COUNT(w) + 1, RP_FREE));
	}
}

static void step(rp_handle *h, uint64_t s) {
	OK(rp_step_enter(h, s, 0, &failure));
	OK(rp_set_good(h, s));
	OK(rp_step_exit(h, s, 0, NULL, &failure));
}

/* The step words of one handle; no capture is due, so that nobody waits for a worker. full: the ring has no place, nothing is copied. */
static double step_ns(fake *f, rp_handle *h, uint64_t *s, bool full) {
	double ns[repeats];
	for (int k = 0; k < repeats; k++) {
		int64_t spent = 0;
		for (int i = 0; i < rounds / repeats; i += 8) {
			free_places(f, full);
			int64_t began = rpi_now();
			for (int j = 0; j < 8; j++)
				step(h, ++*s);
			spent += rpi_now() - began;
		}
		ns[k] = (double)spent / (rounds / repeats);
	}
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

static _Atomic bool over;

static void *help(void *h) {
	while (!atomic_load(&over))
		rp_help(h, second / 10);
	return NULL;
}

/* By the thread that calls, and one more that helps where threads is 2. */
static void capture(uint64_t bytes, int threads) {
	fake f = {.chunk = 4 << 20, .slots = 4, .ring = 16};
	uint8_t *live = aligned_alloc(1 << 21, bytes);
	for (uint64_t i = 0; i < bytes; i += 8)
		memcpy(live + i, &(uint64_t){i * 0x9e3779b97f4a7c15}, 8);
	fake_start(&f);
	rp_handle *h = start(&f, live, bytes, 4096);
	double copy[repeats], plain[repeats];
	pthread_t helper;
	atomic_store(&over, false);
	if (threads > 1)
		CHECK(pthread_create(&helper, NULL, help, h) == 0);
	for (uint64_t s = 1; s <= repeats; s++) {
		atomic_store(&f.control->candidate.word, RP_WORD(1, s, 0));
		step(h, s);
		int64_t began = rpi_now();
		OK(rp_capture(h, &failure));
		int64_t middle = rpi_now();
		memcpy(rpi_slot(h, 3).bytes, live, bytes);
		int64_t end = rpi_now();
		copy[s - 1] = (double)bytes / (double)(middle - began);
		plain[s - 1] = (double)bytes / (double)(end - middle);
		for (uint32_t i = 1; i < 3; i++) {
			uint64_t w = atomic_load(&f.control->slot[i].word);
			if (RP_SLOT_STATE(w) == RP_SEALED)
				atomic_store(&f.control->slot[i].word, RP_SLOT(RP_SLOT_COUNT(w) + 1, RP_FREE));
		}
	}
	double c = median(copy, repeats), m = median(plain, repeats);
	printf("capture of %llu MiB, %d thread%s: %5.1f GB/s; memcpy %5.1f GB/s; ratio %.2f (medians of %d)\n", (unsigned long long)bytes >> 20, threads, threads > 1 ? "s" : "", c, m, c / m, repeats);
	atomic_store(&over, true);
	if (threads > 1)
		pthread_join(helper, NULL);
	rp_close(h);
	fake_stop(&f);
	free(live);
}

int main(int argc, char **argv) {
	setvbuf(stdout, NULL, _IOLBF, 0);
	if (argc > 1 && strcmp(argv[1], "capture") == 0) {
		capture(256 << 20, 1);
		capture(256 << 20, 2);
		return 0;
	}
	words(0);
	words(4096);
	system_calls();
	wake();
	capture(256 << 20, 1);
	capture(256 << 20, 2);
	return 0;
}
