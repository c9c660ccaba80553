/* SPDX-License-Identifier: Apache-2.0 */
/*
 * failpoint - moments at which a test may stop, kill or fail a process. Compiled into test builds
 * only (meson -Dfaults=true); elsewhere a point is nothing. Cores have none: they do no I/O.
 *
 * Environment of the process:
 *   TH_FAILPOINT=POINT:ACTION[:N][,...]   at the N-th hit of POINT (1 when left out; * for every
 *   point), once:
 *       kill      SIGKILL to this process
 *       stop      SIGSTOP to this process
 *       exit      _exit(99)
 *       errno=E   the step fails with -E, where there is something that can fail (TH_FP_RC)
 *       pause     this thread waits until somebody opens the fifo `go` to write
 *       report    nothing
 *   TH_FAILPOINT_DIR=FOLDER   the test's side of it:
 *       arm       a file with a text as above; it counts as well, from the moment it is written
 *       reached   a fifo: before an action its point and a newline are written there, when the
 *                 test has it open
 *       go        a fifo, see pause
 *
 * Each point has one row here and stands at one place. Any thread; nothing of ours is called.
 */
#ifndef TH_IPC_BASE_FAILPOINT_H
#define TH_IPC_BASE_FAILPOINT_H

/* Who passes it is the first word: server, agent (reading or serving: leg, copy), worker. */
#define FAILPOINTS(X)                                                                              \
	/* A request: before the server decides, and when it has answered. */                      \
	X(server_attach)                                                                           \
	X(server_attached)                                                                         \
	X(server_rejoin)                                                                           \
	X(server_rejoined)                                                                         \
	X(server_beat)                                                                             \
	X(server_poll)                                                                             \
	X(server_open)                                                                             \
	X(server_opened)                                                                           \
	X(server_manifest_put)                                                                     \
	X(server_register)                                                                         \
	X(server_registered)                                                                       \
	X(server_op)                                                                               \
	X(server_op_taken)                                                                         \
	X(server_prepared)                                                                         \
	X(server_prepared_taken)                                                                   \
	X(server_leg_end)                                                                          \
	X(server_leg_ended)                                                                        \
	X(server_content)                                                                          \
	X(server_drain_done)                                                                       \
	X(server_drained)                                                                          \
	X(server_close)                                                                            \
	X(server_closed)                                                                           \
	X(server_admin)                                                                            \
	X(server_reserved)                                                                         \
	/* The agent and the server: before a request is sent, when an event has come. */          \
	X(agent_sends_attach)                                                                      \
	X(agent_sends_rejoin)                                                                      \
	X(agent_sends_rejoined)                                                                    \
	X(agent_sends_beat)                                                                        \
	X(agent_sends_open)                                                                        \
	X(agent_sends_register)                                                                    \
	X(agent_sends_op)                                                                          \
	X(agent_sends_prepared)                                                                    \
	X(agent_sends_leg_end)                                                                     \
	X(agent_sends_content)                                                                     \
	X(agent_sends_drain_done)                                                                  \
	X(agent_sends_close)                                                                       \
	X(agent_sends_admin)                                                                       \
	X(agent_sends_reserved)                                                                    \
	X(agent_told_plan)                                                                         \
	X(agent_told_go)                                                                           \
	X(agent_told_grant)                                                                        \
	X(agent_told_drain)                                                                        \
	X(agent_told_outcome)                                                                      \
	X(agent_told_reserve)                                                                      \
	X(agent_told_release)                                                                      \
	/* The agent and its worker. */                                                            \
	X(agent_greets)                                                                            \
	X(agent_opens)                                                                             \
	X(agent_makes_session)                                                                     \
	X(agent_takes_memory)                                                                      \
	X(agent_registers)                                                                         \
	X(agent_registered)                                                                        \
	X(agent_submitted)                                                                         \
	X(agent_completes)                                                                         \
	X(agent_unregisters)                                                                       \
	X(agent_closing)                                                                           \
	X(agent_closed)                                                                            \
	X(agent_frees)                                                                             \
	/* The agent's parts and legs. */                                                          \
	X(agent_part_new)                                                                          \
	X(agent_part_end)                                                                          \
	X(agent_makes_room)                                                                        \
	X(agent_hashed)                                                                            \
	X(agent_pulls)                                                                             \
	X(agent_copies)                                                                            \
	X(agent_serves)                                                                            \
	X(agent_leg_in_over)                                                                       \
	X(agent_leg_out_over)                                                                      \
	X(leg_in_connects)                                                                         \
	X(leg_in_hello)                                                                            \
	X(leg_in_welcome)                                                                          \
	X(leg_in_first_chunk)                                                                      \
	X(leg_in_half)                                                                             \
	X(leg_in_last_chunk)                                                                       \
	X(leg_in_bye)                                                                              \
	X(leg_out_hello)                                                                           \
	X(leg_out_first_chunk)                                                                     \
	X(leg_out_half)                                                                            \
	X(leg_out_last_chunk)                                                                      \
	X(leg_out_bye)                                                                             \
	X(copy_first_chunk)                                                                        \
	X(copy_last_chunk)                                                                         \
	/* libthc. */                                                                              \
	X(worker_connects)                                                                         \
	X(worker_joined)                                                                           \
	X(worker_shares_memory)                                                                    \
	X(worker_registers)                                                                        \
	X(worker_submits)                                                                          \
	X(worker_submitted)                                                                        \
	X(worker_completed)                                                                        \
	X(worker_unregisters)                                                                      \
	X(worker_closes)                                                                           \
	X(worker_closed)

enum failpoint {
	FAILPOINT_NONE,
#define FAILPOINT_ENUM(name) FAILPOINT_##name,
	FAILPOINTS(FAILPOINT_ENUM)
#undef FAILPOINT_ENUM
		FAILPOINT_COUNT
};

#ifdef TH_FAULTS
/* May not return. 0, or -errno where that was asked for. FAILPOINT_NONE: nothing. */
int failpoint_hit(enum failpoint point);
#define TH_FP(name) (void)failpoint_hit(FAILPOINT_##name)
#define TH_FP_RC(name) failpoint_hit(FAILPOINT_##name)
#define TH_FP_OF(table, index)                                                                     \
	(void)failpoint_hit(                                                                       \
		(size_t)(index) < sizeof(table) / sizeof((table)[0]) ? (table)[index] : 0)
#else
#define TH_FP(name) (void)0
#define TH_FP_RC(name) 0
#define TH_FP_OF(table, index) (void)(table)
#endif

#endif
