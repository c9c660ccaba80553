/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of server/host/options: its keys are on their page, with what each takes. */
#include "server/host/server_options.c" /* what sets a key is not seen from outside */

#include <criterion/criterion.h>
#include <string.h>

#include "tests/support/keys_page.h"

static struct options before, after;

static void
reset(void)
{
	memset(&after, 0, sizeof(after));
	refsrv_config_default(&after.core);
	net_server_options_default(&after.net);
	memcpy(after.listen[0], LISTEN_DEFAULT, sizeof(LISTEN_DEFAULT));
	after.num_listen = 1;
	memcpy(&before, &after, sizeof(before));
}

static int
set(const char *key, const char *value, struct th_err *err)
{
	return set_named(&after, key, value, err);
}

static bool
unset(void)
{
	return memcmp(&before, &after, sizeof(before)) == 0;
}

Test(server_options, page__has_every_key_with_default_and_range)
{
	keys_page_check(&(struct keys_page){"KEYS OF THSERVERD", keys, reset, set, unset});
}
