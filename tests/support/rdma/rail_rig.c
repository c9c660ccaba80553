/* SPDX-License-Identifier: Apache-2.0 */
/* rail_rig - see rail_rig.h. */
#include "tests/support/rdma/rail_rig.h"

#include <stdlib.h>
#include <string.h>

#include "ipc/base/assert.h"

/* ---- nodes --------------------------------------------------------------------------------- */

static void
post(void *arg, struct loop_task *task)
{
	struct rail_node *node = arg;
	if (task->queued)
		return;
	task->queued = true;
	task->next = NULL;
	*node->tail = task;
	node->tail = &task->next;
}

static int64_t
now_ns(void *arg)
{
	return fake_rdma_now(((struct rail_node *)arg)->rig->fake);
}

void
rail_node_free_qps(struct rail_node *node)
{
	for (uint32_t n = 0; n < node->num_unfreed; n++) {
		struct lane *lane = node->held[n];
		for (uint32_t i = 0; i < lane->num_qps; i++)
			TH_ASSERT(node->verbs.ops->qp_free(lane->qps[i].qp) == 0);
		post(node, &lane->freed_task);
	}
	node->num_unfreed = 0;
}

static void
free_qps(void *arg, struct lane *lane)
{
	struct rail_node *node = arg;
	TH_ASSERT(node->num_unfreed < RAIL_LANES_MAX);
	node->held[node->num_unfreed++] = lane;
}

static const struct rail_around around = {.post = post, .now_ns = now_ns, .free_qps = free_qps};

struct rail_node *
rail_rig_node(struct rail_rig *rig, const struct rail_node_config *config)
{
	struct rail_node_config own = config ? *config : (struct rail_node_config){0};
	struct rail_node *node = calloc(1, sizeof(*node));
	TH_ASSERT(node != NULL && rig->num_nodes < RAIL_NODES_MAX);
	struct fake_host *host = fake_rdma_host(rig->fake);
	node->rig = rig;
	node->tail = &node->head;
	node->verbs = fake_rdma_verbs(host);
	fake_rdma_device(host, &own.device);
	TH_ASSERT(node->verbs.ops->open(node->verbs.context, &node->device, 1) == 1);
	node->cq_depth = own.cq_depth ? own.cq_depth : 1024;
	TH_ASSERT(node->verbs.ops->cq_new(node->device, node->cq_depth, &node->cq) == 0);
	struct rail_config rail = {
		.verbs = node->verbs,
		.cq = node->cq,
		.cq_depth = node->cq_depth,
		.window_bytes = own.window_bytes,
		.slice_bytes = own.slice_bytes,
		.answer_ns = own.answer_ns,
		.around = &around,
		.arg = node,
	};
	rail_init(&node->rail, &rail);
	rig->nodes[rig->num_nodes++] = node;
	return node;
}

static bool
run_tasks(struct rail_node *node)
{
	bool any = node->head != NULL;
	while (node->head) {
		struct loop_task *task = node->head;
		node->head = task->next;
		if (!node->head)
			node->tail = &node->head;
		task->queued = false;
		task->run(task);
	}
	return any;
}

void
rail_rig_init(struct rail_rig *rig)
{
	*rig = (struct rail_rig){.fake = fake_rdma_new(true)};
}

void
rail_rig_fini(struct rail_rig *rig)
{
	for (uint32_t i = 0; i < rig->num_nodes; i++) {
		struct rail_node *node = rig->nodes[i];
		rail_fini(&node->rail);
		node->verbs.ops->cq_free(node->cq);
		node->verbs.ops->close(node->device);
		free(node);
	}
	fake_rdma_free(rig->fake);
}

/* ---- time ---------------------------------------------------------------------------------- */

void
rail_rig_settle(struct rail_rig *rig)
{
	bool moved = true;
	while (moved) {
		moved = false;
		for (uint32_t i = 0; i < rig->num_nodes; i++) {
			struct rail_node *node = rig->nodes[i];
			moved = run_tasks(node) || moved;
			moved = rail_step(&node->rail, fake_rdma_now(rig->fake)) || moved;
			if (!node->holds_frees && node->num_unfreed > 0) {
				rail_node_free_qps(node);
				moved = true;
			}
		}
	}
}

int64_t
rail_rig_next(const struct rail_rig *rig)
{
	int64_t next_ns = fake_rdma_next(rig->fake);
	for (uint32_t i = 0; i < rig->num_nodes; i++)
		next_ns = th_min_i64(next_ns, rail_deadline(&rig->nodes[i]->rail));
	return next_ns;
}

void
rail_rig_run(struct rail_rig *rig, int64_t until_ns)
{
	for (;;) {
		rail_rig_settle(rig);
		int64_t next_ns = rail_rig_next(rig);
		if (next_ns > until_ns || next_ns == INT64_MAX)
			break;
		fake_rdma_run(rig->fake, next_ns);
	}
	if (until_ns != INT64_MAX)
		fake_rdma_run(rig->fake, until_ns);
}

/* ---- memory -------------------------------------------------------------------------------- */

static uint64_t
region_bytes(const struct rail_memory *memory)
{
	return memory->region_bytes ? memory->region_bytes : memory->bytes;
}

void
rail_rig_fill(uint8_t *data, uint64_t bytes)
{
	for (uint64_t at = 0; at < bytes; at += 8) {
		uint64_t word = (at + 1) * UINT64_C(0x9e3779b97f4a7c15);
		memcpy(data + at, &word, th_min_u64(bytes - at, 8));
	}
}

struct rail_keys *
rail_keys_new(struct rail_node *node, const struct rail_memory *memory, unsigned access)
{
	struct rail_keys *keys = calloc(1, sizeof(*keys));
	TH_ASSERT(keys != NULL);
	uint64_t each = region_bytes(memory);
	keys->memory = memory;
	keys->node = node;
	keys->num_mrs = (uint32_t)((memory->bytes + each - 1) / each);
	keys->mrs = calloc(keys->num_mrs, sizeof(keys->mrs[0]));
	TH_ASSERT(keys->mrs != NULL);
	for (uint32_t i = 0; i < keys->num_mrs; i++) {
		uint64_t at = i * each, bytes = th_min_u64(each, memory->bytes - at);
		TH_ASSERT(
			node->verbs.ops->reg(node->device, memory->data ? memory->data + at : NULL,
				bytes, at, access, &keys->mrs[i]) == 0);
	}
	return keys;
}

void
rail_keys_free(struct rail_keys *keys)
{
	for (uint32_t i = 0; i < keys->num_mrs; i++) {
		if (keys->mrs[i].handle)
			TH_ASSERT(keys->node->verbs.ops->dereg(keys->node->device, &keys->mrs[i]) ==
				  0);
	}
	free(keys->mrs);
	free(keys);
}

/* ---- legs ---------------------------------------------------------------------------------- */

static bool
take(void *arg, uint32_t *ret_chunk)
{
	struct leg_lane *lane = arg;
	struct rail_leg *leg = lane->leg;
	TH_ASSERT(!lane->closed && !lane->broken);
	while (leg->next < leg->num_chunks && leg->chunks[leg->next] != LEG_FREE)
		leg->next++;
	if (leg->next >= th_min_u32(leg->limit, leg->num_chunks))
		return false;
	*ret_chunk = leg->next;
	leg->chunks[leg->next] = LEG_TAKEN;
	lane->taken++;
	lane->has[leg->next] = 1;
	return true;
}

static uint32_t
pieces(void *arg, uint32_t chunk, struct lane_piece *ret_pieces, uint32_t pieces_max)
{
	struct leg_lane *lane = arg;
	struct rail_leg *leg = lane->leg;
	TH_ASSERT(lane->has[chunk] == 1 && chunk < leg->limit);
	uint64_t at = (uint64_t)chunk * leg->chunk_bytes;
	uint64_t end = th_min_u64(at + leg->chunk_bytes, leg->bytes);
	uint64_t local = region_bytes(lane->local->memory);
	uint64_t remote = region_bytes(lane->remote->memory);
	uint32_t count = 0;
	if (leg->no_pieces)
		return 0;
	if (leg->empty_pieces) {
		ret_pieces[0] = (struct lane_piece){0};
		return 1;
	}
	while (at < end) {
		uint64_t stop = th_min_u64(end, (at / local + 1) * local);
		stop = th_min_u64(stop, (at / remote + 1) * remote);
		TH_ASSERT(count < pieces_max);
		ret_pieces[count++] = (struct lane_piece){
			.local = at,
			.remote = at,
			.lkey = lane->local->mrs[at / local].lkey,
			.rkey = lane->remote->mrs[at / remote].rkey,
			.bytes = (uint32_t)(stop - at),
		};
		at = stop;
		/* Pieces without bytes are no READs. */
		if (count < pieces_max && chunk % 2)
			ret_pieces[count++] = (struct lane_piece){.local = at, .remote = at};
	}
	return count;
}

static void
landed(void *arg, uint32_t chunk)
{
	struct leg_lane *lane = arg;
	struct rail_leg *leg = lane->leg;
	TH_ASSERT(!lane->closed && !lane->broken);
	TH_ASSERT(lane->has[chunk] == 1 && leg->chunks[chunk] == LEG_TAKEN);
	lane->has[chunk] = 0;
	lane->landed++;
	leg->chunks[chunk] = LEG_LANDED;
	leg->num_landed++;
	leg->landed_ns = fake_rdma_now(leg->rig->fake);
	const struct rail_memory *to = lane->local->memory, *from = lane->remote->memory;
	uint64_t at = (uint64_t)chunk * leg->chunk_bytes;
	if (to->data && from->data)
		TH_ASSERT(memcmp(to->data + at, from->data + at,
				  th_min_u64(leg->chunk_bytes, leg->bytes - at)) == 0);
	while (leg->prefix < leg->num_chunks && leg->chunks[leg->prefix] == LEG_LANDED)
		leg->prefix++;
	if (leg->on_landed)
		leg->on_landed(leg, chunk);
}

static void
back(void *arg, uint32_t chunk)
{
	struct leg_lane *lane = arg;
	struct rail_leg *leg = lane->leg;
	TH_ASSERT(!lane->closed && !lane->broken);
	TH_ASSERT(lane->has[chunk] == 1 && leg->chunks[chunk] == LEG_TAKEN);
	lane->has[chunk] = 0;
	lane->back++;
	leg->chunks[chunk] = LEG_FREE;
	leg->next = th_min_u32(leg->next, chunk);
}

static void
broken(void *arg, enum verbs_status status, const char *why)
{
	struct leg_lane *lane = arg;
	TH_ASSERT(!lane->closed && !lane->broken && why != NULL);
	for (uint32_t i = 0; i < lane->leg->num_chunks; i++)
		TH_ASSERT(lane->has[i] == 0);
	lane->broken = 1;
	lane->status = status;
	/* Others may have what it gave back. */
	rail_leg_kick(lane->leg);
}

static void
proved(void *arg)
{
	struct leg_lane *lane = arg;
	TH_ASSERT(!lane->closed && !lane->broken && lane->taken == 0);
	lane->proved++;
}

static void
closed(void *arg)
{
	struct leg_lane *lane = arg;
	TH_ASSERT(!lane->closed);
	lane->closed = 1;
	lane->lane = NULL;
}

static const struct lane_user user = {
	.take = take,
	.pieces = pieces,
	.landed = landed,
	.give_back = back,
	.broken = broken,
	.proved = proved,
	.closed = closed,
};

void
rail_leg_init(struct rail_leg *leg, struct rail_rig *rig, uint64_t bytes, uint32_t chunk_bytes)
{
	*leg = (struct rail_leg){
		.rig = rig,
		.bytes = bytes,
		.chunk_bytes = chunk_bytes,
		.num_chunks = (uint32_t)((bytes + chunk_bytes - 1) / chunk_bytes),
	};
	leg->limit = leg->num_chunks;
	leg->chunks = calloc(leg->num_chunks + 1, 1);
	TH_ASSERT(leg->chunks != NULL);
}

void
rail_leg_fence(struct leg_lane *lane)
{
	for (uint32_t i = 0; i < lane->num_qps; i++) {
		if (lane->served[i])
			TH_ASSERT(lane->source->verbs.ops->qp_free(lane->served[i]) == 0);
		lane->served[i] = NULL;
	}
}

void
rail_leg_fini(struct rail_leg *leg)
{
	for (uint32_t i = 0; i < leg->num_lanes; i++) {
		TH_ASSERT(leg->lanes[i].closed);
		rail_leg_fence(&leg->lanes[i]);
		free(leg->lanes[i].has);
	}
	free(leg->chunks);
}

static void
make_qps(struct rail_node *node, uint32_t num_qps, uint32_t depth, struct verbs_qp **ret_qps,
	struct verbs_path *ret_path)
{
	const struct verbs_ops *ops = node->verbs.ops;
	struct verbs_gid gid;
	TH_ASSERT(ops->gids(node->device, 1, &gid, 1) == 1);
	for (uint32_t i = 0; i < num_qps; i++) {
		ret_path[i] = (struct verbs_path){.global = true};
		memcpy(ret_path[i].gid, gid.raw, sizeof(gid.raw));
		TH_ASSERT(ops->qp_new(node->device, node->cq, depth, &ret_qps[i],
				  &ret_path[i].qpn) == 0);
	}
}

struct leg_lane *
rail_leg_open(struct rail_leg *leg, struct rail_keys *local, struct rail_keys *remote,
	uint32_t num_qps, uint32_t depth, bool probe)
{
	TH_ASSERT(leg->num_lanes < RAIL_LANES);
	struct leg_lane *lane = &leg->lanes[leg->num_lanes++];
	struct rail_node *node = local->node, *source = remote->node;
	struct verbs_path here[LANE_QPS_MAX], there[LANE_QPS_MAX];
	struct lane_config config = {
		.user = &user, .arg = lane, .num_qps = num_qps, .depth = depth};
	*lane = (struct leg_lane){
		.leg = leg, .node = node, .source = source, .local = local, .remote = remote};
	lane->num_qps = num_qps;
	lane->has = calloc(leg->num_chunks + 1, sizeof(lane->has[0]));
	TH_ASSERT(lane->has != NULL);
	make_qps(node, num_qps, depth, config.qps, here);
	make_qps(source, num_qps, 1, lane->served, there);
	for (uint32_t i = 0; i < num_qps; i++) {
		struct verbs_path *ends[] = {&here[i], &there[i]};
		for (uint32_t end = 0; end < 2; end++) {
			ends[end]->port = 1;
			ends[end]->psn = 100 + end;
			ends[end]->own_psn = 101 - end;
			ends[end]->mtu_bytes = 4096;
			ends[end]->reads_out = ends[end]->reads_in = th_min_u32(depth, 16);
			ends[end]->timeout = 16;
			ends[end]->retries = 7;
		}
		/* The path to there says what there is, and the other way round. */
		TH_ASSERT(node->verbs.ops->qp_connect(config.qps[i], &there[i]) == 0);
		TH_ASSERT(source->verbs.ops->qp_connect(lane->served[i], &here[i]) == 0);
	}
	if (probe) {
		config.probe = (struct lane_piece){
			.lkey = local->mrs[0].lkey, .rkey = remote->mrs[0].rkey, .bytes = 8};
	}
	TH_ASSERT(lane_new(&node->rail, &config, &lane->lane) == 0);
	lane_start(lane->lane);
	return lane;
}

void
rail_leg_kick(struct rail_leg *leg)
{
	for (uint32_t i = 0; i < leg->num_lanes; i++) {
		if (leg->lanes[i].lane)
			lane_kick(leg->lanes[i].lane);
	}
}

void
rail_leg_push(struct rail_leg *leg, uint32_t limit)
{
	if (limit <= leg->limit)
		return;
	leg->limit = limit;
	rail_leg_kick(leg);
}

void
rail_leg_close(struct leg_lane *lane)
{
	lane_close(lane->lane);
}

bool
rail_leg_is_whole(const struct rail_leg *leg)
{
	return leg->num_landed == leg->num_chunks;
}
