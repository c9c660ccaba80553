/* SPDX-License-Identifier: Apache-2.0 */
/*
 * memory - thc_alloc, thc_free, thc_import, thc_forget; see memory.h.
 *
 * The registry is an array sorted by address: objects are few (allocations, not tensors) and do not
 * overlap, so the object of a tensor is found by bisection.
 */
#include "libthc/memory.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "ipc/base/fd.h"
#include "ipc/base/log.h"
#include "libthc/internal.h"

#define HUGE_BYTES (UINT64_C(2) << 20)
#ifndef MFD_HUGE_2MB /* only in the kernel's header, which does not go with the C library's */
#define MFD_HUGE_2MB (21u << 26)
#endif

struct entry {
	struct memory_object object;
	uint64_t
		map_bytes; /* of what thc_alloc mapped                                            */
	uint32_t uses;     /* registrations                                                       */
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

bool
memory_find(uintptr_t start, uint64_t bytes, struct memory_object *ret_object)
{
	bool found = false;

	memory_lock();
	size_t index = upper(start);
	if (index > 0) {
		const struct memory_object *object = &entries[index - 1].object;
		found = th_range_fits(start - object->start, bytes, object->bytes);
		if (found)
			*ret_object = *object;
	}
	memory_unlock();
	return found;
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

/* Under the lock. What overlaps an object that is there is not added: THC_E_STATE. */
static int
add(const struct entry *entry)
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
	if (rc < 0) {
		th_fd_close(&fd);
		return rc;
	}
	*ret_entry = (struct entry){.object = {.start = (uintptr_t)map,
					    .bytes = bytes,
					    .fd = fd,
					    .allocated = true,
					    .direct = true},
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

/* A hugetlb mapping is reserved whole at mmap, so it cannot fail at a later touch. */
static int
allocate(uint64_t bytes, uint32_t flags, struct entry *ret_entry)
{
	uint64_t whole;

	if ((flags & THC_ALLOC_HUGE) != 0 && th_align_up_u64(bytes, HUGE_BYTES, &whole) &&
		whole <= INT64_MAX && map_memfd(MFD_HUGETLB | MFD_HUGE_2MB, whole, ret_entry) == 0)
		return 0;
	if (!th_align_up_u64(bytes, (uint64_t)sysconf(_SC_PAGESIZE), &whole) || whole > INT64_MAX)
		return -ENOMEM;
	int rc = map_memfd(0, whole, ret_entry);
	/* Best effort: shmem may be set to take the advice, or not. */
	if (rc == 0 && (flags & THC_ALLOC_HUGE) != 0)
		(void)madvise((void *)ret_entry->object.start, (size_t)whole, MADV_HUGEPAGE);
	return rc;
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
		return shim_fail(rc, "allocating %" PRIu64 " bytes: %s", bytes, th_strerror(rc));
	memory_lock();
	rc = add(&entry);
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

/* ---- thc_import ---------------------------------------------------------------------------- */

static int
check_import(uintptr_t start, uint64_t bytes, int fd, uint64_t fd_offset)
{
	struct stat st;

	if (start == 0)
		return shim_fail(THC_E_INVALID, "addr: is NULL");
	if (bytes == 0)
		return shim_fail(THC_E_INVALID, "bytes: is 0");
	if (bytes > UINTPTR_MAX - start)
		return shim_fail(
			THC_E_INVALID, "bytes: %" PRIu64 " reach beyond the address space", bytes);
	if (fcntl(fd, F_GETFD) < 0 || fstat(fd, &st) < 0)
		return shim_fail(THC_E_INVALID, "fd: %d is no open descriptor", fd);
	if (S_ISREG(st.st_mode) && !th_range_fits(fd_offset, bytes, (uint64_t)st.st_size))
		return shim_fail(THC_E_INVALID,
			"fd_offset: %" PRIu64 " bytes from %" PRIu64 " are not in a file of %lld",
			bytes, fd_offset, (long long)st.st_size);
	return 0;
}

/* One line of /proc/self/maps. */
struct mapping {
	uintptr_t start, end;
	char perms[5];
	uint64_t offset, ino;
	unsigned major, minor;
};

static bool
next_mapping(FILE *maps, char **line, size_t *room, struct mapping *ret_mapping)
{
	return getline(line, room, maps) > 0 &&
	       sscanf(*line, "%" SCNxPTR "-%" SCNxPTR " %4s %" SCNx64 " %x:%x %" SCNu64,
		       &ret_mapping->start, &ret_mapping->end, ret_mapping->perms,
		       &ret_mapping->offset, &ret_mapping->major, &ret_mapping->minor,
		       &ret_mapping->ino) == 7;
}

/*
 * The agent maps the descriptor, the caller says where its own mapping is: when the two are not the
 * same bytes, weights would silently be read from and written to the wrong place.
 */
static bool
is_mapping_of(FILE *maps, const struct memory_object *object, const struct stat *st)
{
	struct mapping mapping;
	char *line = NULL;
	size_t room = 0;
	uintptr_t at = object->start, end = object->start + object->bytes;

	while (at < end && next_mapping(maps, &line, &room, &mapping)) {
		if (mapping.end <= at)
			continue;
		uint64_t offset = mapping.offset + (at - mapping.start);
		if (mapping.start > at || mapping.perms[3] != 's' || mapping.ino != st->st_ino ||
			mapping.major != major(st->st_dev) || mapping.minor != minor(st->st_dev) ||
			offset != object->fd_offset + (at - object->start))
			break;
		at = mapping.end;
	}
	free(line);
	return at >= end;
}

static int
check_mapping(const struct memory_object *object)
{
	struct stat st;
	FILE *maps = fopen("/proc/self/maps", "re");

	if (maps == NULL || fstat(object->fd, &st) < 0) {
		log_warn("libthc", "an import cannot be checked without /proc/self/maps");
		if (maps != NULL)
			(void)fclose(maps);
		return 0;
	}
	bool good = is_mapping_of(maps, object, &st);
	(void)fclose(maps);
	return good ? 0
		    : shim_fail(THC_E_INVALID,
			      "addr: is not a shared mapping of fd from fd_offset on");
}

int
thc_import(void *addr, uint64_t bytes, int fd, uint64_t fd_offset)
{
	struct entry entry = {
		.object = {.start = (uintptr_t)addr, .bytes = bytes, .fd_offset = fd_offset}};
	int rc = check_import((uintptr_t)addr, bytes, fd, fd_offset);

	if (rc < 0)
		return rc;
	shard_process_init();
	entry.object.fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
	if (entry.object.fd < 0)
		return shim_fail(
			-errno, "fd: %d cannot be duplicated: %s", fd, th_strerror(-errno));
	/* A memfd that cannot shrink is mapped; the seal is added where it is missing. */
	(void)fcntl(entry.object.fd, F_ADD_SEALS, F_SEAL_SHRINK);
	int seals = fcntl(entry.object.fd, F_GET_SEALS);
	entry.object.direct = seals >= 0 && (seals & F_SEAL_SHRINK) != 0;
	/* What is no memfd cannot be registered, and its numbers in maps may be another layer's. */
	rc = entry.object.direct ? check_mapping(&entry.object) : 0;
	if (rc < 0) {
		th_fd_close(&entry.object.fd);
		return rc;
	}
	memory_lock();
	rc = add(&entry);
	memory_unlock();
	if (rc == 0)
		return 0;
	th_fd_close(&entry.object.fd);
	if (rc == THC_E_STATE)
		return shim_fail(rc, "addr: overlaps memory that was allocated or imported before");
	return shim_fail(rc, "importing: %s", th_strerror(rc));
}

/* ---- thc_free, thc_forget ------------------------------------------------------------------ */

static int
take_out(uintptr_t start, bool allocated, struct entry *ret_entry)
{
	int rc = -ENOENT;

	memory_lock();
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
	memory_unlock();
	return rc;
}

static int
drop(const char *argument, const void *address, bool allocated)
{
	struct entry entry;
	int rc = take_out((uintptr_t)address, allocated, &entry);

	if (rc == -ENOENT)
		return shim_fail(THC_E_INVALID, "%s: %p is not the start of memory from %s",
			argument, address, allocated ? "thc_alloc" : "thc_import");
	if (rc < 0)
		return shim_fail(THC_E_STATE,
			"%s: a handle has this memory registered; thc_unregister or thc_close "
			"first",
			argument);
	/* Agents that were given it earlier let go of it too. */
	shard_for_each(tensors_forget, entry.object.serial);
	unmap_entry(&entry);
	return 0;
}

int
thc_free(void *ptr)
{
	return ptr == NULL ? 0 : drop("ptr", ptr, true);
}

int
thc_forget(void *addr)
{
	return drop("addr", addr, false);
}
