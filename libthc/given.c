/* SPDX-License-Identifier: Apache-2.0 */
/*
 * given - see given.h.
 */
#include "libthc/given.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/failpoint.h"
#include "ipc/base/fd.h"

/* Index of the first that is not below serial. */
static size_t
sent_index(const struct thc_shard *shard, uint64_t serial)
{
	size_t low = 0, high = shard->num_sent;

	while (low < high) {
		size_t middle = low + (high - low) / 2;
		if (shard->sent[middle].serial < serial)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

const struct sent_memory *
sent_find(const struct thc_shard *shard, uint64_t serial)
{
	size_t index = sent_index(shard, serial);

	return index < shard->num_sent && shard->sent[index].serial == serial ? &shard->sent[index]
									      : NULL;
}

/* Room for it was made before it was sent. */
static void
sent_add(struct thc_shard *shard, uint64_t serial, const struct fdmsg_memory_id *answer)
{
	size_t index = sent_index(shard, serial);
	struct sent_memory *at = &shard->sent[index];

	memmove(at + 1, at, (shard->num_sent - index) * sizeof(*at));
	*at = (struct sent_memory){.serial = serial, .id = answer->id};
	memcpy(at->path, answer->path, sizeof(at->path));
	errors_clean(at->path, sizeof(at->path));
	shard->num_sent++;
}

/* Without room in the socket it is due: thousands of pieces are more than fit. */
static void
given_forget(struct thc_shard *shard, uint32_t id)
{
	const struct fdmsg_forget message = {.id = id};

	if (shard_lost(shard) || shard->life == SHARD_CLOSED)
		return;
	if (shard->num_forgets == 0) {
		int rc = fdmsg_send(shard->sock, FDMSG_FORGET, &message, sizeof(message), NULL, 0);
		if (rc != -EAGAIN && !shard_send_passes(rc))
			return;
	}
	uint32_t *more = reallocarray(shard->forgets, shard->num_forgets + 1, sizeof(*more));
	if (more == NULL)
		return; /* the end of the session forgets it too */
	shard->forgets = more;
	shard->forgets[shard->num_forgets++] = id;
}

int
sent_flush(struct thc_shard *shard, int64_t until_ns)
{
	size_t done = 0;
	int rc = 0;

	while (rc == 0 && done < shard->num_forgets) {
		const struct fdmsg_forget message = {.id = shard->forgets[done]};
		rc = shard_send(shard, FDMSG_FORGET, &message, sizeof(message), NULL, until_ns);
		if (rc == 0)
			done++;
	}
	if (done == 0)
		return rc;
	shard->num_forgets -= done;
	memmove(shard->forgets, shard->forgets + done,
		shard->num_forgets * sizeof(*shard->forgets));
	return rc;
}

void
sent_forget(struct thc_shard *shard, uint64_t serial)
{
	const struct sent_memory *sent = sent_find(shard, serial);

	if (sent == NULL)
		return;
	given_forget(shard, sent->id);
	size_t index = (size_t)(sent - shard->sent);
	shard->num_sent--;
	memmove(&shard->sent[index], &shard->sent[index + 1],
		(shard->num_sent - index) * sizeof(*shard->sent));
}

/* Its own, as a driver that hangs keeps it: then only who forks waits for that. */
static pthread_mutex_t giving_lock = PTHREAD_MUTEX_INITIALIZER;

void
sent_lock(void)
{
	pthread_mutex_lock(&giving_lock);
}

void
sent_unlock(void)
{
	pthread_mutex_unlock(&giving_lock);
}

void
sent_close(struct thc_shard *shard)
{
	sent_lock();
	th_fd_close(&shard->giving);
	sent_unlock();
}

/* ---- answers ------------------------------------------------------------------------------- */

static void
given_take(struct sender *sender, uint32_t number, const struct fdmsg_memory_id *answer)
{
	sender->answered++;
	sender->enough = sender->answered >= sender->wanted;
	if (answer->code == 0) {
		sent_add(sender->shard, sender->serials[number % FDMSG_AHEAD], answer);
	} else if (!sender->failed) {
		sender->failed = true;
		sender->failure = *answer;
		errors_clean(sender->failure.text, sizeof(sender->failure.text));
		sender->enough = sender->enough || !sender->tolerant;
	}
}

/* An answer that comes too late is for memory that nobody will name: the agent may forget it. */
bool
sent_take_answer(struct thc_shard *shard)
{
	struct fdmsg_memory_id answer;
	struct sender *sender = shard->sender;

	memcpy(&answer, shard->message->body, sizeof(answer));
	if (shard->answered_token == shard->last_token || answer.token != shard->answered_token + 1)
		return false;
	shard->answered_token++;
	if (sender != NULL && answer.token - sender->first_token < sender->sent) {
		given_take(sender, answer.token - sender->first_token, &answer);
	} else if (answer.code == 0) {
		given_forget(shard, answer.id);
	}
	if (sender != NULL && sender->sent == 0 && shard->answered_token == shard->last_token)
		sender->enough = true;
	return true;
}

/* ---- sending ------------------------------------------------------------------------------- */

void
sender_begin(struct sender *sender, struct thc_shard *shard, int64_t until_ns)
{
	memset(sender, 0, sizeof(*sender));
	sender->shard = shard;
	sender->until_ns = until_ns;
	sender->first_token = shard->last_token + 1;
	shard->sender = sender;
}

static int
given_make_room(struct thc_shard *shard)
{
	/* Also for what is not answered yet. */
	if (shard->num_sent + FDMSG_AHEAD < shard->sent_room)
		return 0;
	size_t room = 2 * shard->sent_room + 2 * FDMSG_AHEAD;
	struct sent_memory *more = reallocarray(shard->sent, room, sizeof(*more));
	if (more == NULL)
		return shim_fail(-ENOMEM, "out of memory for %zu memory objects", room);
	shard->sent = more;
	shard->sent_room = room;
	return 0;
}

static int
given_timed_out(int rc)
{
	if (rc != -ETIMEDOUT)
		return rc;
	return shim_fail(THC_E_TIMEOUT,
		"the agent did not take the memory before the deadline, and may yet: free none of "
		"it before thc_unregister or thc_close has returned. Is it stopped?");
}

/* Until so many are answered, or one is refused. */
static int
await_answers(struct sender *sender, uint32_t wanted)
{
	sender->wanted = wanted;
	sender->enough = sender->answered >= wanted || (sender->failed && !sender->tolerant);
	int rc = given_timed_out(shard_await(sender->shard, &sender->enough, sender->until_ns));
	if (rc == 0 && sender->failed && !sender->tolerant)
		rc = errors_from_agent(sender->failure.code, sender->failure.text);
	return rc;
}

int
sent_settle(struct thc_shard *shard, int64_t until_ns)
{
	struct sender none;

	sender_begin(&none, shard, until_ns);
	none.enough = shard->answered_token == shard->last_token;
	int rc = shard_await(shard, &none.enough, until_ns);
	shard->sender = NULL;
	if (rc == 0)
		rc = sent_flush(shard, until_ns);
	return given_timed_out(rc);
}

int
sender_send(struct sender *sender, uint64_t serial, enum fdmsg_kind kind, void *body,
	size_t body_bytes, const int *fd)
{
	struct thc_shard *shard = sender->shard;
	int rc = 0;

	TH_FP(worker_shares_memory);
	/* The same memory may come again now, and pieces of a GPU do not overlap. */
	if (sender->sent == 0) {
		rc = sent_settle(shard, sender->until_ns);
		shard->sender = sender;
	}
	/* When there is no room, half of it is waited for: not a turn for each. */
	if (sender->sent - sender->answered == FDMSG_AHEAD)
		rc = await_answers(sender, sender->sent - FDMSG_AHEAD / 2);
	if (rc == 0)
		rc = given_make_room(shard);
	if (rc < 0)
		return rc;
	const uint32_t token = shard->last_token + 1;
	memcpy(body, &token, sizeof(token));
	rc = given_timed_out(shard_send(shard, kind, body, body_bytes, fd, sender->until_ns));
	if (rc < 0)
		return rc;
	/* The lock was not given back since it was sent. */
	shard->last_token = token;
	sender->serials[sender->sent++ % FDMSG_AHEAD] = serial;
	return 0;
}

int
sender_end(struct sender *sender, int rc)
{
	if (rc == 0)
		rc = await_answers(sender, sender->sent);
	sender->shard->sender = NULL;
	return rc;
}
