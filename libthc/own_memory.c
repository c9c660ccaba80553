/* SPDX-License-Identifier: Apache-2.0 */
/*
 * own_memory - thc_alloc, thc_free, thc_import, thc_forget; see own_memory.h.
 *
 * The registry is an array sorted by address: objects are few (allocations, not tensors) and do not
 * overlap, so the object of a tensor is found by bisection.
 */
#include "libthc/own_memory.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "ipc/base/fd.h"
#include "ipc/base/log.h"
#include "libthc/libthc_own.h"
#include "libthc/maps.h"
#include "libthc/populate.h"

#define HUGE_BYTES (UINT64_C(2) << 20)
#ifndef MFD_HUGE_2MB /* only in the kernel's header, which does not go with the C library's */
#define MFD_HUGE_2MB (21u << 26)
#endif

struct entry {
	struct memory_object object;
	uint64_t
		map_bytes; /* of what thc_alloc mapped                                            */
	uint32_t uses;     /* registrations                                                       */
	bool not_forked;   /* a child does not have it                                            */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct entry *entries; /* sorted by start */
static size_t num_entries, capacity;
static uint64_t last_serial;

void
memory_lock(void)
{
	pthread_mutex_lock(&lock);
}

void
memory_unlock(void)
{
	pthread_mutex_unlock(&lock);
}

/* Something else may lie there soon, and the parent's handles let go of nothing here. */
void
memory_forked(void)
{
	size_t kept = 0;

	for (size_t i = 0; i < num_entries; i++) {
		entries[i].uses = 0;
		if (entries[i].not_forked)
			th_fd_close(&entries[i].object.fd);
		else
			entries[kept++] = entries[i];
	}
	num_entries = kept;
}

/* Index of the first entry that starts behind address. */
static size_t
upper(uintptr_t address)
{
	size_t low = 0, high = num_entries;

	while (low < high) {
		size_t middle = low + (high - low) / 2;
		if (entries[middle].object.start <= address)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

/* What starts there now may be a later object. */
static struct entry *
lookup(uintptr_t start, uint64_t serial)
{
	size_t index = upper(start);

	return index > 0 && entries[index - 1].object.serial == serial ? &entries[index - 1] : NULL;
}

enum memory_place
memory_find(uintptr_t start, uint64_t bytes, struct memory_object *ret_object)
{
	enum memory_place place = MEMORY_OUTSIDE;

	memory_lock();
	size_t index = upper(start);
	if (index > 0 &&
		start - entries[index - 1].object.start < entries[index - 1].object.bytes) {
		const struct memory_object *object = &entries[index - 1].object;
		place = MEMORY_PARTLY;
		if (th_range_fits(start - object->start, bytes, object->bytes)) {
			place = MEMORY_INSIDE;
			*ret_object = *object;
		}
	} else if (index < num_entries && entries[index].object.start - start < bytes) {
		place = MEMORY_PARTLY;
	}
	memory_unlock();
	return place;
}

int
memory_acquire(uintptr_t start, uint64_t serial)
{
	memory_lock();
	struct entry *entry = lookup(start, serial);
	if (entry != NULL)
		entry->uses++;
	memory_unlock();
	return entry != NULL ? 0 : -ENOENT;
}

void
memory_release(uintptr_t start, uint64_t serial)
{
	memory_lock();
	struct entry *entry = lookup(start, serial);
	if (entry != NULL && entry->uses > 0)
		entry->uses--;
	memory_unlock();
}

uint64_t
memory_serials(uint64_t count)
{
	memory_lock();
	uint64_t first = last_serial + 1;
	last_serial += count;
	memory_unlock();
	return first;
}

/* Under the lock. What overlaps an object that is there is not added: THC_E_STATE. */
static int
own_memory_add(const struct entry *entry)
{
	uintptr_t start = entry->object.start;
	size_t index = upper(start);

	if (index > 0 && start - entries[index - 1].object.start < entries[index - 1].object.bytes)
		return THC_E_STATE;
	if (index < num_entries && entries[index].object.start - start < entry->object.bytes)
		return THC_E_STATE;
	if (num_entries == capacity) {
		size_t wanted = capacity == 0 ? 16 : 2 * capacity;
		struct entry *more = reallocarray(entries, wanted, sizeof(*more));
		if (more == NULL)
			return -ENOMEM;
		entries = more;
		capacity = wanted;
	}
	memmove(&entries[index + 1], &entries[index], (num_entries - index) * sizeof(*entries));
	entries[index] = *entry;
	entries[index].object.serial = ++last_serial;
	num_entries++;
	return 0;
}

/* ---- thc_alloc ----------------------------------------------------------------------------- */

/* Huge pages of the pool, without a fault for each. */
static int
populate_huge(int fd, uint64_t bytes)
{
	while (fallocate(fd, 0, 0, (off_t)bytes) < 0)
		if (errno != EINTR)
			return -errno;
	return 0;
}

static int
map_memfd(unsigned memfd_flags, uint64_t bytes, struct entry *ret_entry)
{
	int fd = memfd_create("thc-memory", MFD_CLOEXEC | MFD_ALLOW_SEALING | memfd_flags);

	if (fd < 0)
		return -errno;
	int rc = 0;
	void *map = MAP_FAILED;
	if (ftruncate(fd, (off_t)bytes) < 0)
		rc = -errno;
	else if (fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) < 0)
		rc = -errno;
	else if ((map = mmap(NULL, (size_t)bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0)) ==
		 MAP_FAILED)
		rc = -errno;
	/* A mapping only reserves huge pages; a control group or a node may refuse them later. */
	if (rc == 0 && (memfd_flags & MFD_HUGETLB) != 0)
		rc = populate_huge(fd, bytes);
	if (rc < 0) {
		if (map != MAP_FAILED)
			(void)munmap(map, (size_t)bytes);
		th_fd_close(&fd);
		return rc;
	}
	*ret_entry = (struct entry){.object = {.start = (uintptr_t)map,
					    .bytes = bytes,
					    .way = WAY_MAPPED,
					    .fd = fd,
					    .allocated = true},
		.map_bytes = bytes};
	return 0;
}

static void
unmap_entry(struct entry *entry)
{
	if (entry->object.allocated)
		(void)munmap((void *)entry->object.start, (size_t)entry->map_bytes);
	th_fd_close(&entry->object.fd);
}

int
memory_populate(const struct memory_object *object, int64_t until_ns)
{
	const struct populate_memory memory = {.start = object->start,
		.bytes = object->bytes,
		.fd = object->fd,
		.fd_offset = object->fd_offset,
		.written = true};

	return populate_all(&memory, until_ns);
}

/* Small pages come by the mapping, whose policy says from which NUMA node. */
static int
map_populated(uint64_t bytes, bool huge, struct entry *ret_entry)
{
	int rc = map_memfd(huge ? MFD_HUGETLB | MFD_HUGE_2MB : 0, bytes, ret_entry);

	if (rc < 0 || huge)
		return rc;
	rc = memory_populate(&ret_entry->object, INT64_MAX);
	if (rc < 0)
		unmap_entry(ret_entry);
	return rc;
}

static int
allocate(uint64_t bytes, uint32_t flags, struct entry *ret_entry)
{
	bool huge = (flags & THC_ALLOC_HUGE) != 0;
	uint64_t page = huge ? HUGE_BYTES : (uint64_t)sysconf(_SC_PAGESIZE), whole;
	int rc = -ENOMEM;

	if (th_align_up_u64(bytes, page, &whole) && whole <= INT64_MAX)
		rc = map_populated(whole, huge, ret_entry);
	if (rc < 0 && huge)
		return shim_fail(rc,
			"flags: %" PRIu64 " bytes of huge pages are not to be had (%s); raise "
			"vm.nr_hugepages, or leave THC_ALLOC_HUGE out",
			bytes, th_strerror(rc));
	if (rc < 0)
		return shim_fail(rc, "allocating %" PRIu64 " bytes: %s", bytes, th_strerror(rc));
	return 0;
}

int
thc_alloc(uint64_t bytes, uint32_t flags, void **ret_ptr)
{
	struct entry entry;

	if (bytes == 0)
		return shim_fail(THC_E_INVALID, "bytes: is 0");
	if ((flags & ~(uint32_t)THC_ALLOC_HUGE) != 0)
		return shim_fail(THC_E_INVALID, "flags: 0x%" PRIx32 " has unknown bits", flags);
	if (ret_ptr == NULL)
		return shim_fail(THC_E_INVALID, "ret_ptr: is NULL");
	shard_process_init();
	int rc = allocate(bytes, flags, &entry);
	if (rc < 0)
		return rc;
	memory_lock();
	rc = own_memory_add(&entry);
	memory_unlock();
	if (rc < 0) {
		unmap_entry(&entry);
		return shim_fail(rc, "allocating %" PRIu64 " bytes: %s", bytes,
			rc == -ENOMEM ? th_strerror(rc)
				      : "the kernel placed it where another import is registered");
	}
	*ret_ptr = (void *)entry.object.start;
	return 0;
}

static int
add_new(uint64_t bytes, struct memory_object *ret_object)
{
	struct entry entry;
	int rc = map_memfd(0, bytes, &entry);

	if (rc < 0)
		return rc;
	void *map = (void *)entry.object.start;
	/* Fewer pages to pin, where the system gives huge ones. A child has no use for it. */
	(void)madvise(map, (size_t)bytes, MADV_HUGEPAGE);
	entry.not_forked = madvise(map, (size_t)bytes, MADV_DONTFORK) == 0;
	rc = own_memory_add(&entry);
	if (rc < 0) {
		unmap_entry(&entry);
		return rc == -ENOMEM ? rc : -EEXIST;
	}
	*ret_object = entry.object;
	ret_object->serial = last_serial;
	return 0;
}

int
memory_new(uint64_t bytes, struct memory_object *ret_object)
{
	uint64_t whole;

	if (!th_align_up_u64(bytes, (uint64_t)sysconf(_SC_PAGESIZE), &whole) || whole > INT64_MAX)
		return -ENOMEM;
	/* Also while it is made: a child must find the descriptor, to close it. */
	memory_lock();
	int rc = add_new(whole, ret_object);
	memory_unlock();
	return rc;
}

/* ---- thc_import ---------------------------------------------------------------------------- */

static int
check_import(uintptr_t start, uint64_t bytes, int fd)
{
	if (start == 0)
		return shim_fail(THC_E_INVALID, "addr: is NULL");
	if (bytes == 0)
		return shim_fail(THC_E_INVALID, "bytes: is 0");
	if (bytes > UINTPTR_MAX - start)
		return shim_fail(
			THC_E_INVALID, "bytes: %" PRIu64 " reach beyond the address space", bytes);
	if (fcntl(fd, F_GETFD) < 0)
		return shim_fail(THC_E_INVALID, "fd: %d is no open descriptor", fd);
	return 0;
}

/*
 * The agent takes the descriptor, the caller says where its own mapping is: when the two are not
 * the same bytes, weights would silently be read from and written to the wrong place.
 */
static int
is_mapping_of(struct maps *maps, const struct memory_object *object, const struct stat *st)
{
	uintptr_t at = object->start, end = object->start + object->bytes;
	struct mapping mapping;

	while (at < end) {
		int rc = maps_find(maps, at, &mapping);
		if (rc < 0)
			return rc;
		if (rc == 0 || mapping.start > at || !mapping.shared ||
			mapping.inode != st->st_ino || mapping.major != major(st->st_dev) ||
			mapping.minor != minor(st->st_dev) ||
			mapping.offset + (at - mapping.start) !=
				object->fd_offset + (at - object->start))
			return 0;
		at = mapping.end;
	}
	return 1;
}

static int
check_mapping(const struct memory_object *object, const struct stat *st)
{
	struct maps maps;
	int rc = maps_begin(&maps, 0);

	if (rc == 0) {
		rc = is_mapping_of(&maps, object, st);
		maps_end(&maps);
	}
	if (rc < 0)
		log_warn("libthc", "an import cannot be checked without /proc/self/maps");
	return rc != 0 ? 0
		       : shim_fail(THC_E_INVALID,
				 "addr: is not a shared mapping of fd from fd_offset on");
}

/*
 * A description of the file that nobody else has, so that no flag of it changes later: a write
 * through one that appends goes to the end, wherever it was meant to go.
 */
static int
own_memory_reopen(int fd, bool writable)
{
	char path[40];

	(void)snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	int own = open(path, (writable ? O_RDWR : O_RDONLY) | O_CLOEXEC);
	if (own >= 0)
		return own;
	int flags = fcntl(fd, F_GETFL);
	if (flags < 0 || (flags & O_APPEND) != 0)
		return -EACCES;
	own = fcntl(fd, F_DUPFD_CLOEXEC, 0);
	return own < 0 ? -errno : own;
}

/*
 * Only a file that lies in memory is asked anything, and used: what another process serves may
 * answer when it likes. Such a one has seals, if only the one against seals.
 */
static int
own_memory_choose_way(int fd, struct memory_object *object)
{
	struct statfs fs;
	int flags = fcntl(fd, F_GETFL), mode = flags & O_ACCMODE;

	object->way = WAY_PROCESS;
	object->fd = -1;
	object->reason = "no file that lies in memory";
	if (flags < 0 || fcntl(fd, F_GET_SEALS) < 0)
		return 0;
	if (mode == O_RDWR) /* refused where it cannot be: then it may shrink */
		(void)fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK);
	int seals = fcntl(fd, F_GET_SEALS);
	bool writable = mode == O_RDWR && (seals & (F_SEAL_WRITE | F_SEAL_FUTURE_WRITE)) == 0;
	if (writable && (seals & F_SEAL_SHRINK) != 0) {
		object->way = WAY_MAPPED;
		object->fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
		return object->fd < 0 ? -errno : 0;
	}
	object->reason = "it is open for writing only";
	if (mode == O_WRONLY)
		return 0;
	object->reason = "a file of huge pages that may shrink";
	if (fstatfs(fd, &fs) < 0 || fs.f_type != TMPFS_MAGIC)
		return 0;
	int own = own_memory_reopen(fd, writable);
	object->reason = "it appends, and cannot be opened anew";
	if (own < 0)
		return own == -EACCES ? 0 : own;
	object->way = WAY_FILE;
	object->fd = own;
	object->read_only = !writable;
	object->reason = writable ? "a file in memory that may shrink"
				  : "a file in memory that cannot be written";
	return 0;
}

static int
own_memory_check_file(const struct memory_object *object)
{
	struct stat st;

	if (fstat(object->fd, &st) < 0)
		return shim_fail(-errno, "fd: fstat: %s", th_strerror(-errno));
	if (!th_range_fits(object->fd_offset, object->bytes, (uint64_t)st.st_size))
		return shim_fail(THC_E_INVALID,
			"fd_offset: %" PRIu64 " bytes from %" PRIu64 " are not in a file of %lld",
			object->bytes, object->fd_offset, (long long)st.st_size);
	return check_mapping(object, &st);
}

int
thc_import(void *addr, uint64_t bytes, int fd, uint64_t fd_offset)
{
	struct entry entry = {
		.object = {.start = (uintptr_t)addr, .bytes = bytes, .fd_offset = fd_offset}};
	int rc = check_import((uintptr_t)addr, bytes, fd);

	if (rc < 0)
		return rc;
	shard_process_init();
	rc = own_memory_choose_way(fd, &entry.object);
	if (rc < 0)
		return shim_fail(rc, "fd: %d cannot be duplicated: %s", fd, th_strerror(rc));
	/* Of any other file the mapping is used, and not what the caller says of it. */
	rc = entry.object.fd >= 0 ? own_memory_check_file(&entry.object) : 0;
	if (rc < 0) {
		th_fd_close(&entry.object.fd);
		return rc;
	}
	memory_lock();
	rc = own_memory_add(&entry);
	memory_unlock();
	if (rc == 0)
		return 0;
	th_fd_close(&entry.object.fd);
	if (rc == THC_E_STATE)
		return shim_fail(rc, "addr: overlaps memory that was allocated or imported before");
	return shim_fail(rc, "importing: %s", th_strerror(rc));
}

/* ---- thc_free, thc_forget ------------------------------------------------------------------ */

/* Under the lock. */
static int
own_memory_take_out(uintptr_t start, bool allocated, struct entry *ret_entry)
{
	int rc = -ENOENT;
	size_t index = upper(start);
	if (index > 0 && entries[index - 1].object.start == start &&
		entries[index - 1].object.allocated == allocated) {
		struct entry *entry = &entries[index - 1];
		rc = entry->uses > 0 ? -EBUSY : 0;
		if (rc == 0) {
			*ret_entry = *entry;
			num_entries--;
			memmove(entry, entry + 1, (num_entries - (index - 1)) * sizeof(*entry));
		}
	}
	return rc;
}

void
memory_end(uintptr_t start, uint64_t serial)
{
	struct entry entry;

	memory_lock();
	bool gone = lookup(start, serial) != NULL && own_memory_take_out(start, true, &entry) == 0;
	if (gone)
		th_fd_close(&entry.object.fd);
	memory_unlock();
	/* Without the lock: all of its pages may go now. */
	if (gone)
		unmap_entry(&entry);
}

static int
own_memory_drop(const char *argument, const void *address, bool allocated)
{
	struct entry entry;

	memory_lock();
	int rc = own_memory_take_out((uintptr_t)address, allocated, &entry);
	memory_unlock();
	if (rc == -ENOENT)
		return shim_fail(THC_E_INVALID, "%s: %p is not the start of memory from %s",
			argument, address, allocated ? "thc_alloc" : "thc_import");
	if (rc < 0)
		return shim_fail(THC_E_STATE,
			"%s: a handle has this memory registered; thc_unregister or thc_close "
			"first",
			argument);
	/* Agents that were given it earlier let go of it too. */
	shard_for_each(sent_forget, entry.object.serial);
	unmap_entry(&entry);
	return 0;
}

int
thc_free(void *ptr)
{
	return ptr == NULL ? 0 : own_memory_drop("ptr", ptr, true);
}

int
thc_forget(void *addr)
{
	return own_memory_drop("addr", addr, false);
}
