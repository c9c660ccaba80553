/* SPDX-License-Identifier: Apache-2.0 */
/*
 * peers - see peers.h. One client a server: what is slow or lost at one is nothing to the others.
 *
 * A connection over which nothing comes back is made anew after a while: a host that lost its power
 * does not say that its connections are gone, and its name may lead elsewhere by then. Not often: a
 * server that stands still finds all of them when it goes on, and nng 1.5.2, which then opens and
 * closes many at once, can come to where it frees none any more.
 */
#include "server/host/peers.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "ipc/base/alloc.h"
#include "ipc/base/clock.h"
#include "ipc/base/fd.h"
#include "ipc/base/log.h"
#include "ipc/proto/convert.h"

#define OUTSTANDING_MAX 16 /* more than there can be: two of a server are under way at most */
#define REDIAL_NS INT64_C(10000000000)

struct peer_link {
	char url[NET_URL_BYTES];
	struct net_client *client; /* owns; NULL: it is this server */
	uint32_t unsent;           /* probes that could not be sent: failed */
	int64_t dialed_ns;         /* or heard of last */
	bool told;                 /* the log has said what it is, and that was this: */
	bool answered;
	struct ctl_hello_reply reply;
};

struct peers {
	int epoll; /* owns */
	int64_t answer_ns;
	uint64_t last_number;
	uint32_t count;
	struct peer_link all[OPTIONS_PEERS_MAX];
};

int
peers_new(const struct options *options, struct th_err *err, struct peers **ret_peers)
{
	const struct net_client_options client = {.outstanding_max = OUTSTANDING_MAX};
	struct peers *peers = th_calloc(1, sizeof(*peers));

	peers->answer_ns = 2 * options->core.probe_ns; /* then the core counts it as failed */
	peers->epoll = epoll_create1(EPOLL_CLOEXEC);
	if (peers->epoll < 0) {
		free(peers);
		return th_fail(err, -errno, "epoll: %s", th_strerror(-errno));
	}
	for (uint32_t i = 0; i < options->num_peers; i++) {
		struct peer_link *peer = &peers->all[peers->count++];
		struct epoll_event event = {.events = EPOLLIN, .data.u32 = i};
		int rc;

		memcpy(peer->url, options->peers[i], sizeof(peer->url));
		if (i == options->core.me)
			continue;
		peer->dialed_ns = th_now_ns();
		rc = net_client_new(&client, err, &peer->client);
		if (rc == 0)
			rc = net_client_dial(peer->client, peer->url, false, err);
		if (rc == 0 && epoll_ctl(peers->epoll, EPOLL_CTL_ADD, net_client_fd(peer->client),
				       &event) < 0)
			rc = th_fail(err, -errno, "epoll: %s", th_strerror(-errno));
		if (rc != 0)
			return rc; /* ends the process: nothing is undone */
	}
	*ret_peers = peers;
	return 0;
}

int
peers_fd(const struct peers *peers)
{
	return peers->epoll;
}

void
peers_probe(struct peers *peers, uint32_t which, const struct ctl_hello *hello)
{
	struct peer_link *peer = &peers->all[which];
	struct ctl_request request = {
		.kind = CTL_HELLO, .request_no = ++peers->last_number, .u.hello = *hello};
	uint8_t *data;
	size_t bytes;
	int rc = ctl_request_pack(&request, &data, &bytes);

	if (rc == 0) {
		rc = net_client_send(
			peer->client, request.request_no, data, bytes, peers->answer_ns);
		free(data);
	}
	if (rc != 0)
		peer->unsent++;
}

/* One line for each change, not for each probe. */
static void
peers_tell(struct peer_link *peer, const struct peers_item *item, const char *reason)
{
	const struct ctl_hello_reply *reply = &item->reply, *old = &peer->reply;
	bool same = peer->told && peer->answered == item->answered;

	if (same && item->answered)
		same = old->server_inc == reply->server_inc && old->epoch == reply->epoch &&
		       old->serving == reply->serving;
	if (same)
		return;
	peer->told = true;
	peer->answered = item->answered;
	peer->reply = *reply;
	if (item->answered)
		log_info("peers",
			"answers url=%s serving=%s epoch=%" PRIu32 " server_inc=%016" PRIx64,
			peer->url, reply->serving ? "yes" : "no", reply->epoch, reply->server_inc);
	else
		log_warn("peers", "does not answer url=%s reason=\"%s\"", peer->url, reason);
}

static void
failed(struct peer_link *peer)
{
	struct th_err err = {0};

	if (th_now_ns() - peer->dialed_ns < REDIAL_NS)
		return;
	peer->dialed_ns = th_now_ns();
	if (net_client_dial(peer->client, peer->url, false, &err) != 0)
		log_error("peers", "cannot dial url=%s reason=\"%s\"", peer->url, err.text);
}

static void
peers_take(struct peer_link *peer, const struct net_client_item *item, struct peers_item *ret_item)
{
	struct convert_arena arena = {0};
	struct ctl_reply reply;
	struct th_err err = {0};
	int rc = item->rc;

	if (rc != 0)
		th_fail(&err, rc, "%s", th_strerror(rc));
	else
		rc = ctl_reply_unpack(item->data, item->bytes, CTL_HELLO, &arena, &err, &reply);
	if (rc == 0 && reply.code != 0)
		rc = th_fail(&err, reply.code, "%s", reply.text);
	if (rc == 0 && reply.request_no != item->tag)
		rc = th_fail(&err, -EPROTO, "a reply to another request");
	ret_item->answered = rc == 0;
	if (rc == 0) {
		ret_item->reply = reply.u.hello;
		peer->dialed_ns = th_now_ns();
	}
	peers_tell(peer, ret_item, err.text);
	convert_arena_free(&arena);
	if (rc != 0)
		failed(peer);
}

bool
peers_next(struct peers *peers, struct peers_item *ret_item)
{
	struct net_client_item item;

	for (uint32_t i = 0; i < peers->count; i++) {
		struct peer_link *peer = &peers->all[i];

		if (peer->client == NULL)
			continue;
		*ret_item = (struct peers_item){.peer = i};
		if (peer->unsent > 0) {
			peer->unsent--;
			peers_tell(peer, ret_item, "the question could not be sent");
			return true;
		}
		while (net_client_next(peer->client, &item)) {
			if (item.kind != NET_REPLY)
				continue;
			peers_take(peer, &item, ret_item);
			return true;
		}
	}
	return false;
}
