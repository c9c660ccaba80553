/* SPDX-License-Identifier: Apache-2.0 */
/*
 * notify - tells systemd (or who else set NOTIFY_SOCKET) how the daemon is.
 */
#ifndef TH_IPC_BASE_NOTIFY_H
#define TH_IPC_BASE_NOTIFY_H

/*
 * state: "READY=1", "STOPPING=1", "STATUS=...". Nothing when nobody asked; failures are harmless.
 */
void th_notify(const char *state);

#endif
