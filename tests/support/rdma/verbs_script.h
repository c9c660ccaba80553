/* SPDX-License-Identifier: Apache-2.0 */
/*
 * verbs_script - devices that do what a test says and count what they are asked. They move nothing,
 * and a READ is done at once, or never. Memory that is registered by its address is the rail's own
 * (selfread.h): it is counted for itself, and always goes well.
 *
 * A test fills devices[] before the table is used. Later it changes what a device says under lock,
 * by script_lock and script_unlock. Any thread.
 */
#ifndef TH_TESTS_SUPPORT_RDMA_VERBS_SCRIPT_H
#define TH_TESTS_SUPPORT_RDMA_VERBS_SCRIPT_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "transport/rdma/device/verbs.h"

#define SCRIPT_DEVICES 4u
#define SCRIPT_PORTS 2u
#define SCRIPT_GIDS 4u
#define SCRIPT_RECORDS 64u
#define SCRIPT_EVENTS 16u

struct script_reg { /* what a device was asked to register */
	void *data;
	int fd;
	uint64_t offset, bytes, iova;
	unsigned access;
};

struct verbs_device {
	/* What it says. */
	struct verbs_info info;
	struct verbs_port ports[SCRIPT_PORTS];
	struct verbs_gid gids[SCRIPT_PORTS][SCRIPT_GIDS];
	uint32_t num_gids[SCRIPT_PORTS];
	int port_code, gids_code, dereg_code, cq_code, connect_code, free_code;
	int reg_code, qp_code;
	int again_code;               /* of open_again: -ENODEV */
	uint32_t regs_good, qps_good; /* how many go well before that code */
	/* How so many READs end, of dma-bufs and of other memory; others go well. */
	uint32_t bad_dmabuf_reads, bad_reads;
	enum verbs_status read_status;
	bool reads_hang; /* those do not end */
	/* What it was asked. */
	uint32_t regs, deregs, mrs, mrs_peak, looks, cqs, cqs_made, qps, qps_made, connects, closes;
	uint32_t tries, reopens, reads, own_mrs;
	struct verbs_read last_read; /* of a dma-buf */
	struct script_reg records[SCRIPT_RECORDS];
	struct verbs_path paths[SCRIPT_RECORDS];
	/* The script's own. */
	struct script *script;
	int event_fd;
	struct verbs_event events[SCRIPT_EVENTS];
	int event_codes[SCRIPT_EVENTS];
	uint32_t events_in, events_out;
};

struct script {
	struct verbs_device devices[SCRIPT_DEVICES];
	uint32_t num_devices;
	int open_code;
	bool hold; /* registering and its end wait until it is false; script_release */
	uint32_t held;
	pthread_mutex_t lock;
	pthread_cond_t changed; /* anything above */
};

void script_init(struct script *script, uint32_t num_devices);
void script_fini(struct script *script);
struct verbs script_verbs(struct script *script);
/* An Ethernet port that is up, with one IPv4 address, 10.77.device.port. */
void script_address(struct verbs_gid *ret_gid, uint32_t index, uint8_t c, uint8_t d);

void script_lock(struct script *script);
void script_unlock(struct script *script);
void script_event(
	struct verbs_device *device, enum verbs_event_kind kind, uint32_t port, uint32_t qpn);
/* What event_next says instead of an event: -errno. */
void script_event_fails(struct verbs_device *device, int code);
/* Registering waits from now on; until now. */
void script_hold(struct script *script);
void script_release(struct script *script);
/* Until so many are waiting. */
void script_wait_held(struct script *script, uint32_t count);
/* Until a device was asked for so many READs. */
void script_wait_reads(struct verbs_device *device, uint32_t count);

#endif
