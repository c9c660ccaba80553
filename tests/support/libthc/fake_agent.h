/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fake_agent - the agent's side of libthc's channels as a thread of the test: descriptor socket,
 * rings and documents, with a script for what goes wrong. One session at a time. Tests only.
 */
#ifndef TH_TESTS_SUPPORT_LIBTHC_FAKE_AGENT_H
#define TH_TESTS_SUPPORT_LIBTHC_FAKE_AGENT_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "ipc/proto/tensorhub.pb-c.h"
#include "ipc/shm/ring.h"
#include "ipc/shm/segment.h"
#include "ipc/sock/fdmsg.h"

enum fake_hello {
	FAKE_WELCOME,
	FAKE_REFUSE_HELLO, /* with refuse_code and refuse_text */
	FAKE_GARBAGE_HELLO,
	FAKE_HANG_UP_HELLO,
	FAKE_SILENT_HELLO,
	FAKE_REFUSE_CONNECT, /* before any HELLO is read; with refuse_code */
};
enum fake_open {
	FAKE_SESSION,
	FAKE_REFUSE_OPEN,
	FAKE_HANG_UP_OPEN,
	FAKE_BAD_FILES, /* no seals */
	FAKE_WRONG_MESSAGE,
};
enum fake_operation {
	FAKE_COMPLETE, /* with code, at once */
	FAKE_HOLD,     /* until it is cancelled, or fake_agent_release */
	FAKE_HOLD_ODD, /* those of an odd version, and watches of the present generation */
	FAKE_DEAF,     /* takes no submission, as one that is stopped; answers all else */
	FAKE_BAD_OP_SEQ,
	FAKE_NO_RESULT,
	FAKE_BAD_INDEX,
};

#define FAKE_CONNECTIONS 8
#define FAKE_PIECES 16

struct fake_agent {
	char dir[64];
	pthread_t thread;
	pthread_mutex_t lock; /* of everything below */
	pthread_cond_t changed;
	bool stop, freeze, frozen;
	int wake; /* eventfd */

	/* The script. */
	enum fake_hello hello;
	enum fake_open open;
	enum fake_operation operation;
	uint32_t protocol, tensors_max;
	int refuse_code, operation_code, memory_code, close_code, request_code;
	bool close_silent, request_silent, request_garbage, request_hang_up, unexpected_message;
	bool ignore_cancel; /* as of an operation that has begun */
	bool rude;          /* its texts have no end, and control characters */
	const char *refuse_text, *operation_text;
	const uint8_t *manifest, *attributes; /* what thc_get_manifest gets; NULL: not available */
	size_t manifest_bytes, attributes_bytes, blob_part_bytes;
	bool blob_damaged;
	int pidfd;       /* sent with the session; -1: of this process */
	bool no_gpus;    /* as an agent that knows nothing of them, nor of loans */
	int borrow_code; /* of LENT */
	bool borrow_silent;
	bool lent_bare;      /* it comes without its descriptors */
	uint64_t lent_bytes; /* of the file that is lent: byte i is i / 4 */
	int lent_seals;
	unsigned gpu_good; /* so many pieces of GPU memory are taken, then gpu_code comes */
	int gpu_code, dmabuf_code;
	unsigned last_dmabuf; /* as it has answered so many it is frozen; 0: never */
	unsigned not_opened;  /* so many registrations fail as of GPU memory that nobody opens */

	/* What has happened. */
	unsigned sessions, hang_ups, memories, forgets, closes, requests, submissions, cancels;
	unsigned registers, unregisters, attribute_parts;
	unsigned borrows;
	struct fdmsg_borrow borrowed;
	int lease; /* owns: of the last loan; -1 */
	struct fdmsg_open opened;
	struct fdmsg_memory memory;
	int memory_fd; /* owns: of the last MEMORY but for dma-bufs; -1 */
	unsigned gpus, dmabufs;
	unsigned overlaps; /* pieces at the place of one that was not forgotten */
	struct fake_piece {
		uint32_t id; /* 0: refused */
		struct fdmsg_gpu message;
		bool has_fd, forgotten;
	} pieces[FAKE_PIECES]; /* the first ones */
	struct fdmsg_memory dmabuf;
	int dmabuf_fd; /* owns: of the last one */
	struct shm_submission submission;
	uint64_t list_op_seq, generation;
	uint64_t rows, rows_bytes; /* of the last registration */
	uint64_t first_place;      /* where its first row lies in its memory */
	struct {
		uint32_t id;
		uint64_t offset, bytes;
	} places[FAKE_PIECES]; /* of the first rows */
	struct shm_line line;

	/* The session. */
	int fds_listener, ipc_listener, sock;
	int bell_agent, bell_worker;
	int lifeline[2]; /* own: the end for the worker, and the one that keeps it quiet */
	int connections[FAKE_CONNECTIONS];
	struct segment_agent files;
	struct ring_agent ring;
	bool held[SHM_CAPACITY];
	struct shm_submission held_submission[SHM_CAPACITY];
	struct fdmsg *message;
	uint8_t *parts;
	size_t parts_bytes;
};

void fake_agent_start(struct fake_agent *agent);
void fake_agent_stop(struct fake_agent *agent);
/* Changes the script, or reads what has happened, between these two. */
void fake_agent_lock(struct fake_agent *agent);
void fake_agent_unlock(struct fake_agent *agent);
/* Under the lock. Completes what is held with this code. */
void fake_agent_release(struct fake_agent *agent, int code, const char *text);
/* Under the lock. Writes agent->line; rings the worker. */
void fake_agent_line(struct fake_agent *agent);
/* Under the lock. Another generation: completes the watches that are held. */
void fake_agent_change(struct fake_agent *agent);
/* Under the lock. Answers a CLOSE, after close_silent. */
void fake_agent_closed(struct fake_agent *agent, int code);
/* Under the lock. Ends the session but for its close, as after a broken contract. */
void fake_agent_end(struct fake_agent *agent, int code, const char *text);
/* Under the lock. As if it was stopped in the middle of its next heartbeat; until the next line. */
void fake_agent_line_half(struct fake_agent *agent);
void fake_agent_hang_up(struct fake_agent *agent);
/* Not under the lock. Returns when the thread does nothing any more, or goes on. */
void fake_agent_freeze(struct fake_agent *agent, bool freeze);
/* Not under the lock. Waits until *counter, one of the above, is at least count. */
void fake_agent_await(struct fake_agent *agent, const unsigned *counter, unsigned count);

#endif
