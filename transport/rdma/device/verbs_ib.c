/* SPDX-License-Identifier: Apache-2.0 */
/*
 * verbs_ib - the table of calls over libibverbs, which is loaded and not linked: an agent starts on
 * hosts that do not have it, and its drivers fit the one of their host alone.
 *
 * Nothing in here waits: completion channels and asynchronous events do not block. ibv_fork_init is
 * not called: since Linux 5.12 a fork copies pinned pages, and the call splits a mapping for each
 * registration. The agent forks before it opens devices, if at all.
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ipc/base/alloc.h"
#include "ipc/base/assert.h"
#include "ipc/base/err.h"
#include "ipc/base/fd.h"
#include "ipc/base/log.h"
#include "transport/rdma/device/verbs.h"

#define POLL_MAX 32u
#define POST_MAX 64u
#define HOP_LIMIT 255u
#define RNR_TIMER 12u /* 0.64 ms; a READ never meets it */
#define RNR_RETRIES 7u
#define GID_TABLE_MAX 65536u

struct verbs_device {
	struct ibv_context *context; /* owns */
	struct ibv_pd *pd;           /* owns */
	struct verbs_info info;
};

struct verbs_cq {
	struct ibv_comp_channel *channel; /* owns */
	struct ibv_cq *cq;                /* owns */
};

struct verbs_qp {
	struct ibv_qp *qp; /* owns */
};

/* ---- the library --------------------------------------------------------------------------- */

/* What is called by its symbol, in the version whose form the header declares; the rest of the
 * header's calls are inline and go through a context's own table. */
#define IB_CALLS(X)                                                                                \
	X(_ibv_query_gid_table, "IBVERBS_1.11")                                                    \
	X(ibv_ack_async_event, "IBVERBS_1.1")                                                      \
	X(ibv_ack_cq_events, "IBVERBS_1.1")                                                        \
	X(ibv_alloc_pd, "IBVERBS_1.1")                                                             \
	X(ibv_close_device, "IBVERBS_1.1")                                                         \
	X(ibv_create_comp_channel, "IBVERBS_1.0")                                                  \
	X(ibv_create_cq, "IBVERBS_1.1")                                                            \
	X(ibv_create_qp, "IBVERBS_1.1")                                                            \
	X(ibv_dealloc_pd, "IBVERBS_1.1")                                                           \
	X(ibv_dereg_mr, "IBVERBS_1.1")                                                             \
	X(ibv_destroy_comp_channel, "IBVERBS_1.0")                                                 \
	X(ibv_destroy_cq, "IBVERBS_1.1")                                                           \
	X(ibv_destroy_qp, "IBVERBS_1.1")                                                           \
	X(ibv_free_device_list, "IBVERBS_1.1")                                                     \
	X(ibv_get_async_event, "IBVERBS_1.1")                                                      \
	X(ibv_get_cq_event, "IBVERBS_1.1")                                                         \
	X(ibv_get_device_list, "IBVERBS_1.1")                                                      \
	X(ibv_get_device_name, "IBVERBS_1.1")                                                      \
	X(ibv_modify_qp, "IBVERBS_1.1")                                                            \
	X(ibv_open_device, "IBVERBS_1.1")                                                          \
	X(ibv_query_device, "IBVERBS_1.1")                                                         \
	X(ibv_reg_dmabuf_mr, "IBVERBS_1.12")                                                       \
	X(ibv_reg_mr_iova2, "IBVERBS_1.8")

/* Filled by the first verbs_ib and only read after that. The library is never given back: devices
 * have threads and drivers of its own behind them. */
static struct {
#define IB_MEMBER(name, version) __typeof__(name) *name;
	IB_CALLS(IB_MEMBER)
#undef IB_MEMBER
	void *library;
} lib;

static int
verbs_ib_load(struct th_err *err)
{
	static const struct {
		const char *name, *version;
		size_t offset; /* in lib */
	} entries[] = {
#define IB_ENTRY(name, version) {#name, version, offsetof(__typeof__(lib), name)},
		IB_CALLS(IB_ENTRY)
#undef IB_ENTRY
	};
	if (lib.library)
		return 0;
	void *library = dlopen(VERBS_LIBRARY, RTLD_NOW | RTLD_LOCAL);
	if (!library) {
		const char *why = dlerror();
		return th_fail(err, -ENOENT,
			"libibverbs cannot be loaded (%s): install rdma-core (on Debian and Ubuntu "
			"libibverbs1 and ibverbs-providers)",
			why ? why : VERBS_LIBRARY " is not there");
	}
	for (size_t i = 0; i < TH_ARRAY_LEN(entries); i++) {
		void *address = dlvsym(library, entries[i].name, entries[i].version);
		if (!address) {
			dlclose(library);
			return th_fail(err, -ENOSYS,
				VERBS_LIBRARY " has no %s of %s: update rdma-core to 34 or newer",
				entries[i].name, entries[i].version);
		}
		memcpy((char *)&lib + entries[i].offset, &address, sizeof(address));
	}
	lib.library = library;
	return 0;
}

/* ---- where a device lies on the PCI bus ------------------------------------------------------ */

/* "0000:3b:00.0" */
static bool
is_pci(const char *name)
{
	static const char form[] = "xxxx:xx:xx.x";
	for (size_t i = 0; i < sizeof(form) - 1; i++) {
		bool hex = (name[i] >= '0' && name[i] <= '9') || (name[i] >= 'a' && name[i] <= 'f');
		if (form[i] == 'x' ? !hex : name[i] != form[i])
			return false;
	}
	return name[sizeof(form) - 1] == '\0' || name[sizeof(form) - 1] == '/';
}

/* The function on the bus that the device, or a part of a function that it is, lies in. Empty:
 * there is none. */
static void
pci_find(const char *sysfs_path, char ret_pci[VERBS_PCI_BYTES])
{
	char link[PATH_MAX], path[PATH_MAX];
	ret_pci[0] = '\0';
	if ((size_t)snprintf(link, sizeof(link), "%s/device", sysfs_path) >= sizeof(link) ||
		!realpath(link, path))
		return;
	for (const char *part = path; part; part = strchr(part, '/')) {
		part++;
		if (is_pci(part)) /* the last one: bridges come before it */
			snprintf(ret_pci, VERBS_PCI_BYTES, "%.12s", part);
	}
}

/* ---- devices ------------------------------------------------------------------------------ */

/* Of a call that gives an errno value or -1 with errno. */
static int
verbs_ib_code_of(int rc)
{
	if (rc == 0)
		return 0;
	if (rc > 0)
		return -rc;
	return errno ? -errno : -EIO;
}

static bool
takes_dmabuf(struct ibv_pd *pd)
{
	errno = 0;
	struct ibv_mr *mr = lib.ibv_reg_dmabuf_mr(pd, 0, 0, 0, -1, 0);
	if (!mr)
		return verbs_takes_dmabuf(verbs_ib_code_of(-1));
	lib.ibv_dereg_mr(mr);
	return true;
}

static int
fill_info(struct verbs_device *device)
{
	struct ibv_device *ib = device->context->device;
	struct ibv_device_attr attr;
	int rc = verbs_ib_code_of(lib.ibv_query_device(device->context, &attr));
	if (rc < 0)
		return rc;
	struct verbs_info *info = &device->info;
	snprintf(info->name, sizeof(info->name), "%s", lib.ibv_get_device_name(ib));
	pci_find(ib->ibdev_path, info->pci);
	info->num_ports = attr.phys_port_cnt;
	info->reads_out_max =
		(uint32_t)(attr.max_qp_init_rd_atom > 0 ? attr.max_qp_init_rd_atom : 0);
	info->reads_in_max = (uint32_t)(attr.max_qp_rd_atom > 0 ? attr.max_qp_rd_atom : 0);
	info->mr_bytes_max = attr.max_mr_size;
	info->mrs_max = (uint32_t)(attr.max_mr > 0 ? attr.max_mr : 0);
	info->qps_max = (uint32_t)(attr.max_qp > 0 ? attr.max_qp : 0);
	info->qp_depth_max = (uint32_t)(attr.max_qp_wr > 0 ? attr.max_qp_wr : 0);
	info->cq_depth_max = (uint32_t)(attr.max_cqe > 0 ? attr.max_cqe : 0);
	/* It is about the order of writes on the bus. Who does not know the flag ignores it. */
	info->relaxed_ordering = info->pci[0] != '\0';
	info->dmabuf = takes_dmabuf(device->pd);
	return 0;
}

static void
ib_close(struct verbs_device *device)
{
	int rc = device->pd ? verbs_ib_code_of(lib.ibv_dealloc_pd(device->pd)) : 0;
	if (rc == 0 && device->context)
		rc = verbs_ib_code_of(lib.ibv_close_device(device->context));
	if (rc < 0)
		log_error("rdma", "cannot close %s: %s", device->info.name, th_strerror(rc));
	free(device);
}

static int
open_one(struct ibv_device *ib, struct verbs_device **ret_device)
{
	struct verbs_device *device = th_calloc(1, sizeof(*device));
	errno = 0;
	device->context = lib.ibv_open_device(ib);
	int rc = device->context ? 0 : verbs_ib_code_of(-1);
	if (rc == 0) {
		device->pd = lib.ibv_alloc_pd(device->context);
		rc = device->pd ? 0 : verbs_ib_code_of(-1);
	}
	if (rc == 0)
		rc = th_fd_nonblock(device->context->async_fd);
	if (rc == 0)
		rc = fill_info(device);
	if (rc < 0) {
		ib_close(device);
		return rc;
	}
	*ret_device = device;
	return 0;
}

static int
ib_open(void *context, struct verbs_device **ret_devices, uint32_t devices_max)
{
	(void)context;
	/* Objects of a device that is gone can be freed then: the library reads it when it is first
	 * called. */
	if (setenv("RDMAV_ALLOW_DISASSOC_DESTROY", "1", 0) < 0)
		return -errno;
	int listed = 0;
	errno = 0;
	struct ibv_device **list = lib.ibv_get_device_list(&listed);
	if (!list) {
		int rc = verbs_ib_code_of(-1);
		log_debug("rdma", "no RDMA devices: %s", th_strerror(rc));
		return 0;
	}
	uint32_t count = 0;
	for (int i = 0; i < listed; i++) {
		const char *name = lib.ibv_get_device_name(list[i]);
		if (list[i]->transport_type != IBV_TRANSPORT_IB) {
			log_info("rdma", "%s is neither InfiniBand nor RoCE: left out", name);
			continue;
		}
		if (count == devices_max) {
			log_warn("rdma", "%s is one device too many, %u are opened at most", name,
				devices_max);
			continue;
		}
		int rc = open_one(list[i], &ret_devices[count]);
		if (rc == 0)
			count++;
		else /* a container sees devices that are not its own */
			log_info(
				"rdma", "%s cannot be opened: %s: left out", name, th_strerror(rc));
	}
	lib.ibv_free_device_list(list);
	return (int)count;
}

static int
ib_open_again(void *context, const struct verbs_info *info, struct verbs_device **ret_device)
{
	(void)context;
	int listed = 0, rc = -ENODEV;
	errno = 0;
	struct ibv_device **list = lib.ibv_get_device_list(&listed); /* looks anew each time */
	if (!list)
		return verbs_ib_code_of(-1);
	for (int i = 0; i < listed && rc == -ENODEV; i++) {
		char pci[VERBS_PCI_BYTES];
		pci_find(list[i]->ibdev_path, pci);
		if (list[i]->transport_type == IBV_TRANSPORT_IB &&
			strcmp(lib.ibv_get_device_name(list[i]), info->name) == 0 &&
			strcmp(pci, info->pci) == 0)
			rc = open_one(list[i], ret_device);
	}
	lib.ibv_free_device_list(list);
	return rc;
}

static void
ib_info(struct verbs_device *device, struct verbs_info *ret_info)
{
	*ret_info = device->info;
}

/* ---- ports -------------------------------------------------------------------------------- */

static uint64_t
verbs_ib_rate_of(const struct ibv_port_attr *attr)
{
	static const struct {
		uint8_t code, lanes;
	} widths[] = {{1, 1}, {2, 4}, {4, 8}, {8, 12}, {16, 2}};
	static const struct {
		uint8_t code;
		uint32_t mbits; /* of a lane */
	} speeds[] = {{1, 2500}, {2, 5000}, {4, 10000}, {8, 10000}, {16, 14000}, {32, 25000},
		{64, 50000}, {128, 100000}};
	uint64_t lanes = 0, mbits = 0;
	for (size_t i = 0; i < TH_ARRAY_LEN(widths); i++)
		lanes = widths[i].code == attr->active_width ? widths[i].lanes : lanes;
	for (size_t i = 0; i < TH_ARRAY_LEN(speeds); i++)
		mbits = speeds[i].code == attr->active_speed ? speeds[i].mbits : mbits;
	return lanes * mbits * 1000000;
}

/* The header's inline function has a second way, by a symbol of the library, for one that is older
 * than all that verbs_ib_load accepts. */
static int
query_port(struct verbs_device *device, uint32_t port, struct ibv_port_attr *ret_attr)
{
	struct verbs_context *context = verbs_get_ctx_op(device->context, query_port);
	if (!context)
		return -EOPNOTSUPP;
	memset(ret_attr, 0, sizeof(*ret_attr));
	return verbs_ib_code_of(
		context->query_port(device->context, (uint8_t)port, ret_attr, sizeof(*ret_attr)));
}

static int
ib_port(struct verbs_device *device, uint32_t port, struct verbs_port *ret_port)
{
	struct ibv_port_attr attr;
	int rc = query_port(device, port, &attr);
	if (rc < 0)
		return rc;
	*ret_port = (struct verbs_port){
		.link = attr.link_layer == IBV_LINK_LAYER_ETHERNET ? VERBS_LINK_ETHERNET
								   : VERBS_LINK_INFINIBAND,
		.active = attr.state == IBV_PORT_ACTIVE,
		.mtu_bytes = attr.active_mtu >= IBV_MTU_256 && attr.active_mtu <= IBV_MTU_4096
				     ? 128u << attr.active_mtu
				     : 256,
		.lid = attr.lid,
		.bits_per_second = verbs_ib_rate_of(&attr),
	};
	return 0;
}

/*
 * Whether this network namespace may use an entry of the table. One that is another's cannot be
 * read here (EINVAL), though the table as a whole has it.
 */
static bool
verbs_ib_is_ours(const struct verbs_device *device, uint32_t port, uint32_t index)
{
	char path[PATH_MAX], name[64];
	if ((size_t)snprintf(path, sizeof(path), "%s/ports/%u/gid_attrs/ndevs/%u",
		    device->context->device->ibdev_path, port, index) >= sizeof(path))
		return true;
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return true;
	ssize_t got = read(fd, name, sizeof(name));
	bool others = got < 0 && errno == EINVAL;
	th_fd_close(&fd);
	return !others;
}

static int
ib_gids(struct verbs_device *device, uint32_t port, struct verbs_gid *ret_gids, uint32_t gids_max)
{
	static const enum verbs_gid_type types[] = {[IBV_GID_TYPE_IB] = VERBS_GID_IB,
		[IBV_GID_TYPE_ROCE_V1] = VERBS_GID_ROCE_V1,
		[IBV_GID_TYPE_ROCE_V2] = VERBS_GID_ROCE_V2};
	/* The kernel wants room for all entries of all ports. */
	size_t room = 1;
	for (uint32_t i = 1; i <= device->info.num_ports; i++) {
		struct ibv_port_attr attr;
		int rc = query_port(device, i, &attr);
		if (rc < 0)
			return rc;
		room += attr.gid_tbl_len > 0 ? (size_t)attr.gid_tbl_len : 0;
	}
	room = th_min_size(room, GID_TABLE_MAX);
	struct ibv_gid_entry *entries = th_calloc(room, sizeof(*entries));
	ssize_t listed =
		lib._ibv_query_gid_table(device->context, entries, room, 0, sizeof(*entries));
	uint32_t count = 0;
	for (ssize_t i = 0; i < listed && count < gids_max; i++) {
		const struct ibv_gid_entry *entry = &entries[i];
		if (entry->port_num != port || entry->gid_type >= TH_ARRAY_LEN(types) ||
			(entry->ndev_ifindex != 0 &&
				!verbs_ib_is_ours(device, port, entry->gid_index)))
			continue;
		ret_gids[count].index = entry->gid_index;
		ret_gids[count].type = types[entry->gid_type];
		memcpy(ret_gids[count].raw, entry->gid.raw, VERBS_GID_BYTES);
		count++;
	}
	free(entries);
	return listed < 0 ? (int)listed : (int)count;
}

/* ---- memory ------------------------------------------------------------------------------- */

static unsigned
access_flags(unsigned access)
{
	unsigned flags = 0;
	if (access & VERBS_LOCAL_WRITE)
		flags |= IBV_ACCESS_LOCAL_WRITE;
	if (access & VERBS_REMOTE_READ)
		flags |= IBV_ACCESS_REMOTE_READ;
	if (access & VERBS_RELAXED)
		flags |= IBV_ACCESS_RELAXED_ORDERING;
	return flags;
}

static int
verbs_ib_registered(struct ibv_mr *mr, struct verbs_mr *ret_mr)
{
	if (!mr)
		return verbs_ib_code_of(-1);
	*ret_mr = (struct verbs_mr){.lkey = mr->lkey, .rkey = mr->rkey, .handle = mr};
	return 0;
}

static int
ib_reg(struct verbs_device *device, void *data, uint64_t bytes, uint64_t iova, unsigned access,
	struct verbs_mr *ret_mr)
{
	errno = 0;
	return verbs_ib_registered(
		lib.ibv_reg_mr_iova2(device->pd, data, bytes, iova, access_flags(access)), ret_mr);
}

static int
ib_reg_dmabuf(struct verbs_device *device, int fd, uint64_t offset, uint64_t bytes, uint64_t iova,
	unsigned access, struct verbs_mr *ret_mr)
{
	errno = 0;
	return verbs_ib_registered(lib.ibv_reg_dmabuf_mr(device->pd, offset, bytes, iova, fd,
					   (int)access_flags(access)),
		ret_mr);
}

static int
ib_dereg(struct verbs_device *device, struct verbs_mr *mr)
{
	(void)device;
	int rc = verbs_ib_code_of(lib.ibv_dereg_mr(mr->handle));
	if (rc == 0)
		mr->handle = NULL;
	return rc;
}

/* ---- completions -------------------------------------------------------------------------- */

static void
ib_cq_free(struct verbs_cq *cq)
{
	int rc = cq->cq ? verbs_ib_code_of(lib.ibv_destroy_cq(cq->cq)) : 0;
	if (rc == 0 && cq->channel)
		rc = verbs_ib_code_of(lib.ibv_destroy_comp_channel(cq->channel));
	if (rc < 0)
		log_error("rdma", "cannot free a completion queue: %s", th_strerror(rc));
	free(cq);
}

static int
ib_cq_new(struct verbs_device *device, uint32_t depth, struct verbs_cq **ret_cq)
{
	struct verbs_cq *cq = th_calloc(1, sizeof(*cq));
	errno = 0;
	cq->channel = lib.ibv_create_comp_channel(device->context);
	int rc = cq->channel ? th_fd_nonblock(cq->channel->fd) : verbs_ib_code_of(-1);
	if (rc == 0) {
		cq->cq = lib.ibv_create_cq(device->context, (int)depth, NULL, cq->channel, 0);
		rc = cq->cq ? 0 : verbs_ib_code_of(-1);
	}
	if (rc < 0) {
		ib_cq_free(cq);
		return rc;
	}
	*ret_cq = cq;
	return 0;
}

static enum verbs_status
status_of(enum ibv_wc_status status)
{
	switch ((unsigned)status) {
	case IBV_WC_SUCCESS:
		return VERBS_OK;
	case IBV_WC_WR_FLUSH_ERR:
		return VERBS_FLUSHED;
	case IBV_WC_REM_ACCESS_ERR:
	case IBV_WC_REM_INV_REQ_ERR:
		return VERBS_ACCESS;
	case IBV_WC_LOC_LEN_ERR:
	case IBV_WC_LOC_QP_OP_ERR:
	case IBV_WC_LOC_PROT_ERR:
	case IBV_WC_LOC_ACCESS_ERR:
		return VERBS_LOCAL;
	case IBV_WC_RETRY_EXC_ERR:
	case IBV_WC_RNR_RETRY_EXC_ERR:
		return VERBS_GONE;
	default:
		return VERBS_OTHER;
	}
}

static int
ib_cq_poll(struct verbs_cq *cq, struct verbs_done *ret_done, uint32_t done_max)
{
	struct ibv_wc completions[POLL_MAX];
	int count = ibv_poll_cq(cq->cq, (int)th_min_u32(done_max, POLL_MAX), completions);
	if (count < 0)
		return -EIO;
	for (int i = 0; i < count; i++) {
		ret_done[i].id = completions[i].wr_id;
		ret_done[i].qpn = completions[i].qp_num;
		ret_done[i].status = status_of(completions[i].status);
	}
	return count;
}

static int
ib_cq_arm(struct verbs_cq *cq)
{
	return verbs_ib_code_of(ibv_req_notify_cq(cq->cq, 0));
}

static int
ib_cq_fd(struct verbs_cq *cq)
{
	return cq->channel->fd;
}

static void
ib_cq_quiet(struct verbs_cq *cq)
{
	struct ibv_cq *of;
	void *context;
	unsigned taken = 0;
	while (lib.ibv_get_cq_event(cq->channel, &of, &context) == 0)
		taken++;
	if (taken > 0)
		lib.ibv_ack_cq_events(cq->cq, taken);
}

/* ---- queue pairs -------------------------------------------------------------------------- */

static int
ib_qp_new(struct verbs_device *device, struct verbs_cq *cq, uint32_t depth,
	struct verbs_qp **ret_qp, uint32_t *ret_qpn)
{
	struct ibv_qp_init_attr attr = {
		.send_cq = cq->cq,
		.recv_cq = cq->cq,
		.cap = {.max_send_wr = depth,
			.max_recv_wr = 1,
			.max_send_sge = 1,
			.max_recv_sge = 1},
		.qp_type = IBV_QPT_RC,
	};
	errno = 0;
	struct ibv_qp *ib = lib.ibv_create_qp(device->pd, &attr);
	if (!ib)
		return verbs_ib_code_of(-1);
	struct verbs_qp *qp = th_calloc(1, sizeof(*qp));
	qp->qp = ib;
	*ret_qp = qp;
	*ret_qpn = ib->qp_num;
	return 0;
}

static int
to_init(struct ibv_qp *qp, const struct verbs_path *path)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_INIT,
		.pkey_index = path->pkey_index,
		.port_num = (uint8_t)path->port,
		/* Who only reads is not read from. */
		.qp_access_flags = path->reads_in > 0 ? IBV_ACCESS_REMOTE_READ : 0,
	};
	return verbs_ib_code_of(lib.ibv_modify_qp(
		qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
}

static enum ibv_mtu
mtu_of(uint32_t bytes)
{
	enum ibv_mtu mtu = IBV_MTU_256;
	while (mtu < IBV_MTU_4096 && 256u << mtu <= bytes)
		mtu++;
	return mtu;
}

static int
to_receive(struct ibv_qp *qp, const struct verbs_path *path)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_RTR,
		.path_mtu = mtu_of(path->mtu_bytes),
		.dest_qp_num = path->qpn,
		.rq_psn = path->psn,
		.max_dest_rd_atomic = (uint8_t)path->reads_in,
		.min_rnr_timer = RNR_TIMER,
		.ah_attr = {.dlid = path->lid,
			.sl = path->service_level,
			.port_num = (uint8_t)path->port,
			.is_global = path->global},
	};
	if (path->global) {
		memcpy(attr.ah_attr.grh.dgid.raw, path->gid, VERBS_GID_BYTES);
		attr.ah_attr.grh.sgid_index = (uint8_t)path->gid_index;
		attr.ah_attr.grh.hop_limit = HOP_LIMIT;
		attr.ah_attr.grh.traffic_class = path->traffic_class;
	}
	return verbs_ib_code_of(lib.ibv_modify_qp(qp, &attr,
		IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
			IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
}

static int
to_send(struct ibv_qp *qp, const struct verbs_path *path)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_RTS,
		.timeout = path->timeout,
		.retry_cnt = path->retries,
		.rnr_retry = RNR_RETRIES,
		.sq_psn = path->own_psn,
		.max_rd_atomic = (uint8_t)path->reads_out,
	};
	return verbs_ib_code_of(lib.ibv_modify_qp(qp, &attr,
		IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
			IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC));
}

static int
ib_qp_connect(struct verbs_qp *qp, const struct verbs_path *path)
{
	/* What the fields of the kernel's structure hold. */
	if (path->port > UINT8_MAX || path->gid_index > UINT8_MAX || path->reads_in > UINT8_MAX ||
		path->reads_out > UINT8_MAX)
		return -EINVAL;
	int rc = to_init(qp->qp, path);
	if (rc == 0)
		rc = to_receive(qp->qp, path);
	if (rc == 0)
		rc = to_send(qp->qp, path);
	return rc;
}

static int
verbs_ib_move_to(struct ibv_qp *qp, enum ibv_qp_state state)
{
	struct ibv_qp_attr attr = {.qp_state = state};
	return verbs_ib_code_of(lib.ibv_modify_qp(qp, &attr, IBV_QP_STATE));
}

static int
ib_qp_fail(struct verbs_qp *qp)
{
	return verbs_ib_move_to(qp->qp, IBV_QPS_ERR);
}

static int
ib_qp_free(struct verbs_qp *qp)
{
	int rc = verbs_ib_code_of(lib.ibv_destroy_qp(qp->qp));
	if (rc < 0) {
		log_error(
			"rdma", "cannot free queue pair %#x: %s", qp->qp->qp_num, th_strerror(rc));
		/* It stays, but answers nobody any more. */
		rc = verbs_ib_move_to(qp->qp, IBV_QPS_RESET);
	}
	free(qp);
	return rc;
}

static int
ib_post_reads(struct verbs_qp *qp, const struct verbs_read *reads, uint32_t count)
{
	struct ibv_send_wr requests[POST_MAX];
	struct ibv_sge places[POST_MAX];
	if (count == 0 || count > POST_MAX)
		return -EINVAL;
	for (uint32_t i = 0; i < count; i++) {
		const struct verbs_read *read = &reads[i];
		places[i] = (struct ibv_sge){
			.addr = read->local, .length = read->bytes, .lkey = read->lkey};
		requests[i] = (struct ibv_send_wr){
			.wr_id = read->id,
			.next = i + 1 < count ? &requests[i + 1] : NULL,
			.sg_list = &places[i],
			.num_sge = 1,
			.opcode = IBV_WR_RDMA_READ,
			.send_flags = read->signalled ? IBV_SEND_SIGNALED : 0,
			.wr.rdma = {.remote_addr = read->remote, .rkey = read->rkey},
		};
	}
	struct ibv_send_wr *bad = NULL;
	int rc = verbs_ib_code_of(ibv_post_send(qp->qp, requests, &bad));
	if (rc >= 0 || bad == requests)
		return rc;
	/* Without one that is bad the doorbell failed, and all lie in the queue. */
	uint32_t taken = bad ? (uint32_t)(bad - requests) : count;
	log_error("rdma", "queue pair %#x took %u of %u requests: %s", qp->qp->qp_num, taken, count,
		th_strerror(rc));
	return (int)taken;
}

/* ---- asynchronous events ------------------------------------------------------------------ */

static int
ib_event_fd(struct verbs_device *device)
{
	return device->context->async_fd;
}

static struct verbs_event
event_of(const struct ibv_async_event *event)
{
	uint32_t port = event->element.port_num > 0 ? (uint32_t)event->element.port_num : 0;
	switch ((unsigned)event->event_type) {
	case IBV_EVENT_PORT_ACTIVE:
		return (struct verbs_event){.kind = VERBS_EVENT_PORT_UP, .port = port};
	case IBV_EVENT_PORT_ERR:
		return (struct verbs_event){.kind = VERBS_EVENT_PORT_DOWN, .port = port};
	case IBV_EVENT_GID_CHANGE:
	case IBV_EVENT_LID_CHANGE:
	case IBV_EVENT_PKEY_CHANGE:
		return (struct verbs_event){.kind = VERBS_EVENT_GIDS, .port = port};
	case IBV_EVENT_QP_FATAL:
	case IBV_EVENT_QP_REQ_ERR:
	case IBV_EVENT_QP_ACCESS_ERR:
		return (struct verbs_event){
			.kind = VERBS_EVENT_QP, .qpn = event->element.qp->qp_num};
	case IBV_EVENT_CQ_ERR:
		return (struct verbs_event){.kind = VERBS_EVENT_CQ};
	case IBV_EVENT_DEVICE_FATAL:
		return (struct verbs_event){.kind = VERBS_EVENT_DEVICE};
	default:
		return (struct verbs_event){.kind = VERBS_EVENT_OTHER};
	}
}

static int
ib_event_next(struct verbs_device *device, struct verbs_event *ret_event)
{
	struct ibv_async_event event;
	errno = 0;
	if (lib.ibv_get_async_event(device->context, &event) != 0)
		return errno == EAGAIN || errno == EINTR ? 0 : verbs_ib_code_of(-1);
	*ret_event = event_of(&event);
	/* At once: freeing a queue pair waits for it. */
	lib.ibv_ack_async_event(&event);
	return 1;
}

int
verbs_ib(struct verbs *ret_verbs, struct th_err *err)
{
	static const struct verbs_ops ops = {
		.open = ib_open,
		.open_again = ib_open_again,
		.close = ib_close,
		.info = ib_info,
		.port = ib_port,
		.gids = ib_gids,
		.reg = ib_reg,
		.reg_dmabuf = ib_reg_dmabuf,
		.dereg = ib_dereg,
		.cq_new = ib_cq_new,
		.cq_free = ib_cq_free,
		.cq_poll = ib_cq_poll,
		.cq_arm = ib_cq_arm,
		.cq_fd = ib_cq_fd,
		.cq_quiet = ib_cq_quiet,
		.qp_new = ib_qp_new,
		.qp_connect = ib_qp_connect,
		.qp_fail = ib_qp_fail,
		.qp_free = ib_qp_free,
		.post_reads = ib_post_reads,
		.event_fd = ib_event_fd,
		.event_next = ib_event_next,
	};
	int rc = verbs_ib_load(err);
	if (rc < 0)
		return rc;
	*ret_verbs = (struct verbs){.ops = &ops};
	return 0;
}
