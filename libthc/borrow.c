/* SPDX-License-Identifier: Apache-2.0 */
/*
 * borrow - thc_borrow and thc_return: a version in the agent's memory, mapped here.
 *
 * The manifest comes as for thc_get_manifest; the descriptor socket brings the file and the lease.
 * The loan lasts as long as this process has the lease open, so that it ends with the process, and
 * does not end with the handle. What is lent is in a list of the process.
 */
#include "libthc/borrow.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ipc/base/fd.h"
#include "ipc/base/name.h"
#include "ipc/proto/manifest.h"
#include "libthc/libthc_own.h"

struct lent {                          /* owned by the list */
	struct thc_manifest *manifest; /* owns */
	uint8_t *map;                  /* owns; NULL: no row has bytes */
	uint64_t bytes;
	uint8_t *aligned; /* owns: small rows that begin at no multiple in the file; or NULL */
	uint64_t aligned_bytes;
	int lease; /* owns; -1: a fork was made since, and the loan is the parent's */
	struct lent *next;
};

static pthread_mutex_t lent_mutex = PTHREAD_MUTEX_INITIALIZER;
static struct lent *all_lent; /* under lent_mutex */

/* ---- fork ------------------------------------------------------------------------------------ */

void
lent_lock(void)
{
	pthread_mutex_lock(&lent_mutex);
}

void
lent_unlock(void)
{
	pthread_mutex_unlock(&lent_mutex);
}

/* The child's mappings keep the pages; the loan ends with the parent. */
void
lent_forked(void)
{
	for (struct lent *lent = all_lent; lent != NULL; lent = lent->next)
		th_fd_close(&lent->lease);
}

/* ---- the mapping ----------------------------------------------------------------------------- */

static void
lent_free(struct lent *lent)
{
	if (lent->map != NULL)
		(void)munmap(lent->map, lent->bytes);
	if (lent->aligned != NULL)
		(void)munmap(lent->aligned, lent->aligned_bytes);
	th_fd_close(&lent->lease);
	if (lent->manifest != NULL)
		thc_manifest_free(lent->manifest);
	free(lent);
}

/* As large as the rows need it, and it stays so and as it is. */
static int
check_file(int fd, uint64_t needed)
{
	struct stat status;
	int seals = fcntl(fd, F_GET_SEALS);

	if (fstat(fd, &status) < 0 || seals < 0 || (seals & F_SEAL_SHRINK) == 0 ||
		(seals & (F_SEAL_WRITE | F_SEAL_FUTURE_WRITE)) == 0 ||
		(uint64_t)status.st_size < needed)
		return shim_fail(THC_E_PROTOCOL,
			"the agent lends memory that is too small, or that may change");
	return 0;
}

/* Where the rows lie; and how many bytes of them must be brought to a multiple. */
static int
measure(const struct manifest *content, uint64_t *ret_needed, uint64_t *ret_crooked)
{
	uint64_t end = 0, crooked = 0;

	for (uint32_t i = 0; i < content->num_rows; i++) {
		const struct manifest_row *row = &content->rows[i];
		if (!manifest_place_row(row, end, &end) ||
			(end % MANIFEST_ROW_ALIGNMENT != 0 &&
				(!th_add_u64(crooked, row->bytes, &crooked) ||
					!th_align_up_u64(
						crooked, MANIFEST_ROW_ALIGNMENT, &crooked))) ||
			!th_add_u64(end, row->bytes, &end))
			return shim_fail(THC_E_LIMIT, "the tensors are too large");
	}
	*ret_needed = end;
	*ret_crooked = crooked;
	return 0;
}

static void
place_rows(struct lent *lent, const struct manifest *content)
{
	struct thc_tensor *tensors = manifest_tensors(lent->manifest);
	uint64_t at = 0, beside = 0;

	for (uint32_t i = 0; i < content->num_rows; i++) {
		uint64_t bytes = content->rows[i].bytes;
		(void)manifest_place_row(&content->rows[i], at, &at);
		tensors[i].data = bytes > 0 ? lent->map + at : NULL;
		if (bytes > 0 && at % MANIFEST_ROW_ALIGNMENT != 0) {
			memcpy(lent->aligned + beside, lent->map + at, bytes);
			tensors[i].data = lent->aligned + beside;
			/* As they were measured. */
			beside += bytes + -bytes % MANIFEST_ROW_ALIGNMENT;
		}
		at += bytes;
	}
	for (uint32_t i = 0; i < content->num_aliases; i++)
		tensors[content->num_rows + i].data = tensors[content->aliases[i].row].data;
}

static int
map_rows(struct lent *lent, int fd, uint32_t flags)
{
	const struct manifest *content = manifest_content(lent->manifest);
	bool own = (flags & THC_COW) != 0;
	int rc = measure(content, &lent->bytes, &lent->aligned_bytes);

	if (rc == 0)
		rc = check_file(fd, lent->bytes);
	if (rc < 0 || lent->bytes == 0)
		return rc;
	void *map = mmap(NULL, lent->bytes, own ? PROT_READ | PROT_WRITE : PROT_READ,
		own ? MAP_PRIVATE | MAP_NORESERVE : MAP_SHARED, fd, 0);
	if (map == MAP_FAILED)
		return shim_fail(-errno, "mapping what the agent lends: %s", th_strerror(-errno));
	lent->map = map;
	(void)madvise(map, lent->bytes, MADV_DONTDUMP);
	if (lent->aligned_bytes > 0) {
		map = mmap(NULL, lent->aligned_bytes, PROT_READ | PROT_WRITE,
			MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		if (map == MAP_FAILED)
			return shim_fail(
				-errno, "memory for small tensors: %s", th_strerror(-errno));
		lent->aligned = map;
	}
	place_rows(lent, content);
	if (lent->aligned != NULL && !own)
		(void)mprotect(lent->aligned, lent->aligned_bytes, PROT_READ);
	return 0;
}

/* ---- asking the agent ------------------------------------------------------------------------ */

bool
borrow_take_answer(struct thc_shard *shard)
{
	struct fdmsg *message = shard->message;
	struct loan_answer *answer = shard->loan_answer;
	struct fdmsg_lent lent;

	memcpy(&lent, message->body, sizeof(lent));
	if (lent.token == 0 || lent.token > shard->last_loan)
		return false;
	/* Nobody waits for it any more: as its descriptors are closed, it is returned. */
	if (answer == NULL || answer->done || lent.token != shard->last_loan) {
		fdmsg_close_fds(message);
		return true;
	}
	lent.text[sizeof(lent.text) - 1] = '\0';
	answer->code = lent.code;
	memcpy(answer->text, lent.text, sizeof(answer->text));
	answer->file = th_fd_move(&message->fds[0]);
	answer->lease = th_fd_move(&message->fds[1]);
	answer->done = true;
	return true;
}

static int
judge(const struct loan_answer *answer)
{
	if (answer->code != 0)
		return errors_from_agent(answer->code, answer->text);
	if (answer->file < 0 || answer->lease < 0)
		return shim_fail(-EMFILE,
			"this process has no descriptors left for a loan; close some, or raise its "
			"limit of open files (ulimit -n)");
	return 0;
}

/* One at a time of a handle: the others wait for their turn. */
static int
ask(struct thc_shard *shard, const struct thc_manifest *manifest, int64_t deadline_ns,
	struct loan_answer *ret_answer)
{
	int64_t until_ns = deadline_with_grace(deadline_ns);
	struct loan_answer answer = {.file = -1, .lease = -1};
	int rc = 0;

	while (shard->loan_answer != NULL) {
		if (shard_lost(shard))
			return shard_lost_error(shard);
		if (shard->life != SHARD_OPEN)
			return shim_fail(THC_E_CANCELLED, "another thread closes this handle");
		if (deadline_left(deadline_ns) == 0)
			return shim_fail(THC_E_TIMEOUT,
				"other threads of this handle borrowed until the deadline");
		shard_sleep(shard, deadline_ns);
	}
	const struct fdmsg_borrow borrow = {.token = ++shard->last_loan,
		.shard = manifest->shard,
		.lineage = manifest->lineage,
		.version = manifest->version,
		.deadline_ns = deadline_left(deadline_ns)};
	shard->loan_answer = &answer;
	rc = shard_send(shard, FDMSG_BORROW, &borrow, sizeof(borrow), NULL, until_ns);
	if (rc == 0)
		rc = shard_await(shard, &answer.done, until_ns);
	shard->loan_answer = NULL;
	shard_wake(shard);
	if (rc == -ETIMEDOUT)
		rc = shim_fail(THC_E_TIMEOUT, "the agent did not answer before the deadline");
	if (rc == 0)
		rc = judge(&answer);
	if (rc < 0) {
		th_fd_close(&answer.file);
		th_fd_close(&answer.lease);
		return rc;
	}
	*ret_answer = answer;
	return 0;
}

/* ---- the calls ------------------------------------------------------------------------------- */

static int
borrow_once(struct thc_shard *shard, char *spec, uint32_t of_shard, uint32_t flags,
	int64_t deadline_ns, struct lent *lent)
{
	struct loan_answer answer;
	int rc = manifest_fetch(shard, spec, of_shard, deadline_ns, &lent->manifest);

	if (rc == 0)
		rc = ask(shard, lent->manifest, deadline_ns, &answer);
	if (rc < 0)
		return rc;
	lent->lease = answer.lease;
	rc = map_rows(lent, answer.file, flags);
	th_fd_close(&answer.file);
	return rc;
}

static struct lent *
lent_new(void)
{
	struct lent *lent = calloc(1, sizeof(*lent));

	if (lent != NULL)
		lent->lease = -1;
	return lent;
}

static void
lent_keep(struct lent *lent)
{
	lent_lock();
	lent->next = all_lent;
	all_lent = lent;
	lent_unlock();
}

/* What the name meant may be gone before it is here: then the name means another one. */
static int
borrow_enter(struct thc_shard *shard, char *spec, uint32_t of_shard, uint32_t flags,
	int64_t deadline_ns, const struct thc_manifest **ret_manifest)
{
	struct th_version last = {.version = TH_NO_VERSION};
	struct th_spec parsed;
	int rc = th_spec_parse(spec, &parsed);

	if (rc < 0)
		return shim_fail(THC_E_INVALID, "version: '%s' is none", spec);
	for (;;) {
		struct lent *lent = lent_new();
		if (lent == NULL)
			return shim_fail(-ENOMEM, "out of memory for a loan");
		rc = borrow_once(shard, spec, of_shard, flags, deadline_ns, lent);
		if (rc == 0) {
			lent_keep(lent);
			*ret_manifest = lent->manifest;
			return 0;
		}
		struct th_version now = {.version = TH_NO_VERSION};
		if (lent->manifest != NULL)
			now = (struct th_version){lent->manifest->lineage, lent->manifest->version};
		lent_free(lent);
		bool gone = rc == THC_E_NOT_AVAILABLE || rc == THC_E_VERSION_LOST;
		if (!parsed.relative || !gone || th_version_none(now) ||
			th_version_compare(now, last) == 0)
			return rc;
		last = now;
	}
}

static int
borrow_check(const char *version, uint32_t of_shard, uint32_t flags,
	const struct thc_manifest **ret_manifest, char spec[32])
{
	int rc = op_check_spec(version, spec);

	if (rc < 0)
		return rc;
	if ((flags & THC_WHOLE) != 0)
		return shim_fail(THC_E_INVALID,
			"flags: THC_WHOLE is not built yet; borrow each shard by its number");
	if ((flags & ~(uint32_t)THC_COW) != 0)
		return shim_fail(THC_E_INVALID, "flags: 0x%" PRIx32 " has unknown bits", flags);
	if (of_shard >= TH_SHARDS_MAX)
		return shim_fail(THC_E_INVALID,
			"of_shard: is %" PRIu32 "; a group has at most %d shards", of_shard,
			TH_SHARDS_MAX);
	if (ret_manifest == NULL)
		return shim_fail(THC_E_INVALID, "ret_manifest: is NULL");
	return 0;
}

int
thc_borrow(struct thc_shard *shard, const char *version, uint32_t of_shard, uint32_t flags,
	int64_t timeout_ms, const struct thc_manifest **ret_manifest)
{
	char spec[32];
	int64_t deadline_ns = 0;
	int rc = borrow_check(version, of_shard, flags, ret_manifest, spec);

	if (rc == 0)
		rc = deadline_of(timeout_ms, &deadline_ns);
	if (rc == 0)
		rc = shard_enter(shard, 0);
	if (rc < 0)
		return rc;
	if ((shard->features & FDMSG_FEATURE_BORROW) == 0)
		rc = shim_fail(THC_E_PROTOCOL,
			"the agent is of a release that lends nothing; upgrade thagentd");
	else
		rc = borrow_enter(shard, spec, of_shard, flags, deadline_ns, ret_manifest);
	shard_leave(shard);
	return rc;
}

int
thc_return(const struct thc_manifest *manifest)
{
	struct lent *found = NULL;

	lent_lock();
	for (struct lent **link = &all_lent; *link != NULL; link = &(*link)->next) {
		if ((*link)->manifest == manifest) {
			found = *link;
			*link = found->next;
			break;
		}
	}
	lent_unlock();
	if (found == NULL)
		return shim_fail(THC_E_INVALID, "manifest: is not lent: thc_borrow has not "
						"returned it, or it was returned");
	lent_free(found);
	return 0;
}
