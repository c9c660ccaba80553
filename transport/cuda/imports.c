/* SPDX-License-Identifier: Apache-2.0 */
/*
 * imports - which memory of which workers is open.
 */
#include "transport/cuda/imports.h"

#include <stdlib.h>
#include <string.h>
#include <uthash.h>

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

static int
close_entry(struct imports *imports, struct imports_entry *entry, struct th_err *err)
{
	int rc = import_end(imports->cuda, &entry->import, err);
	if (rc < 0)
		imports->failed++;
	imports->bytes -= entry->import.bytes;
	HASH_DEL(imports->entries, entry);
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
	struct imports_entry *entry = th_calloc(1, sizeof(*entry));
	entry->key = (struct imports_key){worker, piece};
	entry->import = import;
	HASH_ADD(hh, imports->entries, key, sizeof(entry->key), entry);
	imports->bytes += import.bytes;
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

int
imports_done(struct imports *imports, uint64_t worker, uint64_t piece, struct th_err *err)
{
	struct imports_entry *entry = find(imports, worker, piece);
	TH_ASSERT(entry && entry->uses > 0);
	if (--entry->uses > 0 || !entry->left)
		return 0;
	return close_entry(imports, entry, err);
}

static int
leave(struct imports *imports, struct imports_entry *entry, struct th_err *err)
{
	entry->left = true;
	return entry->uses > 0 ? 0 : close_entry(imports, entry, err);
}

int
imports_leave(struct imports *imports, uint64_t worker, struct th_err *err)
{
	struct imports_entry *entry, *next;
	int rc = 0;
	HASH_ITER(hh, imports->entries, entry, next)
	{
		if (entry->key.worker != worker)
			continue;
		int one = leave(imports, entry, rc == 0 ? err : NULL);
		rc = rc == 0 ? one : rc;
	}
	return rc;
}

int
imports_forget(struct imports *imports, uint64_t worker, uint64_t piece, struct th_err *err)
{
	struct imports_entry *entry = find(imports, worker, piece);
	return entry ? leave(imports, entry, err) : 0;
}

unsigned
imports_count(const struct imports *imports)
{
	return HASH_COUNT(imports->entries);
}
