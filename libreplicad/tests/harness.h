/* harness.h: what the C tests share: checks that end the test program, the list of tests, and a daemon in a thread. */
#ifndef RP_TEST_HARNESS_H
#define RP_TEST_HARNESS_H
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../src/internal.h"

#define CHECK(cond)                                                                          \
	do {                                                                                 \
		if (!(cond)) {                                                               \
			fprintf(stderr, "%s:%d: failed: %s\n", __FILE__, __LINE__, #cond);   \
			abort();                                                             \
		}                                                                            \
	} while (0)

#define SAME(got, want)                                                                                                                  \
	do {                                                                                                                             \
		long long g_ = (long long)(got), w_ = (long long)(want);                                                                 \
		if (g_ != w_) {                                                                                                          \
			fprintf(stderr, "%s:%d: %s is %lld, want %s = %lld\n", __FILE__, __LINE__, #got, g_, #want, w_);                 \
			abort();                                                                                                         \
		}                                                                                                                        \
	} while (0)

#define OK(call)                                                                                                     \
	do {                                                                                                         \
		int rc_ = (call);                                                                                    \
		if (rc_ != RP_OK) {                                                                                  \
			fprintf(stderr, "%s:%d: %s: %d %s\n", __FILE__, __LINE__, #call, rc_, failure.text);         \
			abort();                                                                                     \
		}                                                                                                    \
	} while (0)

/* Words about a step in the epoch that the handle is in. */
#define GOOD(h, step) rp_set_good(h, atomic_load(&(h)->epoch), step)
#define STAGED(h, step) rp_staged(h, atomic_load(&(h)->epoch), step)

extern rp_error failure;
extern const rpi_hasher hasher_portable; /* hash_portable.c */
enum { second = 1000000000 };

/* The daemon's side: answers on a socket in a thread, owns the arena. Fields are set before the rank asks. */
typedef struct {
	char path[100];
	int listener, connection, memfd;
	pthread_t thread;
	uint32_t chunk, slots, ring;
	uint8_t *records;
	uint32_t regions;
	rp_control *control;
	uint8_t *arena;
	size_t bytes;
	const rp_handle *geometry; /* whose laid out regions the arena is for */
	rp_order order;
	uint64_t epoch; /* of the order; 0: none yet */
	int refuse;     /* code for the next attach */
	int part_with;  /* code with which the next message of type part_at is refused, in answer to no request, before the connection is closed with what follows unread; -1: it is closed without a word */
	uint16_t part_at; /* 0: the connection itself, before anything is read */
	uint64_t granted; /* incarnation in the next answer to an attach; 0: 5 */
	_Atomic bool left; /* a rank has said that it leaves */
	/* growth */
	bool grows, garbage; /* whether it is answered with an arena, and with one whose size is not the descriptor's */
	int grow_refuse;     /* code that it is refused with */
	_Atomic unsigned asked_to_grow, pieces, failed;
	rp_growth growth;
	uint8_t *before; /* the arena of before */
	size_t before_bytes;
	const char *recipe, *resumed, *from;
	bool freeing;   /* frees the slots before it takes a word of a pause */
	_Atomic unsigned sealed, stopped, unloadable, lacking, saying, pausing; /* messages of each kind */
	uint64_t paused_ns; /* the newest, read behind a reply to what was sent after it */
	char lacks[RP_MAX_LACKS + 1]; /* the newest, read behind a reply to what was sent after it */
	uint8_t said[RP_MAX_SAID]; /* the newest, likewise */
	uint32_t said_bytes;
	rp_sealed last;
	/* rendezvous */
	uint64_t scope;    /* answered to rp_scope */
	unsigned drop;     /* requests that get no answer */
	rp_kv kv;          /* newest request that got one */
	uint64_t kv_epoch; /* and its epoch */
	uint32_t once;     /* of the newest addition */
	int64_t total;
	char value[64];
	uint32_t size;
} fake;

void fake_start(fake *f);
void fake_stop(fake *f);
void fake_hang_up(fake *f);
void fake_order(fake *f, uint64_t epoch, uint32_t action, uint64_t step, uint32_t slot, uint32_t place);
void fake_send(fake *f, uint16_t type, uint64_t epoch, uint32_t request, const void *body, size_t n);

/* A rank with a region of each class, brought to step 0 of epoch 1. */
typedef struct {
	fake daemon;
	rp_handle *h;
	float *weight, *scale, *base;
	uint64_t rng[4];
	size_t weights;
} rank;
void rank_open(rank *r, fake *f, size_t weights, uint32_t rng_flags);
void rank_start(rank *r, size_t weights);
void rank_end(rank *r);
int rank_join(rank *r, rp_join_info *info);

/* Whether what lies in a place hashes to its meta: COPIED or SEALED. */
bool whole(const rp_handle *h, rpi_place p, int part, bool sealed);

/* Has what happens run in the moment before the first store to a word, on the storing thread: nothing that was read before it is read again. */
void before_store(void *word, void (*happens)(void *arg), void *arg);
bool stored(void); /* the store came */

typedef struct {
	const char *name;
	void (*run)(void);
} test;
extern const test words_tests[], capture_tests[], process_tests[], bytes_tests[], help_tests[], kv_tests[], mutation_tests[], stress_tests[], grow_tests[];
#endif
