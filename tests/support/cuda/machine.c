/* SPDX-License-Identifier: Apache-2.0 */
/*
 * machine - the folder, its page, and who holds which memory.
 *
 * The locks are those of open file descriptions: F_OFD_*. The library's holder has one for each
 * chunk that the process uses; each descriptor that is exported has its own. That of a dma-buf has
 * a file of its own, for its size is that of what it is about: the lock of one byte of it stands
 * for all of that.
 */
#include "tests/support/cuda/machine.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "ipc/base/assert.h"
#include "ipc/base/fd.h"

#define FOLDER "th-gpus-"
#define ORPHAN_S 60
#define MAGIC 0x7468637564613031ull

/* ---- the folder ----------------------------------------------------------------------------- */

static int
open_file(const struct machine *machine, const char *name, int number, int flags)
{
	char path[256];
	snprintf(path, sizeof(path), "%s/%s%d", machine->folder, name, number);
	int fd = open(path, flags | O_RDWR | O_CLOEXEC, 0600);
	return fd < 0 ? -errno : fd;
}

int
machine_open(struct machine *ret_machine, const char *folder)
{
	struct machine machine;
	memset(&machine, 0, sizeof(machine));
	memset(machine.files, 0xff, sizeof(machine.files));
	memset(machine.holders, 0xff, sizeof(machine.holders));
	machine.maker = -1;
	if ((size_t)snprintf(machine.folder, sizeof(machine.folder), "%s", folder) >=
		sizeof(machine.folder))
		return -ENAMETOOLONG;
	int fd = open_file(&machine, "page", 0, 0);
	if (fd < 0)
		return fd;
	struct stat stat;
	void *page = MAP_FAILED;
	if (fstat(fd, &stat) == 0 && stat.st_size == (off_t)sizeof(struct machine_page))
		page = mmap(NULL, sizeof(struct machine_page), PROT_READ | PROT_WRITE, MAP_SHARED,
			fd, 0);
	close(fd);
	if (page == MAP_FAILED)
		return -EINVAL;
	machine.page = page;
	int rc = machine.page->magic == MAGIC ? 0 : -EINVAL;
	for (unsigned i = 0; rc == 0 && i < machine.page->num_devices; i++) {
		machine.files[i] = open_file(&machine, "gpu", (int)i, 0);
		machine.holders[i] = open_file(&machine, "gpu", (int)i, 0);
		if (machine.files[i] < 0 || machine.holders[i] < 0)
			rc = -EIO;
	}
	if (rc < 0)
		machine_close(&machine);
	else
		*ret_machine = machine;
	return rc;
}

void
machine_close(struct machine *machine)
{
	if (machine->page)
		munmap(machine->page, sizeof(*machine->page));
	machine->page = NULL;
	for (unsigned i = 0; i < MACHINE_DEVICES_MAX; i++) {
		th_fd_close(&machine->files[i]);
		th_fd_close(&machine->holders[i]);
	}
	th_fd_close(&machine->maker);
}

static void
fill_device(struct machine_page *page, unsigned i, uint64_t bytes)
{
	struct machine_device *device = &page->devices[i];
	for (size_t b = 0; b < sizeof(device->uuid.bytes); b++)
		device->uuid.bytes[b] = (char)(0x10 * (i + 1) + b);
	snprintf(device->name, sizeof(device->name), "TensorHub Test GPU");
	snprintf(device->pci, sizeof(device->pci), "0000:%02x:00.0", 0x10 * (i + 1));
	device->bytes = bytes;
	device->context_bytes = 4 * (uint64_t)MACHINE_PAGE;
	device->capability = 90;
	device->peers = (1u << page->num_devices) - 1;
	device->dma_buf = device->vmm_rdma = device->pools = 1;
	device->pool_types = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
	device->compute_mode = CU_COMPUTEMODE_DEFAULT;
}

static int
remove_entry(const char *path, const struct stat *stat, int type, struct FTW *at)
{
	(void)stat, (void)type, (void)at;
	(void)remove(path);
	return 0;
}

/* Whoever makes a machine keeps its folder locked; a new one is not locked yet. */
static void
remove_orphans(const char *parent)
{
	char pattern[64];
	glob_t found;
	struct stat stat;
	snprintf(pattern, sizeof(pattern), "%s/" FOLDER "*", parent);
	if (glob(pattern, 0, NULL, &found) != 0)
		return;
	for (size_t i = 0; i < found.gl_pathc; i++) {
		int fd = open(found.gl_pathv[i], O_RDONLY | O_DIRECTORY | O_CLOEXEC);
		if (fd >= 0 && fstat(fd, &stat) == 0 && stat.st_mtime + ORPHAN_S < time(NULL) &&
			flock(fd, LOCK_EX | LOCK_NB) == 0)
			(void)nftw(found.gl_pathv[i], remove_entry, 4, FTW_DEPTH | FTW_PHYS);
		th_fd_close(&fd);
	}
	globfree(&found);
}

void
machine_new(struct machine *ret_machine, unsigned num_devices, uint64_t bytes)
{
	TH_ASSERT(num_devices <= MACHINE_DEVICES_MAX);
	TH_ASSERT(bytes % MACHINE_PAGE == 0 && bytes / MACHINE_PAGE <= MACHINE_PAGES_MAX);
	struct machine machine;
	memset(&machine, 0, sizeof(machine));
	/* In memory where that can be. */
	const char *parent = access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp";
	remove_orphans(parent);
	snprintf(machine.folder, sizeof(machine.folder), "%s/" FOLDER "XXXXXX", parent);
	TH_ASSERT(mkdtemp(machine.folder));
	int maker = open(machine.folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	TH_ASSERT(maker >= 0 && flock(maker, LOCK_SH) == 0);
	struct machine_page *page = calloc(1, sizeof(*page));
	TH_ASSERT(page);
	page->magic = MAGIC;
	page->version = 13000;
	page->num_devices = num_devices;
	for (unsigned i = 0; i < num_devices; i++) {
		fill_device(page, i, bytes);
		int fd = open_file(&machine, "gpu", (int)i, O_CREAT);
		TH_ASSERT(fd >= 0 && ftruncate(fd, (off_t)bytes) == 0);
		close(fd);
	}
	int fd = open_file(&machine, "page", 0, O_CREAT);
	TH_ASSERT(fd >= 0 && write(fd, page, sizeof(*page)) == (ssize_t)sizeof(*page));
	close(fd);
	fd = open_file(&machine, "lock", 0, O_CREAT);
	TH_ASSERT(fd >= 0);
	close(fd);
	free(page);
	TH_ASSERT(machine_open(ret_machine, machine.folder) == 0);
	ret_machine->maker = maker;
	TH_ASSERT(setenv(MACHINE_ENV, machine.folder, 1) == 0);
}

void
machine_remove(struct machine *machine)
{
	(void)nftw(machine->folder, remove_entry, 4, FTW_DEPTH | FTW_PHYS);
	machine_close(machine);
}

int
machine_lock(struct machine *machine)
{
	int fd = open_file(machine, "lock", 0, 0);
	while (fd >= 0 && flock(fd, LOCK_EX) < 0 && errno == EINTR)
		;
	return fd;
}

void
machine_unlock(int lock)
{
	if (lock >= 0)
		close(lock);
}

/* ---- chunks --------------------------------------------------------------------------------- */

static int
range(int fd, int command, short type, uint64_t offset, uint64_t bytes)
{
	struct flock lock = {.l_type = type,
		.l_whence = SEEK_SET,
		.l_start = (off_t)offset,
		.l_len = (off_t)bytes};
	if (fcntl(fd, command, &lock) < 0)
		return -errno;
	return command == F_OFD_GETLK && lock.l_type != F_UNLCK;
}

static bool
overlap(const struct machine_piece *piece, uint64_t offset, uint64_t bytes)
{
	return piece->offset < offset + bytes && offset < piece->offset + piece->bytes;
}

/* A byte behind the memory stands for an object. */
static struct machine_piece
object_piece(const struct machine *machine, int device, unsigned number)
{
	return (struct machine_piece){machine->page->devices[device].bytes + number, 1};
}

/* A descriptor of this dma-buf does. */
static bool
dmabuf_holds(struct machine *machine, unsigned number, int device, uint64_t offset, uint64_t bytes)
{
	const struct machine_object *object = &machine->page->objects[number];
	const struct machine_piece itself = object_piece(machine, device, number);
	if (object->num_pieces == 0 || object->device != device)
		return false;
	bool any = overlap(&itself, offset, bytes);
	for (unsigned i = 0; i < object->num_pieces && !any; i++)
		any = overlap(&object->pieces[i], offset, bytes);
	int fd = any ? open_file(machine, "dmabuf", (int)number, 0) : -1;
	bool held = fd >= 0 && range(fd, F_OFD_GETLK, F_WRLCK, 0, 1) != 0;
	th_fd_close(&fd);
	return held;
}

static bool
is_held(struct machine *machine, int device, uint64_t offset, uint64_t bytes)
{
	bool held = range(machine->files[device], F_OFD_GETLK, F_WRLCK, offset, bytes) != 0;
	for (unsigned i = 0; i < MACHINE_OBJECTS_MAX && !held; i++)
		held = dmabuf_holds(machine, i, device, offset, bytes);
	return held;
}

bool
machine_alive(struct machine *machine, int chunk)
{
	if (chunk < 0 || chunk >= (int)MACHINE_CHUNKS_MAX)
		return false;
	const struct machine_chunk *it = &machine->page->chunks[chunk];
	return it->generation && is_held(machine, it->device, it->offset, it->bytes);
}

/* Where nobody holds it any more, its memory can be taken again. */
static void
reap(struct machine *machine, int number)
{
	struct machine_chunk *chunk = &machine->page->chunks[number];
	if (!chunk->generation || is_held(machine, chunk->device, chunk->offset, chunk->bytes))
		return;
	if (chunk->bytes > 0 &&
		fallocate(machine->files[chunk->device], FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
			(off_t)chunk->offset, (off_t)chunk->bytes) < 0)
		TH_ASSERT(errno == EOPNOTSUPP);
	struct machine_device *device = &machine->page->devices[chunk->device];
	for (uint64_t p = 0; p < chunk->bytes / MACHINE_PAGE; p++)
		device->pages[chunk->offset / MACHINE_PAGE + p] = 0;
	memset(chunk, 0, sizeof(*chunk));
}

bool
machine_is_used(struct machine *machine, int device, pid_t but_for)
{
	bool used = false;
	for (int i = 0; i < (int)MACHINE_CHUNKS_MAX; i++) {
		const struct machine_chunk *chunk = &machine->page->chunks[i];
		if (chunk->kind != MACHINE_CONTEXT || chunk->device != device)
			continue;
		reap(machine, i);
		used |= chunk->kind == MACHINE_CONTEXT && chunk->owner != but_for;
	}
	return used;
}

/* The first page of so many that are free, or -1. */
static int64_t
find_pages(const struct machine_device *device, uint64_t count)
{
	uint64_t run = 0;
	for (uint64_t p = 0; p < device->bytes / MACHINE_PAGE; p++) {
		run = device->pages[p] ? 0 : run + 1;
		if (run == count)
			return (int64_t)(p + 1 - count);
	}
	return -1;
}

int
machine_take(struct machine *machine, const struct machine_chunk *form)
{
	struct machine_device *device = &machine->page->devices[form->device];
	uint64_t pages = (form->bytes + MACHINE_PAGE - 1) / MACHINE_PAGE;
	int64_t first = find_pages(device, pages);
	if (first < 0) { /* the dead have left some, perhaps */
		for (int i = 0; i < (int)MACHINE_CHUNKS_MAX; i++)
			reap(machine, i);
		first = find_pages(device, pages);
	}
	int number = 0;
	while (number < (int)MACHINE_CHUNKS_MAX && machine->page->chunks[number].generation)
		number++;
	if (first < 0 || number == (int)MACHINE_CHUNKS_MAX)
		return -1;
	struct machine_chunk *chunk = &machine->page->chunks[number];
	*chunk = *form;
	chunk->generation = ++machine->page->generations;
	chunk->offset = (uint64_t)first * MACHINE_PAGE;
	chunk->bytes = pages * MACHINE_PAGE;
	for (uint64_t p = 0; p < pages; p++)
		device->pages[(uint64_t)first + p] = (uint16_t)(number + 1);
	TH_ASSERT(machine_hold(machine, number) == 0);
	return number;
}

int
machine_hold(struct machine *machine, int number)
{
	const struct machine_chunk *chunk = &machine->page->chunks[number];
	return range(
		machine->holders[chunk->device], F_OFD_SETLK, F_RDLCK, chunk->offset, chunk->bytes);
}

void
machine_drop(struct machine *machine, int number)
{
	const struct machine_chunk *chunk = &machine->page->chunks[number];
	range(machine->holders[chunk->device], F_OFD_SETLK, F_UNLCK, chunk->offset, chunk->bytes);
	reap(machine, number);
}

/* ---- descriptors ---------------------------------------------------------------------------- */

static int
export_dmabuf(struct machine *machine, unsigned number)
{
	struct machine_object *object = &machine->page->objects[number];
	uint64_t bytes = 0;
	struct stat stat;
	for (unsigned i = 0; i < object->num_pieces; i++)
		bytes += object->pieces[i].bytes;
	int fd = open_file(machine, "dmabuf", (int)number, O_CREAT);
	if (fd < 0)
		return fd;
	if (ftruncate(fd, (off_t)bytes) < 0 || fstat(fd, &stat) < 0 ||
		range(fd, F_OFD_SETLK, F_RDLCK, 0, 1) < 0) {
		close(fd);
		return -EIO;
	}
	object->ino = stat.st_ino;
	return fd;
}

/* The number travels as the file position of the description, but for a dma-buf. */
int
machine_export(struct machine *machine, int device, const struct machine_piece *pieces,
	unsigned num_pieces, uint64_t number)
{
	if (EXPORT_KIND(number) == EXPORT_DMABUF)
		return export_dmabuf(machine, (unsigned)EXPORT_INDEX(number));
	int fd = open_file(machine, "gpu", device, 0);
	for (unsigned i = 0; fd >= 0 && i < num_pieces; i++) {
		int rc = range(fd, F_OFD_SETLK, F_RDLCK, pieces[i].offset, pieces[i].bytes);
		if (rc < 0) {
			close(fd);
			return rc;
		}
	}
	if (fd >= 0 && lseek(fd, (off_t)number, SEEK_SET) < 0) {
		close(fd);
		return -EINVAL;
	}
	return fd;
}

int
machine_number(struct machine *machine, int fd, uint64_t *ret_number)
{
	struct stat theirs, ours;
	if (fd < 0 || fstat(fd, &theirs) < 0)
		return -EINVAL;
	for (unsigned i = 0; i < machine->page->num_devices; i++) {
		if (fstat(machine->files[i], &ours) < 0 || ours.st_ino != theirs.st_ino ||
			ours.st_dev != theirs.st_dev)
			continue;
		off_t position = lseek(fd, 0, SEEK_CUR);
		if (position < 0)
			return -EINVAL;
		*ret_number = (uint64_t)position;
		return (int)i;
	}
	for (unsigned i = 0; i < MACHINE_OBJECTS_MAX; i++) {
		const struct machine_object *object = &machine->page->objects[i];
		if (object->num_pieces > 0 && object->ino == theirs.st_ino) {
			*ret_number = EXPORT_DMABUF | i;
			return object->device;
		}
	}
	return -EINVAL;
}

int
machine_object_new(struct machine *machine, int device, struct machine_piece *ret_piece)
{
	for (int i = 0; i < (int)MACHINE_OBJECTS_MAX; i++) {
		struct machine_object *object = &machine->page->objects[i];
		struct machine_piece old = object_piece(machine, object->device, (unsigned)i);
		if (object->generation && is_held(machine, object->device, old.offset, old.bytes))
			continue;
		memset(object, 0, sizeof(*object));
		object->generation = ++machine->page->generations;
		object->device = device;
		object->owner = getpid();
		*ret_piece = object_piece(machine, device, (unsigned)i);
		return i;
	}
	return -1;
}

/* What the descriptor is about, or NULL; whose memory it is of. */
static const struct machine_object *
dmabuf_object(struct machine *machine, int fd, int *ret_device)
{
	uint64_t number = 0;
	*ret_device = machine_number(machine, fd, &number);
	if (*ret_device < 0 || EXPORT_KIND(number) != EXPORT_DMABUF ||
		EXPORT_INDEX(number) >= MACHINE_OBJECTS_MAX)
		return NULL;
	return &machine->page->objects[EXPORT_INDEX(number)];
}

static int
dmabuf_move(struct machine *machine, int fd, uint64_t offset, char *data, size_t bytes, bool write)
{
	int device;
	const struct machine_object *object = dmabuf_object(machine, fd, &device);
	if (!object)
		return -EINVAL;
	for (unsigned i = 0; bytes > 0 && i < object->num_pieces; i++) {
		const struct machine_piece *piece = &object->pieces[i];
		if (offset >= piece->bytes) {
			offset -= piece->bytes;
			continue;
		}
		size_t part = piece->bytes - offset < bytes ? piece->bytes - offset : bytes;
		off_t at = (off_t)(piece->offset + offset);
		ssize_t moved = write ? pwrite(machine->files[device], data, part, at)
				      : pread(machine->files[device], data, part, at);
		if (moved != (ssize_t)part)
			return -EIO;
		data += part;
		bytes -= part;
		offset = 0;
	}
	return bytes ? -ERANGE : 0;
}

/* The pieces one behind the other, over a range that nothing else is in. */
void *
machine_dmabuf_map(struct machine *machine, int fd, uint64_t offset, size_t bytes)
{
	int device;
	const struct machine_object *object = dmabuf_object(machine, fd, &device);
	if (!object) {
		errno = EINVAL;
		return NULL;
	}
	char *map = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (map == MAP_FAILED)
		return NULL;
	size_t done = 0;
	for (unsigned i = 0; done < bytes && i < object->num_pieces; i++) {
		const struct machine_piece *piece = &object->pieces[i];
		if (offset >= piece->bytes) {
			offset -= piece->bytes;
			continue;
		}
		size_t part =
			piece->bytes - offset < bytes - done ? piece->bytes - offset : bytes - done;
		if (mmap(map + done, part, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED,
			    machine->files[device], (off_t)(piece->offset + offset)) == MAP_FAILED)
			break;
		done += part;
		offset = 0;
	}
	if (done == bytes)
		return map;
	int error = done > 0 && errno ? errno : ERANGE;
	munmap(map, bytes);
	errno = error;
	return NULL;
}

int
machine_dmabuf_read(struct machine *machine, int fd, uint64_t offset, void *data, size_t bytes)
{
	return dmabuf_move(machine, fd, offset, data, bytes, false);
}

int
machine_dmabuf_write(
	struct machine *machine, int fd, uint64_t offset, const void *data, size_t bytes)
{
	return dmabuf_move(machine, fd, offset, (char *)(uintptr_t)data, bytes, true);
}

/* ---- what a test asks and plans ------------------------------------------------------------- */

uint64_t
machine_used(struct machine *machine, int device)
{
	uint64_t used = 0;
	int lock = machine_lock(machine);
	for (int i = 0; i < (int)MACHINE_CHUNKS_MAX; i++) {
		reap(machine, i);
		const struct machine_chunk *chunk = &machine->page->chunks[i];
		if (chunk->generation && chunk->device == device)
			used += chunk->bytes;
	}
	machine_unlock(lock);
	return used;
}

static struct machine_process *
process_of(struct machine *machine, pid_t pid)
{
	for (unsigned i = 0; i < MACHINE_PROCESSES_MAX; i++)
		if (machine->page->processes[i].pid == pid)
			return &machine->page->processes[i];
	return NULL;
}

int
machine_holds(struct machine *machine, pid_t pid, enum machine_held held)
{
	struct machine_process *process = process_of(machine, pid);
	return process ? process->held[held] : -1;
}

unsigned
machine_calls(struct machine *machine, pid_t pid, int call)
{
	struct machine_process *process = process_of(machine, pid);
	return process ? process->calls[call] : 0;
}

int
machine_plan(struct machine *machine, enum machine_fault fault, pid_t pid, int call, int after,
	CUresult result)
{
	int number = 0;
	while (number < (int)MACHINE_FAULTS_MAX && machine->page->plans[number].fault)
		number++;
	TH_ASSERT(number < (int)MACHINE_FAULTS_MAX);
	struct machine_plan *plan = &machine->page->plans[number];
	plan->pid = pid;
	plan->call = call;
	plan->after = after;
	plan->result = result;
	plan->met = 0;
	plan->fault = (int)fault;
	return number;
}

unsigned
machine_met(struct machine *machine, int plan)
{
	return machine->page->plans[plan].met;
}

void
machine_lift(struct machine *machine, int plan)
{
	machine->page->plans[plan].fault = 0;
}

void
machine_lose(struct machine *machine, int device, CUresult result)
{
	machine->page->devices[device].lost = (int)result;
}
