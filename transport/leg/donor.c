/* SPDX-License-Identifier: Apache-2.0 */
/* donor - see donor.h. */
#include "transport/leg/donor.h"

#include <string.h>

#include "ipc/base/assert.h"
#include "ipc/base/name.h"
#include "transport/part/part_copy.h"

static bool
is_of_use(const struct xfer_part *from, const struct xfer_part *part)
{
	const struct chunk_table *a = xfer_part_table(from), *b = xfer_part_table(part);
	return from != part && xfer_part_verify(from) && xfer_part_verify(part) &&
	       xfer_part_direct(from) && xfer_part_direct(part) && a->num_chunks == b->num_chunks &&
	       memcmp(a->start, b->start, (a->num_chunks + 1) * sizeof(a->start[0])) == 0;
}

void
donor_init(struct donor *donor, struct xfer_part *from, struct xfer_part *part)
{
	*donor = (struct donor){0};
	if (!from || !is_of_use(from, part))
		return;
	donor->on = true;
	donor->part = xfer_part_retain(from);
}

struct xfer_part *
donor_begin(struct donor *donor, uint32_t chunk, const struct th_hash *digest)
{
	struct xfer_part *part = donor->part;
	if (!part || donor->dropped || chunk >= xfer_part_digest_count(part) ||
		!th_hash_equal(*xfer_part_digest(part, chunk), *digest))
		return NULL;
	donor->num_readers++;
	donor->touched = true;
	return part;
}

bool
donor_copy(
	struct xfer_part *from, struct xfer_part *part, uint32_t chunk, struct th_hash *ret_digest)
{
	struct part_copy copy;
	uint64_t bytes;
	bool source;
	part_copy_init(&copy, from, part, chunk);
	if (part_copy_block(&copy, UINT64_MAX, &bytes, &source) < 0)
		return false;
	*ret_digest = digest_final(&copy.digest);
	return true;
}

static bool
donor_settle(struct donor *donor)
{
	if (!donor->dropped || donor->num_readers > 0)
		return false;
	xfer_part_release(donor->part);
	donor->part = NULL;
	return true;
}

bool
donor_end(struct donor *donor, uint64_t bytes)
{
	TH_ASSERT(donor->num_readers > 0);
	donor->num_readers--;
	donor->bytes += bytes;
	return donor_settle(donor);
}

bool
donor_drop(struct donor *donor)
{
	donor->dropped = true;
	return donor_settle(donor);
}

void
donor_fini(struct donor *donor)
{
	TH_ASSERT(donor->num_readers == 0);
	(void)donor_drop(donor);
}
