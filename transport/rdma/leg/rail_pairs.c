/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rail_pairs - see rail_pairs.h. A table in the order of last use: a host has few rails and few
 * hundred peers.
 */
#include "transport/rdma/leg/rail_pairs.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/alloc.h"

struct paths {
	pthread_mutex_t lock;
	struct path list[PATHS_MAX]; /* guarded, and how many: the last used first */
	uint32_t count;
};

struct paths *
paths_new(void)
{
	struct paths *paths = th_calloc(1, sizeof(*paths));
	pthread_mutex_init(&paths->lock, NULL);
	return paths;
}

void
paths_free(struct paths *paths)
{
	if (!paths)
		return;
	pthread_mutex_destroy(&paths->lock);
	free(paths);
}

/* Under the lock. NULL: it was never used. */
static struct path *
rail_pairs_find(struct paths *paths, uint32_t rail, const struct wire_rail *peer, const char *host)
{
	for (uint32_t i = 0; i < paths->count; i++) {
		struct path *path = &paths->list[i];
		if (path->rail == rail && path->peer.link == peer->link &&
			path->peer.lid == peer->lid &&
			memcmp(path->peer.gid, peer->gid, sizeof(peer->gid)) == 0 &&
			strcmp(path->host, host) == 0)
			return path;
	}
	return NULL;
}

/* Under the lock: it is the first of the table now. */
static struct path *
use(struct paths *paths, uint32_t rail, const struct wire_rail *peer, const char *host,
	int64_t now_ns)
{
	struct path path = {.rail = rail};
	struct path *found = rail_pairs_find(paths, rail, peer, host);
	uint32_t before = paths->count;
	if (found) {
		path = *found;
		before = (uint32_t)(found - paths->list);
	} else if (paths->count < PATHS_MAX) {
		paths->count++;
	} else {
		before--;
	}
	memmove(paths->list + 1, paths->list, before * sizeof(path));
	path.peer = *peer; /* its name may be another by now */
	snprintf(path.host, sizeof(path.host), "%s", host);
	path.used_ns = now_ns;
	paths->list[0] = path;
	return &paths->list[0];
}

bool
path_paused(struct paths *paths, uint32_t rail, const struct wire_rail *peer, const char *host,
	int64_t now_ns)
{
	pthread_mutex_lock(&paths->lock);
	const struct path *path = rail_pairs_find(paths, rail, peer, host);
	bool paused = path && now_ns < path->paused_until_ns;
	pthread_mutex_unlock(&paths->lock);
	return paused;
}

void
path_proved(struct paths *paths, uint32_t rail, const struct wire_rail *peer, const char *host,
	int64_t now_ns)
{
	pthread_mutex_lock(&paths->lock);
	struct path *path = use(paths, rail, peer, host, now_ns);
	path->legs++;
	path->paused_until_ns = path->pause_ns = 0;
	pthread_mutex_unlock(&paths->lock);
}

void
path_moved(struct paths *paths, uint32_t rail, const struct wire_rail *peer, const char *host,
	uint64_t bytes)
{
	pthread_mutex_lock(&paths->lock);
	struct path *path = rail_pairs_find(paths, rail, peer, host);
	if (path)
		path->bytes += bytes;
	pthread_mutex_unlock(&paths->lock);
}

void
path_failed(struct paths *paths, uint32_t rail, const struct wire_rail *peer, const char *host,
	const char *why, int64_t now_ns)
{
	pthread_mutex_lock(&paths->lock);
	struct path *path = use(paths, rail, peer, host, now_ns);
	path->failures++;
	/* Legs that run side by side fail together: that is one failure. */
	if (now_ns >= path->paused_until_ns) {
		path->pause_ns = path->pause_ns == 0
					 ? PATH_PAUSE_NS
					 : th_min_i64(2 * path->pause_ns, PATH_PAUSE_MAX_NS);
		path->paused_until_ns = now_ns + path->pause_ns;
	}
	snprintf(path->why, sizeof(path->why), "%s", why);
	pthread_mutex_unlock(&paths->lock);
}

uint32_t
paths_list(struct paths *paths, struct path *ret_paths, uint32_t count)
{
	pthread_mutex_lock(&paths->lock);
	count = th_min_u32(count, paths->count);
	memcpy(ret_paths, paths->list, count * sizeof(ret_paths[0]));
	pthread_mutex_unlock(&paths->lock);
	return count;
}
