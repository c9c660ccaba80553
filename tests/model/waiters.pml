/* SPDX-License-Identifier: Apache-2.0 */
/*
 * waiters - the threads that wait in one handle of libthc (shard.c): two in blocking calls, of
 * which one polls the doorbell for all, and one that polls thc_fd, for the end of an operation and
 * for an event. The agent ends the three operations and tells of the event in any
 * order. The first call may also run into its deadline.
 *
 * Each wait has to end: who waits for ever is in an invalid end state. EDGE: thc_fd is polled edge
 * triggered. With one of these defined somebody waits for ever, and Spin must find it:
 *   NO_HANDOVER   who has polled for all leaves without waking one that polls next
 *   NO_KICK       who finds another's completion does not wake the thread that polls
 *   NO_SHOW       who drains the doorbell shows completions on thc_fd, but no event
 *   FLAG_KEPT     what is collected leaves the note that thc_fd is readable
 *   WHOLE_LINE    an event is seen only when the agent does not write the line just then
 *   BELL_ONLY     thc_fd is the doorbell itself
 *   LATE_SLEEP    who sleeps on the condition variable gives up the lock before it is counted
 */
#define OPS 3 /* of the two calls, and the submitted one */
#define SUBMITTED 2

bit completed[OPS]; /* in the ring */
bit event;          /* in the line */
bit bell;

bool locked;
bit done[OPS];
bit uncollected;        /* the submitted operation has ended, and nobody was told */
bit reported;           /* the event */
bit polling, kick;
bit asleep[2];          /* on the condition variable */
bit shown, shown_noted; /* the eventfd of thc_fd, and what libthc believes of it */
bit edge;               /* something of thc_fd has become readable since it was asked */

#ifdef WHOLE_LINE
bit writing; /* the agent's next heartbeat; where no line need be read whole it does not matter */
#define EVENT_SEEN (event && !writing)
#else
#define EVENT_SEEN event
#endif
#ifdef BELL_ONLY
#define READABLE bell
#else
#define READABLE (bell || shown)
#endif

inline lock() { atomic { !locked -> locked = true } }
inline unlock() { locked = false }

/* All below: under the lock, and of what others touch without it one thing a step. */

inline wake()
{
	asleep[0] = 0;
	asleep[1] = 0;
#ifndef NO_KICK
	if
	:: polling -> kick = 1
	:: else
	fi
#endif
}

inline update_fd()
{
	atomic {
		if
		:: uncollected || (EVENT_SEEN && !reported) ->
			if
			:: !shown_noted -> shown = 1; edge = 1; shown_noted = 1
			:: else
			fi
		:: else ->
			if
#ifdef FLAG_KEPT
			:: shown_noted -> shown = 0
#else
			:: shown_noted -> shown = 0; shown_noted = 0
#endif
			:: else
			fi
		fi
	}
}

inline collect(any)
{
	atomic {
		any = 0;
		if
		:: completed[0] && !done[0] -> done[0] = 1; any = 1
		:: else
		fi;
		if
		:: completed[1] && !done[1] -> done[1] = 1; any = 1
		:: else
		fi;
		if
		:: completed[SUBMITTED] && !done[SUBMITTED] ->
			done[SUBMITTED] = 1; uncollected = 1; any = 1
		:: else
		fi;
		if
		:: any -> wake()
		:: else
		fi
	};
	if
	:: any -> update_fd()
	:: else
	fi
}

inline take(rang, any)
{
	if
	:: rang -> bell = 0
	:: else
	fi;
	collect(any);
#ifndef NO_SHOW
	update_fd()
#endif
}

proctype call(byte me)
{
	bit rang, kicked, any, late = 0;

	lock();
	collect(any);
	do
	:: done[me] || late -> break
	:: else ->
		if
		:: polling ->
#ifdef LATE_SLEEP
			unlock();
			asleep[me] = 1;
#else
			atomic { asleep[me] = 1; unlock() };
#endif
			!asleep[me];
			lock()
		:: else ->
			/* A completion that waits is taken without a poll. */
			if
			:: (completed[0] && !done[0]) || (completed[1] && !done[1]) ||
			   (completed[SUBMITTED] && !done[SUBMITTED]) -> collect(any)
			:: else ->
				polling = 1;
				unlock();
				atomic {
					if
					:: bell || kick -> rang = bell; kicked = kick
					:: me == 0 -> rang = 0; kicked = 0; late = 1
					fi
				};
				lock();
				polling = 0;
				if
				:: kicked -> kick = 0
				:: else
				fi;
				take(rang, any);
#ifndef NO_HANDOVER
				atomic { wake() }
#endif
			fi
		fi
	od;
	unlock()
}

/* thc_op_done, then thc_shard_events, each time thc_fd has become readable. */
proctype loop()
{
	bit rang, any, told = 0, ended = 0;

	do
	:: told && ended -> break
	:: else ->
#ifdef EDGE
		do
		:: atomic { edge && READABLE -> edge = 0; break }
		:: atomic { edge && !READABLE -> edge = 0 }
		od;
#else
		READABLE;
#endif
		lock();
		rang = bell;
		take(rang, any);
		if
		:: uncollected -> uncollected = 0; ended = 1; update_fd()
		:: else
		fi;
		unlock();
		lock();
		rang = bell;
		take(rang, any);
		atomic {
			if
			:: EVENT_SEEN && !reported -> reported = 1; told = 1
			:: else
			fi
		};
		update_fd();
		unlock()
	od
}

/* What is told is in memory before the doorbell rings: ring.pml. */
inline ring() { atomic { bell = 1; edge = 1 } }

proctype agent()
{
#ifdef WHOLE_LINE
	bit beaten = 0;
#endif

	do
	:: !completed[0] -> completed[0] = 1; ring()
	:: !completed[1] -> completed[1] = 1; ring()
	:: !completed[SUBMITTED] -> completed[SUBMITTED] = 1; ring()
	:: !event -> event = 1; ring()
#ifdef WHOLE_LINE
	:: event && !beaten -> writing = 1; beaten = 1; writing = 0
#endif
	:: completed[0] && completed[1] && completed[SUBMITTED] && event -> break
	od
}

init
{
	atomic { run call(0); run call(1); run loop(); run agent() }
}
