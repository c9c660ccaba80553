/* SPDX-License-Identifier: Apache-2.0 */
/*
 * scripted_gpu - a process of a GPU that does what a test says: well, wrong, or not at all.
 *
 * Its GPU memory is a part of a mapping that it shares with the test, so a test sees what it wrote.
 * A handle's id is where a piece lies there; own memory lies at its begin, and its dma-buf is a
 * file of as many bytes. Neither a driver nor a file of one.
 */
#ifndef TH_TESTS_SUPPORT_CUDA_SCRIPTED_GPU_H
#define TH_TESTS_SUPPORT_CUDA_SCRIPTED_GPU_H

#include <stdatomic.h>

#include "transport/cuda/agent/gpus.h"

#define SCRIPT_MEMORY_BYTES ((size_t)32 << 20)
#define SCRIPT_STEPS_MAX 16u

enum script_act {
	SCRIPT_DIE = 1, /* SIGKILL to itself, in place of doing it */
	SCRIPT_HANG,    /* does nothing more, but lives */
	SCRIPT_CLOSE,   /* hangs up and lives */
	SCRIPT_REFUSE,  /* answers with code and text */
	SCRIPT_LIE,     /* answers for something that was not asked */
	SCRIPT_SHORT,   /* answers with a message of a length that none has */
	SCRIPT_LONG,
	SCRIPT_ENDLESS, /* answers with a text that does not end */
	SCRIPT_NO_FD,   /* answers without the descriptor that belongs to it */
	SCRIPT_FD,      /* answers with a descriptor that does not belong to it */
	SCRIPT_TWO_FDS, /* answers with two descriptors */
	SCRIPT_EMPTY,   /* sends no bytes, and a descriptor */
	SCRIPT_LESS_FD, /* answers with a descriptor of memory that is a byte shorter */
	SCRIPT_SLOW,    /* takes so many ms */
	SCRIPT_DEAF,    /* reads nothing any more, and answers OPENs all the same */
	SCRIPT_MUTE,    /* does not answer */
	SCRIPT_LATE,    /* answers behind the next answer */
	SCRIPT_WAIT,    /* does it when `go` is there, and reads nothing until then */
};

struct script_step {
	_Atomic uint32_t kind; /* a message from the agent: enum gpu_message_kind */
	enum script_act act;
	uint64_t piece; /* of an OPEN, or of a RUN's first range; where an AREA begins; 0: any */
	int after;      /* so many are let pass, of all lives together */
	int times;      /* then so many are met */
	int code;
	unsigned ms; /* of SCRIPT_SLOW */
	_Atomic int seen, met;
};

struct script {
	struct script_step steps[SCRIPT_STEPS_MAX];
	_Atomic uint32_t lives, messages[16]; /* by kind; of all lives */
	_Atomic uint32_t ranges_max;          /* of one side of a RUN */
	_Atomic uint32_t chunks_max;          /* of a RUN */
	_Atomic uint32_t areas;               /* that the process has now */
	_Atomic int go;
	_Atomic uint32_t dies_every, heard; /* so many messages but START; 0: never */
	_Atomic uint32_t flags;             /* of the last START */
	_Atomic int lingers;                /* it takes for ever to end */
	_Atomic uint32_t ending, ended;     /* so many have been hung up on; ended then */
	uint8_t memory[SCRIPT_MEMORY_BYTES];
};

struct script *script_new(void);
void script_free(struct script *script);
/* For gpus_config: arg is the script. */
int script_launch(void *arg, int sock, pid_t *ret_pid, struct th_err *err);
struct script_step *script_add(struct script *script, enum gpu_message_kind kind,
	enum script_act act, int after, int times);

#endif
