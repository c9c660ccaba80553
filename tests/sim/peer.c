/* SPDX-License-Identifier: Apache-2.0 */
/*
 * peer - what servers ask each other. Over the same links as all else; a process that has ended
 * refuses, one that is stopped answers when it goes on.
 */
#include <stdlib.h>

#include "tests/sim/check.h"
#include "tests/sim/sim.h"

struct question { /* at the server that is asked, or its answer at the one that asks */
	struct task task;
	struct srv *from, *to;
	uint64_t from_life;
	uint64_t from_inc; /* a new core does not get what the old one asked for */
	struct ctl_hello hello;
	bool none;
	struct ctl_hello_reply reply;
};

uint32_t
peer_count(void)
{
	return world.options.servers > 1 ? world.options.servers : 0;
}

/* Nothing can lie between a server and itself. */
static int64_t
way(const struct srv *from, const struct srv *to)
{
	return from == to ? 10 * US : net_delay_of_peer(net_srv(from), net_srv(to));
}

static void
answered(struct task *task)
{
	const struct question *mine = (const struct question *)task;

	if (mine->from->inc == mine->from_inc)
		srv_answered(mine->from, mine->to->process.index, mine->none ? NULL : &mine->reply);
}

static void
answer(const struct question *question, const struct ctl_hello_reply *reply)
{
	int64_t delay_ns = way(question->to, question->from);

	if (delay_ns == NEVER || !question->from->process.alive ||
		question->from->process.life != question->from_life)
		return;
	struct question *back = task_new(sizeof(*back), answered, &question->from->process);
	struct task task = back->task;
	*back = *question;
	back->task = task;
	back->none = reply == NULL;
	if (reply != NULL)
		back->reply = *reply;
	task_in(&back->task, delay_ns);
}

static void
asked(struct task *task)
{
	const struct question *mine = (const struct question *)task;
	struct ctl_hello_reply reply;
	int code = srv_asked(mine->to, &mine->hello, &reply);

	answer(mine, code == 0 ? &reply : NULL);
}

void
peer_ask(struct srv *srv, const struct refsrv_probe *probe)
{
	struct srv *to = &world.servers[probe->peer];
	struct question *question = task_new(sizeof(*question), asked, &to->process);
	int64_t delay_ns = way(srv, to);

	question->from = srv;
	question->to = to;
	question->from_life = srv->process.life;
	question->from_inc = srv->inc;
	question->hello = probe->hello;
	if (delay_ns != NEVER && to->process.alive) {
		task_in(&question->task, delay_ns);
		return;
	}
	if (delay_ns != NEVER)
		answer(question, NULL);
	free(question);
}
