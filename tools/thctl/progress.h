/* SPDX-License-Identifier: Apache-2.0 */
/*
 * progress - one line on the terminal that says how far, how fast and how long yet.
 *
 * Written to stderr, only when that is a terminal: a log gets no bars. The line that is drawn is
 * made by a pure function. One owner.
 */
#ifndef TH_TOOLS_THCTL_PROGRESS_H
#define TH_TOOLS_THCTL_PROGRESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PROGRESS_LINE_BYTES 256
#define PROGRESS_PERIOD_NS INT64_C(200000000)

struct progress {
	const char *label; /* borrows */
	bool visible;      /* stderr is a terminal                                           */
	int64_t begun_ns, drawn_ns;
	uint64_t sample_bytes; /* at the last drawing                                        */
	double rate;           /* bytes a second, smoothed; 0: not known yet                 */
};

void progress_begin(struct progress *progress, const char *label);
/* Draws, but not more often than every PROGRESS_PERIOD_NS. */
void progress_draw(struct progress *progress, uint64_t done_bytes, uint64_t total_bytes);
void progress_end(struct progress *progress); /* clears the line */

/*
 * "label  [#####-----]  50%  1.00GiB of 2.00GiB  1.50GiB/s  700ms left", at most width characters.
 */
void progress_line(const char *label, uint64_t done_bytes, uint64_t total_bytes, double rate,
	size_t width, char line[PROGRESS_LINE_BYTES]);

#endif
