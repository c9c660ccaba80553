/* SPDX-License-Identifier: Apache-2.0 */
/*
 * paths - the paths that legs of this agent may go by, in the order in which they are tried.
 */
#include "transport/rdma/leg/reader.h"
#include "transport/rdma/leg/source.h"
#include "transport/tcp/tcp.h"

const struct leg_in_path_ops *const leg_in_paths[LEG_PATHS_MAX + 1] = {&reader_ops, &tcp_in_ops};
const struct leg_out_path_ops *const leg_out_paths[LEG_PATHS_MAX + 1] = {&source_ops, &tcp_out_ops};
