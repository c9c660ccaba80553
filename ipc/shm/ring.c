/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ring - see ring.h.
 *
 * The records under a sequence lock are copied word by word with atomic accesses. Order, without
 * a fence: the writer makes the sequence odd, then stores every word with release, so the odd
 * value is visible before any of them; then stores the even sequence with release. The reader
 * loads the sequence and every word with acquire, so its second look at the sequence comes after
 * all of them.
 */
#include "ipc/shm/ring.h"

#include <errno.h>
#include <sched.h>
#include <stddef.h>
#include <string.h>

/*
 * A write takes some ten nanoseconds. Who finds it unfinished this often looks at an agent that was
 * taken off its CPU or died just there; yielding lets the former go on.
 */
#define READ_TRIES 1000
#define TRIES_BEFORE_YIELD 100

#define WORD_SEQUENCE 0u /* and the 32-bit field beside it */
#define SLOT_WORDS (sizeof(struct shm_slot) / sizeof(uint64_t))
#define SLOT_WORD_DONE (offsetof(struct shm_slot, done_bytes) / sizeof(uint64_t))
#define SLOT_WORD_TOTAL (offsetof(struct shm_slot, total_bytes) / sizeof(uint64_t))
#define LINE_WORDS (sizeof(struct shm_line) / sizeof(uint64_t))
#define LINE_WORD_EVENTS (offsetof(struct shm_line, events) / sizeof(uint64_t))
#define EVENTS_WORDS ((SHM_EV_COUNT * sizeof(uint16_t) + 7) / sizeof(uint64_t))

_Static_assert(offsetof(struct shm_slot, sequence) == 0 && offsetof(struct shm_slot, state) == 4 &&
		       offsetof(struct shm_line, sequence) == 0 &&
		       offsetof(struct shm_line, safe_to_mutate) == 4,
	"the first word is a sequence and one 32-bit field");
_Static_assert(offsetof(struct shm_slot, op_seq) % sizeof(uint64_t) == 0 &&
		       offsetof(struct shm_line, events) % sizeof(uint64_t) == 0,
	"what is read alone begins a word");

struct locked_head { /* how the records under a sequence lock begin */
	_Atomic uint32_t sequence;
	uint32_t field;
};

/* Words that belong to the progress, which is written outside the sequence. */
static bool
is_progress(size_t words, size_t word)
{
	return words == SLOT_WORDS && (word == SLOT_WORD_DONE || word == SLOT_WORD_TOTAL);
}

static void
locked_write(void *shared, const void *content, size_t words)
{
	struct locked_head *head = shared;
	uint64_t *to = shared;
	const uint64_t *from = content;
	uint32_t field;

	memcpy(&field, (const uint8_t *)content + offsetof(struct locked_head, field),
		sizeof(field));
	/* The agent is the only writer; odd twice means an earlier write that never ended. */
	uint32_t sequence = atomic_load_explicit(&head->sequence, memory_order_relaxed) | 1u;
	atomic_store_explicit(&head->sequence, sequence, memory_order_relaxed);
	/* Release: pairs with the acquires in locked_read (see above). */
	__atomic_store_n(&head->field, field, __ATOMIC_RELEASE);
	for (size_t i = WORD_SEQUENCE + 1; i < words; i++)
		if (!is_progress(words, i))
			__atomic_store_n(&to[i], from[i], __ATOMIC_RELEASE);
	atomic_store_explicit(&head->sequence, sequence + 1, memory_order_release);
}

static int
locked_read(const void *shared, void *ret_content, size_t words)
{
	const struct locked_head *head = shared;
	const uint64_t *from = shared;
	struct locked_head copy_head;
	uint64_t *to = ret_content;

	for (int try = 0; try < READ_TRIES; try++) {
		uint32_t sequence = atomic_load_explicit(&head->sequence, memory_order_acquire);
		if ((sequence & 1u) == 0) {
			uint32_t field = __atomic_load_n(&head->field, __ATOMIC_ACQUIRE);
			for (size_t i = WORD_SEQUENCE + 1; i < words; i++)
				to[i] = __atomic_load_n(&from[i], __ATOMIC_ACQUIRE);
			/* Acquire above: this load is not moved before them. */
			if (atomic_load_explicit(&head->sequence, memory_order_relaxed) ==
				sequence) {
				copy_head.sequence = sequence;
				copy_head.field = field;
				memcpy(ret_content, &copy_head, sizeof(copy_head));
				return 0;
			}
		}
		if (try >= TRIES_BEFORE_YIELD)
			(void)sched_yield();
	}
	return -EAGAIN;
}

/* The compiler must not read a record again from where the other side can still change it. */
static void
keep_copy(const void *copy)
{
	__asm__ volatile("" : : "r"(copy) : "memory");
}

/* ---- worker -------------------------------------------------------------------------------- */

void
ring_worker_init(struct ring_worker *ring, struct shm_w *w, const struct shm_a *a)
{
	ring->w = w;
	ring->a = a;
	ring->submitted = 0;
	ring->collected = 0;
}

int
ring_push(struct ring_worker *ring, const struct shm_submission *submission)
{
	/* Acquire: the agent has copied the record before it said so (ring_take). */
	uint64_t consumed = atomic_load_explicit(&ring->a->consumed, memory_order_acquire);

	if (ring->submitted - consumed > SHM_CAPACITY)
		return -EPROTO;
	if (ring->submitted - consumed == SHM_CAPACITY)
		return -EAGAIN;
	memcpy(&ring->w->submissions[ring->submitted % SHM_CAPACITY], submission,
		sizeof(*submission));
	ring->submitted++;
	/* Pairs with the load in ring_take; sequentially consistent for doorbell.h. */
	atomic_store_explicit(&ring->w->submitted, ring->submitted, memory_order_seq_cst);
	return 0;
}

bool
ring_pending(const struct ring_worker *ring)
{
	return atomic_load_explicit(&ring->a->completed, memory_order_seq_cst) != ring->collected;
}

int
ring_pop(struct ring_worker *ring, struct shm_completion *ret_completion)
{
	struct shm_completion copy;
	/* Pairs with the store in ring_complete; sequentially consistent for doorbell.h. */
	uint64_t completed = atomic_load_explicit(&ring->a->completed, memory_order_seq_cst);

	if (completed == ring->collected)
		return 0;
	if (completed - ring->collected > SHM_CAPACITY)
		return -EPROTO;
	memcpy(&copy, &ring->a->completions[ring->collected % SHM_CAPACITY], sizeof(copy));
	keep_copy(&copy);
	if (copy.slot >= SHM_CAPACITY)
		return -EPROTO;
	ring->collected++;
	/* Release: the copy is made before the agent may overwrite the record (ring_complete). */
	atomic_store_explicit(&ring->w->collected, ring->collected, memory_order_release);
	*ret_completion = copy;
	return 1;
}

int
ring_slot_read(const struct ring_worker *ring, uint32_t slot, struct shm_slot *ret_slot)
{
	struct shm_slot copy;

	if (locked_read(&ring->a->slots[slot % SHM_CAPACITY], &copy, SLOT_WORDS) < 0)
		return -EAGAIN;
	copy.transport[sizeof(copy.transport) - 1] = '\0';
	copy.source[sizeof(copy.source) - 1] = '\0';
	copy.sentence[sizeof(copy.sentence) - 1] = '\0';
	memcpy(ret_slot, &copy, sizeof(copy));
	return 0;
}

void
ring_progress(const struct ring_worker *ring, uint32_t slot, uint64_t op_seq,
	uint64_t *ret_done_bytes, uint64_t *ret_total_bytes)
{
	const struct shm_slot *shared = &ring->a->slots[slot % SHM_CAPACITY];

	/* Acquire: the agent has set the progress back before it wrote this number. */
	if (__atomic_load_n(&shared->op_seq, __ATOMIC_ACQUIRE) != op_seq) {
		*ret_total_bytes = 0;
		*ret_done_bytes = 0;
		return;
	}
	/* The total last, as it is written first: nothing is done of a total that is not set. */
	*ret_done_bytes = atomic_load_explicit(&shared->done_bytes, memory_order_acquire);
	*ret_total_bytes = atomic_load_explicit(&shared->total_bytes, memory_order_relaxed);
}

int
ring_line_read(const struct ring_worker *ring, struct shm_line *ret_line)
{
	struct shm_line copy;

	if (locked_read(&ring->a->line, &copy, LINE_WORDS) < 0)
		return -EAGAIN;
	memcpy(ret_line, &copy, sizeof(copy));
	return 0;
}

void
ring_events_read(const struct ring_worker *ring, uint16_t ret_events[SHM_EV_COUNT])
{
	const uint64_t *from = (const void *)&ring->a->line;
	uint64_t words[EVENTS_WORDS];

	/* Acquire, as in locked_read; what rang the doorbell was written before. */
	for (size_t i = 0; i < EVENTS_WORDS; i++)
		words[i] = __atomic_load_n(&from[LINE_WORD_EVENTS + i], __ATOMIC_ACQUIRE);
	memcpy(ret_events, words, SHM_EV_COUNT * sizeof(uint16_t));
}

/* ---- agent --------------------------------------------------------------------------------- */

void
ring_agent_init(struct ring_agent *ring, const struct shm_w *w, struct shm_a *a)
{
	ring->w = w;
	ring->a = a;
	ring->consumed = 0;
	ring->completed = 0;
}

static bool
all_zero(const void *bytes, size_t count)
{
	const uint8_t *at = bytes;

	for (size_t i = 0; i < count; i++)
		if (at[i] != 0)
			return false;
	return true;
}

static bool
submission_valid(const struct shm_submission *submission)
{
	size_t length = strnlen(submission->version_spec, sizeof(submission->version_spec));

	return submission->kind >= SHM_PUBLISH && submission->kind <= SHM_FOLLOW &&
	       submission->slot < SHM_CAPACITY && submission->deadline_ns >= -1 &&
	       length < sizeof(submission->version_spec) &&
	       all_zero(submission->version_spec + length,
		       sizeof(submission->version_spec) - length) &&
	       all_zero(submission->reserved, sizeof(submission->reserved));
}

int
ring_take(struct ring_agent *ring, struct shm_submission *ret_submission)
{
	struct shm_submission copy;
	/* Pairs with the store in ring_push; sequentially consistent for doorbell.h. */
	uint64_t submitted = atomic_load_explicit(&ring->w->submitted, memory_order_seq_cst);

	if (submitted == ring->consumed)
		return 0;
	if (submitted - ring->consumed > SHM_CAPACITY)
		return -EPROTO;
	memcpy(&copy, &ring->w->submissions[ring->consumed % SHM_CAPACITY], sizeof(copy));
	keep_copy(&copy);
	if (!submission_valid(&copy))
		return -EPROTO;
	ring->consumed++;
	/* Release: the copy is made before the worker may overwrite the record (ring_push). */
	atomic_store_explicit(&ring->a->consumed, ring->consumed, memory_order_release);
	*ret_submission = copy;
	return 1;
}

int
ring_complete(struct ring_agent *ring, const struct shm_completion *completion)
{
	/* Acquire: the worker has copied the record that is overwritten here (ring_pop). */
	uint64_t collected = atomic_load_explicit(&ring->w->collected, memory_order_acquire);

	if (ring->completed - collected >= SHM_CAPACITY)
		return -EPROTO;
	memcpy(&ring->a->completions[ring->completed % SHM_CAPACITY], completion,
		sizeof(*completion));
	ring->completed++;
	/* Pairs with the loads in ring_pop and ring_pending. */
	atomic_store_explicit(&ring->a->completed, ring->completed, memory_order_seq_cst);
	return 0;
}

void
ring_slot_write(struct ring_agent *ring, uint32_t slot, const struct shm_slot *content)
{
	locked_write(&ring->a->slots[slot % SHM_CAPACITY], content, SLOT_WORDS);
}

void
ring_slot_progress(
	struct ring_agent *ring, uint32_t slot, uint64_t done_bytes, uint64_t total_bytes)
{
	struct shm_slot *shared = &ring->a->slots[slot % SHM_CAPACITY];

	atomic_store_explicit(&shared->total_bytes, total_bytes, memory_order_relaxed);
	atomic_store_explicit(&shared->done_bytes, done_bytes, memory_order_release);
}

void
ring_line_write(struct ring_agent *ring, const struct shm_line *line)
{
	locked_write(&ring->a->line, line, LINE_WORDS);
}
