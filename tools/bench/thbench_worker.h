/* SPDX-License-Identifier: Apache-2.0 */
/*
 * thbench_worker - processes with memory of their own that do what they are told: the publishers
 * and readers of a measurement.
 *
 * A worker is a fork of this process that allocates after the fork (memory that is touched before
 * and written after a fork is copied page by page, which would be what is measured). It takes one
 * command at a time and answers it; times are taken in the worker, around the call alone. It ends
 * with us.
 */
#ifndef TH_TOOLS_BENCH_THBENCH_WORKER_H
#define TH_TOOLS_BENCH_THBENCH_WORKER_H

#include <sys/types.h>

#include "tools/bench/thbench.h"

#define WORKER_SLOTS 8u /* handles of a worker */
#define WORKER_SAMPLES_MAX 8192u

enum worker_command {
	WORKER_ALLOC,     /* bytes; filled from seed (number)                                   */
	WORKER_JOIN,      /* slot: open and register the first bytes as tensors of tensor_bytes */
	WORKER_PUBLISH,   /* slot, number: the version                                          */
	WORKER_REPLICATE, /* slot, number: the version                                          */
	WORKER_FOLLOW,    /* the same; how far it is can be seen while it runs                    */
	WORKER_UPDATE,    /* slot: latest                                                       */
	WORKER_FETCHED,   /* slot, number: an agent fetches this version, or has it            */
	WORKER_READY,     /* slot, number: this version is what update would install           */
	WORKER_UNPUBLISH, /* slot                                                               */
	WORKER_CLOSE,     /* slot                                                               */
	WORKER_MESS,      /* changes every 64 KiB of the first bytes: nothing is reused         */
	WORKER_SUM,       /* of the first bytes, to compare two workers: answer.number          */
	WORKER_LISTEN,    /* raw copy: answer.number is the port                                */
	WORKER_ACCEPT,    /* number connections */
	WORKER_CONNECT,   /* to port number, tensor_bytes connections                           */
	WORKER_SEND,      /* bytes in blocks of tensor_bytes; number 1: sendfile                */
	WORKER_RECEIVE,
	WORKER_MAP,  /* the memory of the worker of process number, descriptor slot, its bytes  */
	WORKER_COPY, /* bytes from there to here: enum copy_kind in slot, number threads        */
	WORKER_RING, /* number rounds with tensor_bytes ns between them; samples in us          */
	WORKER_QUIT,
};

struct command {
	enum worker_command command;
	uint32_t slot;
	uint64_t bytes, tensor_bytes, number;
	uint32_t tiny;    /* JOIN: so many tensors of 1 KiB come first */
	bool prefetch;    /* JOIN: with THC_PREFETCH */
	char agent[128];  /* JOIN */
	char model[32];   /* JOIN */
	char replica[32]; /* JOIN */
};

struct answer {
	int code;
	int64_t begin_ns, end_ns; /* around the call; the clock of the host */
	uint64_t number;
	uint64_t bytes_moved, bytes_prefetched;
	int updated;
	uint64_t transfer_ns, verify_ns;
	char transport[32], source[64];
	char text[TH_SENTENCE_BYTES];
};

struct worker {
	pid_t pid; /* 0: none */
	int sock;  /* owns */
	bool busy; /* a command is not answered yet */
	char name[32];
	double *samples; /* owns: shared with the worker, which writes them */
};

TH_MUST_USE int worker_start(
	struct bench *bench, const char *name, struct worker *worker, struct th_err *err);
TH_MUST_USE int worker_ask(
	struct worker *worker, const struct command *command, struct th_err *err);
/* Waits; a signal to us ends it. The worker's own failure is a failure of this call. */
TH_MUST_USE int worker_answer(
	struct bench *bench, struct worker *worker, struct answer *ret_answer, struct th_err *err);
/* Both; ret_answer may be NULL. */
TH_MUST_USE int worker_call(struct bench *bench, struct worker *worker,
	const struct command *command, struct answer *ret_answer, struct th_err *err);
/* Of the command WORKER_FOLLOW that runs, or of the last one. */
uint64_t worker_done_bytes(const struct worker *worker);
bool worker_has_begun(const struct worker *worker);
/* In order where it has nothing to do, else at once. A second call does nothing. */
void worker_stop(struct worker *worker);

/* The child's side (thbench_serve.c): never returns. */
void worker_serve(int sock, double *samples) __attribute__((noreturn));

#endif
