/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ctl_rejoin - what an agent says of a session to a server that knows nothing of it. A part of
 * ctl.h, which includes it behind what it is made of; nobody else does.
 */
#ifndef TH_IPC_BASE_CTL_REJOIN_H
#define TH_IPC_BASE_CTL_REJOIN_H

#define TH_OUTCOMES_MAX 64u /* as many operations as a member may be ahead of its group */

/* How an operation ended: what one member was told the others must be told too. */
struct ctl_known_outcome {
	uint64_t op_seq;
	uint32_t kind, flags;
	char spec[TH_SPEC_MAX + 1];
	int code;
	bool updated;
	bool went;                 /* it was after GO: the old content was given up */
	struct th_version version; /* held since, when code is 0 */
};

/*
 * A session that a former server life knew. When all members of its group have said theirs and
 * nothing in it contradicts the rest, the group is live again: what it holds is listed, what ran
 * runs on under the old numbers, and operations that had no GO are called again by OP.
 */
struct ctl_rejoin {
	uint64_t sid, group_inc; /* as the former server numbered them */
	struct ctl_open open;
	/*
	 * It has ended meanwhile or is broken, and with it the group. Of what is below only what is
	 * held counts: it can still be read, and may be copied elsewhere before it is given up.
	 */
	bool gone;
	bool died; /* it is gone because its worker died */
	bool registered;
	struct ctl_register reg;
	uint64_t next_op_seq; /* all before it are decided or have had their GO */

	struct th_version held; /* none: nothing */
	uint64_t gen;           /* of held */
	bool hashed;            /* of held, or of what is all there of the running operation: */
	struct th_hash content; /* of those bytes, as in CONTENT */
	struct th_hash attributes;
	bool refused;   /* others had published other bytes before */
	bool published; /* held: its bytes are its worker's own, not received */

	bool went; /* an operation runs after its GO: */
	uint64_t op_seq;
	uint32_t kind, flags;
	char spec[TH_SPEC_MAX + 1];
	struct th_version version;
	bool cancelled;  /* a CANCEL of the server has come */
	bool done;       /* every byte is here */
	uint32_t chunks; /* verified prefix */
	uint64_t leg;    /* that runs; 0: none */
	bool leg_stops;  /* the leg was told to give way to another */
	uint64_t source_sid, source_gen;
	struct th_hash announced; /* of what it reads, as GO or REROUTE has said; or none */

	uint32_t num_outcomes; /* ascending by op_seq, at most TH_OUTCOMES_MAX */
	const struct ctl_known_outcome *outcomes;
};

struct ctl_rejoined {
	uint32_t num_sessions;
};

#endif
