/* SPDX-License-Identifier: Apache-2.0 */
/*
 * progress - drawing of the progress line (see progress.h).
 */
#include "tools/thctl/progress.h"

#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "ipc/base/checked.h"
#include "ipc/base/clock.h"
#include "ipc/base/units.h"

#define BAR_CHARACTERS 20
#define NS_PER_SECOND 1e9
#define SMOOTHING 0.3 /* weight of the newest sample: about a second of memory               */
#define WIDTH_DEFAULT 80

void
progress_begin(struct progress *progress, const char *label)
{
	*progress = (struct progress){
		.label = label,
		.visible = isatty(STDERR_FILENO),
		.begun_ns = th_now_ns(),
	};
	progress->drawn_ns = progress->begun_ns;
}

static size_t
terminal_width(void)
{
	struct winsize size;

	if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) < 0 || size.ws_col == 0)
		return WIDTH_DEFAULT;
	return size.ws_col;
}

void
progress_draw(struct progress *progress, uint64_t done_bytes, uint64_t total_bytes)
{
	char line[PROGRESS_LINE_BYTES];

	int64_t now_ns = th_now_ns();
	int64_t passed_ns = now_ns - progress->drawn_ns;
	if (!progress->visible || passed_ns < PROGRESS_PERIOD_NS)
		return;
	uint64_t moved =
		done_bytes > progress->sample_bytes ? done_bytes - progress->sample_bytes : 0;
	double sample = (double)moved / ((double)passed_ns / NS_PER_SECOND);
	progress->rate =
		progress->rate > 0 ? SMOOTHING * sample + (1 - SMOOTHING) * progress->rate : sample;
	progress->drawn_ns = now_ns;
	progress->sample_bytes = done_bytes;
	/* The last column stays free: some terminals go to the next line when it is filled. */
	progress_line(progress->label, done_bytes, total_bytes, progress->rate,
		terminal_width() - 1, line);
	fprintf(stderr, "\r\x1b[K%s", line);
	fflush(stderr);
}

void
progress_end(struct progress *progress)
{
	if (progress->visible && progress->drawn_ns != progress->begun_ns) {
		fputs("\r\x1b[K", stderr);
		fflush(stderr);
	}
	progress->visible = false;
}

static void
progress_append(char line[PROGRESS_LINE_BYTES], size_t width, const char *text)
{
	size_t used = strlen(line);
	size_t most = th_min_size(width, PROGRESS_LINE_BYTES - 1);

	/* A part that does not fit whole is left out: half a number would lie. */
	if (used + strlen(text) <= most)
		strcpy(line + used, text);
}

void
progress_line(const char *label, uint64_t done_bytes, uint64_t total_bytes, double rate,
	size_t width, char line[PROGRESS_LINE_BYTES])
{
	char done[TH_UNITS_BYTES];
	char total[TH_UNITS_BYTES];
	char left[TH_UNITS_BYTES];
	char bar[BAR_CHARACTERS + 1];
	char part[PROGRESS_LINE_BYTES];

	line[0] = '\0';
	progress_append(line, width, label);
	if (total_bytes == 0) {
		progress_append(line, width, "  waiting");
		return;
	}
	double fraction = (double)th_min_u64(done_bytes, total_bytes) / (double)total_bytes;
	int filled = (int)(fraction * BAR_CHARACTERS);
	memset(bar, '-', BAR_CHARACTERS);
	memset(bar, '#', (size_t)filled);
	bar[BAR_CHARACTERS] = '\0';
	snprintf(part, sizeof(part), "  [%s] %3d%%", bar, (int)(fraction * 100));
	progress_append(line, width, part);
	snprintf(part, sizeof(part), "  %s of %s", th_print_size_short(done_bytes, done),
		th_print_size_short(total_bytes, total));
	progress_append(line, width, part);
	if (rate < 1)
		return;
	snprintf(part, sizeof(part), "  %s/s", th_print_size_short((uint64_t)rate, done));
	progress_append(line, width, part);
	double seconds = (double)(total_bytes - th_min_u64(done_bytes, total_bytes)) / rate;
	/* A guess of more than four days is none. */
	if (seconds > 360000)
		return;
	snprintf(part, sizeof(part), "  %s left",
		th_print_duration_short((int64_t)(seconds * NS_PER_SECOND), left));
	progress_append(line, width, part);
}
