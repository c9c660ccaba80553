/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ring_fuzz - the shared files of a session, each as the other side may write it.
 *
 * The first byte chooses the side that reads. The agent: the worker writes anything anywhere in its
 * file, also while the agent takes submissions; what the core is told of keeps its promises, and a
 * session that broke the rules hears no more. The worker: the same with the agent's file.
 */
#include <stdlib.h>

#include "daemon/host/host.h"
#include "daemon/host/worker/ring_channel.h"
#include "ipc/base/assert.h"
#include "ipc/shm/doorbell.h"
#include "tests/fuzz/input.h"

#define ROUNDS_MAX 64u

void __wrap_engine_post(struct host *host, const struct agent_event *event);
void __wrap_session_lose(struct host_session *session, bool violation, const char *reason);

static struct host host;
static struct host_session session;
static struct shm_w w;
static struct shm_a a;

/* A word anywhere, or a record as a library would write it. */
static void
write_somewhere(struct input *input, void *file, size_t bytes)
{
	uint64_t word = input_word(input);
	uint8_t at[2];

	input_copy(input, at, sizeof(at));
	memcpy((uint8_t *)file + ((size_t)at[0] << 8 | at[1]) * 8 % bytes, &word, sizeof(word));
}

/* ---- the agent reads ------------------------------------------------------------------------ */

/* In place of the core: it takes only what agent_core.h describes. */
void
__wrap_engine_post(struct host *of, const struct agent_event *event)
{
	TH_ASSERT(of == &host && event->session == session.id && session.state < HOST_SESSION_LOST);
	if (event->kind == AGENT_EV_CANCEL) {
		TH_ASSERT(event->u.cancel_slot < SHM_CAPACITY &&
			  session.slots[event->u.cancel_slot].busy);
		return;
	}
	const struct agent_submission *submit = &event->u.submit;
	TH_ASSERT(event->kind == AGENT_EV_SUBMIT && submit->slot < SHM_CAPACITY);
	TH_ASSERT(session.slots[submit->slot].busy);
	TH_ASSERT((submit->kind >= CTL_OP_PUBLISH && submit->kind <= CTL_OP_FOLLOW) ||
		  submit->kind == AGENT_SUBMIT_WATCH);
	TH_ASSERT(submit->timeout_ns >= TH_FOREVER);
	TH_ASSERT(memchr(submit->spec, '\0', sizeof(submit->spec)) != NULL);
}

void
__wrap_session_lose(struct host_session *of, bool violation, const char *reason)
{
	TH_ASSERT(of == &session && violation && reason[0] != '\0');
	session.state = HOST_SESSION_LOST;
}

static void
complete(struct input *input)
{
	struct agent_action action = {.kind = AGENT_COMPLETE, .session = session.id};

	action.u.complete.slot = input_byte(input);
	operations_complete(&session, &action);
}

static void
agent_reads(struct input *input)
{
	struct ring_worker worker;

	memset(&w, 0, sizeof(w));
	memset(&a, 0, sizeof(a));
	host = (struct host){.last_session = 1};
	session = (struct host_session){.host = &host,
		.id = 1,
		.state = HOST_SESSION_OPEN,
		.bell_out = -1,
		.segment = {.fd_w = -1, .fd_a = -1, .w = &w, .a = &a}};
	ring_agent_init(&session.ring, &w, &a);
	ring_worker_init(&worker, &w, &a);
	for (uint32_t i = 0; i < ROUNDS_MAX && input->left > 0; i++) {
		struct shm_submission submission = {.op_seq = i};
		uint8_t what = input_byte(input), more = input_byte(input);
		if (what < 0x40) {
			write_somewhere(input, &w, sizeof(w));
		} else if (what < 0xa0) {
			submission.kind = (uint16_t)(SHM_PUBLISH + more % SHM_FOLLOW);
			submission.slot = more >> 3;
			submission.deadline_ns = (int8_t)input_byte(input);
			submission.flags = input_byte(input);
			input_copy(input, submission.version_spec, what % 32u);
			(void)!ring_push(&worker, &submission);
		} else if (what < 0xc0) {
			complete(input);
		} else if (what < 0xd0) {
			operations_progress(&session, more, input_number(input));
		} else {
			operations_enqueue(&session);
			for (uint32_t turns = 0; operations_run(&host); turns++)
				TH_ASSERT(turns <= SHM_CAPACITY); /* no more can be there */
			TH_ASSERT(!session.busy && host.first_busy == NULL);
		}
	}
}

/* ---- the worker reads ------------------------------------------------------------------------ */

static void
worker_reads(struct input *input)
{
	struct ring_worker worker;
	struct ring_agent agent;

	memset(&w, 0, sizeof(w));
	memset(&a, 0, sizeof(a));
	ring_worker_init(&worker, &w, &a);
	ring_agent_init(&agent, &w, &a);
	for (uint32_t i = 0; i < ROUNDS_MAX && input->left > 0; i++) {
		struct shm_submission submission = {.kind = SHM_PUBLISH, .deadline_ns = -1};
		struct shm_completion completion = {.op_seq = i};
		struct shm_slot slot = {.op_seq = i};
		struct shm_line line = {.generation = i};
		uint16_t events[SHM_EV_COUNT];
		uint64_t done, total;
		uint8_t what = input_byte(input), more = input_byte(input);
		if (what < 0x50) {
			write_somewhere(input, &a, sizeof(a));
		} else if (what < 0x70) {
			(void)!ring_push(&worker, &submission);
			(void)!ring_take(&agent, &submission);
		} else if (what < 0x90) {
			completion.slot = more;
			(void)!ring_complete(&agent, &completion);
		} else if (what < 0xa0) {
			input_copy(input, slot.sentence, sizeof(slot.sentence));
			ring_slot_write(&agent, more, &slot);
			ring_line_write(&agent, &line);
		} else {
			int rc = ring_pop(&worker, &completion);
			TH_ASSERT(rc <= 1 && (rc != 1 || completion.slot < SHM_CAPACITY));
			if (ring_slot_read(&worker, more, &slot) == 0) {
				TH_ASSERT(memchr(slot.sentence, 0, sizeof(slot.sentence)));
				TH_ASSERT(memchr(slot.source, 0, sizeof(slot.source)));
				TH_ASSERT(memchr(slot.transport, 0, sizeof(slot.transport)));
			}
			ring_progress(&worker, more, i, &done, &total);
			(void)!ring_line_read(&worker, &line);
			ring_events_read(&worker, events);
			(void)ring_pending(&worker);
		}
	}
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct input input = {data, size};

	if (input_byte(&input) & 1)
		worker_reads(&input);
	else
		agent_reads(&input);
	return 0;
}
