# SPDX-License-Identifier: Apache-2.0
"""The lab's figures, by gnuplot, from its tables."""

import os
import shutil
import subprocess

HEAD = """set terminal pngcairo size 640,400 font "Sans,10" noenhanced
set output "{name}.png"
set datafile separator "\\t"
set key top left
set grid ytics lc rgb "#dddddd"
set border 3
set tics nomirror
set yrange [0:*]
"""

BODY = {
    "burst": """set title "readers that call at once, {size} MiB, links of {rate} MB/s"
set xlabel "readers"
set ylabel "total stall, s"
set logscale xy 2
set yrange [*:*]
set xrange [0.9:{most}]
plot "burst.tsv" using 1:4 skip 1 with linespoints lw 2 pt 5 lc rgb "#b03030" \\
        title "pipelining off", \\
     "" using 1:3 skip 1 with linespoints lw 2 pt 7 lc rgb "#2050a0" title "pipelining on", \\
     "" using 1:2 skip 1 with lines lw 1 dt 2 lc rgb "#606060" \\
        title "ideal: each as one that is alone"
""",
    "failure": """set title "B reads through A, A is lost; {size} MiB, links of {rate} MB/s"
set xlabel "A is lost so many seconds after the start"
set ylabel "B is complete after, s"
set key bottom right
plot "failure.tsv" using 2:5 skip 1 with lines lw 1 dt 2 lc rgb "#606060" \\
        title "limit: 1 s and the missing bytes' time", \\
     "" using 2:4 skip 1 with linespoints lw 2 pt 7 lc rgb "#2050a0" title "A is killed", \\
     "" using 6:8 skip 1 with linespoints lw 2 pt 5 lc rgb "#308050" \\
        title "A's link is cut", \\
     {whole} with lines lw 1 lc rgb "#b03030" title "nobody is lost"
""",
    "fanout": """set title "{size} MiB in {chunks} chunks, links of {rate} MB/s"
set xlabel "readers"
set ylabel "the last reader is done after, s"
set xrange [0:{most}]
set key bottom right
plot "fanout.tsv" using 1:3 skip 1 with linespoints lw 1 dt 2 pt 0 lc rgb "#606060" \\
        title "one transfer x (K + N - 1) / K", \\
     "" using 1:2 skip 1 with points ps 1.5 pt 7 lc rgb "#2050a0" title "measured"
""",
    "hub": """set title "{size} MiB, links of {rate} MB/s"
set style data histograms
set style fill solid 0.9 border
set boxwidth 0.9
set xlabel "readers"
set ylabel "the last reader is done after, s"
plot "hub.tsv" using 2:xtic(1) skip 1 lc rgb "#b03030" \\
        title "a hub that serves all (raw sockets)", \\
     "" using 3 skip 1 lc rgb "#2050a0" title "TensorHub"
""",
    "far": """set output
set terminal pngcairo size 960,340 font "Sans,10" noenhanced
set output "far.png"
$bars << EOD
{bars}
EOD
set multiplot layout 1,3 title \\
        "{size} MiB from another datacenter, by 1/{part} of {rate} MB/s, round trip 30 ms"
set style fill solid 0.9 border
set boxwidth 0.6
unset key
set ylabel "all shards stand still for, s"
plot $bars using 0:2:xtic(1) with boxes lc rgb "#2050a0"
set ylabel "share of shards"
set xlabel "a shard stands still for, s"
set logscale x
set yrange [0:1]
set key bottom right
set arrow from {local},0 to {local},1 nohead dt 2 lc rgb "#606060"
plot "far.tsv" using 2:1 skip 1 with steps lw 2 lc rgb "#b03030" title "each", \\
     "" using 3:1 skip 1 with steps lw 2 lc rgb "#308050" title "skipping", \\
     "" using 4:1 skip 1 with steps lw 2 lc rgb "#2050a0" title "seeding", \\
     NaN lw 1 dt 2 lc rgb "#606060" title "near, alone"
unset arrow
unset logscale x
unset xlabel
unset key
set yrange [0:*]
set ylabel "over the link, x the payload"
plot $bars using 0:3:xtic(1) with boxes lc rgb "#2050a0"
unset multiplot
""",
}


def available():
    return shutil.which("gnuplot") is not None


def plot(folder, name, **values):
    path = os.path.join(folder, f"{name}.gnuplot")
    body = BODY[name]
    for key, value in {"name": name, **values}.items():
        body = body.replace("{" + key + "}", str(value))
    with open(path, "w") as f:
        f.write(HEAD.replace("{name}", name) + body)
    subprocess.run(["gnuplot", f"{name}.gnuplot"], cwd=folder, check=True, timeout=60)
    os.unlink(path)
