/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ring - the sleep and the wake-up of a ring (ipc/shm/doorbell.h): one side submits NUM records,
 * the other takes them and sleeps in between. Each processor has a store buffer, as x86 has: a
 * store becomes visible to the other some time later, in order. A sequentially consistent store
 * waits until the buffer is empty, and so does a system call.
 *
 * A lost wake-up is an end state in which the waiter still polls: Spin reports it as invalid. With
 * one of these defined there is one, and Spin must find it:
 *   NO_FENCE_WAKER   the index is not in memory yet when the flag is read
 *   NO_FENCE_WAITER  the flag is not in memory yet when the index is read
 *   FLAG_READ_FIRST  the waker reads the flag before it stores the index
 *   LOOK_FIRST       the waiter does not look again after it has set the flag
 *   DRAIN_LAST       the waiter drains the doorbell between its last look and its sleep
 */
#define NUM 3

byte index_memory = 0;
bit flag_memory = 0;
chan index_buffer = [2] of { byte }; /* of the waker's processor */
chan flag_buffer = [2] of { bit };   /* of the waiter's processor */
bit bell = 0;

active proctype index_writer()
{
	byte value;
end:	do
	:: atomic { index_buffer?value -> index_memory = value }
	od
}

active proctype flag_writer()
{
	bit value;
end:	do
	:: atomic { flag_buffer?value -> flag_memory = value }
	od
}

/* ring_push and doorbell_ring, or ring_complete and doorbell_timer_ring. */
active proctype waker()
{
	byte submitted = 0;
	bit flag;

	do
	:: submitted == NUM -> break
	:: else ->
#ifdef FLAG_READ_FIRST
		flag = flag_memory;
#endif
		submitted++;
		index_buffer!submitted;
#ifndef NO_FENCE_WAKER
		empty(index_buffer);
#endif
#ifndef FLAG_READ_FIRST
		flag = flag_memory;
#endif
		if
		:: flag -> empty(index_buffer); bell = 1
		:: else
		fi
	od
}

/* take() of the agent, which also takes its flag back; libthc leaves it set. */
active proctype waiter()
{
	byte taken = 0;

	do
	:: taken == NUM -> break
	:: else ->
		flag_buffer!0;
		taken = index_memory;
		flag_buffer!1;
#ifndef NO_FENCE_WAITER
		empty(flag_buffer);
#endif
#ifdef LOOK_FIRST
		if
		:: taken == NUM
		:: else ->
#else
		if
		:: taken != index_memory || taken == NUM
		:: else ->
#endif
#ifdef DRAIN_LAST
			bell = 0;
#endif
			empty(flag_buffer);
			atomic { bell == 1 -> bell = 0 }
		fi
	od
}
