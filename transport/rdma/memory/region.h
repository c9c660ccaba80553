/* SPDX-License-Identifier: Apache-2.0 */
/*
 * region - one allocation, registered with the rails that serve it.
 *
 * Tensors are places in an allocation; registering is per allocation, however many tensors lie in
 * it. It takes milliseconds to seconds, so each rail has a thread for it, and states tell how far
 * it is. A device that takes only so much at once gets the allocation in pieces, the same ones on
 * all its rails; no READ may cross from one into the next.
 *
 * What cannot be registered (a limit, no memory) is tried again after a second, then two, up to
 * half a minute, and sooner when memory was given back. Who asks meanwhile hears FAILED and why.
 *
 * Peers name bytes by `address`: the offset within the allocation, plus where its first byte lies
 * in its page. So no address of this process leaves it.
 *
 * A dma-buf that peers may READ is ready when the device itself has READ of it (selfread.h). What
 * it cannot read has failed, and is not tried again.
 *
 * A device that is lost takes its registrations along: they have failed, and are made again, with
 * other keys, when it is open again.
 *
 * Threads: any, but callbacks are on the keeper's. region_mr takes no lock; who asks it holds the
 * rail (device.h), and uses the keys for as long as he does.
 */
#ifndef TH_TRANSPORT_RDMA_MEMORY_REGION_H
#define TH_TRANSPORT_RDMA_MEMORY_REGION_H

#include <stdbool.h>
#include <stdint.h>

#include "ipc/base/checked.h"
#include "ipc/base/err.h"
#include "transport/rdma/device/device.h"

struct region;

enum region_state {
	REGION_NONE,    /* not asked for on this rail */
	REGION_WAITING, /* under way */
	REGION_READY,
	REGION_FAILED, /* for now; the sentence says why */
};

struct region_memory {
	/* Mapped memory, there until `gone`. NULL: dmabuf_fd, which the region takes and closes. */
	void *data;
	int dmabuf_fd;
	uint64_t dmabuf_offset; /* where in it the allocation begins */
	/* How: a stranger's may take for ever to close. Calls closed(arg) then, unless it
	 * is NULL. NULL: close(). */
	void (*close_fd)(int fd, void (*closed)(void *arg), void *arg);
	uint64_t bytes;
	bool quiet; /* why it may fail was said of another one like it */
};

/* On the keeper's thread. Each may be NULL. */
struct region_user {
	void *arg;
	/* No rail is WAITING any more. Once, before `gone`. */
	void (*settled)(void *arg, struct region *region);
	/* dmabuf_fd: a device refuses to let go of it. Before `gone`, which comes all the same. */
	void (*stuck)(void *arg);
	/* The last reference went and no device knows the memory any more: it may be unmapped.
	 * dmabuf_fd: it is closed; then on any thread. */
	void (*gone)(void *arg);
};

struct region_key {
	uint32_t lkey, rkey;
	uint64_t address; /* of the byte at the offset, for READs from here and from peers */
	uint64_t bytes;   /* from there to the end of the piece: no READ may cross it */
};

/*
 * rails: a mask. access: VERBS_LOCAL_WRITE where READs are to land, VERBS_REMOTE_READ for what
 * peers may read; relaxed ordering comes by itself. Never fails: the states tell. user and what it
 * points to live until `gone`.
 */
struct region *region_new(struct rails *rails, const struct region_memory *memory, uint32_t mask,
	unsigned access, const struct region_user *user);
struct region *region_retain(struct region *region);
/* The last one: deregistered in the background, then `gone`. NULL is harmless. */
void region_release(struct region *region);

/* ret_err may be NULL; only for FAILED. */
enum region_state region_state(struct region *region, uint32_t rail, struct th_err *ret_err);
/* On which rails it is ready; on which it is still under way. */
uint32_t region_ready(struct region *region);
uint32_t region_waiting(struct region *region);
uint64_t region_bytes(const struct region *region);

/* Pieces lie one behind the other, all of region_piece_bytes but the last. */
uint32_t region_pieces(const struct region *region);
uint64_t region_piece_bytes(const struct region *region);

/* How the rail names the byte at the offset. False: not (yet) registered there, or no such byte. */
bool region_mr(
	const struct region *region, uint32_t rail, uint64_t offset, struct region_key *ret_key);

#endif
