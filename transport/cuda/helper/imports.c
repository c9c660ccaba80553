/* SPDX-License-Identifier: Apache-2.0 */
/*
 * imports - which memory of which workers is open.
 */
#include "transport/cuda/helper/imports.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <uthash.h>
#include <utlist.h>

#include "ipc/base/alloc.h"
#include "ipc/base/assert.h"
#include "ipc/base/fd.h"

struct imports_key {
	uint64_t worker, piece;
};

enum imports_state { OPENING, OPEN, CLOSING, FAILED };

struct imports_entry {
	struct imports_key key;
	struct imports *imports;
	struct imports_owner *owner;
	struct imports_entry *prev, *next; /* the owner's */
	enum imports_state state;
	unsigned uses;
	bool left; /* nobody begins to use it any more */
	struct chore chore;
	/* The chore's, while it is done. */
	bool own; /* of handle.bytes, and no worker's */
	struct cuda_handle handle;
	int fd; /* owns, until it is open */
	struct cuda_import import;
	struct imports_told told;
	UT_hash_handle hh;
};

struct imports_owner { /* a worker of which something is there */
	uint64_t worker;
	struct imports_entry *entries;
	UT_hash_handle hh;
};

void
imports_init(struct imports *imports, const struct imports_config *config)
{
	memset(imports, 0, sizeof(*imports));
	imports->config = *config;
	import_pools_init(&imports->pools);
}

static struct imports_entry *
imports_find(const struct imports *imports, uint64_t worker, uint64_t piece)
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

static struct imports_entry *
imports_add(struct imports *imports, uint64_t worker, uint64_t piece)
{
	struct imports_owner *owner = find_owner(imports, worker);
	struct imports_entry *entry = th_calloc(1, sizeof(*entry));
	if (!owner) {
		owner = th_calloc(1, sizeof(*owner));
		owner->worker = worker;
		HASH_ADD(hh, imports->owners, worker, sizeof(owner->worker), owner);
	}
	entry->key = (struct imports_key){worker, piece};
	entry->imports = imports;
	entry->owner = owner;
	HASH_ADD(hh, imports->entries, key, sizeof(entry->key), entry);
	DL_APPEND(owner->entries, entry);
	return entry;
}

static void
imports_drop(struct imports *imports, struct imports_entry *entry)
{
	struct imports_owner *owner = entry->owner;
	HASH_DEL(imports->entries, entry);
	DL_DELETE(owner->entries, entry);
	if (!owner->entries) {
		HASH_DEL(imports->owners, owner);
		free(owner);
	}
	free(entry);
}

/* ---- on the threads ------------------------------------------------------------------------- */

/* Is it the memory that is bad, or has the driver ended? Asking a stream waits for nothing. */
static bool
is_lost(const struct cuda *cuda)
{
	CUresult result = cuda->cuStreamQuery(NULL);
	return result != CUDA_SUCCESS && result != CUDA_ERROR_NOT_READY;
}

static int
import(struct imports_entry *entry)
{
	struct imports *imports = entry->imports;
	const struct cuda *cuda = imports->config.cuda;
	struct imports_told *told = &entry->told;
	if (entry->own)
		return import_own(cuda, imports->config.device, entry->handle.bytes, &entry->import,
			&told->fd, &told->err);
	return import_new(cuda, imports->config.device, &imports->pools, &entry->handle, entry->fd,
		&entry->import, &told->err);
}

static void
open_entry(struct chore *chore)
{
	struct imports_entry *entry = chore->arg;
	struct imports_told *told = &entry->told;
	int rc = told->err.code == 0 ? import(entry) : 0;
	if (rc < 0)
		told->is_lost = rc == -EIO || is_lost(entry->imports->config.cuda);
	/* It comes from a stranger: to close it may take long, too. */
	th_fd_close(&entry->fd);
}

static void
close_import(struct chore *chore)
{
	struct imports_entry *entry = chore->arg;
	struct imports *imports = entry->imports;
	const struct cuda *cuda = imports->config.cuda;
	if (import_end(cuda, &imports->pools, &entry->import, &entry->told.err) < 0)
		entry->told.is_lost = is_lost(cuda);
}

/* ---- on our own ----------------------------------------------------------------------------- */

static void
imports_closed(struct chore *chore)
{
	struct imports_entry *entry = chore->arg;
	struct imports *imports = entry->imports;
	const struct imports_told told = entry->told;
	imports_drop(imports, entry);
	imports->config.closed(imports->config.arg, &told);
}

/* What nobody wants any more goes. */
static void
imports_settle(struct imports *imports, struct imports_entry *entry)
{
	if (entry->uses > 0)
		return;
	if (entry->state == FAILED) {
		imports_drop(imports, entry);
	} else if (entry->state == OPEN && entry->left) {
		entry->state = CLOSING;
		entry->chore =
			(struct chore){.arg = entry, .work = close_import, .over = imports_closed};
		chores_add(imports->config.closing, &entry->chore);
	}
}

static void
imports_opened(struct chore *chore)
{
	struct imports_entry *entry = chore->arg;
	struct imports *imports = entry->imports;
	const struct imports_told told = entry->told;
	memset(&entry->told.err, 0, sizeof(entry->told.err));
	entry->told.fd = -1;
	entry->state = told.err.code == 0 ? OPEN : FAILED;
	entry->left = entry->left || entry->state == FAILED;
	imports->config.opened(imports->config.arg, &told);
	imports_settle(imports, entry);
}

static struct imports_entry *
new_entry(struct imports *imports, uint64_t worker, uint64_t piece)
{
	bool full = HASH_COUNT(imports->entries) >= IMPORTS_MAX;
	struct imports_entry *entry = imports_add(imports, worker, piece);
	entry->fd = -1;
	entry->told = (struct imports_told){.worker = worker, .piece = piece, .fd = -1};
	if (full)
		th_fail(&entry->told.err, TH_E_LIMIT,
			"the agent has %u pieces of GPU memory open on one GPU, the most that it "
			"takes: let the allocator make larger ones",
			IMPORTS_MAX);
	entry->chore = (struct chore){.arg = entry, .work = open_entry, .over = imports_opened};
	return entry;
}

bool
imports_open(struct imports *imports, uint64_t worker, uint64_t piece,
	const struct cuda_handle *handle, int fd, const struct th_err *failed)
{
	if (imports_find(imports, worker, piece)) {
		th_fd_close(&fd);
		return false;
	}
	struct imports_entry *entry = new_entry(imports, worker, piece);
	entry->handle = *handle;
	entry->fd = fd;
	if (failed)
		entry->told.err = *failed;
	chores_add(imports->config.opening, &entry->chore);
	return true;
}

bool
imports_open_own(struct imports *imports, uint64_t worker, uint64_t piece, uint64_t bytes)
{
	if (imports_find(imports, worker, piece))
		return false;
	struct imports_entry *entry = new_entry(imports, worker, piece);
	entry->own = true;
	entry->handle.bytes = bytes;
	chores_add(imports->config.opening, &entry->chore);
	return true;
}

struct imports_entry *
imports_hold(struct imports *imports, uint64_t worker, uint64_t piece)
{
	struct imports_entry *entry = imports_find(imports, worker, piece);
	if (!entry || entry->left)
		return NULL;
	entry->uses++;
	return entry;
}

void
imports_release(struct imports *imports, struct imports_entry *entry)
{
	TH_ASSERT(entry->uses > 0);
	entry->uses--;
	imports_settle(imports, entry);
}

int
imports_where(const struct imports_entry *entry, const struct cuda_import **ret_import)
{
	if (entry->state == OPENING)
		return 1;
	if (entry->state == FAILED)
		return TH_E_STALE_MEMORY;
	*ret_import = &entry->import;
	return 0;
}

void
imports_leave(struct imports *imports, uint64_t worker, uint64_t piece)
{
	struct imports_owner *owner = piece == IMPORTS_ALL ? find_owner(imports, worker) : NULL;
	struct imports_entry *entry = imports_find(imports, worker, piece), *next;
	if (entry) {
		entry->left = true;
		imports_settle(imports, entry);
	}
	if (!owner)
		return;
	/* None is freed here: what has failed and is in no use has been dropped before. */
	DL_FOREACH_SAFE(owner->entries, entry, next)
	{
		entry->left = true;
		imports_settle(imports, entry);
	}
}

bool
imports_has(const struct imports *imports, uint64_t worker, uint64_t piece)
{
	return piece == IMPORTS_ALL ? find_owner(imports, worker) != NULL
				    : imports_find(imports, worker, piece) != NULL;
}
