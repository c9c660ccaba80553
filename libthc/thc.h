/* SPDX-License-Identifier: Apache-2.0 */
/*
 * thc.h - TensorHub for a program: publish weights that lie in your own memory under a version, and
 * replicate a version straight from whoever holds it. Link with -lthc.
 *
 * Rules that hold for every call
 *   - Returns 0 or a positive count on success, a negative THC_E_* code (or -errno) on failure.
 *     Outputs (ret_*) are untouched on failure. thc_errmsg() gives the sentence for the calling
 *     thread's last failure: what failed, where, whether a retry can help, what to do next.
 *   - Every blocking call takes timeout_ms: 0 = look once, THC_FOREVER = no limit. A call never
 *     returns later than its deadline plus one second, also when the agent is frozen or dead.
 *     Blocking calls are thin wrappers over submit + wait. A signal does not end them.
 *   - What a passed deadline means. A group operation has two parts, divided by GO (every member
 *     is ready to begin). Before GO nothing has changed: THC_E_TIMEOUT, the old version is still
 *     held. After GO the operation runs on, guarded by the stall detector, and the call returns
 *     THC_E_UNKNOWN: only thc_resolve and thc_close are then accepted. Members pass the same
 *     timeout: before GO the first deadline ends the n-th operation for all, also for members yet
 *     to call it (they get THC_E_TIMEOUT at once). A member that was ready and heard neither GO
 *     nor an end gets THC_E_UNKNOWN.
 *   - A call that fails after GO returns its cause, the same for all members; where bytes were
 *     overwritten, later calls except thc_replicate and thc_close answer THC_E_DIRTY.
 *   - Public structs that callers fill or receive begin with struct_size (set by the _INIT macro);
 *     arrays of structs are passed with their element size. So they can grow, at their end, without
 *     breaking the ABI: what an older caller's struct lacks is zero, what a newer one has more must
 *     be zero, and of a result the caller's struct gets the fields that it has. A size that no
 *     version of this header has is THC_E_INVALID.
 *   - A shard may be used from several threads; one operation (publish, unpublish, replicate,
 *     update, grouped list) of a shard runs at a time, the next answers THC_E_STATE; wait, list,
 *     get_manifest and the questions may run beside it. After fork() the child's handles answer
 *     THC_E_FORKED; the parent's are untouched.
 *   - libthc starts no thread, installs no signal handler, opens nothing but the agent's
 *     endpoints and /proc/self, prints nothing unless THC_LOG (error, warn, info, debug) is set,
 *     and links libc only: CUDA is found by dlopen, when a tensor lies on a GPU.
 *   - A THC_E_INVALID sentence begins with the name of the argument.
 *
 * What this release answers THC_E_INVALID with a sentence that says so: THC_WHOLE.
 */
#ifndef THC_H
#define THC_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif
#if defined(__GNUC__)
#pragma GCC visibility push(default)
#endif

#define THC_VERSION_MAJOR 1
#define THC_VERSION_MINOR 0

#define THC_FOREVER ((int64_t)-1)
#define THC_NO_VERSION UINT64_MAX

/* ---- errors -------------------------------------------------------------------------------- */

enum {
	THC_OK = 0,
	THC_E_INVALID = -5001,       /* a bad argument; the sentence names it */
	THC_E_STATE = -5002,         /* does not fit the handle's state (publish before register) */
	THC_E_TIMEOUT = -5003,       /* the deadline passed before anything changed */
	THC_E_NOT_AVAILABLE = -5004, /* no such version now */
	THC_E_VERSION_LOST = -5005,  /* the version existed and its last copy is gone */
	/* The same version was published before with other bytes or another layout. */
	THC_E_VERSION_CONFLICT = -5006,
	THC_E_LAYOUT = -5007, /* source and destination do not map onto each other: the tensor */
	THC_E_DIRTY = -5008,  /* buffers partly overwritten; only replicate and close are allowed */
	THC_E_GROUP_BROKEN = -5009,   /* a member of the model-parallel group is gone */
	THC_E_GROUP_MISMATCH = -5010, /* members issued different n-th operations */
	THC_E_NOMEM_RETAIN = -5011,   /* last copy of a retained version, nowhere to offload it */
	THC_E_LIMIT = -5012,          /* a configured limit; the sentence names it and its value */
	THC_E_CHECKSUM = -5013,       /* no source had bytes that match the published checksum */
	THC_E_CONTRACT = -5014,       /* published memory was changed before unpublish: close */
	THC_E_NO_AGENT = -5015,       /* no agent at the endpoint */
	THC_E_AGENT_LOST = -5016,     /* the agent died or froze; see thc_safe_to_mutate() */
	THC_E_NO_SERVER = -5017,      /* the agent reaches no reference server */
	THC_E_DENIED = -5018,         /* not allowed: uid, model or job policy */
	THC_E_PROTOCOL = -5019,       /* versions of shim and agent do not overlap: both ranges */
	THC_E_FORKED = -5020,         /* handle inherited across fork() */
	THC_E_CANCELLED = -5021,      /* by thc_op_cancel, close, evict or drain */
	THC_E_MEMORY_KIND = -5022,    /* this memory cannot be shared or copied; says why */
	THC_E_STALE_MEMORY = -5023,   /* pages behind a registered tensor changed (sleep, remap) */
	THC_E_NO_PATH = -5024,        /* no allowed transport reaches any source */
	THC_E_UNKNOWN = -5025,        /* begun, outcome not known yet; see thc_resolve */
	THC_E_EVICTED = -5026,        /* taken out by an operator or a drain; close, open again */
};

const char *thc_strerror(int code);   /* static text for a code */
const char *thc_errmsg(void);         /* this thread's last failure, one line; never NULL */
const char *thc_version_string(void); /* "1.0.0" */

/* ---- tensors ------------------------------------------------------------------------------- */

#define THC_DIMS_MAX 8
#define THC_NAME_MAX 255 /* bytes, UTF-8, without the NUL */

enum thc_dtype { /* names and sizes as in the safetensors format */
	THC_U8 = 1,
	THC_I8,
	THC_BOOL,
	THC_I16,
	THC_U16,
	THC_F16,
	THC_BF16,
	THC_I32,
	THC_U32,
	THC_F32,
	THC_I64,
	THC_U64,
	THC_F64,
	THC_F8_E4M3,
	THC_F8_E5M2,
	THC_C64,
	THC_F8_E8M0,
	THC_F8_E4M3FNUZ,
	THC_F8_E5M2FNUZ,
	THC_F4,
	THC_F6_E2M3,
	THC_F6_E3M2,
};
uint32_t thc_dtype_bits(enum thc_dtype dtype); /* bits of one element; 0 for an unknown type */

#define THC_HOST (-1) /* device: host memory; otherwise the CUDA ordinal of this process */

struct thc_tensor {
	const char *name;
	void *data;           /* first byte; row-major, contiguous */
	uint64_t bytes;       /* = ceil(product(local_shape) * bits / 8), checked; 0 is legal */
	enum thc_dtype dtype;
	int32_t device;       /* THC_HOST or a CUDA ordinal */
	uint32_t ndim;        /* 0 = scalar */
	uint64_t local_shape[THC_DIMS_MAX];
	uint64_t global_shape[THC_DIMS_MAX]; /* all zero = same as local_shape: the whole tensor */
	uint64_t offset[THC_DIMS_MAX];       /* where local sits in global */
};
/*
 * Two names for exactly the same bytes (tied weights: same data, bytes, dtype, shape) are one
 * tensor moved once; any other overlap is THC_E_INVALID and names both.
 */

/* ---- open / close -------------------------------------------------------------------------- */

struct thc_shard;
struct thc_op;

enum thc_open_flags {
	THC_SPOT = 1u << 0,         /* the host may be preempted: never counts for retention */
	THC_REQUIRE_RDMA = 1u << 1, /* THC_E_NO_PATH rather than move bytes over TCP; what comes
				     * from this same host is copied and moves over neither.
				     * "rdma-copy" is RDMA */
	THC_OFFLOAD_SEED = 1u << 2, /* cross-datacenter updates are fetched in the background */
	THC_NO_MEMORY_FD = 1u << 3, /* never hand the agent access to private memory: it then
				     * cannot be registered */
	THC_STAGED = 1u << 4,       /* tensors are reallocated often: register none of them with a
				     * NIC, move them through the agent's own registered buffers */
	THC_PREFETCH = 1u << 5,     /* the same as THC_OFFLOAD_SEED inside a datacenter: update
				     * answers 0 until the version is there whole */
};

struct thc_open_opts {
	size_t struct_size;
	const char *model;    /* domain */
	const char *replica;  /* name of the model-parallel group. NULL: an observer, a member of
			       * nothing: list, wait and get_manifest; all that a member does is
			       * THC_E_STATE. It has none of what follows, but agent */
	uint32_t shard;       /* 0 .. num_shards - 1 */
	uint32_t num_shards;
	uint64_t lineage;     /* run of the training: raise it when training restarts from an
			       * older checkpoint; versions are ordered by (lineage, version) */
	const char *retain;   /* NULL, or comma list of "latest", "latest-K", absolute numbers (at
			       * most 16): each names exactly one version, which stays available
			       * while this handle is open, also when nobody holds it any more:
			       * the last three are "latest,latest-1,latest-2". All members give
			       * the same. */
	const char *launch_id; /* NULL, or one string shared by all members of one launch of the
				* group: another launch replaces what is left of it */
	const char *agent;    /* NULL: $THC_AGENT, else the first that is there of
			       * $XDG_RUNTIME_DIR/tensorhub, /tmp/tensorhub-UID,
			       * /run/tensorhub; the first two must be this user's own */
	uint32_t flags;       /* enum thc_open_flags */
};
#ifdef __cplusplus
#define THC_OPEN_OPTS_INIT { sizeof(struct thc_open_opts), 0, 0, 0, 1, 0, 0, 0, 0, 0 }
#else
#define THC_OPEN_OPTS_INIT { .struct_size = sizeof(struct thc_open_opts), .num_shards = 1 }
#endif

/*
 * Returns when the server knows this member; it waits for no other member. The first group
 * operation does. One thread that drives several shards of a group uses the _submit forms. Same
 * shard opened twice, other retain rules, or another num_shards: THC_E_GROUP_MISMATCH.
 */
int thc_open(const struct thc_open_opts *opts, int64_t timeout_ms, struct thc_shard **ret_shard);

enum thc_close_flags { THC_CLOSE_ABANDON = 1u << 0 };
/*
 * Ends this handle's own retention claims, unpublishes, unregisters, leaves the group, frees the
 * handle. It never waits for another member: the copy is hidden, and the others' next group
 * operation answers THC_E_GROUP_BROKEN. As thc_unregister it returns when the agent keeps no GPU
 * memory of it allocated; of an agent that is lost it waits for nothing and returns 0: see
 * thc_safe_to_mutate, before it. The last copy of a version that others retain is copied first, all
 * its shards into the agents' memory; where nobody has room the call returns THC_E_NOMEM_RETAIN and
 * nothing has changed. While no server is reachable the call waits for one, within its deadline and
 * for 10 minutes at most, then returns THC_E_NO_SERVER: close again later;
 * who exits instead loses nothing, the agent keeps the memory for the next server. On failure the
 * handle stays valid, unless flags has THC_CLOSE_ABANDON: then it is always freed and the agent
 * finishes alone. After THC_E_TIMEOUT the agent goes on with it, and what would begin answers
 * THC_E_STATE: close again. After THC_E_AGENT_LOST the handle holds nothing: only thc_close (at
 * once) and thc_safe_to_mutate are accepted; open again. Calls of other threads that wait in this
 * handle end with THC_E_CANCELLED; operations that were not freed keep their outcome
 * (THC_E_CANCELLED when they had none) until thc_op_free. Calls that come to the handle meanwhile
 * or later, another thc_close too, answer THC_E_STATE, until a thc_open returns the same address
 * again: they are then calls of the new handle, which is the caller's fault and cannot be told.
 */
int thc_close(struct thc_shard *shard, uint32_t flags, int64_t timeout_ms);

enum thc_event_bits {
	THC_EV_EVICTED = 1u,
	THC_EV_VERSION_CONFLICT = 2u,
	THC_EV_CONTRACT = 4u,
	THC_EV_GROUP_BROKEN = 8u,
	THC_EV_AGENT_LOST = 16u,
	THC_EV_AT_RISK = 32u,
	THC_EV_READY = 64u,    /* a newer version is whole on this host: thc_ready_version */
	THC_EV_UPDATED = 128u, /* the agent has brought a version by itself (thc_follow); who sees
				* the version in thc_held_version finds the event, too */
	THC_EV_FOLLOW_FAILED = 256u, /* it could not, and tries again; thctl events has why */
};
/*
 * What happened since the last call: a mask, each bit once. No system call when nothing happened,
 * unless thc_fd is in use.
 *
 * THC_EV_VERSION_CONFLICT: another group has published the version that this handle holds before,
 * with other bytes. The copy of this group is not listed, and the next group operation of its
 * members answers THC_E_VERSION_CONFLICT, once. It is still held: unpublish it.
 *
 * THC_EV_AT_RISK: a version that is retained, and that this handle holds or its own retain rules
 * name, has no complete copy on a host that stays (only on spot hosts, or on nodes that are being
 * drained), and no agent can keep a copy of it; or its last copy has gone with its worker or host,
 * and it is lost. Told once each time that it has become so. The handle is as before. What helps:
 * memory for the agents (thagentd --offload-limit), another replica, or publishing it again.
 *
 * THC_EV_CONTRACT: a reader was sent a chunk of this handle's memory that did not match, and the
 * agent has hashed the memory again: it is not what was published or received. Or the memory cannot
 * be read any more: it was unmapped, or its file was shortened. Such bytes reach nobody. The handle
 * is ended, and its copy unlisted: every call answers THC_E_CONTRACT with a sentence that names the
 * tensor, but thc_close, thc_safe_to_mutate, thc_shard_events and thc_fd.
 */
uint32_t thc_shard_events(struct thc_shard *shard);

/* ---- memory -------------------------------------------------------------------------------- */

/* HUGE: huge pages from the kernel's pool, all there at once; -ENOMEM when it has too few. */
enum thc_alloc_flags { THC_ALLOC_HUGE = 1u << 0 };
/*
 * Memory that any agent can be given: page aligned, zeroed, a sealed memfd, all of whose pages are
 * there (on the caller's account, which takes as long as to write to them once). It belongs to the
 * process until thc_free, and outlives handles: after THC_E_GROUP_BROKEN the weights are still
 * there to be registered again. A forked child shares it with its parent.
 */
int thc_alloc(uint64_t bytes, uint32_t flags, void **ret_ptr);
/* NULL: nothing. THC_E_STATE while a handle has it registered. */
int thc_free(void *ptr);
/*
 * The caller's own shared mapping at addr, backed by fd from fd_offset on. A memfd that takes
 * F_SEAL_SHRINK (it is added here) is mapped by the agent (direct); any other descriptor is only
 * read and written through (copy). fd is duplicated. THC_E_INVALID when a memfd is not what is
 * mapped at addr. What is no file in memory (on a disk, served by a process) is reached by its
 * address, like private memory.
 */
int thc_import(void *addr, uint64_t bytes, int fd, uint64_t fd_offset);
int thc_forget(void *addr); /* undoes thc_import; THC_E_STATE while a handle has it registered */

/*
 * Any host memory may be registered: thc_alloc'd or imported memory is used in place ("direct");
 * private memory (malloc, torch's default allocator) is reached by the agent through a descriptor
 * of this process's memory ("copy"), unless THC_NO_MEMORY_FD. A destination range may not overlap
 * a range that another handle has published. tensors is borrowed for the call. The mappings are
 * looked at again before publish, replicate and update: THC_E_STALE_MEMORY when a tensor is not
 * mapped any more, other memory lies there, or pages were taken out of it (thc_register makes those
 * that an imported file lacks below tensors), THC_E_MEMORY_KIND for a destination that cannot be
 * written; both name it, and nothing has changed.
 *
 * GPU memory (device >= 0) is opened by the agent's process of that GPU ("cuda-ipc") until
 * thc_unregister. What no other process can map, or the agent cannot open, has a copy in host
 * memory that libthc fills and empties in the calls of the worker ("worker-copy"). Freed, asleep or
 * mapped anew: as above. Before an engine sleeps: unpublish and unregister, after which the agent
 * keeps none of it allocated; register when it is awake. No context is made.
 */
int thc_register(struct thc_shard *shard, const struct thc_tensor *tensors, size_t count,
	size_t tensor_bytes, int64_t timeout_ms);
/* THC_E_STATE while published or filling. */
int thc_unregister(struct thc_shard *shard, int64_t timeout_ms);
/* "direct ...", "copy ...", "cuda-ipc ..." or "worker-copy ...", cut to text_bytes. */
int thc_memory_path(
	struct thc_shard *shard, const char *tensor, char *ret_text, size_t text_bytes);

/* ---- publish / unpublish ------------------------------------------------------------------- */

/*
 * Returns when all members have published: the version is then visible. No bytes move; digests are
 * computed behind it. GPU tensors: the caller's stream must have finished writing; those of
 * "worker-copy" are copied by this call. Whoever must not wait for the slowest member uses the
 * _submit form.
 */
int thc_publish(struct thc_shard *shard, uint64_t version, int64_t timeout_ms);

enum thc_unpublish_flags { THC_FORCE = 1u << 0 };
/*
 * Returns when nobody reads this part any more and a retained version is safe elsewhere: of the
 * last copy of one the agents first make a copy in their own memory, of all shards. Where nobody
 * has room for it the call returns THC_E_NOMEM_RETAIN, and the version is published as before.
 * THC_FORCE gives the version up. Without a server a group of one member unpublishes by its own
 * agent's proof, several members get THC_E_NO_SERVER.
 */
int thc_unpublish(struct thc_shard *shard, uint32_t flags, int64_t timeout_ms);

/*
 * 1 = proven: nobody can write the registered memory any more, and nothing read from now on can be
 * accepted as a version. 0 = not proven. Negative (a bad handle) proves nothing: compare with 1.
 */
int thc_safe_to_mutate(struct thc_shard *shard);

/* ---- replicate / update -------------------------------------------------------------------- */

struct thc_result {
	size_t struct_size;
	uint64_t lineage, version; /* absolute version now held; THC_NO_VERSION when none */
	int updated;               /* 1 = these bytes are new; 0 = update found nothing newer */
	uint64_t bytes_moved;      /* over the network or between processes */
	uint64_t bytes_reused;     /* already here with the same content */
	/* Waiting for the version; moving; verifying that was not overlapped. */
	uint64_t wait_ns, transfer_ns, verify_ns;
	char source[THC_NAME_MAX + 1]; /* replica the last byte came from */
	/* "rdma", "rdma-copy" (through buffers of an agent), "tcp", "local", "cuda-ipc" */
	char transport[32];
	/* Of bytes_moved: from a copy that was whole in the memory of this host's agent before. */
	uint64_t bytes_prefetched;
	uint32_t num_sources; /* not counted in this release: 0 */
	uint32_t derived;     /* nothing is made from another layout in this release: 0 */
	char reason[128];     /* why by no better way (THC_PREFETCH); "": by the best */
};
#ifdef __cplusplus
#define THC_RESULT_INIT { sizeof(struct thc_result), 0, 0, 0, 0, 0, 0, 0, 0, "", "", 0, 0, 0, "" }
#else
#define THC_RESULT_INIT { .struct_size = sizeof(struct thc_result) }
#endif

/*
 * version: "17", "latest", "latest-2" (grammar: latest(-[1-9][0-9]*)? or a decimal number).
 * latest is the highest version with a ready copy, or one filling from a chain that reaches a
 * complete copy; names and numbers resolve in the highest lineage that has a version; latest-K is
 * that number minus K and may not be there. ret_result may be NULL.
 *
 * replicate waits for the version to exist. On a handle that holds this very version: 0, updated 0;
 * another: THC_E_STATE.
 * update never waits for a version to exist, nor for a server: THC_E_NO_SERVER at once, the held
 * version stays. There and different from the one held: the old one is given up and the new one
 * replicated, updated 1; else 0, updated 0. A relative name never moves a handle backward, an
 * absolute one may.
 * GPU tensors: kernels that are launched after the return see the bytes.
 */
int thc_replicate(struct thc_shard *shard, const char *version, int64_t timeout_ms,
	struct thc_result *ret_result);
int thc_update(struct thc_shard *shard, const char *version, int64_t timeout_ms,
	struct thc_result *ret_result);

/*
 * The version this shard holds (published or replicated), from shared memory without a system call:
 * 0, or THC_E_NOT_AVAILABLE (also from the first overwritten byte of an update until its end).
 * Outputs may be NULL.
 */
int thc_held_version(struct thc_shard *shard, uint64_t *ret_lineage, uint64_t *ret_version);

/*
 * The newest version that update would install without the network, for a handle opened with
 * THC_PREFETCH or THC_OFFLOAD_SEED; from shared memory, likewise. THC_E_NOT_AVAILABLE: none, or
 * none any more: its copy may go, and without a server nothing can be installed. Each member of a
 * group is answered for itself: decide on one of them, or call update on all. Outputs may be NULL.
 */
int thc_ready_version(struct thc_shard *shard, uint64_t *ret_lineage, uint64_t *ret_version);

/* After THC_E_UNKNOWN: waits for the outcome of that operation and returns what it would have
 * returned. Its own deadline passed: THC_E_UNKNOWN again. */
int thc_resolve(struct thc_shard *shard, int64_t timeout_ms, struct thc_result *ret_result);

/*
 * Free-form data that travels with what is published next (a file's header, a tokenizer's hash): at
 * most 64 KiB each, 1 MiB in all. It stays set for later versions until value NULL removes it.
 */
struct thc_attribute {
	const char *name;
	const void *value;
	size_t bytes;
};
int thc_set_attribute(struct thc_shard *shard, const char *name, const void *value, size_t bytes);

/* What a version consists of, for a reader that must allocate first: the rows of one shard. */
struct thc_manifest {
	size_t struct_size;
	uint64_t lineage, version;
	uint32_t shard, num_shards;
	size_t count, tensor_bytes; /* rows lie tensor_bytes apart; their data is NULL, but: */
	/* tied tensors: a row for each name, with the same non-NULL data (a mark, no address) */
	const struct thc_tensor *tensors;
	size_t num_attributes, attribute_bytes;
	const struct thc_attribute *attributes;
};
int thc_get_manifest(struct thc_shard *shard, const char *version, uint32_t of_shard,
	int64_t timeout_ms, struct thc_manifest **ret_manifest);
void thc_manifest_free(struct thc_manifest *manifest);

/* ---- follow --------------------------------------------------------------------------------- */

/*
 * From now on the agent brings the versions for which somebody says go into the registered tensors
 * by itself, for all members of the group (all of them call it). version is "latest", or NULL: no
 * more; it returns when the last such transfer has ended. thc_unpublish and thc_close end it, too.
 * Memory of thc_alloc or thc_import that is "direct", and "cuda-ipc" (thc_memory_path); else
 * THC_E_MEMORY_KIND. thc_held_version answers THC_E_NOT_AVAILABLE from before the first overwritten
 * byte to the last: who finds the same version before and after a batch, and no THC_EV_UPDATED in
 * between, knows that the weights of this shard did not change under it. Flags: 0. A call of the
 * worker before GO cancels such a transfer, one after GO waits for it.
 */
int thc_follow(struct thc_shard *shard, const char *version, uint32_t flags, int64_t timeout_ms);
/*
 * Followers of the model may take its versions up to this one, which is there. It is never taken
 * back. For a member that has registered tensors, and could publish; an observer cannot.
 */
int thc_go(struct thc_shard *shard, uint64_t version, int64_t timeout_ms);

/* ---- borrow --------------------------------------------------------------------------------- */

enum thc_borrow_flags {
	THC_WHOLE = 1u << 0, /* all tensors, each whole, whatever the sharding; of_shard is 0 */
	THC_COW = 1u << 1,   /* writable, each process's writes are its own (MAP_PRIVATE) */
};
/*
 * A version in the agent's own memory, mapped read-only into this process: fetched when it is not
 * there, kept until thc_return or the end of the process, whatever becomes of the handle, shared by
 * all who borrow it. The rows' data are addresses, multiples of 64. Needs no registered tensors,
 * and is no group operation. THC_E_LIMIT: no room (borrow.limit, --offload-limit).
 */
int thc_borrow(struct thc_shard *shard, const char *version, uint32_t of_shard, uint32_t flags,
	int64_t timeout_ms, const struct thc_manifest **ret_manifest);
/* manifest is compared, not followed: THC_E_INVALID when it is not lent. */
int thc_return(const struct thc_manifest *manifest);

/* ---- list / wait --------------------------------------------------------------------------- */

struct thc_replica_info {
	const char *name, *datacenter;
	uint32_t num_shards;
	uint32_t flags;  /* enum thc_replica_flags */
	double progress; /* 0 .. 1 */
};
enum thc_replica_flags {
	THC_REPLICA_READY = 1u,
	THC_REPLICA_OFFLOAD = 2u,
	THC_REPLICA_SPOT = 4u,
	THC_REPLICA_DRAINING = 8u,
};

struct thc_version_info {
	uint64_t lineage, version;
	uint32_t retained;
	uint32_t num_replicas;
	const struct thc_replica_info *replicas; /* sorted by name, replica_bytes apart */
};
struct thc_listing {
	size_t struct_size;
	uint64_t generation; /* grows when a version or replica appears, becomes ready, goes... */
	uint32_t num_versions;
	size_t version_bytes, replica_bytes;     /* element sizes */
	const struct thc_version_info *versions; /* ascending */
};
/*
 * THC_LIST_GROUP makes it a group operation: all members get the same listing (for code that
 * branches on it, also after thc_wait and before thc_get_manifest of a relative version, which
 * answer each member for itself).
 */
enum thc_list_flags { THC_LIST_GROUP = 1u << 0 };
int thc_list(struct thc_shard *shard, uint32_t flags, int64_t timeout_ms,
	struct thc_listing **ret_listing);
void thc_listing_free(struct thc_listing *listing);

/*
 * Waits until predicate is true. It runs in the calling thread, under no lock of libthc, on the
 * current listing and again after changes (several may be seen at once, the last is never
 * missed); in between the thread sleeps. It may use other handles. Returns 0, THC_E_TIMEOUT, ...
 */
typedef int (*thc_predicate)(const struct thc_listing *listing, void *arg);
int thc_wait(struct thc_shard *shard, thc_predicate predicate, void *arg, int64_t timeout_ms);

/*
 * Begins a wait for a change: op ends with 0 when the listing has another generation than this one
 * (at once when it has already), with THC_E_TIMEOUT at its deadline. For loops that wait on thc_fd:
 * list, look, and watch the generation that was listed. It is no group operation.
 */
int thc_watch_submit(struct thc_shard *shard, uint64_t generation, int64_t timeout_ms,
	struct thc_op **ret_op);

/* ---- asynchronous form --------------------------------------------------------------------- */

/*
 * timeout_ms is the operation's own deadline, as above. At most 64 operations, waits included,
 * may be open in one handle. None waits for the operation; thc_publish_submit gives the agent new
 * attributes before it returns.
 */
int thc_publish_submit(
	struct thc_shard *shard, uint64_t version, int64_t timeout_ms, struct thc_op **ret_op);
int thc_unpublish_submit(
	struct thc_shard *shard, uint32_t flags, int64_t timeout_ms, struct thc_op **ret_op);
int thc_replicate_submit(struct thc_shard *shard, const char *version, int64_t timeout_ms,
	struct thc_op **ret_op);
int thc_update_submit(struct thc_shard *shard, const char *version, int64_t timeout_ms,
	struct thc_op **ret_op);
int thc_follow_submit(struct thc_shard *shard, const char *version, uint32_t flags,
	int64_t timeout_ms, struct thc_op **ret_op);
/* A list with THC_LIST_GROUP, which flags must have. thc_op_listing takes what it brought. */
int thc_list_submit(
	struct thc_shard *shard, uint32_t flags, int64_t timeout_ms, struct thc_op **ret_op);
/*
 * Poll it for reading, never read it: readable while a finished operation or an event has not been
 * collected by thc_op_done, thc_op_wait, thc_shard_events, whatever other threads do. It may also
 * become readable for nothing: those three calls settle that. It may be polled by level or by edge:
 * woken, ask thc_op_done for each operation, and thc_shard_events. The same at each call; owned by
 * the handle. An agent that stands still does not wake it: see thc_op_wait.
 */
int thc_fd(struct thc_shard *shard);
/* 1 finished, 0 not yet, negative: its failure. Of "worker-copy" memory it copies for a while. */
int thc_op_done(struct thc_op *op);
/*
 * THC_E_TIMEOUT: op runs on. THC_E_UNKNOWN: op's own deadline has passed without an outcome; wait
 * again, or use thc_resolve. THC_E_CANCELLED may also mean that another thread closes the handle:
 * thc_op_done tells later what came of op.
 */
int thc_op_wait(struct thc_op *op, int64_t timeout_ms, struct thc_result *ret_result);
/* 0 of 0 before it has begun; after its end what it had come to. */
int thc_op_progress(struct thc_op *op, uint64_t *ret_done_bytes, uint64_t *ret_total_bytes);
/*
 * What it waits for, in a sentence for people: "shard 3 on node b (pid 4711) has not called it". It
 * asks the reference server; for who has waited for long. Cut to text_bytes. THC_E_STATE: it has
 * ended, or is a wait.
 */
int thc_op_waits(struct thc_op *op, int64_t timeout_ms, char *ret_text, size_t text_bytes);
/*
 * The listing of a thc_list_submit that has ended with 0, to be freed by thc_listing_free. Take it
 * before the next operation: it comes from the reference server, which keeps it until all members
 * have called that one; THC_E_NOT_AVAILABLE then. THC_E_STATE: op has not ended, or brought none.
 */
int thc_op_listing(struct thc_op *op, int64_t timeout_ms, struct thc_listing **ret_listing);
/* Asks; the end still comes: THC_E_CANCELLED before GO, its real outcome after. Ended: nothing. */
int thc_op_cancel(struct thc_op *op);
/* Detaches; cancels when not finished. No other call may use op meanwhile. NULL: nothing. */
void thc_op_free(struct thc_op *op);

#if defined(__GNUC__)
#pragma GCC visibility pop
#endif
#ifdef __cplusplus
}
#endif
#endif
