/* errors.c: codes, texts, and the two questions every call begins with: whose process is this, and until when may I wait. */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "internal.h"

RP_API uint32_t rp_abi_version(void) { return RP_ABI_VERSION; }

RP_API const char *rp_strerror(int code) {
	static const char *const texts[] = {
		"ok",
		"fenced: the epoch is closed, go to rp_join",
		"corrupt: bytes do not hash to what was committed or planned",
		"not yet: call again",
		"the deadline passed",
		"the daemon is gone: training may go on, rp_reconnect",
		"the handle belongs to another process",
		"the other side speaks another version",
		"bad argument",
		"refused by the daemon",
		"too little memory",
		"a system call failed",
		"call out of order",
		"stopped: the job has ended or this rank was superseded, exit",
		"cancelled",
	};
	if (code > 0 || code <= -(int)(sizeof texts / sizeof *texts))
		return "unknown code";
	return texts[-code];
}

int rpi_error(rp_error *err, int code, const char *format, ...) {
	if (err) {
		va_list ap;
		va_start(ap, format);
		vsnprintf(err->text, sizeof err->text, format, ap);
		va_end(ap);
	}
	return code;
}

int rpi_system(rp_error *err, const char *what, int number) {
	char text[128] = "";
#if defined(__GLIBC__) && defined(_GNU_SOURCE)
	const char *t = strerror_r(number, text, sizeof text);
#else
	const char *t = strerror_r(number, text, sizeof text) == 0 ? text : "?";
#endif
	return rpi_error(err, number == ENOMEM ? RP_ENOMEM : RP_ESYS, "%s: %s (errno %d)", what, t, number);
}

/* A child sees the mark page wiped. Where the kernel can't wipe pages the mark says so and the pid is asked for. */
bool rpi_forked(const rp_handle *h) {
	uint32_t mark = *(volatile uint32_t *)h->mark;
	return mark != 1 && (mark != 2 || getpid() != h->pid);
}

bool rpi_closed(const rp_handle *h, uint64_t epoch) { return epoch && h->control && atomic_load(&h->control->fence.word) >= epoch; }

int64_t rpi_now(void) {
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

int64_t rpi_deadline(int64_t timeout_ns) {
	if (timeout_ns < 0)
		return -1;
	int64_t now = rpi_now();
	return timeout_ns > INT64_MAX - now ? INT64_MAX : now + timeout_ns;
}
