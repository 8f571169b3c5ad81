/* moment.c: a moment inside of a call, for tests of an order that holds between two instructions. The word's page can't be written to until a store
 * comes; what is to happen just before it happens in the handler of the fault. */
#include <signal.h>
#include <stdint.h>
#include <sys/mman.h>

#include "harness.h"

static struct {
	void *word, *page, *arg;
	void (*happens)(void *arg);
	struct sigaction was;
	bool came;
} moment;

static void fault(int number, siginfo_t *info, void *context) {
	(void)context;
	if (!moment.page || (char *)info->si_addr < (char *)moment.page || (char *)info->si_addr >= (char *)moment.page + RP_PAGE) {
		sigaction(number, &moment.was, NULL); /* a true fault: it comes again */
		return;
	}
	if (mprotect(moment.page, RP_PAGE, PROT_READ | PROT_WRITE) != 0)
		abort();
	moment.page = NULL;
	sigaction(number, &moment.was, NULL);
	moment.came = info->si_addr == moment.word;
	if (moment.came)
		moment.happens(moment.arg);
}

void before_store(void *word, void (*happens)(void *arg), void *arg) {
	moment.word = word, moment.happens = happens, moment.arg = arg, moment.came = false;
	moment.page = (void *)((uintptr_t)word & ~(uintptr_t)(RP_PAGE - 1));
	struct sigaction a = {.sa_sigaction = fault, .sa_flags = SA_SIGINFO};
	CHECK(sigaction(SIGSEGV, &a, &moment.was) == 0);
	CHECK(mprotect(moment.page, RP_PAGE, PROT_READ) == 0);
}

bool stored(void) { return moment.came; }
