/* SPDX-License-Identifier: Apache-2.0 */
/*
 * helper_rig - a test that is the agent of one process of a GPU, and workers whose memory it opens.
 *
 * All functions fail the test when what they wait for does not come within a minute.
 */
#ifndef TH_TESTS_SUPPORT_CUDA_HELPER_RIG_H
#define TH_TESTS_SUPPORT_CUDA_HELPER_RIG_H

#include "tests/support/cuda/machine.h"
#include "tests/support/cuda/people.h"
#include "transport/cuda/gpu_wire.h"

#define RIG_PIECES_MAX 64u
#define RIG_PIECE_BYTES ((uint64_t)MACHINE_GRANULARITY)
#define RIG_AREA_BYTES (4u << 20)

struct rig { /* the process, and what the agent shares with it */
	pid_t pid;
	int sock;          /* owns */
	int area_fd;       /* owns */
	uint8_t *area;     /* owns; RIG_AREA_BYTES, area 0 when it has been sent */
	uint64_t runs;     /* that were sent */
	uint32_t run_area; /* of the next ones */
};

/* For gpus_config; no arg. */
int rig_launch_on(void *arg, int sock, pid_t *ret_pid, struct th_err *err);
/* Without a word; and with START (expects READY) and area 0. */
void rig_launch(struct rig *rig);
void rig_start(struct rig *rig, struct machine *machine, int device);
/* flags: enum gpu_start_flag. */
struct gpu_ready rig_start_as(struct rig *rig, struct machine *machine, int device, uint32_t flags);
/* As the agent's end. Workers were forked and have the socket, too. */
void rig_hang_up(struct rig *rig);
/* It has ended by itself: its status. It is killed otherwise; either frees all. */
int rig_end(struct rig *rig);
void rig_kill(struct rig *rig);

void rig_send(struct rig *rig, const void *message, size_t bytes, int fd);
/* The next message, of this kind and size. */
void rig_hear(struct rig *rig, enum gpu_message_kind kind, void *ret_message, size_t bytes);
/* Nothing comes within that time. */
void rig_hear_nothing(struct rig *rig, int milliseconds);
/* The socket ends, and before it nothing but messages of this kind (0: any). */
void rig_hear_end(struct rig *rig, enum gpu_message_kind kind);

int rig_area(struct rig *rig, uint32_t area, uint64_t bytes, int fd, struct gpu_area_is *ret_is);
/* fd is taken. */
struct gpu_opened rig_open(
	struct rig *rig, uint64_t worker, uint64_t piece, const struct cuda_handle *handle, int fd);
struct gpu_left rig_leave(struct rig *rig, uint64_t worker, uint64_t piece);
/* Of one chunk; at `at` of run_area. Sends only; returns the run's number. */
uint64_t rig_run(struct rig *rig, enum gpu_run_op op, uint64_t at, const struct gpu_range *to,
	uint32_t num_to, const struct gpu_range *from, uint32_t num_from, bool hashes);
/* Any; its kind and its number are filled in. */
uint64_t rig_run_of(struct rig *rig, const struct gpu_run *head, const struct gpu_range *to,
	const struct gpu_range *from);
struct gpu_done rig_done(struct rig *rig);

/* ---- workers -------------------------------------------------------------------------------- */

struct rig_worker {
	struct person person;
	uint32_t num_pieces;
	struct cuda_handle handles[RIG_PIECES_MAX];
	int fds[RIG_PIECES_MAX]; /* own; -1: none, or taken */
};

/* Pieces of RIG_PIECE_BYTES on the GPU: of one pool, or of one range of chunks. */
struct rig_worker rig_worker_new(enum cuda_kind kind, int device, uint32_t num_pieces);
/* Each byte is rig_byte(seed, its place in the piece). */
void rig_worker_fill(struct rig_worker *worker, uint32_t piece, uint8_t seed);
uint8_t rig_byte(uint8_t seed, uint64_t at);
struct th_hash rig_worker_digest(
	struct rig_worker *worker, uint32_t piece, uint64_t at, uint64_t bytes);
/* All of its pieces, by these numbers 0, 1, 2... */
void rig_worker_open(struct rig_worker *worker, struct rig *rig, uint64_t number);
void rig_worker_end(struct rig_worker *worker);
void rig_worker_kill(struct rig_worker *worker);

#endif
