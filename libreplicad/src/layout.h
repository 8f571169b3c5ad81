/* layout.h: the bytes that rank and daemon share: the arena and the messages on the unix SEQPACKET socket. Little-endian.
 * internal/shm and internal/wire hold the same numbers in Go; libreplicad/testdata/ holds golden vectors read by both. */
#ifndef RP_LAYOUT_H
#define RP_LAYOUT_H
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

/* ---- words (replica/words.go) ---- */
#define RP_WORD(epoch, step, phase) (((uint64_t)(epoch) << 40) | (((uint64_t)(step) & ((1ull << 38) - 1)) << 2) | (uint64_t)(phase))
#define RP_WORD_EPOCH(w) ((uint64_t)(w) >> 40)
#define RP_STEP_MAX ((1ull << 38) - 1)
#define RP_WORD_STEP(w) (((uint64_t)(w) >> 2) & ((1ull << 38) - 1))
#define RP_WORD_PHASE(w) ((uint64_t)(w) & 3)
enum { RP_IDLE = 0, RP_UPDATING = 1, RP_UPDATED = 2 };
#define RP_SLOT(count, state) (((uint64_t)(count) << 3) | (uint64_t)(state))
#define RP_SLOT_COUNT(w) ((uint64_t)(w) >> 3)
#define RP_SLOT_STATE(w) ((uint64_t)(w) & 7)
enum { RP_FREE = 0, RP_COPYING = 1, RP_COPIED = 2, RP_SEALED = 3, RP_TORN = 4 };

/* ---- arena ---- */
#define RP_ARENA_MAGIC 0x31414e4552415052ull /* "RPARENA1" */
#define RP_ARENA_VERSION 1u
#define RP_PAGE 4096u
#define RP_MAX_SLOTS 4u
#define RP_MAX_RING 16u
#define RP_STAGING 2u

/* The control page, at offset 0. Each word has a cache line of its own. "d:" written by the daemon alone, "r:" by the rank alone. */
typedef struct rp_control {
	/* header, d:, constant once handed out */
	uint64_t magic;                 /*   0 */
	uint32_t version, header_bytes; /*   8 RP_ARENA_VERSION, RP_PAGE */
	uint8_t cluster[16];            /*  16 */
	uint8_t job[16];                /*  32 */
	uint32_t era, rank;             /*  48 */
	uint64_t reserved0;             /*  56 */
	uint64_t arena_bytes;           /*  64 */
	uint32_t chunk_bytes, slots;    /*  72 */
	uint32_t ring, staging;         /*  80 */
	uint64_t meta_offset;           /*  88 table of rp_meta: frozen, then slots, then ring */
	uint64_t slot_meta_stride;      /*  96 bytes a frozen or slot meta takes (page aligned) */
	uint64_t ring_meta_stride;      /* 104 */
	uint64_t frozen_offset;         /* 112 */
	uint64_t frozen_bytes;          /* 120 */
	uint64_t slot_offset;           /* 128 */
	uint64_t slot_stride;           /* 136 page aligned */
	uint64_t replicated_bytes;      /* 144 */
	uint64_t ring_offset;           /* 152 */
	uint64_t ring_stride;           /* 160 */
	uint64_t private_bytes;         /* 168 */
	uint64_t staging_offset;        /* 176 */
	uint64_t staging_stride;        /* 184 */
	uint64_t volatile_bytes;        /* 192 */
	uint8_t geometry_replicated[16]; /* 200 digest of the replicated regions' records */
	uint8_t geometry_private[16];    /* 216 */
	uint8_t geometry_frozen[16];     /* 232 */
	uint64_t regions_offset;         /* 248 region records (256 bytes each, offsets filled in), in order of registration */
	uint32_t region_count, flags;    /* 256 flags: 1 = mirror arena (the daemon alone writes it; no slots but what it mirrors) */
	uint8_t reserved1[512 - 264];
	/* words */
	struct { _Atomic uint64_t word; uint8_t pad[56]; } step;        /*  512 r: */
	struct { _Atomic uint64_t word; uint8_t pad[56]; } good;        /*  576 r: */
	struct { _Atomic uint64_t word; uint8_t pad[56]; } fence;       /*  640 d: highest closed epoch, a plain number */
	struct { _Atomic uint64_t word; uint8_t pad[56]; } committed;   /*  704 d: position {epoch, step}, RP_WORD */
	struct { _Atomic uint64_t word; uint8_t pad[56]; } candidate;   /*  768 d: next candidate's position, RP_WORD; 0 none */
	struct { _Atomic uint64_t word; uint8_t pad[56]; } cadence;     /*  832 d: c */
	struct { _Atomic uint64_t word; uint8_t pad[56]; } incarnation; /*  896 d: incarnation that now owns the arena */
	struct { _Atomic uint64_t word; uint8_t pad[56]; } pid;         /*  960 d: pid of the owner */
	struct { _Atomic uint64_t word; uint8_t pad[56]; } start;       /* 1024 d: its start time, field 22 of /proc/pid/stat */
	struct { _Atomic uint64_t word; uint8_t pad[56]; } skipped;     /* 1088 r: captures skipped for want of a slot */
	struct { _Atomic uint64_t word; uint8_t pad[56]; } captured;    /* 1152 r: captures sealed */
	struct { _Atomic uint64_t word; uint8_t pad[56]; } holder;      /* 1216 r: incarnation whose state step, good and tag speak of; 0: nobody's, as at each attach and while a load copies */
	uint8_t reserved2[1536 - 1280];
	struct { _Atomic uint64_t word; uint8_t pad[56]; } slot[RP_MAX_SLOTS]; /* 1536 both, compare-and-swap */
	uint8_t reserved3[2048 - 1792];
	struct { _Atomic uint64_t word; uint8_t pad[56]; } place[RP_MAX_RING]; /* 2048 both: private ring */
	struct { _Atomic uint64_t word; uint8_t pad[56]; } frozen;             /* 3072 both */
	struct { _Atomic uint64_t word; uint8_t pad[56]; } tag[RP_STAGING];    /* 3136 r: generation (RP_WORD) whose volatile bytes lie in the staging place */
	uint8_t reserved4[RP_PAGE - 3264];
} rp_control;
_Static_assert(sizeof(rp_control) == RP_PAGE, "control page");
_Static_assert(offsetof(rp_control, step) == 512 && offsetof(rp_control, holder) == 1216 && offsetof(rp_control, slot) == 1536 && offsetof(rp_control, place) == 2048 && offsetof(rp_control, frozen) == 3072 && offsetof(rp_control, tag) == 3136, "words");

/* Describes what lies in a slot, ring place or the frozen area; written before COPIED, read only at COPIED or SEALED. */
typedef struct rp_meta {
	uint64_t generation;  /*  0 RP_WORD of the origin's name */
	uint32_t flags;       /*  8 replica.PartFlags: RP_NO_UPDATE, 2 (the daemon's), RP_SHARED_ELSEWHERE */
	uint32_t chunks;      /* 12 */
	uint64_t bytes;       /* 16 */
	uint64_t use_count;   /* 24 of the slot word this belongs to */
	uint8_t root[16];     /* 32 written before SEALED */
	uint8_t frozen_root[16]; /* 48 replicated parts: root of the frozen area, zeros if it is empty */
	uint64_t incarnation; /* 64 producer's */
	uint64_t pin_term;    /* 72 d: pinned for candidate (term, n); 0 none */
	uint64_t pin_n;       /* 80 d: */
	uint32_t rank;        /* 88 producer */
	uint32_t reserved0;   /* 92 */
	uint8_t reserved[32]; /* 96 */
	uint8_t digest[][16]; /* 128 chunk digests, XXH3-128 canonical */
} rp_meta;
_Static_assert(sizeof(rp_meta) == 128, "meta");
#define RP_SHARED_ELSEWHERE 4u /* of a private part: the rank takes what its group has in common from another one of it (rp_seal_own) */

/* Root of a part = XXH3-128(seed 0) of: "RPROOT01", geometry digest[16], kind u32 (0 replicated, 1 private, 2 frozen), chunks u32,
 * chunk_bytes u32, flags & RP_NO_UPDATE u32, bytes u64, frozen_root[16], chunk digests. See replica.Manifest.RootInput. */

/* ---- messages on the SEQPACKET socket: one datagram each, header + body, at most RP_MAX_MESSAGE bytes ---- */
#define RP_MESSAGE_MAGIC 0x31445052u /* "RPD1" */
#define RP_MESSAGE_VERSION 1u
#define RP_MAX_MESSAGE 65536u
#define RP_MAX_LACKS 1000u
#define RP_MAX_SAID (RP_MAX_REMARKS * (24u + RP_MAX_REMARK_NAME) + RP_MAX_REMARKS / 2 * RP_MAX_REMARK_TEXT) /* bytes of all remarks of a rank */

typedef struct rp_header {
	uint32_t magic;
	uint16_t version, type;
	uint32_t length;  /* header + body */
	uint32_t request; /* echoed in the reply; 0 for events */
	uint64_t epoch;   /* the sender's */
	uint64_t incarnation;
} rp_header;
_Static_assert(sizeof(rp_header) == 32, "header");

enum {
	/* rank -> daemon */
	RP_M_HELLO = 1,     /* rp_hello; reply RP_M_WELCOME or RP_M_REFUSED */
	RP_M_REGIONS = 2,   /* u32 first, u32 count, then count records of 256 bytes (replica.AppendRegion; offsets zero); no reply */
	RP_M_ATTACH = 3,    /* u32 regions in all, u32 0; reply RP_M_ATTACHED + descriptor, or RP_M_REFUSED */
	RP_M_REATTACH = 4,  /* rp_hello + the arena's descriptor: after the daemon was away; reply RP_M_ATTACHED without descriptor */
	RP_M_SEALED = 5,    /* rp_sealed: a slot, ring place or the frozen area is SEALED; no reply */
	RP_M_STOPPED = 6,   /* u64 live word: captures cancelled and joined, the rank waits in rp_join; no reply (orders follow) */
	RP_M_LOADED = 7,    /* rp_loaded: state of the ordered epoch is in place; no reply (RP_ORDER_GO follows) */
	RP_M_FAIL = 8,      /* text: an exception in this rank; no reply */
	RP_M_LEAVE = 9,     /* finished; reply RP_M_BYE */
	RP_M_KV_SET = 10,   /* rp_kv: reply RP_M_KV_OK */
	RP_M_KV_GET = 11,   /* rp_kv: reply RP_M_KV_VALUE once the key is there */
	RP_M_BARRIER = 12,  /* rp_kv with members: reply RP_M_KV_OK once all came */
	RP_M_REJECT = 13,   /* text: what this rank was given to load is bad although it hashes right; no reply (a fence follows) */
	RP_M_KV_ADD = 14,   /* rp_kv, value: i64 to add; reply RP_M_KV_TOTAL */
	RP_M_KV_CHECK = 15, /* rp_kv; reply RP_M_KV_OK at once, RP_EAGAIN if the key is not there */
	RP_M_KV_COMPARE_SET = 16, /* rp_kv, value: members bytes that are expected, then what is desired; reply RP_M_KV_VALUE: what is there now */
	RP_M_KV_DELETE = 17, /* rp_kv; reply RP_M_KV_TOTAL: 1 if there was a key */
	RP_M_SCOPE = 18,    /* reply RP_M_SCOPED */
	RP_M_UNLOADABLE = 23, /* text: rp_load found that the bytes it was ordered to load are not the plan's; no reply (a fence follows) */
	RP_M_PAUSE = 19,    /* u64 nanoseconds: the rank stands still for at most so long, on purpose; 0 ends it; reply RP_M_PAUSED if it is a request; what is left is said again on each connection */
	RP_M_ENDING = 24,   /* u64 nanoseconds: the process is on its way out, for at most so long; no reply */
	RP_M_LACKS = 30,    /* text: what copies of this rank lack, at most RP_MAX_LACKS bytes; empty: nothing; no reply; said again on each connection */
	RP_M_RECIPE_PART = 25, /* rp_piece: a piece of the recipe of the growth to come; no reply */
	RP_M_GROW = 26,     /* rp_growth, after its RP_M_REGIONS and RP_M_RECIPE_PARTs: the rank stands between two steps; reply RP_M_ATTACHED + descriptor, or RP_M_REFUSED (RP_EFENCED: the epoch was closed) */
	RP_M_RESUMED = 32,  /* no body; reply RP_M_RESUMED_IS */
	RP_M_SAID = 33,     /* rp_said_remarks, each with its name and text: all that the rank says of its job; no reply; said again on each connection */
	RP_M_FROM = 34,     /* no body; reply RP_M_FROM_IS */
	RP_M_RECIPE = 27,   /* u32 offset, u32 0: what the job keeps; reply RP_M_RECIPE_IS */
	/* a launcher (replicad run) -> daemon */
	RP_M_RUN_HELLO = 20, /* rp_run_hello; reply RP_M_RUN_OK or RP_M_REFUSED */
	RP_M_RUN_EXITED = 21, /* rp_run_exited; no reply */
	RP_M_RUN_RUNNING = 22, /* rp_run_exited with status 0: a process that runs already (after a reconnect, or when asked to start it again); no reply */
	/* daemon -> rank */
	RP_M_WELCOME = 64,  /* rp_welcome */
	RP_M_REFUSED = 65,  /* i32 code, u32 0, text: why and the remedy */
	RP_M_ATTACHED = 66, /* rp_attached (+ descriptor) */
	RP_M_FENCE = 67,    /* header.epoch = highest closed epoch; the fence word says the same */
	RP_M_ORDER = 68,    /* rp_order */
	RP_M_BYE = 69,
	RP_M_KV_OK = 70,    /* i32 code (RP_OK, RP_EFENCED, RP_EAGAIN), u32 0 */
	RP_M_KV_VALUE = 71, /* i32 code, u32 length, value */
	RP_M_KV_TOTAL = 72, /* i32 code, u32 0, i64 total */
	RP_M_SCOPED = 73,   /* u64: the epoch to come */
	RP_M_PAUSED = 74,   /* the pause is known: nothing is freed any more for a step that the rank does not come to */
	RP_M_RESUMED_IS = 76, /* text: what the plan of the newest epoch says of the durable generation that it reads; empty: it reads none */
	RP_M_FROM_IS = 77, /* JSON: the generation of another run that the job began with; empty: none */
	RP_M_RECIPE_IS = 75, /* rp_piece: the job's recipe from the offset on, as much as fits */
	/* daemon -> launcher */
	RP_M_RUN_OK = 80,    /* rp_welcome */
	RP_M_RUN_START = 81, /* rp_run_start: run a process for this rank */
	RP_M_RUN_STOP = 82,  /* u32 rank, u32 signal: superseded, or the job has ended */
	RP_M_RUN_DONE = 83,  /* i32 exit code, u32 0, text: the job has ended */
};

typedef struct rp_hello {
	uint32_t abi; /* RP_ABI_VERSION */
	uint32_t rank, world, group;
	uint64_t nonce; /* random: a claim sent twice is one claim */
	uint64_t pid;   /* as the sender sees itself; the daemon trusts SO_PEERCRED */
	char job[64];   /* NUL padded */
	char token[64];
} rp_hello;
_Static_assert(sizeof(rp_hello) == 160, "hello");

typedef struct rp_welcome {
	uint32_t abi, rank;
	uint8_t cluster[16], job[16];
	uint32_t era, chunk_bytes;
} rp_welcome;
_Static_assert(sizeof(rp_welcome) == 48, "welcome");

typedef struct rp_attached {
	uint64_t arena_bytes, incarnation;
	uint32_t slots, ring;
	uint64_t fence;
	uint8_t job[16];
} rp_attached;
_Static_assert(sizeof(rp_attached) == 48, "attached");

/* What a rank says; its name and text follow. */
typedef struct rp_said_remark {
	uint16_t kind, name_bytes; /* RP_NOTE... */
	uint32_t text_bytes;
	uint64_t step;
	double value;
} rp_said_remark;
_Static_assert(sizeof(rp_said_remark) == 24, "said_remark");

/* A piece of a recipe; its bytes follow. */
typedef struct rp_piece {
	uint32_t offset, total; /* total: of the whole recipe */
} rp_piece;
_Static_assert(sizeof(rp_piece) == 8, "piece");

typedef struct rp_growth {
	uint64_t step;    /* at which the rank stands; it is committed. header.epoch is that of the step */
	uint32_t regions; /* sent before */
	uint32_t recipe;  /* bytes, likewise */
} rp_growth;
_Static_assert(sizeof(rp_growth) == 16, "growth");

typedef struct rp_sealed {
	uint32_t kind;  /* 0 slot, 1 ring place, 2 frozen */
	uint32_t index;
	uint64_t word;  /* the slot word after sealing */
	uint64_t generation;
} rp_sealed;
_Static_assert(sizeof(rp_sealed) == 24, "sealed");

typedef struct rp_loaded {
	uint64_t generation; /* origin's name of what was loaded */
	uint8_t replicated_root[16], private_root[16];
} rp_loaded;
_Static_assert(sizeof(rp_loaded) == 40, "loaded");

enum { RP_ORDER_INIT = 1, RP_ORDER_LOAD = 2, RP_ORDER_GO = 3, RP_ORDER_STOP = 4, RP_ORDER_CAPTURE = 5 /* a rank that waits in rp_join: seal the live state as `generation`, wait on */ };
typedef struct rp_order {
	uint32_t action;  /* RP_ORDER_* ; header.epoch = the epoch ordered */
	uint32_t source;  /* RP_OWN_RAM... */
	uint64_t step;    /* T */
	uint64_t generation; /* origin's name of the parts to load */
	uint32_t slot, place; /* where they lie, SEALED */
	uint8_t replicated_root[16], private_root[16]; /* what they must hash to */
	int32_t code;     /* RP_ORDER_STOP: RP_ESTOPPED */
	uint32_t reserved;
	char text[64];
} rp_order;
_Static_assert(sizeof(rp_order) == 136, "order");

typedef struct rp_kv { /* header.epoch: whose rendezvous */
	uint32_t key_bytes, value_bytes, members;
	uint32_t once; /* of a write (set, add, compare_set, delete): its number; the same again is the same write. Else 0 */
	/* key, then value */
} rp_kv;
_Static_assert(sizeof(rp_kv) == 16, "kv");

typedef struct rp_run_hello {
	uint32_t abi, world;
	uint32_t capacity; /* processes it may run */
	uint32_t spare;    /* 1: takes no rank unless one is lost elsewhere */
	uint32_t ranks;    /* how many preferred ranks follow the struct, u32 each */
	uint32_t groups;   /* world entries u32 follow after the ranks if nonzero: replica group of each rank */
	uint32_t min_copies, cadence, slots, chunk_bytes, durable_every, flags; /* job options where this launcher creates the job; 0: default. flags: 1 = resume from the durable tier; all of them, and what may follow the lists, are in internal/wire/rank_run.go */
	char job[64], token[64];
} rp_run_hello;
_Static_assert(sizeof(rp_run_hello) == 176, "run_hello");

typedef struct rp_run_exited {
	uint32_t rank;
	int32_t status; /* exit code, or 128 + signal */
	uint64_t pid;
} rp_run_exited;
_Static_assert(sizeof(rp_run_exited) == 16, "run_exited");

typedef struct rp_run_start {
	uint32_t rank, world, group;
	uint32_t early; /* how many of its processes here ended, in a row until now, before they attached */
	uint32_t groups; /* world entries u32 follow if nonzero: replica group of each rank */
} rp_run_start;
_Static_assert(sizeof(rp_run_start) == 20, "run_start");

#endif
