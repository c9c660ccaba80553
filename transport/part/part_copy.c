/* SPDX-License-Identifier: Apache-2.0 */
/* part_copy - see part_copy.h. */
#include "transport/part/part_copy.h"

#include "ipc/base/assert.h"
#include "ipc/base/err.h"
#include "transport/hash/nt_copy.h"
#include "transport/part/sigbus.h"

void
part_copy_init(
	struct part_copy *copy, struct xfer_part *source, struct xfer_part *part, uint32_t chunk)
{
	copy->source = source;
	copy->part = part;
	xfer_cursor_init(&copy->from, source, chunk);
	xfer_cursor_init(&copy->to, part, chunk);
	digest_init(&copy->digest);
	xfer_part_map_chunk(part, chunk);
}

/* Which of the two sides it was that could not be touched: code, and *ret_source. */
static int
part_copy_blame(const struct iovec *source, size_t bytes, bool *ret_source)
{
	struct digest scratch;
	digest_init(&scratch);
	*ret_source = sigbus_digest(&scratch, source->iov_base, bytes) < 0;
	return TH_E_STALE_MEMORY;
}

/* What is smaller than a leaf stays in the caches, and so does a leaf that is cut. */
static int
copy_piece(struct part_copy *copy, void *to, const void *from, size_t bytes)
{
	if (xfer_part_verify(copy->part))
		return sigbus_digest_copy(&copy->digest, to, from, bytes);
	return bytes < NT_COPY_MIN ? sigbus_copy(to, from, bytes) : sigbus_nt_copy(to, from, bytes);
}

/* Source and destination may be cut into ranges at different places. */
int
part_copy_block(struct part_copy *copy, uint64_t most, uint64_t *ret_bytes, bool *ret_source)
{
	struct iovec source, destination;
	uint64_t done = 0;
	while (done < most && copy->to.left > 0) {
		uint32_t found =
			xfer_cursor_next(&copy->from, copy->source, most - done, &source, 1);
		found += xfer_cursor_next(&copy->to, copy->part, most - done, &destination, 1);
		TH_ASSERT(found == 2);
		size_t bytes = th_min_size(source.iov_len, destination.iov_len);
		if (copy_piece(copy, destination.iov_base, source.iov_base, bytes) < 0)
			return part_copy_blame(&source, bytes, ret_source);
		xfer_cursor_skip(&copy->from, copy->source, bytes);
		xfer_cursor_skip(&copy->to, copy->part, bytes);
		done += bytes;
	}
	*ret_bytes = done;
	return 0;
}
