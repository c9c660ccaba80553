/* SPDX-License-Identifier: Apache-2.0 */
/*
 * leg_path - what moves the bytes of a leg: data connections (tcp/tcp_in.c, tcp/tcp_out.c), RDMA
 * (rdma/leg/reader.c, rdma/leg/source.c). One table of functions for each end of each path.
 *
 * The leg owns its state, its clock, its part and its control connection. A path moves bytes, and
 * writes no field of the leg: what it wants of it, it asks by the functions of leg_in.h and
 * leg_out.h. The leg knows a path by its table alone. A new path is one table here, one row in
 * transport/paths.c and one in the conformance suite.
 *
 * The *stream path* is the last one of a list, and every leg has it: a path that comes to nothing
 * hands over to it (leg_in_stream), and may take over from it (leg_in_retire). A path before it may
 * have no use in a leg; then it is not there.
 *
 * Threads: the acceptor calls all functions but those that say otherwise, and only from `open` to
 * `free`. They do not wait. Where it is not said otherwise, the leg may have ended when a function
 * returns; `close` has been called in it then. A function that is NULL has nothing to do.
 *
 * Copies within a host (transport/local) are no paths: they have no control connection, no source
 * that is to be asked and no acceptor. A pool's threads take their chunks from the same ledger, and
 * whichever of them comes last takes the leg down, under the pool's lock.
 */
#ifndef TH_TRANSPORT_LEG_LEG_PATH_H
#define TH_TRANSPORT_LEG_LEG_PATH_H

#include <stdbool.h>
#include <stdint.h>

struct frame;
struct leg_in;
struct leg_in_path;
struct leg_out;
struct leg_out_path;
struct transport_event;

#define LEG_PATHS_MAX 4u

/* How far a path is that the source does not see move. Both only grow. */
struct leg_in_progress {
	uint32_t chunks; /* that came, also those that did not match */
	uint64_t bytes;  /* of chunks on their way, too */
};

struct leg_in_path_ops {
	uint8_t hello_flags;  /* of HELLO, where the path is there */
	uint32_t frame_kinds; /* a mask of those that are the path's */

	/* The control connection stands. NULL: this leg does without it, and where people shall
	 * know why, leg_in_fall_back was told. The leg is not ended in here. */
	struct leg_in_path *(*open)(struct leg_in *leg);
	/* It shall fetch what is missing: of the first path with the flags of WELCOME, of the
	 * stream path whenever another one hands over to it. */
	void (*start)(struct leg_in_path *path, unsigned welcome_flags);
	/* Stream path: asks for nothing more; what it was asked for still comes. */
	void (*retire)(struct leg_in_path *path);
	/* A frame of its kinds, of a running leg. 0, or a code: it breaks the protocol. */
	int (*frame)(struct leg_in_path *path, const struct frame *frame, const uint8_t *payload);
	/* The source has said anything: it lives. */
	void (*heard)(struct leg_in_path *path);
	/* There may be more to fetch; the source has more than before. */
	void (*kick)(struct leg_in_path *path);
	void (*grew)(struct leg_in_path *path);
	/* The control connection's buffer is empty: puts in what is to be asked of the source. */
	void (*refill)(struct leg_in_path *path);
	/* Its own clocks. When to be called again; INT64_MAX: not for this. late: the leg was to
	 * look long ago, so nobody else was slow. */
	int64_t (*tick)(struct leg_in_path *path, bool late, int64_t now_ns);
	/* That nothing comes is not the source's doing just now, or the path's own to watch. */
	bool (*excuses)(struct leg_in_path *path);
	/* It fetches, as far as is known. */
	bool (*moves)(struct leg_in_path *path);
	/* Only of a path that the source does not see move: then the reader tells it. */
	void (*progress)(struct leg_in_path *path, struct leg_in_progress *ret_progress);
	/* A byte of the part may have been written, although none was told by leg_in_moved. */
	bool (*touched)(struct leg_in_path *path);
	/* The leg ends: nothing more is written. done: by its own success. leg_in_settle is called
	 * when it is gone. */
	void (*close)(struct leg_in_path *path, bool done);
	/* After close: nothing of it is under way on any thread. */
	bool (*gone)(struct leg_in_path *path);
	void (*free)(struct leg_in_path *path); /* it is gone */
};

struct leg_in_path { /* the first member of what each path has */
	const struct leg_in_path_ops *ops;
};

struct leg_out_path_ops {
	uint32_t frame_kinds;                /* a mask of those that are the path's */
	uint32_t payload_max, payload_kinds; /* of those that may have a payload, and how much */

	/* For a reader that said HELLO with these flags. NULL: this leg does without it.
	 * ret_welcome_flags: gets those of WELCOME. The leg is not ended in here. */
	struct leg_out_path *(*open)(
		struct leg_out *leg, unsigned hello_flags, unsigned *ret_welcome_flags);
	/* The control connection stands, WELCOME is said. */
	void (*start)(struct leg_out_path *path);
	/* A frame of its kinds. 0, or a code: it breaks the protocol. */
	int (*frame)(struct leg_out_path *path, const struct frame *frame, const uint8_t *payload);
	/* The control connection's buffer is empty: puts the next frame in. False: none. */
	bool (*refill)(struct leg_out_path *path);
	/* The prefix grew: who waits for it goes on. Any thread, short, under the part's lock. */
	void (*grew)(struct leg_out_path *path);
	/* The same on the acceptor, later; or somebody waits, or does no more. */
	void (*nudged)(struct leg_out_path *path);
	/* As at the reader. */
	int64_t (*tick)(struct leg_out_path *path, int64_t now_ns);
	/* How much of this prefix may be told to the reader. */
	uint32_t (*prefix)(struct leg_out_path *path, uint32_t prefix);
	/* The reader waits for what the part does not have, or for us: that is not its stall. */
	bool (*waits)(struct leg_out_path *path);
	/* The reader fetches by it, as far as is known. */
	bool (*moves)(struct leg_out_path *path);
	/* Of a leg that has ended: how its bytes went, if they went this way. */
	void (*say)(struct leg_out_path *path, struct transport_event *ret_event);
	/* The leg ends: nothing more of the part is read or answered, when it is gone.
	 * leg_out_settle is called then. reset: what is queued shall not arrive either. */
	void (*close)(struct leg_out_path *path, bool reset);
	bool (*gone)(struct leg_out_path *path); /* after close */
	void (*free)(struct leg_out_path *path); /* it is gone */
};

struct leg_out_path { /* the first member of what each path has */
	const struct leg_out_path_ops *ops;
};

/* Calls it of each path of the leg that has it. */
#define LEG_TELL_PATHS(leg, function, ...)                                                         \
	for (uint32_t i = 0; i < (leg)->num_paths; i++) {                                          \
		if ((leg)->paths[i]->ops->function)                                                \
			(leg)->paths[i]->ops->function((leg)->paths[i], ##__VA_ARGS__);            \
	}

/* In the order in which they are tried; end by NULL. */
extern const struct leg_in_path_ops *const leg_in_paths[LEG_PATHS_MAX + 1];
extern const struct leg_out_path_ops *const leg_out_paths[LEG_PATHS_MAX + 1];

#endif
