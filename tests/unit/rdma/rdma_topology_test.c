/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of transport/rdma/place and topology: on hosts of topology/ (make.py there says
 * what each is), which rails serve which memory.
 */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "ipc/base/log.h"
#include "transport/rdma/device/topology.h"

#define FOLDER TH_SOURCE_ROOT "/tests/unit/rdma/topology/"
#define RAILS_MAX 9

static struct place_rules rules;
static struct topology *topology;

static void
quiet(void)
{
	log_set_level(LOG_LEVEL_ERROR);
}

static void
done(void)
{
	topology_free(topology);
	place_free(&rules);
	topology = NULL;
}

TestSuite(rdma_topology, .init = quiet, .fini = done);

/* mlx5_0 .. mlx5_N as ports, without their PCI addresses, as hwloc knows the devices by name. */
static void
host(const char *name, uint32_t num_rails, const char *rules_text)
{
	static struct topology_rail rails[RAILS_MAX];
	char path[256];
	struct th_err err = {0};
	for (uint32_t i = 0; i < num_rails; i++)
		snprintf(rails[i].name, sizeof(rails[i].name), "mlx5_%u/1", i);
	snprintf(path, sizeof(path), FOLDER "%s.xml", name);
	cr_assert_eq(place_parse(rules_text, &err, &rules), 0, "%s", err.text);
	topology = topology_new(&(struct topology_config){rails, num_rails, &rules, path});
	cr_assert_str_eq(topology_why(topology), "", "%s", name);
}

static uint32_t
gpu(const char *address)
{
	uint32_t pci;
	cr_assert(place_pci(address, &pci), "%s", address);
	return topology_near_pci(topology, pci);
}

static void
refused(const char *text, const char *word)
{
	struct th_err err = {0};
	cr_assert_eq(place_parse(text, &err, &rules), TH_E_INVALID, "%s was taken", text);
	cr_assert(strstr(err.text, word), "no '%s' in: %s", word, err.text);
	cr_assert_null(rules.rules);
}

/* ---- the operator's text -------------------------------------------------------------------- */

Test(rdma_topology, pci_address__with_and_without_domain)
{
	uint32_t pci = 0;
	cr_assert(place_pci("0000:3b:00.0", &pci) && pci == 0x3b00);
	cr_assert(place_pci("3B:1f.7", &pci) && pci == 0x3bff);
	cr_assert(place_pci("0001:00:02.1", &pci) && pci == 0x10011);
	const char *const none[] = {"", "3b", "3b:00", "3b:20.0", "3b:00.8", "3b:00.0 ", "3b:00.",
		"00000:3b:00.0", "3b:000.0", "x:3b:00.0", ":3b:00.0", "0:0:0:0"};
	for (size_t i = 0; i < TH_ARRAY_LEN(none); i++)
		cr_assert_not(place_pci(none[i], &pci), "%s", none[i]);
}

Test(rdma_topology, rail_name__a_device_or_a_port_of_it)
{
	cr_assert(place_rail_valid("mlx5_0") && place_rail_valid("rocep1s0f0/2"));
	cr_assert(place_rail_valid("a/255"));
	const char *const none[] = {"", "/1", "mlx5_0/", "mlx5_0/0", "mlx5_0/256", "mlx5_0/1/1",
		"mlx5_0/01", "mlx 5", "a+b", "mlx5_0/+1",
		"a234567890123456789012345678901234567890123456789012345678901234"};
	for (size_t i = 0; i < TH_ARRAY_LEN(none); i++)
		cr_assert_not(place_rail_valid(none[i]), "%s", none[i]);
	cr_assert(place_rail_is("mlx5_1", "mlx5_1/1") && place_rail_is("mlx5_1/1", "mlx5_1/1"));
	cr_assert_not(place_rail_is("mlx5_1", "mlx5_10/1"));
	cr_assert_not(place_rail_is("mlx5_1/1", "mlx5_1/11"));
	cr_assert_not(place_rail_is("mlx5_1/2", "mlx5_1/1"));
}

Test(rdma_topology, rules__what_is_none__is_named)
{
	refused("node0", "node0");
	refused("node0=", "no device");
	refused("node0=a,", "no =");
	refused("nodes=a", "nodes");
	refused("node1024=a", "node1024");
	refused("=a", "no place");
	refused("node0=a+", "no device");
	refused("node0=a,node0=b", "twice");
	refused("3b:00.0=a,0000:3b:00.0=b", "twice");
	refused("*=a,*=b", "twice");
	refused("node0 =a", "node0 ");
	refused("*=a+a+a+a+a+a+a+a+a+a+a+a+a+a+a+a+a", "more than 16");
	char many[1024] = "";
	for (int i = 0; i < 65; i++)
		snprintf(many + strlen(many), sizeof(many) - strlen(many), "%snode%d=a",
			i ? "," : "", i);
	refused(many, "more than 64");
}

/* ---- hosts ---------------------------------------------------------------------------------- */

Test(rdma_topology, two_gpus_and_a_nic_a_switch__each_gpu_has_its_switchs)
{
	host("gpus8_nics4", 4, "");
	const char *const gpus[] = {"02:00.0", "03:00.0", "07:00.0", "08:00.0", "0c:00.0",
		"0d:00.0", "11:00.0", "12:00.0"};
	for (uint32_t i = 0; i < 8; i++)
		cr_assert_eq(gpu(gpus[i]), 1u << i / 2, "gpu %u: %x", i, gpu(gpus[i]));
	cr_assert_eq(topology_near_node(topology, 0), 0x3);
	cr_assert_eq(topology_near_node(topology, 1), 0xc);
	cr_assert_eq(topology_near_any(topology), 0xf);
	cr_assert_eq(topology_node(topology, 1), 0);
	cr_assert_eq(topology_node(topology, 2), 1);
	cr_assert_eq(gpu("ff:00.0"), 0xf, "no such GPU");
	cr_assert_eq(topology_near_node(topology, 7), 0xf, "no such node");
}

Test(rdma_topology, a_gpu_and_its_nic_a_switch__not_the_nic_for_storage)
{
	host("gpus8_nics8", 9, "");
	const char *const gpus[] = {"02:00.0", "06:00.0", "0a:00.0", "0e:00.0", "16:00.0",
		"1a:00.0", "1e:00.0", "22:00.0"};
	for (uint32_t i = 0; i < 8; i++)
		cr_assert_eq(gpu(gpus[i]), 1u << i, "gpu %u: %x", i, gpu(gpus[i]));
	cr_assert_eq(topology_near_node(topology, 0), 0x10f);
	cr_assert_eq(topology_near_node(topology, 1), 0xf0);
	/* Not all devices are to be had: the GPUs of the others take what is nearest to them. */
	done();
	host("gpus8_nics8", 2, "");
	cr_assert_eq(gpu("02:00.0"), 0x1);
	cr_assert_eq(gpu("0a:00.0"), 0x3, "the other two of its processor");
	cr_assert_eq(gpu("22:00.0"), 0x3, "none is nearer than another");
}

Test(rdma_topology, two_nics_behind_the_gpus_switch__striped_over_both)
{
	host("gpus8_shared", 8, "");
	cr_assert_eq(gpu("02:00.0"), 0x3);
	cr_assert_eq(gpu("03:00.0"), 0x3);
	cr_assert_eq(gpu("09:00.0"), 0xc);
	cr_assert_eq(gpu("0f:00.0"), 0x10, "the inner switch is nearer than the outer one");
	cr_assert_eq(gpu("1a:00.0"), 0x80);
}

Test(rdma_topology, nodes_within_a_processor__the_nearest_of_each)
{
	host("sockets2", 2, "");
	cr_assert_eq(topology_near_node(topology, 0), 0x1);
	cr_assert_eq(topology_near_node(topology, 1), 0x3, "its processor's, equally far");
	cr_assert_eq(topology_near_node(topology, 2), 0x3);
	cr_assert_eq(gpu("05:00.0"), 0x3, "across the processors");
	cr_assert_eq(topology_node(topology, 0), 0);
	cr_assert_eq(topology_node(topology, 1), TOPOLOGY_NODE_NONE, "of both its nodes");
}

Test(rdma_topology, flat_virtual_machine__all)
{
	host("flat", 2, "");
	cr_assert_eq(topology_near_node(topology, 0), 0x3);
	cr_assert_eq(gpu("03:00.0"), 0x3);
	cr_assert_eq(topology_near_memory(topology, rules.rules, 1), 0x3);
	cr_assert_eq(topology_node(topology, 0), TOPOLOGY_NODE_NONE);
}

Test(rdma_topology, rail_on_no_bus__as_far_as_can_be)
{
	static const struct topology_rail rails[] = {
		{"mlx5_0/1", "0000:01:00.0"}, {"rxe0/1", ""}, {"siw9/1", ""}};
	const char *path = FOLDER "no_bus.xml";
	topology = topology_new(&(struct topology_config){rails, 3, NULL, path});
	cr_assert_eq(topology_near_node(topology, 1), 0x1);
	cr_assert_eq(topology_near_node(topology, 0), 0x7, "none of them is near");
	topology_free(topology);
	topology = topology_new(&(struct topology_config){rails + 1, 2, NULL, path});
	cr_assert_eq(topology_near_node(topology, 0), 0x3);
	cr_assert_eq(topology_near_node(topology, 1), 0x3);
	cr_assert_eq(topology_node(topology, 0), TOPOLOGY_NODE_NONE);
}

Test(rdma_topology, pci_address__wins_over_the_name)
{
	static const struct topology_rail rails[] = {
		{"a/1", "0000:04:00.0"}, {"mlx5_0/1", "0000:13:00.0"}};
	const char *path = FOLDER "gpus8_nics4.xml";
	topology = topology_new(&(struct topology_config){rails, 2, NULL, path});
	cr_assert_eq(gpu("02:00.0"), 0x1);
	cr_assert_eq(gpu("12:00.0"), 0x2);
}

Test(rdma_topology, operator__knows_better)
{
	host("gpus8_nics4", 4, "node0=mlx5_1,02:00.0=mlx5_0+mlx5_2/1+mlx5_3/2,node1=mlx5_7");
	cr_assert_eq(topology_near_node(topology, 0), 0x2);
	cr_assert_eq(topology_near_node(topology, 1), 0, "named, and not there");
	cr_assert_eq(gpu("02:00.0"), 0x5);
	cr_assert_eq(gpu("03:00.0"), 0x1, "not named: as it is");
	cr_assert_eq(topology_near_any(topology), 0xf);
	topology_log(topology);
	done();
	host("gpus8_nics4", 4, "*=mlx5_3,node0=mlx5_0");
	cr_assert_eq(topology_near_node(topology, 0), 0x1);
	cr_assert_eq(topology_near_node(topology, 1), 0x8);
	cr_assert_eq(gpu("02:00.0"), 0x8);
	cr_assert_eq(topology_near_any(topology), 0x8);
}

Test(rdma_topology, memory__by_where_its_pages_are)
{
	size_t bytes = 1 << 20;
	char *data = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	cr_assert_neq(data, MAP_FAILED);
	host("gpus8_nics4", 4, "*=mlx5_3,node0=mlx5_0,node1=mlx5_0");
	cr_assert_eq(topology_near_memory(topology, data, bytes), 0x8, "never touched");
	cr_assert_eq(topology_near_memory(topology, data, 0), 0x8);
	memset(data, 1, bytes);
	/* The host of this test may have more nodes, and a container may forbid the question. */
	uint32_t near = topology_near_memory(topology, data + 5, bytes - 5);
	cr_assert(near == 0x1 || near == 0x8, "%x", near);
	munmap(data, bytes);
}

Test(rdma_topology, hwloc_knows_nothing__all_and_why)
{
	static const struct topology_rail rails[] = {{"a/1", ""}, {"b/1", ""}};
	topology = topology_new(&(struct topology_config){rails, 2, NULL, FOLDER "none.xml"});
	cr_assert_neq(topology_why(topology)[0], '\0');
	cr_assert_eq(topology_near_node(topology, 0), 0x3);
	topology_log(topology);
	topology_free(topology);
	topology = topology_new(&(struct topology_config){rails, 0, NULL, NULL});
	cr_assert_eq(topology_near_any(topology), 0);
	topology_free(topology);
	/* This very host. */
	topology = topology_new(&(struct topology_config){rails, 2, NULL, NULL});
	cr_assert_eq(topology_near_node(topology, 0), 0x3);
}
