/* rank.c: a rank on libreplicad's C API, on one thread. It carries out a command for each line that it reads, and prints what it gets. */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "replicad.h"

enum { weights = 2500 };
static const int64_t patience = 20ll * 1000000000;
static float weight[weights];
static uint64_t own[4];
static rp_handle *h;
static rp_error err;
static rp_join_info info = {.struct_size = sizeof info};

static const char *name(int code) {
	switch (code) {
	case RP_OK: return "ok";
	case RP_EFENCED: return "fenced";
	case RP_EREFUSED: return "refused";
	case RP_ESTATE: return "state";
	case RP_ESTOPPED: return "stopped";
	case RP_ETIMEOUT: return "timeout";
	case RP_EGONE: return "gone";
	}
	return rp_strerror(code);
}

static void answer(int code) {
	if (code == RP_OK || code == RP_EFENCED)
		printf("%s\n", name(code));
	else
		printf("%s: %s\n", name(code), err.text);
}

/* Waits a moment where a call is to be made again, by the header; connects again where the daemon is gone. */
static bool again(int code) {
	if (code != RP_EAGAIN && code != RP_EGONE)
		return false;
	if (code == RP_EGONE && h)
		rp_reconnect(h, patience, &err);
	nanosleep(&(struct timespec){0, 1000000}, NULL);
	return true;
}

#define WAITING(call)                     \
	do                                \
		code = (call);            \
	while (again(code))

static int open_rank(void) {
	rp_options o = {.struct_size = sizeof o, .world = 1, .rank = 0, .group = 0, .timeout_ns = patience};
	int code;
	WAITING(rp_open(&o, &h, &err));
	if (code != RP_OK)
		return code;
	rp_region r[2] = {
		{.dtype = RP_F32, .kind = RP_REPLICATED, .cls = RP_WINDOW, .name = "weight", .data = weight, .bytes = sizeof weight,
		 .shape = {weights}},
		{.dtype = RP_U64, .kind = RP_PRIVATE, .cls = RP_VOLATILE, .name = "own", .data = own, .bytes = sizeof own, .shape = {4}},
	};
	for (int i = 0; i < 2; i++)
		r[i].struct_size = sizeof *r, r[i].ndim = 1;
	return rp_register(h, r, 2, &err);
}

static void set_weights(uint64_t to) {
	for (int i = 0; i < weights; i++)
		weight[i] = (float)to;
}

static void join(void) {
	int code;
	WAITING(rp_join(h, &info, patience, &err));
	if (code != RP_OK)
		answer(code);
	else if (info.action == RP_INIT)
		printf("initialise %llu:%llu\n", (unsigned long long)info.epoch, (unsigned long long)info.step);
	else
		printf("load %llu:%llu\n", (unsigned long long)info.epoch, (unsigned long long)info.step);
}

static int enter(uint64_t step) {
	own[0] = step;
	int code = rp_step_enter(h, step, patience, &err);
	rp_notify(h);
	return code;
}

static int leave_window(uint64_t step) {
	int armed = 0;
	set_weights(step);
	int code = rp_set_good(h, info.epoch, step);
	if (code == RP_OK)
		code = rp_step_exit(h, step, 0, &armed, &err);
	if (code != RP_OK)
		return code;
	while (armed && rp_capture(h, &err) == RP_EAGAIN) /* without a daemon it is sealed all the same */
		nanosleep(&(struct timespec){0, 1000000}, NULL);
	rp_notify(h);
	return code;
}

static int carry_out(const char *what, uint64_t step) {
	int code = RP_EINVAL;
	if (strcmp(what, "open") == 0)
		return open_rank();
	if (strcmp(what, "attach") == 0)
		WAITING(rp_attach(h, patience, &err));
	if (strcmp(what, "seal") == 0) {
		set_weights(info.step);
		own[0] = info.step;
		WAITING(rp_seal_initial(h, &err));
	}
	if (strcmp(what, "ready") == 0)
		WAITING(rp_ready(h, patience, &err));
	if (strcmp(what, "enter") == 0)
		return enter(step);
	if (strcmp(what, "exit") == 0)
		return leave_window(step);
	if (strcmp(what, "leave") == 0)
		WAITING(rp_leave(h, patience, &err));
	if (strcmp(what, "notice") == 0) {
		while (!rp_fenced(h))
			nanosleep(&(struct timespec){0, 1000000}, NULL);
		return RP_EFENCED;
	}
	return code;
}

/* The daemon has gone, or is about to. */
static void back(void) {
	rp_stats s = {.struct_size = sizeof s};
	static uint64_t backs;
	int code = RP_OK;
	backs++;
	while (code != RP_ESTOPPED && s.reconnects < backs) {
		code = rp_reconnect(h, patience, &err);
		nanosleep(&(struct timespec){0, 1000000}, NULL);
		rp_get_stats(h, &s);
	}
	if (code == RP_OK)
		rp_notify(h); /* what was sealed meanwhile */
	printf("%s\n", code == RP_ESTOPPED ? "over" : "ok");
}

int main(void) {
	char line[128], what[64];
	setvbuf(stdout, NULL, _IOLBF, 0);
	while (fgets(line, sizeof line, stdin)) {
		unsigned long long step = 0;
		if (sscanf(line, "%63s %llu", what, &step) < 1 || strcmp(what, "end") == 0)
			break;
		if (strcmp(what, "join") == 0) {
			join();
		} else if (strcmp(what, "back") == 0) {
			back();
		} else if (strcmp(what, "load") == 0) {
			int code = rp_load(h, &err);
			if (code == RP_OK)
				printf("holds %g %llu\n", weight[weights - 1], (unsigned long long)own[0]);
			else
				answer(code);
		} else {
			answer(carry_out(what, step));
		}
	}
	rp_close(h);
	return 0;
}
