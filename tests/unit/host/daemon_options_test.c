/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of daemon/host/options_set: what each key takes, and that a refusal names key and value. */
#include <criterion/criterion.h>
#include <string.h>

#include "daemon/host/config/options_set.h"
#include "tests/support/keys_page.h"

static struct options options;
static struct th_err err;

static int
set(const char *key, const char *value)
{
	return options_set(&options, key, value, &err);
}

static void
reset(void)
{
	options_default(&options);
	err = (struct th_err){0};
}

TestSuite(daemon_options, .init = reset);

static void
refused(const char *key, const char *value, const char *word)
{
	cr_assert_eq(set(key, value), TH_E_INVALID, "%s=%s was taken", key, value);
	cr_assert(strstr(err.text, key), "no key in: %s", err.text);
	cr_assert(strstr(err.text, word), "no '%s' in: %s", word, err.text);
}

Test(daemon_options, admin_group__name_or_number)
{
	cr_assert_str_eq(options.admin_group, "");
	cr_assert_eq(set("admin.group", "ops"), 0);
	cr_assert_str_eq(options.admin_group, "ops");
	cr_assert_eq(set("admin.group", "4711"), 0);
	cr_assert_str_eq(options.admin_group, "4711");
	refused("admin.group", "", "1 to 63");
	refused("admin.group",
		"a-name-of-a-group-that-is-longer-than-any-which-the-system-would-take-for-one",
		"1 to 63");
}

Test(daemon_options, server__several__in_their_order)
{
	cr_assert_eq(set("server", "tcp://a:1,tls+tcp://[::1]:2"), 0);
	cr_assert_eq(options.num_servers, 2);
	cr_assert_str_eq(options.servers[0], "tcp://a:1");
	cr_assert_str_eq(options.servers[1], "tls+tcp://[::1]:2");
	cr_assert_eq(set("server", "tcp://b:1"), 0, "the later one wins");
	cr_assert_eq(options.num_servers, 1);
	cr_assert_str_eq(options.servers[0], "tcp://b:1");
}

Test(daemon_options, server__no_url__refused)
{
	refused("server", "nonsense", "nonsense");
	refused("server", "tcp://host", "tcp://host");
	refused("server", "ipc:///x:1", "ipc:///x:1");
	refused("server", "tcp://a:1,", "\"\"");
	refused("server", "", "1 to");
	refused("server",
		"tcp://a:1,tcp://a:2,tcp://a:3,tcp://a:4,tcp://a:5,tcp://a:6,tcp://a:7,tcp://a:8,"
		"tcp://a:9,tcp://a:10,tcp://a:11,tcp://a:12,tcp://a:13,tcp://a:14,tcp://a:15,"
		"tcp://a:16,tcp://a:17",
		"more than 16");
}

Test(daemon_options, server__none__is_asked_for_by_its_option)
{
	cr_assert_eq(options_check(&options, &err), TH_E_INVALID);
	cr_assert(strstr(err.text, "--server"), "%s", err.text);
}

static void
data(const char *value, const char *host, unsigned port)
{
	cr_assert_eq(set("data", value), 0, "%s: %s", value, err.text);
	cr_assert_str_eq(options.data_host, host);
	cr_assert_eq(options.data_port, port);
}

Test(daemon_options, data__host_and_port__in_every_form)
{
	data("10.0.0.1", "10.0.0.1", 0);
	data("10.0.0.1:7", "10.0.0.1", 7);
	data("node.example:65535", "node.example", 65535);
	data("[::1]:9", "::1", 9);
	data("[fe80::1]", "fe80::1", 0);
	data("fe80::1", "fe80::1", 0);
}

Test(daemon_options, data__nonsense__refused)
{
	refused("data", "host:65536", "65536");
	refused("data", "host:-1", "-1");
	refused("data", ":1", "host");
	refused("data", "[::1", "[::1");
	refused("data", "[::1]x", "[::1]x");
}

Test(daemon_options, transport__list__forbids_what_it_leaves_out)
{
	cr_assert(options.transport_local && options.transport_rdma && options.transport_tcp);
	cr_assert_not(options.transport_tcp_first);
	cr_assert_eq(set("transport", "tcp"), 0);
	cr_assert(!options.transport_local && !options.transport_rdma && options.transport_tcp);
	cr_assert_not(options.transport_tcp_first, "before nothing");
	cr_assert_eq(set("transport", "local"), 0);
	cr_assert(options.transport_local && !options.transport_rdma && !options.transport_tcp);
	cr_assert_eq(set("transport", "rdma"), 0);
	cr_assert(!options.transport_local && options.transport_rdma && !options.transport_tcp);
	cr_assert_eq(set("transport", "tcp,local,rdma"), 0);
	cr_assert(options.transport_tcp_first && options.transport_local && options.transport_rdma);
	cr_assert_eq(set("transport", "rdma,tcp,local"), 0);
	cr_assert_not(options.transport_tcp_first);
	refused("transport", "pigeon", "pigeon");
	refused("transport", "rdma,", "local,rdma,tcp");
	refused("transport", "", "1 to");
	cr_assert(options.transport_local && options.transport_tcp, "a refusal changes nothing");
}

Test(daemon_options, far__connections_and_transport)
{
	cr_assert_eq(options.far_connections, 0);
	cr_assert_eq(set("far.connections", "16"), 0);
	cr_assert_eq(options.far_connections, 16);
	refused("far.connections", "17", "17");
	cr_assert_eq(options.far_transport, OPTIONS_FAR_TCP);
	cr_assert_eq(set("far.transport", "auto"), 0);
	cr_assert_eq(options.far_transport, OPTIONS_FAR_AUTO);
	refused("far.transport", "local", "neither auto nor tcp nor rdma");
	cr_assert_eq(set("far.transport", "rdma"), 0);
	cr_assert_eq(set("server", "tcp://a:1"), 0);
	cr_assert_eq(set("node", "n"), 0);
	cr_assert_eq(options_check(&options, &err), 0, "%s", err.text);
	cr_assert_eq(set("transport", "local,tcp"), 0);
	cr_assert_eq(options_check(&options, &err), TH_E_INVALID);
	cr_assert(strstr(err.text, "far.transport=rdma"), "%s", err.text);
}

Test(daemon_options, later_features__refused_unless_they_change_nothing)
{
	refused("http", "0.0.0.0:80", "not built yet");
}

Test(daemon_options, spot__yes_or_no)
{
	cr_assert_not(options.spot);
	cr_assert_eq(set("spot", "yes"), 0);
	cr_assert(options.spot);
	cr_assert_eq(set("spot", "false"), 0);
	cr_assert_not(options.spot);
	refused("spot", "perhaps", "neither yes nor no");
	refused("spot", "", "neither yes nor no");
}

Test(daemon_options, offload_limit__a_size_or_half_of_what_is_there)
{
	cr_assert_eq(options.offload_limit, UINT64_MAX);
	cr_assert_eq(set("offload.limit", "3GiB"), 0);
	cr_assert_eq(options.offload_limit, UINT64_C(3) << 30);
	cr_assert_eq(set("offload_limit", "0"), 0);
	cr_assert_eq(options.offload_limit, 0);
	refused("offload.limit", "much", "much");
	refused("offload.limit", "18446744073709551615", "no size");
}

Test(daemon_options, numbers_and_durations__out_of_range__refused)
{
	refused("limit.sessions", "0", "0");
	refused("limit.tensors", "131073", "131072");
	refused("limit.sessions", "12x", "12x");
	refused("limit.sessions", " 12", " 12");
	refused("leg.stall", "1", "1");
	refused("leg.stall", "1ms", "50ms");
	refused("verify", "maybe", "maybe");
	cr_assert_eq(set("leg.stall", "2s"), 0);
	cr_assert_eq(options.stall_ns, 2000000000);
	cr_assert_eq(set("verify", "off"), 0);
	cr_assert_not(options.verify);
}

Test(daemon_options, rates_and_congestion__only_what_can_be)
{
	refused("rate.out", "fast", "fast");
	refused("rate.out", "9999999", "10MB");
	refused("rate.out.peer", "-1", "-1");
	cr_assert_eq(set("rate.out", "2GB"), 0);
	cr_assert_eq(set("rate.out.peer", "500MB"), 0);
	cr_assert_eq(options.rate_out, 2000000000);
	cr_assert_eq(options.rate_out_peer, 500000000);
	cr_assert_eq(set("rate.out", "0"), 0);
	cr_assert_eq(options.rate_out, 0);
	refused("tcp.congestion", "", "congestion control");
	refused("tcp.congestion", "../cubic", "../cubic");
	refused("tcp.congestion", "abcdefghijklmnop", "abcdefghijklmnop");
	cr_assert_eq(set("tcp.congestion", "bbr"), 0);
	cr_assert_str_eq(options.congestion, "bbr");
	refused("far.limit", "9999999", "10MB");
	cr_assert_eq(set("far.limit", "500MB"), 0);
	cr_assert_eq(options.far_limit, 500000000);
	refused("far.congestion", "../bbr", "../bbr");
	cr_assert_eq(set("far.congestion", "reno"), 0);
	cr_assert_str_eq(options.far_congestion, "reno");
	cr_assert_str_eq(options.congestion, "bbr", "it is another one");
	refused("tcp.engine", "select", "io_uring");
	cr_assert_eq(set("tcp.engine", "io_uring"), 0);
	cr_assert(options.io_uring);
	cr_assert_eq(set("tcp.engine", "auto"), 0);
	cr_assert_not(options.io_uring);
	refused("tcp.sendfile", "maybe", "auto");
	cr_assert_eq(set("tcp.sendfile", "yes"), 0);
	cr_assert(options.sendfile_set && options.sendfile);
	cr_assert_eq(set("tcp.sendfile", "auto"), 0);
	cr_assert_not(options.sendfile_set);
}

Test(daemon_options, rdma__mode_and_devices)
{
	cr_assert_eq(options.rdma.mode, OPTIONS_RDMA_AUTO);
	cr_assert_eq(set("rdma", "off"), 0);
	cr_assert_eq(options.rdma.mode, OPTIONS_RDMA_OFF);
	cr_assert_eq(set("rdma", "on"), 0);
	cr_assert_eq(options.rdma.mode, OPTIONS_RDMA_ON);
	refused("rdma", "yes", "neither auto nor on nor off");
	cr_assert_eq(set("rdma.devices", "mlx5_0,mlx5_1/2"), 0);
	cr_assert_str_eq(options.rdma.devices, "mlx5_0,mlx5_1/2");
	refused("rdma.devices", "mlx5_0,", "\"\" is no device");
	refused("rdma.devices", "mlx5_0:1", "mlx5_0:1");
	refused("rdma.devices", "a,a,a,a,a,a,a,a,a,a,a,a,a,a,a,a,a", "more than 16");
	cr_assert_str_eq(options.rdma.devices, "mlx5_0,mlx5_1/2");
	cr_assert_eq(set("rdma.rails", "node0=mlx5_0+mlx5_1/2,3b:00.0=mlx5_2,*=mlx5_3"), 0);
	cr_assert_str_eq(options.rdma.rails, "node0=mlx5_0+mlx5_1/2,3b:00.0=mlx5_2,*=mlx5_3");
	refused("rdma.rails", "node0:mlx5_0", "no =");
	refused("rdma.rails", "", "empty");
}

Test(daemon_options, rdma__numbers__only_what_can_be)
{
	cr_assert_eq(options.rdma.gid_index, -1, "chosen");
	cr_assert_eq(set("rdma.gid_index", "3"), 0);
	cr_assert_eq(options.rdma.gid_index, 3);
	refused("rdma.gid_index", "-1", "0 to 255");
	cr_assert_eq(set("rdma.mtu", "1024"), 0);
	cr_assert_eq(options.rdma.mtu, 1024);
	refused("rdma.mtu", "1500", "1500");
	refused("rdma.timeout", "0", "8 to 22");
	refused("rdma.slice", "100KiB,", "100KiB,");
	refused("rdma.slice", "65537", "4KiB");
	cr_assert_eq(set("rdma.slice", "128KiB"), 0);
	cr_assert_eq(options.rdma.slice, 128 << 10);
	cr_assert_eq(set("rdma.link_local", "yes"), 0);
	cr_assert(options.rdma.link_local);
	cr_assert_eq(options.rdma.stage, 512 << 20);
	cr_assert_eq(set("rdma.stage", "0"), 0);
	cr_assert_eq(options.rdma.stage, 0);
	cr_assert_eq(set("rdma.stage", "32MiB"), 0);
	cr_assert_eq(options.rdma.stage, 32 << 20);
	refused("rdma.stage", "31MiB", "neither 0 (none) nor a size from 32MiB to 1TiB");
	refused("rdma.stage", "-1", "nor a size");
	refused("rdma.nonsense", "1", "no key");
}

Test(daemon_options, gpu__keys)
{
	cr_assert(options.gpu.used && !options.gpu.digest_on_cpu);
	cr_assert_eq(options.gpu.staging_bytes, 256 << 20);
	cr_assert_eq(set("gpu", "off"), 0);
	cr_assert_not(options.gpu.used);
	cr_assert_eq(set("gpu", "auto"), 0);
	cr_assert(options.gpu.used);
	refused("gpu", "on", "neither auto nor off");
	refused("gpu", "", "neither auto nor off");
	cr_assert_eq(set("gpu.digest", "cpu"), 0);
	cr_assert(options.gpu.digest_on_cpu);
	cr_assert_eq(set("gpu.digest", "gpu"), 0);
	cr_assert_not(options.gpu.digest_on_cpu);
	refused("gpu.digest", "auto", "neither cpu nor gpu");
	cr_assert_eq(set("gpu.staging", "16MiB"), 0);
	cr_assert_eq(options.gpu.staging_bytes, 16 << 20);
	refused("gpu.staging", "15MiB", "no size from 16MiB to 1TiB");
	refused("gpu.staging", "0", "no size");
	refused("gpu.nonsense", "1", "no key");
}

Test(daemon_options, rdma__keys_that_do_not_go_together)
{
	cr_assert_eq(set("server", "tcp://a:1"), 0);
	cr_assert_eq(options_check(&options, &err), 0, "%s", err.text);
	cr_assert_eq(set("rdma.window", "64KiB"), 0);
	cr_assert_eq(options_check(&options, &err), TH_E_INVALID);
	cr_assert(strstr(err.text, "rdma.window is 64KiB and rdma.slice 256KiB"), "%s", err.text);
	cr_assert_eq(set("rdma.slice", "64KiB"), 0);
	cr_assert_eq(options_check(&options, &err), 0, "%s", err.text);
	cr_assert_eq(set("rdma", "on"), 0);
	cr_assert_eq(options_check(&options, &err), 0, "%s", err.text);
	cr_assert_eq(set("transport", "local,tcp"), 0);
	cr_assert_eq(options_check(&options, &err), TH_E_INVALID);
	cr_assert(strstr(err.text, "rdma=on"), "%s", err.text);
	cr_assert_eq(set("rdma", "auto"), 0);
	cr_assert_eq(options_check(&options, &err), 0, "%s", err.text);
}

Test(daemon_options, every_key__is_known_to_the_setter)
{
	for (const char *const *key = options_keys; *key; key++) {
		(void)set(*key, "?");
		cr_assert_not(strstr(err.text, "there is no key"), "%s", *key);
	}
	refused("no.such", "1", "no key");
}

static struct options before;

static void
reset_page(void)
{
	reset();
	memcpy(&before, &options, sizeof(before));
}

static int
set_page(const char *key, const char *value, struct th_err *page_err)
{
	return options_set(&options, key, value, page_err);
}

static bool
unset(void)
{
	return memcmp(&before, &options, sizeof(before)) == 0;
}

Test(daemon_options, page__has_every_key_with_default_and_range)
{
	keys_page_check(
		&(struct keys_page){"KEYS OF THAGENTD", options_keys, reset_page, set_page, unset});
}
