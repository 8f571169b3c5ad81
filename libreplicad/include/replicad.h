/* replicad.h: the contract between a training rank and the replicad daemon of its node.
 *
 * Plain C11: no threads, globals, constructors, signal handlers or stdio; nothing is allocated after rp_attach but in
 * rp_join and rp_grow. Every function returns RP_OK (0) or a negative RP_E* code and, where it takes an rp_error, a text that names the
 * value and the remedy. A call in a forked child returns RP_EFORK and touches nothing. Every blocking call has a deadline
 * in nanoseconds from now (timeout_ns; < 0 is refused).
 *
 * Threads: a handle belongs to one thread, the training thread, except that ONE other thread, the worker, may call
 * rp_capture, rp_notify, rp_reconnect, rp_staged and rp_set_good, and any thread may call rp_cancel, rp_fenced, rp_ordered and rp_committed. A further thread that
 * polls rp_fd may call rp_notify and rp_reconnect beside the worker, so that a slow daemon delays no capture. Any number of threads may call rp_help,
 * so that a capture is copied by all of them; they are joined before rp_close.
 *
 * Life of a rank:
 *   rp_open -> rp_register... -> rp_attach -> loop {
 *     rp_join(&info)                      waits for an epoch that is not closed; tells where to start
 *     info.action == RP_INIT: initialise and broadcast state, rp_seal_initial, rp_join again
 *     info.action == RP_LOAD: rp_load copies the planned generation into the registered regions, verified
 *     rp_ready                            acknowledges; returns when the epoch is opened (Resume)
 *     per step S = info.step+1, ...:  forward/backward; rp_step_enter(S); update; rp_step_exit(S); worker: rp_capture
 *     RP_EFENCED anywhere: stop collectives, go back to rp_join
 *   } -> rp_leave -> rp_close
 * rp_scope, and the rendezvous after it, may be called from rp_open on.
 *
 * Who does what: the launcher (`replicad run --job NAME --world N -- PROGRAM`, on each node) creates the job and starts PROGRAM for
 * each rank with REPLICAD_SOCKET, _JOB, _RANK and _WORLD set; it starts PROGRAM again when the rank's process ends early. This library
 * creates no job: without one rp_open is RP_EREFUSED. A process that exits with status 78 says that a new one would only end the same
 * way: the launcher starts none, and the job ends (do not requeue); before rp_attach was answered the launcher ends, and not the job. Status
 * 75 says that it was short of something (descriptors, memory, processes, disk): it is started again, here or elsewhere, and nothing counts it.
 * One that exits with 0 before rp_leave is missed, and started again.
 * The daemon owns the arena, frees its slots, mirrors and commits.
 *
 * What a handle may do, by state. A call out of order is RP_ESTATE and changes nothing.
 *   state         entered by                    calls (besides those of any state)
 *   open          rp_open                       rp_set_group, rp_register (once), rp_attach; rp_reconnect after RP_EGONE
 *   attached      rp_attach, rp_seal_*          rp_join, rp_leave, rp_fail, rp_pause, rp_ending
 *   to initialise rp_join said RP_INIT          rp_begin_at, rp_seal_initial, rp_seal_own; rp_join
 *   to load       rp_join said RP_LOAD          rp_load; rp_join, rp_fail
 *   loaded        rp_load                       rp_ready, rp_reject; rp_join, rp_fail
 *   ready         rp_ready                      rp_step_enter, rp_step_exit by turns; rp_set_good, rp_seal_step, rp_grow; rp_join, rp_leave, rp_fail, rp_pause, rp_ending
 *   Any state: rp_recipe, rp_from, rp_scope, rp_kv_*, rp_barrier, rp_fd, rp_fenced, rp_committed, rp_get_stats, rp_freeze_good, rp_cancel, rp_close. From attached
 *   on: rp_capture, rp_help, rp_notify, rp_reconnect, rp_ordered, rp_lacks, rp_say, rp_resumed.
 *   rp_join leaves "ready" even if it ends in RP_ETIMEOUT: the rank has said that it stopped. It takes no further step before it has joined,
 *   loaded and is ready again; the daemon closes the epoch 5 s later where no fault does so sooner, and then the order comes.
 *   After RP_ESTOPPED: rp_close, and exit. After rp_close the handle must not be used.
 *
 * One step, on one thread:
 *   rp_step_enter(h, S, timeout, &err);
 *   update();                               optimizer, scheduler, counters
 *   rp_set_good(h, E, S);                   the update is complete; on a device: once its event has passed, see below
 *   rp_step_exit(h, S, 0, &armed, &err);
 *   if (armed) rp_capture(h, &err);         copies here and now; a worker does it behind the next forward
 *   rp_notify(h);                           sends what was sealed, reads what the daemon sent
 * With a worker: the training thread wakes it after rp_step_exit, and it does the last two lines, again while rp_capture is RP_EAGAIN
 * with a capture armed. One thread is enough, and right; the second one takes the copy out of the step's time.
 *
 * rp_set_good(E, S), of the epoch E that rp_join said, comes after the update of S and may come before or after rp_step_exit(S), from the training thread or the worker: before, where
 * the host computes; after, where a device does (when the event recorded behind the update has passed and no communicator has failed).
 * Until then rp_capture of S is RP_EAGAIN, and S is committed on no rank. Without any rp_set_good nothing is ever committed.
 *
 * RP_EAGAIN is never an error: nothing was done, the same call later can succeed. rp_capture: nothing is armed, or its step is not good or
 * not staged yet. rp_seal_initial, rp_seal_own, rp_seal_step: no place is free yet, the daemon frees one. rp_notify: the daemon reads slowly. rp_kv_check:
 * no such key. Wait a millisecond, or until rp_fd is readable, and call again.
 */
#ifndef REPLICAD_H
#define REPLICAD_H
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define RP_API __attribute__((visibility("default")))
#else
#define RP_API
#endif

#define RP_ABI_VERSION 1u

/* Stable codes. */
enum {
	RP_OK = 0,
	RP_EFENCED = -1,   /* the epoch is closed: go to rp_join */
	RP_ECORRUPT = -2,  /* bytes do not hash to what was committed or planned */
	RP_EAGAIN = -3,    /* not yet; call again */
	RP_ETIMEOUT = -4,  /* the deadline passed */
	RP_EGONE = -5,     /* the daemon is not there; training may go on, rp_reconnect */
	RP_EFORK = -6,     /* handle of another process */
	RP_EVERSION = -7,  /* daemon or caller speaks another version */
	RP_EINVAL = -8,    /* bad argument; the text names it */
	RP_EREFUSED = -9,  /* the daemon refused; the text says why and the remedy */
	RP_ENOMEM = -10,   /* too little memory for the arena */
	RP_ESYS = -11,     /* a system call failed; the text has its errno */
	RP_ESTATE = -12,   /* call out of order */
	RP_ESTOPPED = -13, /* the job has ended or this rank was superseded: exit */
	RP_ECANCELED = -14 /* rp_cancel, or the slot was declared torn */
};

typedef struct rp_handle rp_handle;

/* Text of the last failure of the call it is given to; always terminated. May be NULL. */
typedef struct rp_error {
	char text[512];
} rp_error;

typedef struct rp_options {
	uint32_t struct_size;     /* sizeof(rp_options) */
	uint32_t world;           /* ranks in the job */
	const char *socket_path;  /* the daemon's unix socket; NULL: $REPLICAD_SOCKET */
	const char *job;          /* job name; NULL: $REPLICAD_JOB */
	const char *token;        /* the job's, as `replicad job token` says; NULL: $REPLICAD_TOKEN, or none */
	int32_t rank;             /* -1: $REPLICAD_RANK */
	uint32_t group;           /* replica group of this rank; RP_NO_GROUP: rp_set_group says it */
	int64_t timeout_ns;       /* for connecting */
} rp_options;

/* A group that is not known yet: that of a rank which finds it in its model, after rp_open. */
#define RP_NO_GROUP UINT32_MAX

/* Whose the bytes are. "The window" of step S lies between rp_step_enter(S) and rp_step_exit(S). */
enum {
	RP_REPLICATED = 0, /* equal, bit for bit, on all ranks of the replica group after the same step: weights, optimizer state. Copies are
			    * compared between the ranks; where they differ the job goes back, and ends if they differ again. */
	RP_PRIVATE = 1     /* this rank's own: RNG, sampler cursor, BatchNorm statistics. At most --private-cap-mb a rank (64 MiB). */
};
/* When the bytes may change, and so when they are copied. Bytes that change at another time come back old or torn, with right digests:
 * the library can't see it.
 *
 *   kind        class, flags               may change                copied
 *   replicated  RP_WINDOW                  in the window             by rp_capture, while the next forward and backward run; the next
 *                                                                    rp_step_enter waits for it
 *   replicated  RP_VOLATILE                at any time               by each rp_step_exit before it returns: keep them small
 *   replicated  RP_FROZEN                  never                     once, by rp_seal_initial
 *   private     RP_VOLATILE                outside the window        by each rp_step_enter before it returns
 *   private     RP_WINDOW, RP_IN_WINDOW    in the window             by each rp_step_exit before it returns
 *   private     RP_VOLATILE, RP_IN_WINDOW  at any time               by each rp_step_exit before it returns
 *
 * rp_register refuses the rest: private RP_WINDOW without RP_IN_WINDOW (the copy would be made before the window changes it),
 * private RP_FROZEN, and RP_IN_WINDOW on a replicated region; and regions that share memory. One region with RP_IN_WINDOW has all
 * private regions copied at rp_step_exit: a rank that is lost inside of the window then costs that step, which its twins could
 * otherwise finish for it. */
enum { RP_WINDOW = 0, RP_VOLATILE = 1, RP_FROZEN = 2 };
enum { RP_IN_WINDOW = 1 }; /* flag of a private region that the window changes */
enum { RP_U8 = 1, RP_I8, RP_I16, RP_I32, RP_I64, RP_F16, RP_BF16, RP_F32, RP_F64, RP_BOOL, RP_U16, RP_U32, RP_U64, RP_F8E4M3, RP_F8E5M2 };

typedef struct rp_region {
	uint32_t struct_size; /* sizeof(rp_region) */
	uint8_t dtype, kind, cls, ndim;
	uint32_t flags;
	const char *name; /* 1..127 bytes of UTF-8, unique in the rank, not "__metadata__" */
	void *data;       /* live state; must stay mapped until rp_close, or a growth without the region */
	uint64_t bytes;   /* product(shape) * size of dtype */
	uint64_t shape[8];
} rp_region;

enum { RP_INIT = 1, RP_LOAD = 2, RP_GO = 3 };
enum { RP_OWN_RAM = 1, RP_PEER_RAM = 2, RP_DURABLE = 3 };

typedef struct rp_join_info {
	uint32_t struct_size; /* sizeof(rp_join_info) */
	uint32_t action;      /* RP_INIT or RP_LOAD */
	uint64_t epoch;       /* the epoch this rank now works under */
	uint64_t step;        /* T: state after this step is (to be) loaded, or initialised; training goes on with T+1 */
	uint64_t incarnation;
	uint32_t source;      /* RP_OWN_RAM, RP_PEER_RAM, RP_DURABLE; 0 for RP_INIT */
	uint32_t rank, world, group;
	char job_uuid[40];
} rp_join_info;

RP_API uint32_t rp_abi_version(void);
RP_API const char *rp_strerror(int code);

RP_API int rp_open(const rp_options *opt, rp_handle **out, rp_error *err);
/* Names the rank's replica group, before rp_attach, in place of the one given to rp_open. */
RP_API int rp_set_group(rp_handle *h, uint32_t group, rp_error *err);
/* Registers n regions, before rp_attach, in an order equal on all ranks of a group. */
RP_API int rp_register(rp_handle *h, const rp_region *regions, size_t n, rp_error *err);
/* Claims the rank, sends the geometry, maps the arena. The pages that captures are written to are mapped by the worker: call rp_capture
 * there once after this. A claim refused because another live process holds the
 * rank, or because the geometry is not the group's, is RP_EREFUSED with both values in the text. After RP_ETIMEOUT call it again: it goes on
 * where it was cut. After a refusal it asks anew. */
RP_API int rp_attach(rp_handle *h, int64_t timeout_ns, rp_error *err);
/* Cancels and joins every capture of this handle, tells the daemon that the rank has stopped, and waits for the next order.
 * Sets the handle's epoch. RP_ETIMEOUT: no order yet; call rp_join again, nothing else goes on from here. With timeout_ns 0 it only looks; a capture under way has a tenth of a second whatever timeout_ns is. */
RP_API int rp_join(rp_handle *h, rp_join_info *info, int64_t timeout_ns, rp_error *err);
/* After rp_ready of an order from RP_DURABLE, any time: which durable generation the job goes on from, how old it is, and which it passed over
 * with what is wrong with them: the line that launchers print. At most room-1 bytes of UTF-8 (700 are enough), and a zero; empty: there is none. */
RP_API int rp_resumed(rp_handle *h, char *text, size_t room, int64_t timeout_ns, rp_error *err);
/* Which generation of another run the job began with (replicad run --from), from rp_open on: UTF-8 JSON and a zero (8192 bytes are enough; RP_EINVAL where
 * room is too small); empty: none. Who is told RP_INIT then initialises its state from there: it is that of info.step. Nobody else reads it. */
RP_API int rp_from(rp_handle *h, char *text, size_t room, int64_t timeout_ns, rp_error *err);
/* After RP_INIT, before rp_seal_*: the state that is in place is the program's own, of this step (a checkpoint that it has loaded where nothing of the job
 * is kept). The job counts from there, once all ranks have sealed that step; ranks of different steps end it. RP_ESTATE where the job begins at another step. */
RP_API int rp_begin_at(rp_handle *h, uint64_t step, rp_error *err);
/* After RP_INIT: captures and seals the frozen area, replicated and private parts as (epoch, step); sets good. Then rp_join again. */
RP_API int rp_seal_initial(rp_handle *h, rp_error *err);
/* In its place, where another rank of the group initialises what the group has in common: captures and seals the private part alone. RP_LOAD follows, and
 * rp_load brings the rest from that rank. At least one rank of each group calls rp_seal_initial, else the job ends. */
RP_API int rp_seal_own(rp_handle *h, rp_error *err);
/* After RP_LOAD: copies the sealed parts into the live regions, verifying every chunk; sets good to {epoch, step}. RP_EFENCED if the epoch was
 * closed meanwhile, and its plan's parts were freed. */
RP_API int rp_load(rp_handle *h, rp_error *err);
/* Acknowledges the load; waits until the epoch is opened. RP_EFENCED if it was closed instead. */
RP_API int rp_ready(rp_handle *h, int64_t timeout_ns, rp_error *err);
/* Training thread, from rp_load until the next rp_step_enter: *same is 1 where a region (by its place in rp_register's table) has the bytes that rp_load brought, to the bit,
 * and 0 where something has changed them since. It reads the region and its copy. RP_ESTATE at another time, and where the copy has another owner by now. */
RP_API int rp_as_loaded(rp_handle *h, uint32_t region, int *same, rp_error *err);
/* The same time and errors: a region has the bytes that rp_load brought again. */
RP_API int rp_load_again(rp_handle *h, uint32_t region, rp_error *err);

/* The optimizer-step lock. enter: copies and seals the private part of `step`, waits up to timeout_ns for the capture of
 * step-1 to leave the live state (then cancels it: a skipped capture), stores UPDATING, checks the fence. RP_EFENCED as soon as the epoch is closed: the
 * capture goes on, as it may be the newest copy that there is. */
RP_API int rp_step_enter(rp_handle *h, uint64_t step, int64_t timeout_ns, rp_error *err);
/* Exit flags: the step ran no update (overflow); the registered memory is a copy of the live state and does not hold this step yet,
 * so that nothing is copied from it before rp_staged; and its private regions neither, which are copied by rp_private_staged (where one has
 * RP_IN_WINDOW; they stay as they are until the next rp_step_enter has returned). */
enum { RP_NO_UPDATE = 1, RP_STAGED_LATER = 2, RP_PRIVATE_LATER = 4 };
/* exit: stores UPDATED, copies volatile regions, arms the capture, stores IDLE. *armed (may be NULL) is 1 if rp_capture has work. 0 is no
 * failure: neither cadence nor candidate ask for a copy of this step, or there are two slots and a commit is outstanding. */
RP_API int rp_step_exit(rp_handle *h, uint64_t step, uint32_t flags, int *armed, rp_error *err);
/* The next three name the epoch that they speak of, as rp_join said it (rp_join_info). RP_EFENCED, and no effect, where the handle is in another one:
 * a thread that an epoch has left over says nothing about the next one, in which the same steps may come again. */
/* After RP_STAGED_LATER: the registered memory holds `step` now. Without effect on any other step. */
RP_API int rp_staged(rp_handle *h, uint64_t epoch, uint64_t step);
/* After RP_PRIVATE_LATER, worker or training thread: the private regions hold `step` now, and are copied and sealed before this returns. RP_EAGAIN: the step
 * is not known to be good yet (rp_set_good); or there is no place free, or nobody waits for it any more, and the step has no private part. */
RP_API int rp_private_staged(rp_handle *h, uint64_t epoch, uint64_t step, rp_error *err);
/* Raises the good word to {epoch, step}: the update of `step` is complete and every communicator was found free of error afterwards.
 * RP_ESTATE for a step that was not entered, or where no epoch is open; RP_ECANCELED after rp_freeze_good, until the next rp_load. */
RP_API int rp_set_good(rp_handle *h, uint64_t epoch, uint64_t step);
/* Freezes the good word: call at the first communicator error, before aborting anything. */
RP_API int rp_freeze_good(rp_handle *h, uint64_t epoch);

/* Training thread: an alarm. The next copy of a region's part must have, from offset on, the n bytes (RP_EXPECT_MAX at most) that lie at live now, where
 * the caller's state lies by its own account; they are noted. Where the copy has others although they still lie at live, it is not sealed: RP_ECORRUPT of the call that copied (rp_capture,
 * rp_seal_step, rp_step_enter, rp_step_exit). It says that copies are made from elsewhere. live must stay readable until the next rp_expect of that kind. Call it between
 * rp_step_enter and rp_step_exit; for private regions, where none has RP_IN_WINDOW, before rp_step_enter. */
enum { RP_EXPECT_MAX = 65536 };
RP_API int rp_expect(rp_handle *h, uint32_t region, uint64_t offset, const void *live, size_t n, rp_error *err);
/* Any thread: how often a copy was compared so. A step that nobody copied was not. */
RP_API uint64_t rp_compared(const rp_handle *h);

/* Training thread, between two steps: has the live step sealed though neither cadence nor candidate ask for it, so that it can be
 * committed; with rp_pause the daemons hear that no later step is to be waited for. RP_EAGAIN: not yet, call again. A private
 * part that was skipped for want of a place is copied now if the caller says that private regions are still as they were then;
 * else it is RP_ECANCELED. */
enum { RP_PRIVATE_UNCHANGED = 1 };
RP_API int rp_seal_step(rp_handle *h, uint32_t flags, rp_error *err);

/* Training thread, between two steps, on all ranks of the job after the same step, committed or not: from now on the rank has these
 * regions, in place of those that it registered. A fault on the way goes back to the newest step that lies sealed in the regions of before. The regions follow the rules of rp_register, and those of a group are the same on all of its
 * ranks; a region that stays is named again. The bytes of replicated regions must be equal on the ranks of the group by now. recipe: up to
 * RP_RECIPE_MAX bytes of the caller, equal on all ranks, which the job keeps: a later process of a rank reads them (rp_recipe) before it registers.
 *   RP_OK        the state is "attached". rp_join says RP_INIT at the same step of the next epoch: rp_seal_initial, rp_join, rp_load and rp_ready as
 *                at the beginning, and training goes on with the next step. The memory of regions that are no longer registered is free.
 *   RP_EREFUSED  nothing has changed, and the epoch is open: no memory on some node, another rank asks for other regions or does not ask.
 *   RP_EFENCED   a fault closed the epoch before. Nothing has changed: rp_join goes on with the regions of before.
 *   RP_ETIMEOUT, RP_EGONE (rp_reconnect): call it again with the same regions; it goes on where it was cut. Who takes a step instead has given it
 *                up; where the growth is decided at that moment its process is replaced.
 * A fault after RP_OK and before rp_ready takes the growth back: the process is superseded (RP_ESTOPPED), and a new one goes on with the regions of before. */
enum { RP_RECIPE_MAX = 65536 };
RP_API int rp_grow(rp_handle *h, const rp_region *regions, size_t n, const void *recipe, size_t recipe_n, int64_t timeout_ns, rp_error *err);
/* The recipe of the job's newest growth; *n is 0 where the job has never grown. From rp_open on; before rp_register, so that a process which starts
 * after a growth registers what the job has now. RP_EAGAIN: the job grows at this moment. RP_EINVAL: *n is too small, and says the size now. */
RP_API int rp_recipe(rp_handle *h, void *recipe, size_t *n /* in: room, out: size */, int64_t timeout_ns, rp_error *err);
/* Worker thread: copies and hashes the armed capture, seals it, tells the daemon. RP_EAGAIN if nothing is armed, after it has mapped
 * pages of the arena that are not mapped yet (until a capture is armed, or rp_cancel); RP_ECANCELED if cancelled. Needs good >= the captured step, and the step staged. */
RP_API int rp_capture(rp_handle *h, rp_error *err);
/* A further thread, in a loop: copies chunks of the capture that rp_capture runs, or of the load that rp_load runs, beside it, and returns RP_OK when
 * there are none left. Waits up to timeout_ns for one: RP_ETIMEOUT. RP_EAGAIN: rp_cancel was called. Worth a thread where one core copies slower than the memory allows. */
RP_API int rp_help(rp_handle *h, int64_t timeout_ns);
/* Worker thread: tells the daemon about a private part sealed by rp_step_enter, and takes in what the daemon has sent. Cheap when
 * there is none. RP_EGONE when the daemon hung up. */
RP_API int rp_notify(rp_handle *h);
/* Worker thread: after RP_EGONE, connects again and offers the arena back (before rp_attach, on the training thread: says hello again). RP_EGONE at once if nobody listens yet: try again later.
 * RP_ESTOPPED if the rank has another owner. */
RP_API int rp_reconnect(rp_handle *h, int64_t timeout_ns, rp_error *err);
/* Any thread: makes a running capture end at the next chunk, and one that is armed never begin: nobody waits for it. */
RP_API void rp_cancel(rp_handle *h);
/* Any thread: 1 if the handle's epoch is closed. Reads one word. */
RP_API int rp_fenced(const rp_handle *h);
/* Any thread: 1 if rp_join has something to do or to say at once, 0 if it would wait for the daemon. Who has called rp_join in vain can
 * leave the handle to another thread until then. */
RP_API int rp_ordered(rp_handle *h);
/* Any thread: the step last committed, as the daemon wrote it to the control page. */
RP_API uint64_t rp_committed(const rp_handle *h);
/* Pollable descriptor: readable when the daemon has sent something (a fence among others) or is gone. Any call that waits, and rp_notify, read
 * it: a thread that polls may find nothing where another one has read the fence. Ask rp_fenced after such calls, or wake the poller. */
RP_API int rp_fd(const rp_handle *h);

/* Reports a fault of this rank (exception): the daemon proposes it; the epoch is closed. Where the same text comes again at the same step of a
 * later epoch the launcher prints so. */
RP_API int rp_fail(rp_handle *h, const char *text, rp_error *err);
/* Between rp_load and rp_ready: the state just loaded is bad although every digest is right (values that are not finite, say).
 * Its generation is condemned, for good, and the job goes back to an older one: rp_join next. RP_ESTATE at any other time. */
RP_API int rp_reject(rp_handle *h, const char *text, rp_error *err);

/* Says that the rank will stand still for at most most_ns, on purpose (evaluation, compilation, loading), so that it is not taken
 * for a hang: a day at most; 0 ends the pause. After RP_EGONE rp_reconnect says it: a daemon that was away hears what is left of it. */
RP_API int rp_pause(rp_handle *h, int64_t most_ns, rp_error *err);
/* Says that the process is on its way out, for at most most_ns, a day at most: an exception ends it, or its exit handlers run. Where an
 * epoch was closed it is no hang meanwhile; its rank gets a new process once it has ended. */
RP_API int rp_ending(rp_handle *h, int64_t most_ns, rp_error *err);

/* Training thread: names what the registered memory does not hold although the program changes it, as a person reads it ("model.teacher.0.weight").
 * Replicad status, the launcher and the durable generations written from now on say so. Longer than 1,000 bytes of UTF-8 it is cut; "" takes it back.
 * The daemon hears it now, or from the next rp_notify or rp_reconnect. */
RP_API int rp_lacks(rp_handle *h, const char *text, rp_error *err);

enum { RP_NOTE = 1, RP_METRIC = 2, RP_VERSION = 3, RP_LOADER_EPOCH = 4 };
#define RP_MAX_REMARKS 256u     /* of them 64 of each kind */
#define RP_MAX_REMARK_NAME 64u  /* bytes of UTF-8 */
#define RP_MAX_REMARK_TEXT 256u /* likewise */
typedef struct rp_remark {
	uint32_t kind; /* RP_NOTE... */
	uint32_t pad;
	const char *name;
	const char *text; /* of notes and versions; else NULL */
	double value;     /* of a metric or the loader's epoch: finite; a metric that is NaN has no value from its step on */
	uint64_t step;    /* that the value belongs to */
} rp_remark;
/* Training thread: all that the rank says of its job from now on, in the place of what it said before: notes, metrics, versions of its program and
 * libraries, the epoch of its data. The COMMIT of a durable generation has what all ranks say, of a name the lowest rank's: texts as they are when it
 * is written, and of a number the newest that is of its step or an earlier one; the daemon remembers some earlier ones. `replicad ckpt show` prints
 * them. No name comes twice in a kind. The daemon hears it now, or from the next rp_notify or rp_reconnect. */
RP_API int rp_say(rp_handle *h, const rp_remark *remarks, size_t n, rp_error *err);

/* Rendezvous of the handle's scope: a key-value store and a barrier, served through the daemon. The scope is the epoch that
 * rp_join named last, or the one that rp_scope named since. It outlives the cluster's leader; a rank may contribute 16,384 keys
 * and barriers and 4 MiB to an epoch. Keys up to 255 bytes, values up to 32 KiB. RP_EFENCED when the scope's epoch closes meanwhile.
 * After RP_ETIMEOUT or RP_EGONE (rp_reconnect) a call may have been carried out or not: the same call again is the same one, and
 * counts once, and takes an answer that came between the two; any other write gives it up. */
/* Makes the epoch to come the scope: the job's highest closed epoch + 1. Before rp_attach, so that new processes meet before they
 * know what they register; and after a fence, so that the others meet them. */
RP_API int rp_scope(rp_handle *h, uint64_t *epoch, int64_t timeout_ns, rp_error *err);
RP_API int rp_kv_set(rp_handle *h, const char *key, const void *value, size_t n, int64_t timeout_ns, rp_error *err);
RP_API int rp_kv_get(rp_handle *h, const char *key, void *value, size_t *n /* in: room, out: size */, int64_t timeout_ns, rp_error *err);
/* rp_kv_get waits for the key; rp_kv_check does not: RP_EAGAIN if it is not set. */
RP_API int rp_kv_check(rp_handle *h, const char *key, int64_t timeout_ns, rp_error *err);
/* Adds to a decimal number (no key: to 0) and tells the sum. */
RP_API int rp_kv_add(rp_handle *h, const char *key, int64_t delta, int64_t *total, int64_t timeout_ns, rp_error *err);
/* Sets the key to what is desired if it holds what is expected (no key: if nothing is). Tells what it holds then. Both values
 * together up to 32 KiB. */
RP_API int rp_kv_compare_set(rp_handle *h, const char *key, const void *expected, size_t expected_n, const void *desired, size_t desired_n, void *value, size_t *n /* in: room, out: size */, int64_t timeout_ns, rp_error *err);
/* Removes the key; *deleted (may be NULL) tells whether it was there. */
RP_API int rp_kv_delete(rp_handle *h, const char *key, int *deleted, int64_t timeout_ns, rp_error *err);
RP_API int rp_barrier(rp_handle *h, const char *name, uint32_t members, int64_t timeout_ns, rp_error *err);

typedef struct rp_stats {
	uint32_t struct_size; /* sizeof(rp_stats) */
	uint32_t pad;
	uint64_t captures, skipped, canceled; /* replicated parts */
	uint64_t private_skipped;             /* private parts for which the ring had no free place */
	uint64_t capture_bytes, capture_ns;   /* copy + hash, of finished captures */
	uint64_t reconnects;
} rp_stats;
RP_API int rp_get_stats(const rp_handle *h, rp_stats *out);

/* Says that the job is finished for this rank (no fault), then rp_close. The last step is sealed first: where the arena has no place for it,
 * it waits until an older step is committed, for 30 s and what the state takes at 32 MiB a second, anew with each commit. RP_ETIMEOUT before
 * that: not said yet, call it again. */
RP_API int rp_leave(rp_handle *h, int64_t timeout_ns, rp_error *err);
RP_API void rp_close(rp_handle *h);

#ifdef __cplusplus
}
#endif
#endif
