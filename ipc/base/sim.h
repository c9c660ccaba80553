/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sim - points of a core that the simulator (tests/sim) watches. In ordinary builds: nothing.
 *
 *   TH_MARK(c12_member_died);            statement: this happened. A mark that no run reaches is
 *                                        a case that nothing proves.
 *   if (TH_PLANT(late_proof) || proven)  expression, false: a bug that can be switched on. A plant
 *                                        that the simulator does not find shows what it misses.
 *
 * Names are C identifiers and there is no central list: with -DTH_SIM each use puts a pointer to
 * its own record into a section of the program, th_marks or th_plants, and the linker makes the
 * list. One name may stand at several places. Nothing but a simulator is compiled with -DTH_SIM.
 */
#ifndef TH_IPC_BASE_SIM_H
#define TH_IPC_BASE_SIM_H

#include <stdbool.h>
#include <stdint.h>

struct th_sim_point {
	const char *name, *file;
	int line;
	bool on;       /* a plant: switched on by the simulator */
	uint64_t hits; /* a plant counts while it is on         */
};

#ifdef TH_SIM

#define TH_SIM_POINT(list, text)                                                                   \
	static struct th_sim_point th_point = {                                                    \
		.name = (text), .file = __FILE__, .line = __LINE__};                               \
	static struct th_sim_point *const th_point_here __attribute__((section(#list), used)) =    \
		&th_point

#define TH_MARK(name)                                                                              \
	do {                                                                                       \
		TH_SIM_POINT(th_marks, #name);                                                     \
		th_point.hits++;                                                                   \
	} while (0)

#define TH_PLANT(name)                                                                             \
	(__extension__({                                                                           \
		TH_SIM_POINT(th_plants, #name);                                                    \
		th_point.hits += th_point.on;                                                      \
		th_point.on;                                                                       \
	}))

#else

#define TH_MARK(name) ((void)0)
#define TH_PLANT(name) false

#endif

#endif
