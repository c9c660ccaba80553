/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fdmsg - the messages of the descriptor socket (`agent.fds`, AF_UNIX SOCK_SEQPACKET).
 *
 * One connection is one handle is one session. A message is one packet: a 16-byte head, a body of
 * fixed or bounded size, and the descriptors that its kind allows (SCM_RIGHTS). Every descriptor of
 * a message that is refused, truncated or unexpected is closed by the receiver. One unexpected
 * message ends the session.
 *
 *   shim   HELLO      magic, protocol min..max, features, page size
 *   agent  WELCOME    protocol, features, limits, agent's name and version
 *          or REFUSED code, sentence (with both ranges)
 *   shim   OPEN       the opts of thc_open
 *   agent  SESSION    session id, secret; files W and A, doorbell to agent, doorbell to
 *                     worker, agent's pidfd; with FDMSG_FEATURE_GPU the lifeline
 *          or REFUSED (the connection is then over)
 *   shim   MEMORY     one descriptor; answered by MEMORY_ID with the same token
 *   shim   GPU        a piece of GPU memory, with the descriptor of the kinds that have one;
 *                     likewise answered. At most FDMSG_AHEAD are sent before their answers
 *   shim   BORROW     which shard of which version; with FDMSG_FEATURE_BORROW
 *   agent  LENT       code, sentence; with code 0 the file, open for reading, and the lease: the
 *                     loan lasts as long as somebody has that open
 *   shim   FORGET(id), CLOSE(flags, deadline)
 *   agent  CLOSED     code, sentence: nobody reads or writes the memory any more (code 0)
 *   agent  REFUSED    after SESSION, once: the session is over but for CLOSE, and why
 */
#ifndef TH_IPC_SOCK_FDMSG_H
#define TH_IPC_SOCK_FDMSG_H

#include <stddef.h>
#include <stdint.h>

#include "ipc/base/ctl.h"

#define FDMSG_MAGIC UINT32_C(0x31434854) /* "THC1" */
#define FDMSG_PROTOCOL_MIN 1u
#define FDMSG_PROTOCOL_MAX 1u
#define FDMSG_BYTES_MAX (64u << 10)
#define FDMSG_FDS_MAX 6u
/*
 * MEMORY and GPU messages that a worker may have sent and had no answer for: the answers fit into
 * the buffer of a socket, and who does not read his answers loses his session.
 */
#define FDMSG_AHEAD 64u
/* Of a GPU message, as ipc/cuda/cuda_handle.h makes it, which this folder does not know. */
#define FDMSG_HANDLE_BYTES 104u

enum fdmsg_kind {
	FDMSG_HELLO = 1,
	FDMSG_WELCOME,
	FDMSG_REFUSED,
	FDMSG_OPEN,
	FDMSG_SESSION,
	FDMSG_MEMORY,
	FDMSG_MEMORY_ID,
	FDMSG_FORGET,
	FDMSG_CLOSE,
	FDMSG_CLOSED,
	FDMSG_GPU,
	FDMSG_BORROW,
	FDMSG_LENT,
};

/* Of HELLO and WELCOME. Each is in use when both have said it; unknown ones mean nothing. */
#define FDMSG_FEATURE_GPU UINT64_C(1) /* GPU messages, and the sixth descriptor of SESSION */

#define FDMSG_FEATURE_BORROW UINT64_C(2) /* BORROW and LENT */

#define FDMSG_FEATURE_FOLLOW UINT64_C(4) /* SHM_FOLLOW in the ring */

/* What this release has. */
#define FDMSG_FEATURES (FDMSG_FEATURE_GPU | FDMSG_FEATURE_BORROW | FDMSG_FEATURE_FOLLOW)

struct fdmsg_head {
	uint32_t magic;
	uint16_t kind;
	uint16_t num_fds;
	uint32_t body_bytes; /* what follows the head */
	uint32_t reserved;
};
_Static_assert(sizeof(struct fdmsg_head) == 16, "wire format");

struct fdmsg_hello {
	uint32_t protocol_min, protocol_max;
	uint64_t features; /* FDMSG_FEATURE_ */
	uint32_t page_bytes;
	uint32_t reserved;
};

struct fdmsg_welcome {
	uint32_t protocol;
	uint32_t tensors_max;
	uint64_t features; /* the common ones */
	uint64_t memory_objects_max;
	char agent_version[32];
	char node[TH_NAME_MAX + 1];
};

struct fdmsg_refused { /* also CLOSED */
	int32_t code;
	uint32_t reserved;
	char text[TH_CTL_TEXT_BYTES];
};

/* Strings are NUL-terminated, the rest of the field is zero. An observer has no replica. */
struct fdmsg_open {
	uint64_t lineage;
	uint32_t shard, num_shards;
	uint32_t flags;
	uint32_t reserved;
	char model[TH_NAME_MAX + 1], replica[TH_NAME_MAX + 1], launch_id[TH_NAME_MAX + 1];
	char retain[1024];
};

/*
 * The descriptors, in this order: W and A; the doorbell to the agent; that to the worker; the
 * agent's pidfd; the lifeline. The last is the read end of a pipe, of which the agent and each
 * process of it that reaches the worker's memory have the write end: when it hangs up (POLLHUP),
 * none of them is left, and nobody touches the memory any more. Nothing is ever written to it.
 */
#define FDMSG_SESSION_FDS 5u
#define FDMSG_SESSION_FDS_GPU 6u

struct fdmsg_session {
	uint64_t session;
	uint8_t secret[16];
	uint64_t next_op;
};

/*
 * How the agent reaches the bytes that lie at base in the worker, and what the descriptor is:
 *
 *   MEMFD    a memfd that has F_SEAL_SHRINK: the agent maps it ("direct"). The agent adds no seal
 *            itself: that can wait behind another write to the file. offset: of base in the file.
 *   FILE     any other file that lies in memory (one that answers F_GET_SEALS: memfd, tmpfs,
 *            hugetlbfs): the agent reads and writes it through the descriptor ("copy").
 *   PROCESS  /proc/self/mem of the worker, opened for reading and writing: any other memory
 *            ("copy"). offset equals base. One message may span all private memory of the process;
 *            only what a registration names is ever touched. It ends with the process.
 *   SHADOW   as MEMFD: the worker keeps a copy of GPU memory there that the agent does not reach.
 *            Of an agent with FDMSG_FEATURE_GPU.
 *   DMABUF   the way of a NIC to GPU memory that GPU messages share. Never named by rows: what
 *            lies between base and base + bytes is found by its address. offset: of base in it.
 *
 * A descriptor that is open for reading only, or sealed against writing, may be registered and
 * published; as a destination it is refused by the operation (TH_E_MEMORY_KIND).
 */
enum fdmsg_memory_kind { FDMSG_MEMFD = 1, FDMSG_FILE, FDMSG_PROCESS, FDMSG_DMABUF, FDMSG_SHADOW };

struct fdmsg_memory {
	uint32_t token, kind;
	uint64_t base; /* address in the worker */
	uint64_t bytes;
	uint64_t offset; /* in the descriptor */
};

/*
 * A piece of GPU memory: what one allocation, or one chunk of it, spans. The agent's process of
 * that GPU opens it ("cuda-ipc"). Pieces do not overlap. A row may run over several that follow
 * each other in the worker: its place names the first one's id. Pieces and dma-bufs are for one
 * registration: when it ends, or fails, the agent has forgotten them; FORGET does no harm then.
 */
struct fdmsg_gpu {
	uint32_t token, reserved;
	uint64_t base; /* address in the worker */
	uint64_t bytes;
	uint8_t handle[FDMSG_HANDLE_BYTES];
};
_Static_assert(sizeof(struct fdmsg_gpu) == 24 + FDMSG_HANDLE_BYTES, "wire format");

struct fdmsg_memory_id {
	uint32_t token;
	uint32_t id; /* 1, 2, ... per session, when code is 0 */
	int32_t code;
	uint32_t reserved;
	char path[16];                /* "direct", "copy", "cuda-ipc"; "dma-buf" of a DMABUF */
	char text[TH_CTL_TEXT_BYTES]; /* why this path; why not, when code is not 0 */
};

struct fdmsg_forget {
	uint32_t id, reserved;
};

struct fdmsg_borrow {
	uint32_t token, shard;
	uint64_t lineage, version;
	int64_t deadline_ns; /* relative; -1 = none */
	uint64_t reserved;
};

/*
 * The file is sealed: it stays as long and nobody writes it. The rows lie in it in the order of the
 * manifest, each where manifest_place_row says. The lease is the read end of a pipe; nothing is
 * ever written to it.
 */
#define FDMSG_LENT_FDS 2u

struct fdmsg_lent {
	uint32_t token;
	int32_t code;
	uint64_t bytes; /* of the file, when code is 0 */
	char text[TH_CTL_TEXT_BYTES];
};

struct fdmsg_close {
	uint32_t flags, reserved;
	int64_t deadline_ns; /* relative; -1 = none */
};

/*
 * Sends one message; fds are borrowed. 0, or -errno (-EAGAIN on a non-blocking socket that is full:
 * the caller decides).
 */
int fdmsg_send(int sock, enum fdmsg_kind kind, const void *body, size_t body_bytes, const int *fds,
	uint32_t num_fds);

/*
 * How to close a descriptor that came from a stranger. close() of one can take as long as its
 * sender likes (a socket that lingers, a file of a file system that the sender serves), so a
 * receiver that must not wait names its own way. NULL: close().
 */
typedef void (*fdmsg_close)(int fd);

struct fdmsg { /* a received message; its descriptors belong to the receiver */
	struct fdmsg_head head;
	int fds[FDMSG_FDS_MAX]; /* owns; -1 beyond num_fds */
	fdmsg_close close_fd;   /* set before the first fdmsg_recv, which keeps it */
	size_t body_bytes;
	_Alignas(8) uint8_t body[FDMSG_BYTES_MAX - sizeof(struct fdmsg_head)];
};

/*
 * Receives one message into *ret_msg (heap or static: it is large). 1; 0 at hang-up; -EAGAIN;
 * -EPROTO for anything malformed (bad magic, truncated data or control, more descriptors than
 * announced, wrong body size for its kind): all descriptors are closed then. -EMFILE: this process
 * had no room for its descriptors; the message is there, without any (head.num_fds: how many there
 * were). All received descriptors are close-on-exec.
 */
int fdmsg_recv(int sock, struct fdmsg *ret_msg);
void fdmsg_close_fds(struct fdmsg *msg); /* those not taken (set to -1) yet */

/*
 * Before sock is closed: nothing more is sent or received, and the descriptors of what was not
 * received yet are closed by close_fd, not by the close of sock. Never waits.
 */
void fdmsg_discard(int sock, fdmsg_close close_fd);

#endif
