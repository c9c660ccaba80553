/* SPDX-License-Identifier: Apache-2.0 */
/*
 * memory - see memory.h. Main thread, but for what says otherwise.
 */
#include "daemon/host/memory/memory.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/magic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "daemon/host/memory/gpu_hold.h"
#include "daemon/host/memory/holes.h"
#include "daemon/host/memory/memory_gpu.h"
#include "ipc/base/alloc.h"
#include "ipc/base/checked.h"
#include "ipc/base/fd.h"
#include "ipc/base/stranger_fd.h"
#include "transport/part/fd_memory.h"
#include "transport/part/packed.h"
#include "transport/part/unmap.h"
#include "transport/rdma/memory/region.h"

#define SAME_MAX 64u

/* ---- mapped, and registered with NICs ------------------------------------------------------- */

/* Registered or given back, what becomes of it does not depend on the object any more. */
struct mapping {
	struct unmap unmap, nic_unmap;
	void *map; /* owns */
	void *nic; /* owns: the same pages, for the devices; NULL: there is none */
	size_t bytes;
	uint64_t missing; /* until it is registered or never will be */
};

static uint64_t unmapping, populating; /* atomic: bytes */

/* Of so many bytes of the file, as far as can be told: those that are there may be others. */
static uint64_t
memory_missing_of(const struct stat *st, uint64_t bytes)
{
	uint64_t there = (uint64_t)th_max_i64(st->st_blocks, 0) * 512;
	uint64_t size = (uint64_t)th_max_i64(st->st_size, 0);
	return th_min_u64(bytes, size > there ? size - there : 0);
}

uint64_t
memory_missing(const struct memory *object)
{
	struct stat st;
	if (object->missing == 0 || !object->file || fstat(fd_memory_fd(object->file), &st) < 0)
		return object->missing;
	return memory_missing_of(&st, object->bytes);
}

uint64_t
memory_unmapping(void)
{
	return __atomic_load_n(&unmapping, __ATOMIC_RELAXED);
}

uint64_t
memory_populating(void)
{
	return __atomic_load_n(&populating, __ATOMIC_RELAXED);
}

/* On the keeper's thread. */
static void
mapping_settled(void *arg, struct region *region)
{
	struct mapping *mapping = arg;
	(void)region;
	__atomic_sub_fetch(&populating, mapping->missing, __ATOMIC_RELAXED);
	mapping->missing = 0;
}

/* On any thread. */
static void
mapping_unmapped(void *arg)
{
	struct mapping *mapping = arg;
	__atomic_sub_fetch(&unmapping, mapping->bytes, __ATOMIC_RELAXED);
	free(mapping);
}

/* On any thread. */
static void
nic_unmapped(void *arg)
{
	struct mapping *mapping = arg;
	unmap_start(&mapping->unmap, mapping->map, mapping->bytes, mapping_unmapped, mapping);
}

/* Counted until it is done. */
static void
mapping_give_back(struct mapping *mapping)
{
	if (mapping->nic)
		unmap_start(
			&mapping->nic_unmap, mapping->nic, mapping->bytes, nic_unmapped, mapping);
	else
		nic_unmapped(mapping);
}

/* On the keeper's thread. */
static void
mapping_gone(void *arg)
{
	struct mapping *mapping = arg;
	mapping_settled(mapping, NULL);
	mapping_give_back(mapping);
}

static void
register_dmabuf(struct memory *object, struct rails *rails, uint32_t mask)
{
	const struct region_user user = {
		.arg = object->hold, .stuck = hold_refused, .gone = hold_end};
	const struct region_memory memory = {.dmabuf_fd = th_fd_move(&object->dmabuf_fd),
		.dmabuf_offset = object->offset,
		.close_fd = stranger_close_drivers,
		.bytes = object->bytes};
	object->hold = NULL;
	object->region = region_new(rails, &memory, mask, SHARD_ACCESS, &user);
}

/*
 * A device is to write to what a shard receives, and it registers for that only what is mapped
 * writable, now or when it has been lost and comes back. So it has a mapping of its own of the same
 * pages, through which nobody else reaches them; its READs land where this agent has asked for.
 */
static void *
map_for_devices(const struct memory *object)
{
	void *nic = mremap(object->map, 0, object->map_bytes, MREMAP_MAYMOVE);
	if (nic == MAP_FAILED)
		return NULL;
	if (mprotect(nic, object->map_bytes, PROT_READ | PROT_WRITE) < 0) {
		(void)munmap(nic, object->map_bytes);
		return NULL;
	}
	holes_guard(nic, object->map_bytes);
	return nic;
}

void
memory_register(struct memory *object, struct rails *rails, uint32_t mask)
{
	if (object->dmabuf) {
		register_dmabuf(object, rails, mask);
		return;
	}
	struct mapping *mapping = th_calloc(1, sizeof(*mapping));
	*mapping = (struct mapping){.map = object->map,
		.nic = map_for_devices(object),
		.bytes = object->map_bytes,
		.missing = memory_missing(object)};
	const struct region_user user = {
		.arg = mapping, .settled = mapping_settled, .gone = mapping_gone};
	__atomic_add_fetch(&populating, mapping->missing, __ATOMIC_RELAXED);
	/* Without it, the registration fails for want of rights and says so, or has them. */
	const struct region_memory memory = {.data = mapping->nic ? mapping->nic : object->map,
		.dmabuf_fd = -1,
		.bytes = object->map_bytes};
	object->region = region_new(rails, &memory, mask, SHARD_ACCESS, &user);
}

/* Gives back what is mapped of it, when no device knows it any more. */
static void
memory_unmap(struct memory *object)
{
	__atomic_add_fetch(&unmapping, object->map_bytes, __ATOMIC_RELAXED);
	if (object->region) {
		region_release(object->region);
	} else if (object->map) {
		struct mapping *mapping = th_calloc(1, sizeof(*mapping));
		mapping->map = object->map;
		mapping->bytes = object->map_bytes;
		mapping_give_back(mapping);
	}
}

/* ---- taking in ------------------------------------------------------------------------------ */

/* Only a file that cannot shrink may be mapped: an access beyond a truncated end is SIGBUS here. */
static int
check_seals(int fd, struct th_err *err)
{
	int seals = fcntl(fd, F_GET_SEALS);
	if (seals < 0)
		return th_fail(err, TH_E_MEMORY_KIND,
			"the descriptor is no memfd: it has no seals (%s); allocate with "
			"thc_alloc, or import a memfd made with MFD_ALLOW_SEALING",
			th_strerror(-errno));
	if (seals & (F_SEAL_WRITE | F_SEAL_FUTURE_WRITE))
		return th_fail(err, TH_E_MEMORY_KIND,
			"the memfd is sealed against writing, so it is not mapped; it can be "
			"shared as a file");
	if (!(seals & F_SEAL_SHRINK))
		return th_fail(err, TH_E_MEMORY_KIND,
			"the memfd has no F_SEAL_SHRINK, so it is not mapped; add the seal before "
			"it is shared, or share it as a file");
	return 0;
}

/* Checks the range against the file and widens it to whole pages (huge ones for hugetlb). */
static int
memory_do_place(const struct fdmsg_memory *message, const struct stat *st, struct th_err *err,
	uint64_t *ret_start, size_t *ret_bytes)
{
	uint64_t size = st->st_size < 0 ? 0 : (uint64_t)st->st_size;
	if (message->bytes == 0)
		return th_fail(err, TH_E_INVALID, "a memory object of no bytes");
	if (!th_range_fits(message->offset, message->bytes, size))
		return th_fail(err, TH_E_INVALID,
			"memory object: %" PRIu64 " bytes from offset %" PRIu64
			" are not in a file of %" PRIu64 " bytes",
			message->bytes, message->offset, size);
	uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
	if (st->st_blksize > 0 && th_is_power_of_two_u64((uint64_t)st->st_blksize))
		page = th_max_u64(page, (uint64_t)st->st_blksize);
	uint64_t start = message->offset & ~(page - 1);
	uint64_t end;
	if (!th_align_up_u64(message->offset + message->bytes, page, &end) ||
		end - start > (uint64_t)PTRDIFF_MAX)
		return th_fail(err, TH_E_INVALID, "memory object: %" PRIu64 " bytes are too many",
			message->bytes);
	*ret_start = start;
	*ret_bytes = (size_t)(end - start);
	return 0;
}

/* A place in the array is cheap: most of it moves together when half of it is nothing. */
static void
compact(struct memory_set *set)
{
	uint32_t kept = 0;
	for (uint32_t i = 0; i < set->count; i++) {
		if (!set->objects[i].gone)
			set->objects[kept++] = set->objects[i];
	}
	set->count = kept;
	set->gone = 0;
}

int
memory_reserve(struct memory_set *set, uint32_t objects_max, struct th_err *err)
{
	if (set->count - set->gone >= objects_max)
		return th_fail(err, TH_E_LIMIT,
			"a worker may share at most %" PRIu32
			" memory objects at a time (limit.memory_objects); forget some, or "
			"allocate "
			"fewer and larger ones",
			objects_max);
	if (set->gone > set->count / 2)
		compact(set);
	if (set->count < set->capacity)
		return 0;
	uint32_t capacity = set->capacity ? 2 * set->capacity : 8;
	struct memory *objects = reallocarray(set->objects, capacity, sizeof(*objects));
	if (!objects)
		return th_fail(err, -ENOMEM, "the agent is out of memory");
	set->objects = objects;
	set->capacity = capacity;
	return 0;
}

/* Both sums are what was let in here, so neither is beyond its limit. */
static int
check_sum(const struct memory_set *set, uint64_t mapped_by_all, uint64_t map_bytes,
	struct th_err *err)
{
	if (map_bytes > MEMORY_BYTES_MAX - set->mapped_bytes)
		return th_fail(err, TH_E_LIMIT,
			"a worker may share at most %" PRIu64
			" bytes of memory; this would be %" PRIu64 " more than the %" PRIu64
			" that it shares; share only what is registered",
			MEMORY_BYTES_MAX, map_bytes, set->mapped_bytes);
	if (map_bytes > MEMORY_BYTES_MAX_ALL - mapped_by_all)
		return th_fail(err, TH_E_LIMIT,
			"the workers of this host share %" PRIu64
			" bytes of memory, and the agent maps at most %" PRIu64
			"; 'thctl status' names them",
			mapped_by_all, MEMORY_BYTES_MAX_ALL);
	return 0;
}

/*
 * A mapping does without its descriptor. With it what lies there can be sent by sendfile, so it is
 * kept unless there are many: half of the room for descriptors is for what cannot do without.
 */
static void
keep_file(
	struct memory_set *set, const struct memory_limits *limits, int *fd, struct memory *object)
{
	struct statfs fs;
	if (fstatfs(*fd, &fs) < 0 || (uint64_t)fs.f_type == HUGETLBFS_MAGIC)
		return; /* the kernel sends no huge pages out of a file */
	for (uint32_t i = 0; i < SAME_MAX && i < set->count; i++) {
		const struct memory *other = &set->objects[set->count - 1 - i];
		if (other->file && !other->dmabuf && other->dev == object->dev &&
			other->ino == object->ino) {
			object->file = fd_memory_retain(other->file);
			return;
		}
	}
	if (limits->kept_by_all >= limits->descriptors_max / 2)
		return;
	object->file = fd_memory_new(*fd, FD_MEMORY_FILE, stranger_close);
	if (!object->file)
		return;
	*fd = -1;
	object->owner = true;
	set->descriptors++;
}

int
memory_no_descriptors(const struct memory_limits *limits, struct th_err *err)
{
	return th_fail(err, TH_E_LIMIT,
		"the agent keeps %" PRIu32
		" descriptors of workers' memory, which is its limit (half of its "
		"RLIMIT_NOFILE); use fewer and larger objects",
		limits->kept_by_all);
}

uint32_t
memory_append(struct memory_set *set, const struct memory *object)
{
	struct memory *added = &set->objects[set->count++];
	*added = *object;
	added->id = ++set->last_id;
	if (!added->dmabuf)
		added->dmabuf_fd = -1;
	return added->id;
}

static int
add_mapped(struct memory_set *set, const struct fdmsg_memory *message, int *fd,
	const struct memory_limits *limits, struct th_err *err, uint32_t *ret_id)
{
	int rc = check_seals(*fd, err);
	if (rc < 0)
		return rc;
	struct stat st;
	if (fstat(*fd, &st) < 0)
		return th_fail(err, -errno, "fstat of a memory object: %s", th_strerror(-errno));
	uint64_t start = 0;
	size_t map_bytes = 0;
	rc = memory_do_place(message, &st, err, &start, &map_bytes);
	if (rc < 0)
		return rc;
	rc = check_sum(set, limits->mapped_by_all, map_bytes, err);
	if (rc == 0)
		rc = memory_reserve(set, limits->objects_max, err);
	if (rc < 0)
		return rc;
	void *map = mmap(NULL, map_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, *fd, (off_t)start);
	if (map == MAP_FAILED)
		return th_fail(err, errno == ENOMEM ? -ENOMEM : TH_E_MEMORY_KIND,
			"mapping %zu bytes of a memfd: %s", map_bytes, th_strerror(-errno));
	/* Writable first: a descriptor that does not allow that is found out here. */
	if (mprotect(map, map_bytes, PROT_READ) < 0) {
		rc = -errno;
		(void)munmap(map, map_bytes);
		return th_fail(err, rc, "mprotect of %zu bytes of a memfd: %s", map_bytes,
			th_strerror(rc));
	}
	holes_guard(map, map_bytes);
	/* A child of the agent has no business in a worker's memory, and a core file neither. */
	(void)madvise(map, map_bytes, MADV_DONTFORK);
	(void)madvise(map, map_bytes, MADV_DONTDUMP);
	struct memory object = {
		.missing = memory_missing_of(&st, message->bytes),
		.dev = (uint64_t)st.st_dev,
		.ino = (uint64_t)st.st_ino,
		.base = message->base,
		.offset = message->offset,
		.bytes = message->bytes,
		.data = (uint8_t *)map + (message->offset - start),
		.map = map,
		.map_bytes = map_bytes,
		.shadow = message->kind == FDMSG_SHADOW,
	};
	keep_file(set, limits, fd, &object);
	set->mapped_bytes += map_bytes;
	*ret_id = memory_append(set, &object);
	return 0;
}

int
memory_set_writable(struct memory_set *set, bool writable)
{
	int rights = writable ? PROT_READ | PROT_WRITE : PROT_READ;
	for (uint32_t i = 0; i < set->count; i++) {
		struct memory *object = &set->objects[i];
		if (!object->map || object->writable == writable)
			continue;
		if (mprotect(object->map, object->map_bytes, rights) < 0)
			return -errno;
		object->writable = writable;
	}
	return 0;
}

/* ---- through a descriptor ------------------------------------------------------------------- */

/* What has seals is a file in memory: the kernel itself answers all questions about it. */
static int
memory_check_file(
	const struct fdmsg_memory *message, int fd, struct th_err *err, struct memory *object)
{
	struct stat st;
	struct statfs fs;
	size_t bytes;
	uint64_t start;
	int flags = fcntl(fd, F_GETFL), seals = fcntl(fd, F_GET_SEALS);
	if (flags < 0 || seals < 0)
		return th_fail(err, TH_E_MEMORY_KIND,
			"the descriptor is no file that lies in memory (%s); only its mapping in "
			"the process can be shared",
			th_strerror(-errno));
	if (fstat(fd, &st) < 0 || fstatfs(fd, &fs) < 0)
		return th_fail(err, -errno, "fstat of a memory object: %s", th_strerror(-errno));
	if ((flags & O_ACCMODE) == O_WRONLY || (flags & O_PATH))
		return th_fail(err, TH_E_MEMORY_KIND,
			"the descriptor can not be read; open it for reading and writing");
	if (flags & O_APPEND)
		return th_fail(err, TH_E_MEMORY_KIND,
			"the descriptor has O_APPEND: what is written would go to the end of the "
			"file; open it without");
	int rc = memory_do_place(message, &st, err, &start, &bytes);
	if (rc < 0)
		return rc;
	if ((flags & O_ACCMODE) != O_RDWR)
		object->read_only = "its descriptor is open for reading only";
	else if (seals & (F_SEAL_WRITE | F_SEAL_FUTURE_WRITE))
		object->read_only = "it is sealed against writing";
	else if ((uint64_t)fs.f_type == HUGETLBFS_MAGIC)
		object->read_only = "a file of huge pages can only be written where it is mapped";
	object->dev = (uint64_t)st.st_dev;
	object->ino = (uint64_t)st.st_ino;
	return 0;
}

/*
 * What it really is does not matter to the agent: nothing but a thread that may be left behind
 * touches it. The inode is what two handles of one process have in common; AT_STATX_DONT_SYNC takes
 * it from the kernel's memory, whatever the file system.
 */
static int
check_process(const struct fdmsg_memory *message, int fd, const struct memory_limits *limits,
	struct th_err *err, struct memory *object)
{
	struct statx st;
	int flags = fcntl(fd, F_GETFL);
	if (limits->no_process)
		return th_fail(err, TH_E_MEMORY_KIND,
			"private memory of the process, and the handle was opened with "
			"THC_NO_MEMORY_FD");
	if (flags < 0 ||
		statx(fd, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_BASIC_STATS, &st) < 0)
		return th_fail(
			err, -errno, "a descriptor of process memory: %s", th_strerror(-errno));
	if (!S_ISREG(st.stx_mode) || (flags & O_ACCMODE) == O_WRONLY || (flags & O_PATH))
		return th_fail(err, TH_E_MEMORY_KIND,
			"the descriptor is not /proc/self/mem, open for reading and writing");
	if (message->offset != message->base || message->bytes == 0 ||
		!th_range_fits(message->offset, message->bytes, (uint64_t)INT64_MAX))
		return th_fail(err, TH_E_INVALID,
			"process memory: %" PRIu64 " bytes from offset %" PRIu64
			" for address 0x%" PRIx64,
			message->bytes, message->offset, message->base);
	if ((flags & O_ACCMODE) != O_RDWR)
		object->read_only = "its descriptor is open for reading only";
	object->dev = (uint64_t)makedev(st.stx_dev_major, st.stx_dev_minor);
	object->ino = st.stx_ino;
	object->process = true;
	return 0;
}

/*
 * The descriptor of another object of the same file or process, if it can do as much. The last few
 * are looked at: who shares a file piece by piece does so in one go.
 */
static struct fd_memory *
same_access(const struct memory_set *set, const struct memory *object)
{
	for (uint32_t i = 0; i < SAME_MAX && i < set->count; i++) {
		const struct memory *other = &set->objects[set->count - 1 - i];
		if (other->access && other->process == object->process &&
			other->dev == object->dev && other->ino == object->ino &&
			!other->read_only == !object->read_only)
			return other->access;
	}
	return NULL;
}

static int
add_access(struct memory_set *set, const struct fdmsg_memory *message, int *fd,
	const struct memory_limits *limits, struct th_err *err, uint32_t *ret_id)
{
	struct memory object = {
		.base = message->base, .offset = message->offset, .bytes = message->bytes};
	int rc = message->kind == FDMSG_PROCESS ? check_process(message, *fd, limits, err, &object)
						: memory_check_file(message, *fd, err, &object);
	if (rc == 0)
		rc = memory_reserve(set, limits->objects_max, err);
	if (rc < 0)
		return rc;
	struct fd_memory *same = same_access(set, &object);
	if (same) {
		object.access = fd_memory_retain(same);
		*ret_id = memory_append(set, &object);
		return 0;
	}
	if (limits->kept_by_all >= limits->descriptors_max)
		return memory_no_descriptors(limits, err);
	object.access = fd_memory_new(
		*fd, object.process ? FD_MEMORY_PROCESS : FD_MEMORY_FILE, stranger_close);
	if (!object.access)
		return th_fail(err, -ENOMEM, "the agent is out of memory");
	*fd = -1;
	object.owner = true;
	set->descriptors++;
	*ret_id = memory_append(set, &object);
	return 0;
}

/*
 * What it is only the kernel knows, and who registers it hears that. It is known here for what
 * GPU memory it stands, by the worker's word: a wrong one makes wrong digests of the worker's own.
 * How long it is is asked, for a NIC that went beyond its end would fail where nobody sees why.
 */
static int
check_dmabuf(const struct fdmsg_memory *message, int fd, struct th_err *err)
{
	uint64_t end, bytes = 0;
	if (message->bytes == 0 || !th_add_u64(message->base, message->bytes, &end) ||
		!th_add_u64(message->offset, message->bytes, &end))
		return th_fail(err, TH_E_INVALID,
			"a dma-buf: %" PRIu64 " bytes from offset %" PRIu64
			" for address 0x%" PRIx64,
			message->bytes, message->offset, message->base);
	if (!stranger_is_dmabuf(fd))
		return th_fail(err, TH_E_INVALID,
			"the descriptor of a dma-buf for address 0x%" PRIx64 " is of none, by "
			"/proc/self/fdinfo: network devices do not get it, and the agent copies",
			message->base);
	int rc = th_fd_bytes(fd, &bytes);
	if (rc < 0)
		return th_fail(err, rc, "the descriptor of a dma-buf: %s", th_strerror(rc));
	if (bytes < end)
		return th_fail(err, TH_E_INVALID,
			"a dma-buf for address 0x%" PRIx64 " has %" PRIu64 " bytes, and %" PRIu64
			" from offset %" PRIu64
			" are named: network devices do not get it, and the agent copies",
			message->base, bytes, message->bytes, message->offset);
	return 0;
}

static int
add_dmabuf(struct memory_set *set, const struct fdmsg_memory *message, int *fd,
	const struct memory_limits *limits, struct th_err *err, uint32_t *ret_id)
{
	struct memory object = {.base = message->base,
		.offset = message->offset,
		.bytes = message->bytes,
		.dmabuf = true};
	int rc = check_dmabuf(message, *fd, err);
	if (rc == 0)
		rc = memory_reserve(set, limits->objects_max, err);
	if (rc == 0 && limits->kept_by_all >= limits->descriptors_max)
		rc = memory_no_descriptors(limits, err);
	if (rc < 0)
		return rc;
	object.dmabuf_fd = th_fd_move(fd);
	object.hold = memory_gpu_hold(set);
	set->descriptors++;
	*ret_id = memory_append(set, &object);
	return 0;
}

int
memory_add(struct memory_set *set, const struct fdmsg_memory *message, int *fd,
	const struct memory_limits *limits, struct th_err *err, uint32_t *ret_id)
{
	if (message->kind == FDMSG_MEMFD || message->kind == FDMSG_SHADOW)
		return add_mapped(set, message, fd, limits, err, ret_id);
	if (message->kind == FDMSG_FILE || message->kind == FDMSG_PROCESS)
		return add_access(set, message, fd, limits, err, ret_id);
	if (message->kind == FDMSG_DMABUF)
		return add_dmabuf(set, message, fd, limits, err, ret_id);
	return th_fail(err, TH_E_MEMORY_KIND,
		"memory of a kind that this agent does not know (%" PRIu32
		"); libthc is newer than the agent: upgrade that",
		message->kind);
}

/* Ids are given in ascending order and the array keeps it: a registration looks up every row. */
static struct memory *
find_any(const struct memory_set *set, uint32_t id)
{
	uint32_t low = 0, high = set->count;
	while (low < high) {
		uint32_t middle = low + (high - low) / 2;
		if (set->objects[middle].id < id)
			low = middle + 1;
		else
			high = middle;
	}
	bool found = low < set->count && set->objects[low].id == id && !set->objects[low].gone;
	return found ? &set->objects[low] : NULL;
}

static struct memory *
memory_do_find(const struct memory_set *set, uint32_t id)
{
	struct memory *object = find_any(set, id);
	return object && !object->forgotten ? object : NULL;
}

const struct memory *
memory_find(const struct memory_set *set, uint32_t id)
{
	return memory_do_find(set, id);
}

struct memory *
memory_object(struct memory_set *set, uint32_t id)
{
	return find_any(set, id);
}

/* ---- dma-bufs -------------------------------------------------------------------------------- */

static int
compare_dmabufs(const void *a, const void *b)
{
	const struct memory *x = *(struct memory *const *)a, *y = *(struct memory *const *)b;
	return (x->base > y->base) - (x->base < y->base);
}

struct memory **
memory_dmabufs(struct memory_set *set, uint32_t *ret_count)
{
	struct memory **dmabufs = NULL;
	*ret_count = 0;
	for (uint32_t i = 0; i < set->count; i++) {
		/* Of a registration that is over: other memory may be there by now. */
		if (!set->objects[i].dmabuf || set->objects[i].forgotten)
			continue;
		if (!dmabufs)
			dmabufs = th_calloc(set->count - i, sizeof(dmabufs[0]));
		dmabufs[(*ret_count)++] = &set->objects[i];
	}
	if (dmabufs)
		qsort(dmabufs, *ret_count, sizeof(dmabufs[0]), compare_dmabufs);
	return dmabufs;
}

struct memory *
memory_dmabuf_of(struct memory *const *dmabufs, uint32_t count, uint64_t address, uint64_t bytes)
{
	uint32_t low = 0, high = count;
	while (low < high) {
		uint32_t middle = low + (high - low) / 2;
		if (dmabufs[middle]->base <= address)
			low = middle + 1;
		else
			high = middle;
	}
	/* Those that begin before it: the last one, for they do not overlap but by a mistake. */
	struct memory *found = low > 0 ? dmabufs[low - 1] : NULL;
	return found && th_range_fits(address - found->base, bytes, found->bytes) ? found : NULL;
}

/* ---- the end --------------------------------------------------------------------------------- */

/* The descriptor counts as long as any object has it. Not of GPU memory: each has its own. */
static void
memory_pass_on(struct memory_set *set, uint32_t index)
{
	for (uint32_t i = 0; i < set->count; i++) {
		const struct memory *other = &set->objects[i], *gone = &set->objects[index];
		if (i != index && other->access == gone->access && other->file == gone->file) {
			set->objects[i].owner = true;
			return;
		}
	}
	set->descriptors--;
}

void
memory_drop(struct memory_set *set, uint32_t index)
{
	struct memory *object = &set->objects[index];
	set->mapped_bytes -= object->map_bytes;
	memory_unmap(object);
	if (object->space)
		memory_gpu_drop(set, object);
	if (object->hold)
		stranger_close_drivers(object->dmabuf_fd, hold_end, object->hold);
	set->descriptors -= object->dmabuf;
	if (object->owner)
		memory_pass_on(set, index);
	fd_memory_release(object->access);
	fd_memory_release(object->file);
	set->forgotten -= object->forgotten;
	*object = (struct memory){.id = object->id, .gone = true, .dmabuf_fd = -1};
	set->gone++;
}

int
memory_forget(struct memory_set *set, uint32_t id, bool in_use)
{
	struct memory *object = memory_do_find(set, id);
	if (!object)
		return TH_E_INVALID;
	if (in_use) {
		object->forgotten = true;
		set->forgotten++;
		return 0;
	}
	memory_drop(set, (uint32_t)(object - set->objects));
	if (set->gone > set->count / 2)
		compact(set);
	return 0;
}

void
memory_sweep(struct memory_set *set)
{
	for (uint32_t i = set->count; i-- > 0;) {
		if (set->objects[i].forgotten)
			memory_drop(set, i);
	}
	compact(set);
}

void
memory_fini(struct memory_set *set)
{
	for (uint32_t i = set->count; i-- > 0;) {
		if (!set->objects[i].gone)
			memory_drop(set, i);
	}
	hold_end(set->hold);
	free(set->objects);
	*set = (struct memory_set){0};
}
