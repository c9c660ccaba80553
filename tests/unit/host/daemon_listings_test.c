/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon_listings_test - what a LIST of many askers costs the server, how old an answer may be, and
 * what becomes of askers and parts when the server, the asker or time goes.
 */
#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/host/server/listing_cache.h"
#include "ipc/base/err.h"
#include "ipc/proto/convert.h"

#define SEC INT64_C(1000000000)
#define ASKERS_MAX 1100u

struct answer { /* of the agent to an asker */
	uint32_t times;
	int code;
	uint64_t request_no, generation;
	struct ctl_page page;
	uint32_t num_replicas;
	char first_replica[8];
};

struct asked { /* of the server */
	struct ctl_request request;
	listings_answered answered;
	void *ctx;
};

static struct listings *listings;
static struct answer answers[ASKERS_MAX];
static struct asked asked[64];
static uint32_t num_asked, num_replied;
static int64_t now_ns;

static void
on_ask(void *arg, const struct ctl_request *request, int64_t timeout_ns, listings_answered answered,
	void *ctx)
{
	(void)arg;
	cr_assert_gt(timeout_ns, 0);
	cr_assert_lt(num_asked, 64);
	asked[num_asked++] = (struct asked){*request, answered, ctx};
}

static void
on_send(void *arg, uint64_t token, const uint8_t *data, size_t bytes)
{
	struct convert_arena arena = {0};
	struct ctl_reply reply;
	struct th_err err;
	struct answer *answer = &answers[token];

	(void)arg;
	cr_assert_eq(ctl_reply_unpack(data, bytes, CTL_LIST, &arena, &err, &reply), 0);
	answer->times++;
	answer->request_no = reply.request_no;
	answer->generation = reply.u.list.generation;
	answer->page = reply.u.list.page;
	answer->num_replicas = 0;
	for (uint32_t v = 0; v < reply.u.list.num_versions; v++)
		answer->num_replicas += reply.u.list.versions[v].num_replicas;
	if (answer->num_replicas > 0)
		strcpy(answer->first_replica, reply.u.list.versions[0].replicas[0].name);
	convert_arena_free(&arena);
}

static void
on_refuse(void *arg, uint64_t token, uint64_t request_no, int code, const char *text)
{
	(void)arg;
	cr_assert_gt(strlen(text), 15);
	answers[token].times++;
	answers[token].code = code;
	answers[token].request_no = request_no;
}

static void
setup(void)
{
	const struct listings_io io = {.ask = on_ask, .send = on_send, .refuse = on_refuse};

	listings = listings_new(&io);
	listings_server(listings, true, 1, "");
	memset(answers, 0, sizeof(answers));
	num_asked = num_replied = 0;
	now_ns = 100 * SEC;
}

static void
teardown(void)
{
	listings_free(listings);
}

TestSuite(daemon_listings, .init = setup, .fini = teardown);

static void
ask_page(uint64_t token, uint64_t generation, struct ctl_page page)
{
	struct ctl_list list = {.generation = generation, .page = page};

	strcpy(list.model, "m");
	listings_ask(listings, now_ns, token, 1000 + token, &list, 4 * SEC);
}

static void
ask(uint64_t token, uint64_t generation)
{
	ask_page(token, generation, (struct ctl_page){0});
}

static void
reply(const struct ctl_reply *with)
{
	cr_assert_lt(num_replied, num_asked);
	const struct asked *one = &asked[num_replied++];
	one->answered(one->ctx, 0, with);
}

/* The server's answer to its oldest open question: a part with one replica named so. */
static void
reply_part(uint64_t generation, struct ctl_page page, const char *name)
{
	struct ctl_replica_info replica = {.num_shards = 1};
	struct ctl_version_info version = {
		.version = {0, 7}, .num_replicas = 1, .replicas = &replica};
	struct ctl_reply with = {.kind = CTL_LIST, .request_no = 5};

	strcpy(replica.name, name);
	strcpy(replica.datacenter, "dc");
	with.u.list = (struct ctl_listing){
		.generation = generation, .num_versions = 1, .versions = &version, .page = page};
	reply(&with);
}

static void
reply_all(uint64_t generation)
{
	reply_part(generation, (struct ctl_page){0}, "r");
}

static void
reply_code(int code)
{
	struct ctl_reply with = {.kind = CTL_LIST, .code = code};

	strcpy(with.text, "the server says that it cannot");
	reply(&with);
}

static void
expect(uint64_t token, int code, uint64_t generation)
{
	cr_assert_eq(answers[token].times, 1, "%d times", (int)answers[token].times);
	cr_assert_eq(answers[token].code, code, "code %d", answers[token].code);
	cr_assert_eq(answers[token].request_no, 1000 + token);
	cr_assert_eq(answers[token].generation, generation);
}

Test(daemon_listings, many__at_once__two_questions)
{
	for (uint64_t i = 0; i < 1000; i++)
		ask(i, 0);
	cr_assert_eq(num_asked, 1);
	reply_all(10);
	expect(0, 0, 10);
	cr_assert_eq(answers[1].times, 0, "what was begun before the question may be older");
	cr_assert_eq(num_asked, 2);
	reply_all(11);
	for (uint64_t i = 1; i < 1000; i++)
		expect(i, 0, 11);
	cr_assert_eq(num_asked, 2);
}

Test(daemon_listings, many__that_know_of_a_change__one_question)
{
	for (uint64_t i = 0; i < 500; i++)
		ask(i, 12);
	reply_all(12);
	for (uint64_t i = 500; i < 1000; i++)
		ask(i, i % 2 == 0 ? 12 : 9);
	cr_assert_eq(num_asked, 1);
	for (uint64_t i = 0; i < 1000; i++)
		expect(i, 0, 12);
	/* The next change: what is kept is too old for it. */
	ask(1000, 13);
	cr_assert_eq(answers[1000].times, 0);
	reply_all(14);
	expect(1000, 0, 14);
	/* And who knows nothing wants what is now. */
	ask(1001, 0);
	cr_assert_eq(num_asked, 3);
	reply_all(14);
	expect(1001, 0, 14);
}

Test(daemon_listings, fetch__begun_before_the_change__is_not_given)
{
	ask(0, 0);
	ask(1, 21);
	reply_all(20);
	expect(0, 0, 20);
	cr_assert_eq(answers[1].times, 0);
	reply_all(21);
	expect(1, 0, 21);
}

Test(daemon_listings, generation__of_nobody__asks_once)
{
	ask(0, UINT64_MAX);
	reply_all(20);
	cr_assert_eq(num_asked, 2);
	reply_all(20);
	expect(0, 0, 20);
	cr_assert_eq(num_asked, 2);
}

Test(daemon_listings, parts__to_two_askers__are_fetched_once)
{
	ask(0, 5);
	ask(1, 5);
	reply_part(5, (struct ctl_page){77, 1}, "a");
	cr_assert_eq(asked[1].request.u.list.page.snapshot, 77);
	cr_assert_eq(asked[1].request.u.list.page.next, 1);
	cr_assert_eq(answers[0].times, 0, "before all of it is there");
	reply_part(5, (struct ctl_page){77, 2}, "b");
	reply_part(5, (struct ctl_page){77, 0}, "c");
	cr_assert_eq(num_asked, 3);
	struct ctl_page first = answers[0].page;
	cr_assert_neq(first.snapshot, 0);
	cr_assert_eq(answers[1].page.snapshot, first.snapshot);
	/* A new listing does not disturb who reads the old one. */
	ask(2, 6);
	reply_all(6);
	for (uint64_t token = 0; token < 2; token++) {
		cr_assert_str_eq(answers[token].first_replica, "a");
		ask_page(token, 0, answers[token].page);
		cr_assert_str_eq(answers[token].first_replica, "b");
		ask_page(token, 0, answers[token].page);
		cr_assert_str_eq(answers[token].first_replica, "c");
		cr_assert_eq(answers[token].page.next, 0);
		cr_assert_eq(answers[token].generation, 5);
		cr_assert_eq(answers[token].times, 3);
	}
	cr_assert_eq(num_asked, 4);
	/* Numbers that are none, then one whose time is over. */
	ask_page(3, 0, (struct ctl_page){first.snapshot, 3});
	expect(3, TH_E_NOT_AVAILABLE, 0);
	ask_page(4, 0, (struct ctl_page){first.snapshot + 9, 1});
	expect(4, TH_E_NOT_AVAILABLE, 0);
	now_ns += 11 * SEC;
	listings_tick(listings, now_ns);
	ask_page(5, 0, first);
	expect(5, TH_E_NOT_AVAILABLE, 0);
}

Test(daemon_listings, snapshot__lost_at_the_server__begins_again_a_few_times)
{
	ask(0, 0);
	for (int i = 0; i < 2; i++) {
		reply_part(5, (struct ctl_page){77, 1}, "a");
		reply_code(TH_E_NOT_AVAILABLE);
		cr_assert_eq(asked[num_asked - 1].request.u.list.page.snapshot, 0);
	}
	reply_part(6, (struct ctl_page){78, 1}, "b");
	reply_part(6, (struct ctl_page){78, 0}, "c");
	expect(0, 0, 6);
	cr_assert_str_eq(answers[0].first_replica, "b");
	ask(1, 0);
	while (answers[1].times == 0) {
		reply_part(7, (struct ctl_page){77, 1}, "a");
		reply_code(TH_E_NOT_AVAILABLE);
	}
	expect(1, TH_E_NOT_AVAILABLE, 0);
}

Test(daemon_listings, parts__that_do_not_fit__are_refused)
{
	ask(0, 0);
	reply_part(5, (struct ctl_page){77, 1}, "a");
	reply_part(6, (struct ctl_page){77, 2}, "b");
	expect(0, TH_E_PROTOCOL, 0);
	ask(1, 0);
	reply_part(5, (struct ctl_page){77, 3}, "a");
	expect(1, TH_E_PROTOCOL, 0);
	ask(2, 0);
	reply_code(TH_E_DENIED);
	expect(2, TH_E_DENIED, 0);
}

Test(daemon_listings, server__gone__all_are_told)
{
	ask(0, 0);
	ask(1, 0);
	listings_server(listings, false, 1, "the reference server does not answer");
	expect(0, TH_E_NO_SERVER, 0);
	expect(1, TH_E_NO_SERVER, 0);
	ask(2, 0);
	expect(2, TH_E_NO_SERVER, 0);
	/* Another one: the answer of the old one is for nobody, its generations mean nothing. */
	listings_server(listings, true, 2, "");
	ask(3, 0);
	cr_assert_eq(num_asked, 1);
	reply_all(500);
	cr_assert_eq(answers[3].times, 0);
	cr_assert_eq(num_asked, 2);
	reply_all(3);
	expect(3, 0, 3);
	ask(4, 2);
	expect(4, 0, 3);
	listings_server(listings, true, 3, "");
	ask(5, 2);
	cr_assert_eq(answers[5].times, 0, "it was fetched from another server");
	reply_all(9);
	expect(5, 0, 9);
}

Test(daemon_listings, server__silent__ends_at_the_deadline)
{
	ask(0, 0);
	now_ns += SEC;
	ask(1, 0);
	cr_assert_eq(listings_tick(listings, now_ns), 104 * SEC);
	now_ns = 104 * SEC;
	cr_assert_eq(listings_tick(listings, now_ns), 105 * SEC);
	expect(0, TH_E_TIMEOUT, 0);
	cr_assert_eq(answers[1].times, 0);
	/* No answer at all: who came later gets a question of its own. */
	num_replied++;
	asked[0].answered(asked[0].ctx, -ETIMEDOUT, NULL);
	cr_assert_eq(num_asked, 2);
	reply_all(4);
	expect(1, 0, 4);
}

Test(daemon_listings, asker__gone__is_forgotten)
{
	ask(0, 0);
	ask(1, 0);
	ask(2, 0);
	listings_forget_token(listings, 0);
	listings_forget_token(listings, 1);
	reply_all(4);
	reply_all(5);
	cr_assert_eq(answers[0].times, 0);
	cr_assert_eq(answers[1].times, 0);
	expect(2, 0, 5);
}

Test(daemon_listings, models__very_many__stay_bounded)
{
	struct ctl_list list = {0};

	for (uint32_t i = 0; i < 1024; i++) {
		snprintf(list.model, sizeof(list.model), "m%u", i);
		num_asked = num_asked == 64 ? 0 : num_asked;
		listings_ask(listings, now_ns, i, 1, &list, SEC);
	}
	strcpy(list.model, "one more");
	listings_ask(listings, now_ns, 1024, 1, &list, SEC);
	cr_assert_eq(answers[1024].code, TH_E_LIMIT);
}

Test(daemon_listings, idle__nothing_is_kept)
{
	ask(0, 0);
	reply_all(4);
	listings_tick(listings, now_ns);
	now_ns = 109 * SEC;
	cr_assert_eq(listings_tick(listings, now_ns), 110 * SEC);
	now_ns = 110 * SEC;
	cr_assert_eq(listings_tick(listings, now_ns), INT64_MAX);
	ask(1, 4);
	cr_assert_eq(num_asked, 2);
	reply_all(4);
	expect(1, 0, 4);
}
