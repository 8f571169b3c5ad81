/* internal.h: the handle and what the files of this library ask of each other.
 *
 * Who owns what: the training thread owns every plain field; the worker shares with it the atomics of "capture" and "notices", and
 * whatever "io" guards. The control page and the places are shared with the daemon as layout.h says.
 * Invariant: a word of the control page is changed only by compare-and-swap from the value this handle last saw in it. */
#ifndef RP_INTERNAL_H
#define RP_INTERNAL_H
#include <pthread.h>
#include <stdbool.h>
#include <sys/types.h>
#include <sys/uio.h>

#include "layout.h"
#include "replicad.h"

#pragma GCC visibility push(hidden)

#define RPI_ALIGN 64u          /* of a region in its area */
#define RPI_RECORD 256u        /* a region's record */
#define RPI_POLL_NS 100000000  /* a waiting thread looks again this often: another thread may have read for it */
#define RPI_MAX_KEY 255u
#define RPI_MAX_VALUE 32768u

/* A piece of a part and where it lives. Between segments lie zeros (alignment). */
typedef struct {
	uint64_t offset, bytes;
	uint8_t *data;
} rpi_segment;

typedef struct {
	rpi_segment *segments; /* by rising offset */
	uint32_t count;
	uint64_t bytes; /* of the part */
} rpi_layout;

enum { RPI_PART_REPLICATED = 0, RPI_PART_PRIVATE = 1, RPI_PART_FROZEN = 2 };
enum { RPI_KIND_SLOT = 0, RPI_KIND_RING = 1, RPI_KIND_FROZEN = 2 };

/* A slot, ring place or the frozen area of the mapped arena. */
typedef struct {
	int kind;
	uint32_t index;
	_Atomic uint64_t *word;
	rp_meta *meta;
	uint8_t *bytes;
} rpi_place;

typedef struct {
	/* Gathers [offset, offset+n) of the part into dst (NULL: nowhere) and digests it, in one pass. */
	void (*gather)(uint8_t *dst, const rpi_layout *l, uint64_t offset, uint64_t n, uint8_t digest[16]);
	void (*digest)(const void *a, size_t an, const void *b, size_t bn, uint8_t digest[16]); /* of a then b */
} rpi_hasher;

/* Where the handle is in its life; see "Life of a rank" in replicad.h. */
enum { RPI_OPEN, RPI_ATTACHED, RPI_INIT, RPI_LOAD, RPI_LOADED, RPI_READY };

/* The state of the one capture a handle can have. */
enum { RPI_NONE, RPI_ARMED, RPI_RUNNING };

/* What is done with each chunk of a place, by one thread or by several (help.c), and how it ended. */
enum { RPI_WHOLE, RPI_CANCELED, RPI_TORN, RPI_CORRUPT };
typedef struct rpi_chunked {
	int (*each)(rp_handle *h, struct rpi_chunked *c, uint32_t i); /* RPI_WHOLE, or why no further chunk is taken */
	bool shared;                                                  /* threads may help */
	rpi_place place;
	const rpi_layout *layout;
	uint64_t word, number; /* of the place; of the capture (0: can't be cancelled) */
	uint32_t chunks;
	_Atomic uint32_t next; /* chunk that nobody has taken */
	_Atomic int stopped;   /* RPI_WHOLE, or why no further chunk is taken */
	_Atomic uint32_t bad;  /* the chunk that is to blame */
} rpi_chunked;

typedef struct {
	uint32_t request; /* 0: nobody waits */
	uint16_t type;    /* 0: not there yet */
	uint32_t length;
	uint32_t room;
	uint8_t *body;
	int fd; /* a descriptor that came along, or -1 */
} rpi_reply;

/* A request that was cut before its answer came. The same one made again waits for that answer. */
typedef struct rpi_cut {
	uint16_t type; /* 0: none */
	uint8_t digest[16];
	uint64_t asked, connection;
	int64_t sent, patience; /* it is asked anew `patience` after it was sent */
	int64_t at;             /* when the newest call for it was cut */
} rpi_cut;

/* What a copy of a part must have, and of which generation. */
typedef struct {
	uint64_t generation;
	uint32_t region;
	uint64_t offset; /* in the part */
	const uint8_t *live;
	size_t n; /* 0: nothing */
} rpi_expected;

struct rp_handle {
	/* identity */
	uint32_t *mark; /* a page that is wiped in forked children, so that a call can tell without a system call */
	pid_t pid;
	rp_hello hello;
	char path[108];
	uint64_t incarnation;
	rp_welcome welcome;
	const rpi_hasher *hash;

	/* geometry, fixed at rp_register */
	uint8_t *records; /* RPI_RECORD each, offsets filled in */
	void **live;      /* by region */
	uint32_t regions;
	bool private_in_window;
	uint64_t volatile_offset, volatile_bytes;
	uint8_t geometry[3][16];                     /* by kind of part */
	rpi_layout replicated, private_part, frozen; /* live */
	rpi_layout staged[RP_STAGING];               /* replicated, but volatile regions in a staging place */

	/* arena. The control page is mapped once more beside it, and that address stays: any thread may look at its words, and a growth maps the next
	 * arena's page onto it. All else of an arena, and the geometry, changes under shape alone. */
	rp_control *control;
	uint8_t *arena;
	size_t arena_bytes;
	int arena_fd;
	rp_control geo; /* copied once at attach and checked: what offsets come from. Its words are not used. */

	pthread_rwlock_t shape; /* read by the worker in its calls, written by a growth that takes the next arena */
	rp_handle *next;        /* the geometry, the recipe and later the arena of a growth that is not answered yet; NULL: none. It is no handle of its own. */
	uint8_t *recipe;        /* of next */
	uint32_t recipe_bytes, sent_recipe;
	uint64_t grows_epoch, grows_at; /* next's: the epoch and step that it is of */

	/* the order being carried out */
	_Atomic uint64_t epoch;
	_Atomic uint64_t scope; /* the epoch whose rendezvous is asked; 0: none yet */
	_Atomic int life;
	rp_order order;
	uint64_t sent_regions_on; /* the connection on which the geometry is being sent, or was */
	uint32_t sent_regions;    /* its records that the daemon has been sent there */
	uint64_t initial_epoch; /* whose initial state this handle has sealed */

	/* rendezvous: the newest write, so that a call which was not answered goes on as the same write */
	uint32_t once;
	rp_kv wrote;
	uint16_t wrote_type; /* 0: it was answered */
	uint64_t wrote_scope;
	uint8_t wrote_digest[16]; /* of key and value */

	/* words as last seen */
	uint64_t step, good;
	_Atomic uint64_t held; /* the epoch whose state the registered memory holds, by rp_load or rp_seal_initial of this handle; 0: of none, and nothing can be sealed */
	_Atomic bool good_frozen;
	uint8_t frozen_root[16]; /* of what was sealed or loaded; zeros where no region is frozen */

	/* expected, by kind of part: written by the training thread while nobody copies such a part */
	rpi_expected expected[2];
	uint8_t expected_bytes[2][RP_EXPECT_MAX];
	_Atomic uint64_t compared;

	/* capture: armed by the training thread, run by the worker (or by rp_join) */
	_Atomic uint32_t capture; /* RPI_NONE, _ARMED, _RUNNING; a futex */
	_Atomic uint32_t capture_waiter;
	_Atomic uint64_t armed_number, canceled_number; /* a capture ends when its number is cancelled */
	_Atomic bool hurried;                           /* rp_cancel was called, and rp_join not since: the worker maps no pages */
	_Atomic uint64_t unfaulted;                     /* where in the arena the worker maps pages next; 0: it has mapped them all. The worker's, once rp_attach has set it */
	uint64_t armed_generation;
	uint32_t armed_flags, exit_flags; /* of the capture; of the last step_exit */
	_Atomic uint64_t unstaged; /* the generation that the registered memory does not hold yet; 0: it holds what is live */
	_Atomic uint32_t private_later; /* the private part that the last step_exit left for later: as capture; a futex */
	uint64_t private_generation;    /* its generation */
	uint64_t abandoned[RP_MAX_SLOTS]; /* COPYING words that a cancelled capture left, used again first; 0: none. Owned by whoever runs the capture. */
	_Atomic bool sharing;     /* a thread has what others may help with: there is one at a time */
	_Atomic uint32_t turn;    /* odd: helped is what threads may help with; a futex of those that would */
	_Atomic uint32_t helpers; /* that are in it: it can't end; a futex of the thread that runs it */
	_Atomic uint32_t idle_helpers;
	rpi_chunked *helped;
	_Atomic uint32_t notices;   /* bit per place sealed but not told: slots 0.., ring 4.., frozen 20 */

	/* stats */
	_Atomic uint64_t captures, skipped, canceled, private_skipped, capture_bytes, capture_ns, reconnects;

	/* the receive side and the connection; io guards them */
	pthread_mutex_t io;
	int fd;                 /* constant from rp_open to rp_close: a new connection is moved onto the number */
	bool gone, waiting;     /* waiting: the training thread polls, others leave messages to it */
	uint64_t connections, sent_on;
	rpi_reply reply, hand;  /* to the training thread's request; to a handshake */
	rpi_cut cut;
	rp_order ordered;       /* newest INIT or LOAD */
	uint64_t ordered_epoch, go_epoch;
	uint64_t leaving_epoch, leaving_committed; /* the training thread's: the epoch in which it has begun to leave, and what was committed when it looked last */
	int64_t leaving_until;			   /* it waits for a place for its last step */
	uint64_t standing_epoch, standing_on; /* the training thread's: the epoch and connection in which it has said that it stands still to leave */
	uint64_t capture_ordered; /* generation whose live state is to be sealed while the rank waits in rp_join; 0: none */
	bool stopped;
	char why[256]; /* it was stopped */
	int parting_code; /* what the daemon refused this connection with, in answer to no request, before it hung up; 0: it did not */
	char parting[256];
	uint32_t request; /* training thread's */
	uint64_t asked;   /* the epoch that request is about; 0: of none */
	uint32_t hands;
	uint64_t claimed_on; /* the connection on which hand waits for the arena since an earlier rp_attach or rp_grow, if it waits */
	char lacks[RP_MAX_LACKS]; /* what the copies lack, as rp_lacks said last */
	uint32_t lacks_bytes;
	bool lacking;      /* rp_lacks was ever called */
	uint64_t lacks_on; /* the connection on which the daemon was told so; 0: on none */
	uint8_t said[RP_MAX_SAID]; /* what the rank says of its job, as rp_say said last */
	uint32_t said_bytes;
	uint64_t said_on; /* the connection on which the daemon was told so; 0: on none */
	int64_t paused_until; /* the rank may stand still until then, as rp_pause said last; 0: it said that it goes on, or nothing */
	uint64_t paused_on;   /* the connection on which the daemon was told so; 0: on none */
	uint8_t *datagram; /* RP_MAX_MESSAGE */
};

/* errors.c */
int rpi_error(rp_error *err, int code, const char *format, ...) __attribute__((format(printf, 3, 4)));
int rpi_system(rp_error *err, const char *what, int number);
bool rpi_closed(const rp_handle *h, uint64_t epoch); /* by the fence word, where an arena is mapped */
bool rpi_forked(const rp_handle *h);
int64_t rpi_now(void);
int64_t rpi_deadline(int64_t timeout_ns); /* -1: refused */
#define RPI_ENTER(h, err)                                                                                                    \
	do {                                                                                                                 \
		if (!(h))                                                                                                    \
			return rpi_error(err, RP_EINVAL, "handle is NULL");                                                  \
		if (rpi_forked(h))                                                                                           \
			return rpi_error(err, RP_EFORK, "handle belongs to another process: open one of your own after fork"); \
	} while (0)

/* connect.c, channel.c */
int rpi_connect(const char *path, int64_t deadline, int *out, rp_error *err);
int rpi_send(rp_handle *h, uint16_t type, uint32_t request, struct iovec *body, int n, int64_t deadline, rp_error *err);
int rpi_send_on(rp_handle *h, int fd, uint16_t type, uint32_t request, struct iovec *body, int n, int pass, int64_t deadline);
int rpi_handshake(rp_handle *h, int fd, uint16_t type, const void *body, size_t n, int pass, uint16_t want, int64_t deadline, rp_error *err);
int rpi_request(rp_handle *h, uint16_t type, struct iovec *body, int n, uint16_t want, int64_t deadline, rp_error *err);
typedef int (*rpi_ready)(rp_handle *h); /* RP_EAGAIN: not yet; called with io held */
int rpi_wait(rp_handle *h, rpi_ready ready, const char *what, int64_t deadline, rp_error *err);
void rpi_pump(rp_handle *h); /* io held */
void rpi_dispatch(rp_handle *h, const uint8_t *message, size_t n, int *fd); /* io held; takes *fd (sets -1) where it keeps it */

/* hash.c, hash_avx2.c, hash_avx512.c */

/* How much is digested and then copied at a time. While one piece is copied round the cache the next is brought into it: 8 and 16 KiB won over
 * 32 and 64, since both fit into a core's first cache. */
#ifndef RPI_PIECE
#define RPI_PIECE 8192u
#endif

/* How far ahead of what is digested and copied in one go memory is asked for: into the second cache, and into the first (bench/words_and_capture: make
 * sweep). */
#ifndef RPI_AHEAD
#define RPI_AHEAD 8192u
#endif
#ifndef RPI_NEAR
#define RPI_NEAR 1024u
#endif

const rpi_hasher *rpi_hash(void);
extern const rpi_hasher rpi_hasher_base, rpi_hasher_avx2, rpi_hasher_avx512;
uint32_t rpi_segment_at(const rpi_layout *l, uint64_t offset); /* first segment that ends after offset */

/* part.c */
uint32_t rpi_chunks(uint64_t bytes, uint32_t chunk);
void rpi_root(const rp_handle *h, int part, const rp_meta *m, uint8_t root[16]);
rpi_place rpi_slot(const rp_handle *h, uint32_t i);
rpi_place rpi_ring(const rp_handle *h, uint32_t i);
rpi_place rpi_frozen(const rp_handle *h);
/* Fills a place that this call or an abandoned capture took, seals it and notes it for rp_notify. number: of the capture (0: can't be
 * cancelled). RP_ECANCELED if it was cancelled or TORN. word is the COPYING word. */
int rpi_fill(rp_handle *h, rpi_place p, uint64_t word, int part, const rpi_layout *l, uint64_t generation, uint32_t flags, const uint8_t frozen_root[16], uint64_t number, rp_error *err);
bool rpi_take(rpi_place p, uint64_t *word); /* FREE -> COPYING */
bool rpi_good(const rp_handle *h, uint64_t generation);

/* expect.c */
int rpi_as_expected(rp_handle *h, rpi_place p, int part, uint64_t generation, rp_error *err); /* a copied part, before it counts; RP_ECORRUPT */

/* help.c */
int rpi_each_chunk(rp_handle *h, rpi_chunked *c); /* RPI_WHOLE, or why it is not; nobody is at it any more */
void rpi_wake_helpers(rp_handle *h);

/* geometry.c */
void rpi_prefault_slots(rp_handle *h); /* the worker: until all are mapped, a capture is armed, or it is hurried */

/* capture.c */
bool rpi_should_capture(uint64_t s, uint64_t committed, uint64_t candidate, uint64_t cadence, uint32_t slots);
int rpi_private(rp_handle *h, uint64_t generation, uint32_t flags, rp_error *err); /* RP_EAGAIN: no place */
void rpi_stage(rp_handle *h, uint64_t generation);
void rpi_arm(rp_handle *h, uint64_t generation, uint32_t flags, int *armed);
bool rpi_capture_wait(rp_handle *h, int64_t deadline, uint64_t epoch); /* until nothing is armed or running; past the deadline cancels and joins. False: the epoch was closed before (0: whichever is) */
int rpi_capture_run(rp_handle *h, rp_error *err);
int rpi_capture_live(rp_handle *h, uint64_t generation, rp_error *err); /* RP_EAGAIN: it is not what is live */
int rpi_flush(rp_handle *h, int64_t deadline); /* sends notices */
void rpi_quiesce(rp_handle *h, int64_t deadline); /* finishes or cancels, and joins, the capture; tears what was abandoned */

/* lacks.c */
int rpi_tell_lacks(rp_handle *h); /* io held: where the connection's daemon was not told yet; RP_ETIMEOUT: it takes no message now */

/* join.c */
int rpi_tell_pause(rp_handle *h); /* as rpi_tell_lacks: what is left of the pause */

/* said.c */
int rpi_tell_said(rp_handle *h); /* as rpi_tell_lacks */

/* words.c */
bool rpi_set_step(rp_handle *h, uint64_t to);
bool rpi_set_good(rp_handle *h, uint64_t to);
bool rpi_disown(rp_handle *h); /* the words speak of nobody's state; false: somebody else writes them */
void rpi_own(rp_handle *h, uint64_t epoch); /* of this handle's, from here on */

/* open.c */
int rpi_send_regions(rp_handle *h, rp_handle *of, int64_t deadline, rp_error *err); /* of: whose geometry; h itself, or next */
int rpi_take_over(rp_handle *h, rp_error *err);
int rpi_greet_again(rp_handle *h, int64_t deadline, rp_error *err); /* before rp_attach: if the daemon hung up */

/* grow.c */
void rpi_forget_growth(rp_handle *h);

/* geometry.c */
int rpi_take_regions(rp_handle *h, const rp_region *regions, size_t n, rp_error *err);
int rpi_become(rp_handle *h, rp_handle *next, rp_error *err); /* takes its geometry and arena, and leaves those of before in it */
int rpi_map(rp_handle *h, int fd, const rp_attached *a, rp_error *err);
void rpi_unmap(rp_handle *h);

#pragma GCC visibility pop
#endif
