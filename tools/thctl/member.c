/* SPDX-License-Identifier: Apache-2.0 */
/*
 * member - libthc as the verbs use it (see member.h).
 */
#include "tools/thctl/member.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ipc/base/clock.h"

#define NS_PER_MS INT64_C(1000000)
#define CLOSE_MS INT64_C(30000)  /* for readers to finish, after that the agent goes on alone */
#define ABANDON_MS INT64_C(2000) /* for the agent to hear of it                              */
#define SIBLINGS_MS 1000 /* between the first and the last member of a replica that is ended      */
#define LOOK_MS 1000     /* a frozen agent sends nothing: its heartbeat is looked at  */
#define CANCEL_NS INT64_C(1000000000) /* for what was cancelled to end by itself */

/* Whatever holding is for is over. */
#define EVENTS_FATAL                                                                               \
	((uint32_t)THC_EV_EVICTED | (uint32_t)THC_EV_VERSION_CONFLICT |                            \
		(uint32_t)THC_EV_CONTRACT | (uint32_t)THC_EV_GROUP_BROKEN |                        \
		(uint32_t)THC_EV_AGENT_LOST)

int
member_failed(int code, struct th_err *err)
{
	const char *text = thc_errmsg();

	return th_fail(err, code, "%s", *text ? text : thc_strerror(code));
}

void
member_default_replica(char ret_name[TH_NAME_MAX + 1])
{
	char host[128];

	if (gethostname(host, sizeof(host)) < 0)
		snprintf(host, sizeof(host), "localhost");
	host[sizeof(host) - 1] = '\0';
	snprintf(ret_name, TH_NAME_MAX + 1, "thctl-%s-%d", host, (int)getpid());
}

int
member_open(const struct thctl *ctl, const struct member_options *options, struct th_err *err,
	struct thc_shard **ret_shard)
{
	struct thc_open_opts opts = THC_OPEN_OPTS_INIT;

	opts.model = ctl->model;
	opts.replica = options->replica;
	opts.shard = options->shard;
	opts.num_shards = options->num_shards;
	opts.lineage = options->lineage;
	opts.retain = options->retain;
	opts.agent = ctl->runtime_dir;
	int rc = thc_open(&opts, thctl_left_ms(ctl), ret_shard);
	return rc < 0 ? member_failed(rc, err) : 0;
}

int
member_open_probe(const struct thctl *ctl, struct th_err *err, struct thc_shard **ret_shard)
{
	const struct member_options observer = {.num_shards = 1};

	return member_open(ctl, &observer, err, ret_shard);
}

void
member_close(const struct thctl *ctl, struct thc_shard *shard, bool abandon)
{
	uint32_t flags = abandon ? (uint32_t)THC_CLOSE_ABANDON : 0;

	if (!shard)
		return;
	int rc = thc_close(shard, flags, abandon ? ABANDON_MS : CLOSE_MS);
	if (rc == 0)
		return;
	if (!abandon) {
		thctl_say("%s: %s; the agent finishes alone", ctl->verb->name, thc_errmsg());
		rc = thc_close(shard, THC_CLOSE_ABANDON, 0);
	}
	/*
	 * With this flag the handle is gone whatever the answer: it tells of the agent, not of us.
	 */
	if (rc < 0 && rc != THC_E_AGENT_LOST && rc != THC_E_TIMEOUT)
		thctl_say("%s: closing: %s", ctl->verb->name, thc_strerror(rc));
}

/* ---- operations ----------------------------------------------------------------------------- */

struct drive {
	struct member_set *set;
	struct thc_op **ops;
	struct thc_result *results;
	uint32_t running;
	uint64_t ended_bytes; /* of operations that have ended                                  */
	int code;             /* the first failure                                              */
	bool cancelled;
	int64_t patience_ns; /* the moment when what was cancelled is not waited for any more  */
};

/* Events keep the descriptors readable until they are taken; who judges them comes later. */
static void
take_events(struct member_set *set)
{
	for (uint32_t i = 0; i < set->count; i++)
		set->events |= thc_shard_events(set->shards[i]);
}

static void
member_collect(struct drive *drive, struct th_err *err)
{
	for (uint32_t i = 0; i < drive->set->count; i++) {
		struct thc_op *op = drive->ops[i];
		if (!op || thc_op_done(op) == 0)
			continue;
		struct thc_result result = THC_RESULT_INIT;
		uint64_t done = 0;
		uint64_t total = 0;
		int rc = thc_op_wait(op, 0, &result);
		if (rc < 0 && drive->code == 0)
			drive->code = member_failed(rc, err);
		if (rc >= 0 && drive->results)
			drive->results[i] = result;
		if (thc_op_progress(op, &done, &total) >= 0)
			drive->ended_bytes += total;
		thc_op_free(op);
		drive->ops[i] = NULL;
		drive->running--;
	}
}

static void
member_show(const struct drive *drive, struct progress *progress)
{
	uint64_t done = drive->ended_bytes;
	uint64_t total = drive->ended_bytes;

	for (uint32_t i = 0; i < drive->set->count; i++) {
		uint64_t part_done = 0;
		uint64_t part_total = 0;
		if (drive->ops[i] && thc_op_progress(drive->ops[i], &part_done, &part_total) >= 0) {
			done += part_done;
			total += part_total;
		}
	}
	progress_draw(progress, done, total);
}

/* Until a signal, something of a shard, or timeout_ms. polls[set->count + 1] is room to work. */
static int
sleep_until_event(const struct member_set *set, const struct stop *stop, int timeout_ms,
	struct pollfd *polls, struct th_err *err)
{
	polls[0] = (struct pollfd){.fd = stop->fd, .events = POLLIN};
	for (uint32_t i = 0; i < set->count; i++)
		polls[i + 1] = (struct pollfd){.fd = thc_fd(set->shards[i]), .events = POLLIN};
	if (poll(polls, set->count + 1, timeout_ms) < 0 && errno != EINTR)
		return th_fail(err, -errno, "cannot wait for events: %s", strerror(errno));
	return 0;
}

static void
member_cancel(struct drive *drive)
{
	drive->cancelled = true;
	drive->patience_ns = th_now_ns() + CANCEL_NS;
	for (uint32_t i = 0; i < drive->set->count; i++) {
		/* A refusal means that it has ended or is beyond its GO: the end comes anyway. */
		if (drive->ops[i])
			(void)thc_op_cancel(drive->ops[i]);
	}
}

/*
 * Returns when all have ended. What has begun to move bytes runs on when it is cancelled: then that
 * the handle is closed ends it, which is the caller's next step.
 */
static void
drive_loop(struct drive *drive, struct stop *stop, struct progress *progress, struct pollfd *polls,
	struct th_err *err)
{
	/* Looked at in any case: an agent that froze ends no operation. */
	int look_ms =
		progress && progress->visible ? (int)(PROGRESS_PERIOD_NS / NS_PER_MS) : LOOK_MS;

	for (;;) {
		take_events(drive->set);
		member_collect(drive, err);
		if (drive->running == 0)
			return;
		if (stop_seen(stop) && !drive->cancelled)
			member_cancel(drive);
		if (drive->cancelled && th_now_ns() >= drive->patience_ns)
			return;
		if (progress)
			member_show(drive, progress);
		int rc = sleep_until_event(drive->set, stop, look_ms, polls, err);
		if (rc < 0) {
			drive->code = rc;
			return;
		}
	}
}

int
member_drive(struct member_set *set, struct stop *stop, struct thc_op **ops,
	struct progress *progress, struct thc_result *results, struct th_err *err)
{
	struct drive drive = {.set = set, .ops = ops, .results = results, .running = set->count};

	struct pollfd *polls = calloc((size_t)set->count + 1, sizeof(polls[0]));
	if (polls)
		drive_loop(&drive, stop, progress, polls, err);
	else
		drive.code = th_fail(err, -ENOMEM, "no memory to wait for %u shards", set->count);
	for (uint32_t i = 0; i < set->count; i++) {
		thc_op_free(ops[i]);
		ops[i] = NULL;
	}
	free(polls);
	if (stop_seen(stop) && (drive.code < 0 || drive.running > 0))
		return th_fail(err, TH_E_CANCELLED, "interrupted");
	return drive.code;
}

/* ---- holding -------------------------------------------------------------------------------- */

static int
judge_events(const struct thctl *ctl, uint32_t events, struct th_err *err)
{
	if (events & THC_EV_AT_RISK)
		thctl_say(
			"%s: a retained version is at risk: only hosts that may go have it, and no "
			"agent has memory to keep a copy, or it is lost; thctl events says which",
			ctl->verb->name);
	if (!(events & EVENTS_FATAL))
		return 0;
	if (events & THC_EV_AGENT_LOST)
		return th_fail(err, TH_E_AGENT_LOST,
			"the agent at %s is gone, and the copy with it; start it again (thagentd), "
			"then "
			"this command",
			ctl->runtime_dir);
	if (events & THC_EV_EVICTED)
		return th_fail(err, TH_E_EVICTED, "an operator or a drain took this replica out");
	if (events & THC_EV_GROUP_BROKEN)
		return th_fail(err, TH_E_GROUP_BROKEN, "another member of the replica is gone");
	if (events & THC_EV_VERSION_CONFLICT)
		return th_fail(err, TH_E_VERSION_CONFLICT,
			"the same version was published elsewhere with other content");
	return th_fail(err, TH_E_CONTRACT, "the published memory was changed");
}

/*
 * Serves what the shards hold until a signal comes (0) or holding has no sense any more (the
 * failure with its sentence).
 */
static int
hold_until_signal(
	const struct thctl *ctl, struct member_set *set, struct stop *stop, struct th_err *err)
{
	int rc = 0;

	struct pollfd *polls = calloc((size_t)set->count + 1, sizeof(polls[0]));
	if (!polls)
		return th_fail(err, -ENOMEM, "no memory to wait for %u shards", set->count);
	while (rc == 0 && !stop_seen(stop)) {
		take_events(set);
		/* First: who knows what was changed says more than the agent. */
		if (set->look)
			rc = set->look(set->look_arg, err);
		if (rc == 0)
			rc = judge_events(ctl, set->events, err);
		set->events = 0;
		if (rc == 0)
			rc = sleep_until_event(set, stop, LOOK_MS, polls, err);
	}
	/*
	 * Who ends a replica ends its members one after the other: this one may be about to be
	 * told. Then that another one is gone was no failure.
	 */
	if (rc == TH_E_GROUP_BROKEN && !stop_seen(stop)) {
		polls[0] = (struct pollfd){.fd = stop->fd, .events = POLLIN};
		(void)poll(polls, 1, SIBLINGS_MS);
	}
	if (stop_seen(stop))
		rc = 0;
	free(polls);
	return rc;
}

int
member_finish(const struct thctl *ctl, struct member_set *set, struct stop *stop, int status,
	bool hold, struct th_err *err)
{
	bool held = status == THCTL_OK && hold;

	if (held) {
		int rc = hold_until_signal(ctl, set, stop, err);
		/* It was reachable before: not the status of an agent that was never there. */
		if (rc < 0) {
			(void)thctl_fail(ctl, rc, err->text);
			status = THCTL_FAILED;
		}
	}
	for (uint32_t i = 0; i < set->count; i++) {
		member_close(ctl, set->shards[i], !held || status != THCTL_OK);
		set->shards[i] = NULL;
	}
	/*
	 * A first signal that comes now changes nothing: the work is done, or its failure was told.
	 * Who asked before and asks again while readers finish ends the process: its agent cleans
	 * up.
	 */
	return status;
}
