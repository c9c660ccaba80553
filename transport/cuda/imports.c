/* SPDX-License-Identifier: Apache-2.0 */
/*
 * imports - which memory of which workers is open.
 */
#include "transport/cuda/imports.h"

#include <stdlib.h>
#include <string.h>
#include <uthash.h>
#include <utlist.h>

#include "ipc/base/alloc.h"
#include "ipc/base/assert.h"

struct imports_key {
	uint64_t worker, piece;
};

struct imports_entry {
	struct imports_key key;
	struct cuda_import import;
	unsigned uses;
	bool left; /* nobody begins to use it any more */
	struct imports_owner *owner;
	struct imports_entry *prev, *next; /* of the owner's; when it is closing, of those */
	UT_hash_handle hh;
};

struct imports_owner { /* a worker of which something is open */
	uint64_t worker;
	unsigned count;
	struct imports_entry *entries; /* that have not begun to close */
	UT_hash_handle hh;
};

void
imports_init(struct imports *imports, const struct cuda *cuda, int device)
{
	memset(imports, 0, sizeof(*imports));
	imports->cuda = cuda;
	imports->device = device;
}

static struct imports_entry *
find(const struct imports *imports, uint64_t worker, uint64_t piece)
{
	struct imports_key key = {worker, piece};
	struct imports_entry *entry = NULL;
	HASH_FIND(hh, imports->entries, &key, sizeof(key), entry);
	return entry;
}

static struct imports_owner *
find_owner(const struct imports *imports, uint64_t worker)
{
	struct imports_owner *owner = NULL;
	HASH_FIND(hh, imports->owners, &worker, sizeof(worker), owner);
	return owner;
}

static int
close_entry(struct imports *imports, struct imports_entry *entry, struct th_err *err)
{
	struct imports_owner *owner = entry->owner;
	int rc = import_end(imports->cuda, &entry->import, err);
	if (rc < 0)
		imports->failed++;
	imports->bytes -= entry->import.bytes;
	HASH_DEL(imports->entries, entry);
	if (entry->left && entry->uses == 0)
		DL_DELETE(imports->closing, entry);
	else
		DL_DELETE(owner->entries, entry);
	if (--owner->count == 0) {
		HASH_DEL(imports->owners, owner);
		free(owner);
	}
	free(entry);
	return rc;
}

int
imports_end(struct imports *imports, struct th_err *err)
{
	struct imports_entry *entry, *next;
	int rc = 0;
	HASH_ITER(hh, imports->entries, entry, next)
	{
		int one = close_entry(imports, entry, rc == 0 ? err : NULL);
		rc = rc == 0 ? one : rc;
	}
	return rc;
}

static void
add(struct imports *imports, uint64_t worker, uint64_t piece, const struct cuda_import *import)
{
	struct imports_owner *owner = find_owner(imports, worker);
	struct imports_entry *entry = th_calloc(1, sizeof(*entry));
	if (!owner) {
		owner = th_calloc(1, sizeof(*owner));
		owner->worker = worker;
		HASH_ADD(hh, imports->owners, worker, sizeof(owner->worker), owner);
	}
	owner->count++;
	entry->key = (struct imports_key){worker, piece};
	entry->import = *import;
	entry->owner = owner;
	HASH_ADD(hh, imports->entries, key, sizeof(entry->key), entry);
	DL_APPEND(owner->entries, entry);
	imports->bytes += import->bytes;
}

int
imports_open(struct imports *imports, uint64_t worker, uint64_t piece,
	const struct cuda_handle *handle, int fd, struct th_err *err)
{
	if (find(imports, worker, piece))
		return th_fail(err, TH_E_STATE,
			"the piece %llu of the worker's GPU memory is open already",
			(unsigned long long)piece);
	if (imports_count(imports) >= IMPORTS_MAX)
		return th_fail(err, TH_E_LIMIT,
			"the agent has %u pieces of GPU memory open on one GPU, the most that it "
			"takes: let the allocator make larger ones",
			IMPORTS_MAX);
	struct cuda_import import;
	int rc = import_new(imports->cuda, imports->device, handle, fd, &import, err);
	if (rc < 0)
		return rc;
	add(imports, worker, piece, &import);
	return 0;
}

const struct cuda_import *
imports_use(struct imports *imports, uint64_t worker, uint64_t piece)
{
	struct imports_entry *entry = find(imports, worker, piece);
	if (!entry || entry->left)
		return NULL;
	entry->uses++;
	return &entry->import;
}

/* It has left, and nobody uses it. */
static void
begin_close(struct imports *imports, struct imports_entry *entry)
{
	DL_DELETE(entry->owner->entries, entry);
	DL_APPEND(imports->closing, entry);
}

int
imports_done(struct imports *imports, uint64_t worker, uint64_t piece, struct th_err *err)
{
	struct imports_entry *entry = find(imports, worker, piece);
	TH_ASSERT(entry && entry->uses > 0);
	if (--entry->uses > 0 || !entry->left)
		return 0;
	begin_close(imports, entry);
	return close_entry(imports, entry, err);
}

static void
leave(struct imports *imports, struct imports_entry *entry)
{
	if (entry->left)
		return;
	entry->left = true;
	if (entry->uses == 0)
		begin_close(imports, entry);
}

void
imports_begin_leave(struct imports *imports, uint64_t worker)
{
	struct imports_owner *owner = find_owner(imports, worker);
	struct imports_entry *entry, *next;
	if (!owner)
		return;
	DL_FOREACH_SAFE(owner->entries, entry, next)
	{
		leave(imports, entry);
	}
}

void
imports_begin_forget(struct imports *imports, uint64_t worker, uint64_t piece)
{
	struct imports_entry *entry = find(imports, worker, piece);
	if (entry)
		leave(imports, entry);
}

int
imports_step(struct imports *imports, struct th_err *err)
{
	if (!imports->closing)
		return 0;
	int rc = close_entry(imports, imports->closing, err);
	return rc < 0 ? rc : 1;
}

static int
step_all(struct imports *imports, struct th_err *err)
{
	int rc = 0, one;
	while ((one = imports_step(imports, rc == 0 ? err : NULL)) != 0)
		rc = rc == 0 && one < 0 ? one : rc;
	return rc;
}

int
imports_leave(struct imports *imports, uint64_t worker, struct th_err *err)
{
	imports_begin_leave(imports, worker);
	return step_all(imports, err);
}

int
imports_forget(struct imports *imports, uint64_t worker, uint64_t piece, struct th_err *err)
{
	imports_begin_forget(imports, worker, piece);
	return step_all(imports, err);
}

unsigned
imports_count(const struct imports *imports)
{
	return HASH_COUNT(imports->entries);
}

unsigned
imports_count_of(const struct imports *imports, uint64_t worker)
{
	const struct imports_owner *owner = find_owner(imports, worker);
	return owner ? owner->count : 0;
}

bool
imports_has(const struct imports *imports, uint64_t worker, uint64_t piece)
{
	return find(imports, worker, piece) != NULL;
}
