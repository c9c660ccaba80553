/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libthc_ended_test - a session that the agent ends because its worker broke the contract: what
 * every call answers then. The agent is scripted.
 */
#include "tests/unit/libthc/libthc_fixture.h"

TestSuite(libthc_ended, .init = setup_registered, .fini = teardown_memory, .timeout = 60);

Test(libthc_ended, contract__every_call_but_close_says_so_and_the_event_comes_once)
{
	const struct thc_tensor tensor = {"w", memory, 24, THC_F32, THC_HOST, 2, {2, 3}, {0}, {0}};
	struct thc_listing *listing = NULL;
	struct thc_manifest *manifest = NULL;
	const struct thc_manifest *lent = NULL;
	struct thc_op *op = NULL;
	uint64_t version;
	char path[64];

	fake_agent_lock(&agent);
	agent.line.held_version = 3;
	agent.line.safe_to_mutate = 1;
	fake_agent_end(&agent, THC_E_CONTRACT, "tensor w was changed");
	fake_agent_unlock(&agent);
	cr_assert_eq(thc_held_version(shard, NULL, &version), THC_E_CONTRACT);
	cr_assert_str_eq(thc_errmsg(), "tensor w was changed");
	cr_assert_eq(thc_ready_version(shard, NULL, &version), THC_E_CONTRACT);
	cr_assert_eq(thc_publish(shard, 4, SOON), THC_E_CONTRACT);
	cr_assert_eq(thc_unpublish(shard, 0, SOON), THC_E_CONTRACT);
	cr_assert_eq(thc_update(shard, "latest", SOON, NULL), THC_E_CONTRACT);
	cr_assert_eq(thc_list(shard, 0, SOON, &listing), THC_E_CONTRACT);
	cr_assert_eq(thc_unregister(shard, SOON), THC_E_CONTRACT);
	cr_assert_eq(thc_resolve(shard, SOON, NULL), THC_E_CONTRACT);
	cr_assert_eq(thc_replicate(shard, "latest", SOON, NULL), THC_E_CONTRACT);
	cr_assert_eq(thc_publish_submit(shard, 4, SOON, &op), THC_E_CONTRACT);
	cr_assert_eq(thc_unpublish_submit(shard, 0, SOON, &op), THC_E_CONTRACT);
	cr_assert_eq(thc_replicate_submit(shard, "latest", SOON, &op), THC_E_CONTRACT);
	cr_assert_eq(thc_update_submit(shard, "latest", SOON, &op), THC_E_CONTRACT);
	cr_assert_eq(thc_watch_submit(shard, 1, SOON, &op), THC_E_CONTRACT);
	cr_assert_eq(thc_list_submit(shard, THC_LIST_GROUP, SOON, &op), THC_E_CONTRACT);
	cr_assert_eq(thc_set_attribute(shard, "a", "b", 1), THC_E_CONTRACT);
	cr_assert_eq(thc_get_manifest(shard, "latest", 0, SOON, &manifest), THC_E_CONTRACT);
	cr_assert_eq(thc_borrow(shard, "latest", 0, 0, SOON, &lent), THC_E_CONTRACT);
	cr_assert_eq(thc_follow(shard, "latest", 0, SOON), THC_E_CONTRACT);
	cr_assert_eq(thc_follow_submit(shard, "latest", 0, SOON, &op), THC_E_CONTRACT);
	cr_assert_eq(thc_go(shard, 1, SOON), THC_E_CONTRACT);
	cr_assert_eq(thc_wait(shard, never, NULL, SOON), THC_E_CONTRACT);
	cr_assert_eq(thc_memory_path(shard, "w", path, sizeof(path)), THC_E_CONTRACT);
	cr_assert_eq(thc_register(shard, &tensor, 1, sizeof(tensor), SOON), THC_E_CONTRACT);
	cr_assert_str_eq(thc_errmsg(), "tensor w was changed");
	cr_assert_eq(thc_shard_events(shard), THC_EV_CONTRACT);
	cr_assert_eq(thc_shard_events(shard), 0);
	cr_assert_eq(thc_safe_to_mutate(shard), 1);
	cr_assert_eq(thc_close(shard, 0, SOON), 0, "%s", thc_errmsg());
	shard = NULL;
}

/* The agent answers what runs; the thread that waits for it has read the end of the session. */
Test(libthc_ended, contract__while_an_operation_runs__its_own_answer)
{
	struct thc_op *op;

	fake_agent_lock(&agent);
	agent.operation = FAKE_HOLD;
	fake_agent_unlock(&agent);
	cr_assert_eq(thc_replicate_submit(shard, "latest", THC_FOREVER, &op), 0);
	cr_assert_eq(thc_op_done(op), 0);
	fake_agent_lock(&agent);
	while (agent.submissions == 0)
		pthread_cond_wait(&agent.changed, &agent.lock);
	fake_agent_end(&agent, THC_E_CONTRACT, "tensor w was changed");
	fake_agent_release(&agent, THC_E_CONTRACT, "tensor w was changed");
	fake_agent_unlock(&agent);
	cr_assert_eq(thc_op_wait(op, SOON, NULL), THC_E_CONTRACT);
	cr_assert_eq(thc_op_done(op), THC_E_CONTRACT);
	thc_op_free(op);
	cr_assert_eq(thc_shard_events(shard), THC_EV_CONTRACT);
}
