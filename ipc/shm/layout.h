/* SPDX-License-Identifier: Apache-2.0 */
/*
 * layout - the two files that a worker and the agent share, byte by byte (layout id 1).
 *
 * W is written by the worker, A by the agent (sealed F_SEAL_FUTURE_WRITE before it is sent: the
 * worker can only map it for reading). Both sides treat what the other writes as hostile: copy a
 * record once, check it, use the copy. Indices count for ever (never wrapped by the reader of this
 * file) and are hints: the agent keeps its own. An index is stored with release and read with
 * acquire; the sleeping flags are stored and read with a full fence between flag and index on both
 * sides (Dekker). Little-endian, natural alignment, reserved fields zero.
 */
#ifndef TH_IPC_SHM_LAYOUT_H
#define TH_IPC_SHM_LAYOUT_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#define SHM_MAGIC_W UINT32_C(0x57314854) /* "TH1W" */
#define SHM_MAGIC_A UINT32_C(0x41314854) /* "TH1A" */
#define SHM_LAYOUT_ID 1u
#define SHM_CAPACITY 64u /* submissions, completions and slots; a power of two */

enum shm_submission_kind {
	SHM_PUBLISH = 1, /* the first five are enum ctl_op_kind */
	SHM_UNPUBLISH,
	SHM_REPLICATE,
	SHM_UPDATE,
	SHM_LIST,
	SHM_WATCH,  /* completes when the generation is higher than version_spec (decimal) */
	SHM_CANCEL, /* of the operation in slot */
	SHM_FOLLOW, /* CTL_OP_FOLLOW; with FDMSG_FEATURE_FOLLOW */
};

struct shm_submission {
	uint64_t op_seq; /* counted by this worker, for matching completions */
	uint16_t kind;
	uint16_t slot;
	uint32_t flags;
	int64_t deadline_ns;   /* relative; -1 = none */
	char version_spec[32]; /* NUL-terminated */
	uint8_t reserved[8];
};
_Static_assert(sizeof(struct shm_submission) == 64, "wire format");

struct shm_completion {
	uint64_t op_seq;
	uint16_t slot;
	uint16_t reserved16;
	int32_t code;
	uint8_t reserved[48];
};
_Static_assert(sizeof(struct shm_completion) == 64, "wire format");

struct shm_w { /* file W */
	uint32_t magic, layout_id, capacity, reserved;
	uint8_t pad0[48];
	_Atomic uint64_t submitted; /* index of the next submission to be written */
	uint8_t pad1[56];
	_Atomic uint64_t collected; /* completions that the worker has taken: a hint */
	_Atomic uint32_t sleeping;  /* the worker waits on its doorbell */
	uint8_t pad2[52];
	struct shm_submission submissions[SHM_CAPACITY];
};
_Static_assert(sizeof(struct shm_w) == 192 + 64 * SHM_CAPACITY, "wire format");

enum shm_slot_state { SHM_SLOT_FREE, SHM_SLOT_RUNNING, SHM_SLOT_DONE };

struct shm_slot {                  /* one operation; written by the agent, under the sequence */
	_Atomic uint32_t sequence; /* odd while the agent writes */
	uint32_t state;
	uint64_t op_seq;
	_Atomic uint64_t done_bytes, total_bytes; /* progress, outside the sequence */
	int32_t code;
	uint32_t updated;
	uint64_t lineage, version;
	uint64_t bytes_moved, bytes_reused, wait_ns, transfer_ns, verify_ns;
	uint64_t group_op_seq; /* of the group operation: names the snapshot of a grouped list */
	uint64_t bytes_prefetched;
	uint8_t reserved[16];
	char transport[32];
	char source[256];
	char sentence[512]; /* of a failure; of a success: thc_result.reason */
	uint8_t pad[96];
};
_Static_assert(sizeof(struct shm_slot) == 1024, "wire format");

enum shm_event_counter {
	SHM_EV_EVICTED,
	SHM_EV_CONFLICT,
	SHM_EV_CONTRACT,
	SHM_EV_BROKEN,
	SHM_EV_LOST,
	SHM_EV_AT_RISK,
	SHM_EV_READY,
	SHM_EV_UPDATED,
	SHM_EV_FOLLOW_FAILED,
	SHM_EV_COUNT
};

struct shm_line { /* what the worker may know without a system call; under the sequence */
	_Atomic uint32_t sequence;
	uint32_t safe_to_mutate;
	uint64_t held_lineage, held_version; /* version UINT64_MAX: none */
	uint64_t generation;
	uint64_t heartbeat_ns; /* CLOCK_MONOTONIC of the agent */
	uint16_t events[SHM_EV_COUNT];
	uint8_t reserved[6];
	/* Behind what an older worker reads; an older agent has no worker that asks for it. */
	uint64_t ready_lineage, ready_version; /* version UINT64_MAX: none */
	uint8_t reserved2[48];
};
_Static_assert(offsetof(struct shm_line, ready_lineage) == 64 && sizeof(struct shm_line) == 128,
	"wire format");

struct shm_a { /* file A */
	uint32_t magic, layout_id, capacity, reserved;
	uint8_t pad0[48];
	_Atomic uint64_t completed; /* index of the next completion to be written */
	_Atomic uint64_t consumed;  /* submissions that the agent has taken */
	_Atomic uint32_t sleeping;  /* the agent waits on its doorbell */
	uint8_t pad1[44];
	struct shm_line line;
	struct shm_completion completions[SHM_CAPACITY];
	struct shm_slot slots[SHM_CAPACITY];
};

#endif
