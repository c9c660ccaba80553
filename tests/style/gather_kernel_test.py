#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the text of the kernel that copies many ranges, which no test without a GPU could.

    gather_kernel_test.py PTX

The kernel's source runs on the CPU in unit_cuda_gather; here it is what a compiler made of it.
"""

import os
import random
import struct
import sys
import unittest

TESTS = os.path.join(os.path.dirname(os.path.abspath(__file__)), '..')
sys.path[:0] = [os.path.join(TESTS, 'support'),
                os.path.join(TESTS, '..', 'transport', 'cuda', 'kernels')]
import kernel_ptx  # noqa: E402
import ptx  # noqa: E402

TASKS, FROM, TO = 0x10000, 0x1000000, 0x2000000
ROOM = 1 << 16  # between one range and the next
AROUND = 64  # bytes beside each range that nothing may touch
generator = random.Random(1)


class Gather(unittest.TestCase):
    def check(self, ranges, blocks=1):
        """ranges: how far each begins behind a multiple of 128, on both sides, and its bytes."""
        memory = ptx.Memory()
        table, expected = b'', []
        for i, (to, source, size) in enumerate(ranges):
            data = generator.randbytes(size)
            table += struct.pack('<QQIIII', TO + i * ROOM + AROUND * 2 + to,
                                 FROM + i * ROOM + source, size, 0xaa, 0xaa, 0xaa)
            # Nothing but the 16 bytes around it is there.
            first, end = source & ~15, (source + size + 15) & ~15
            memory.add(FROM + i * ROOM + first, end - first,
                       b'\x55' * (source - first) + data + b'\x55' * (end - source - size))
            room = AROUND * 4 + to + size + 15 & ~15
            before = generator.randbytes(room)
            at = AROUND * 2 + to
            expected.append((memory.add(TO + i * ROOM, room, before),
                             before[:at] + data + before[at + size:]))
        memory.add(TASKS, len(table), table)
        for block in range(blocks):
            kernel.run_block(block, (TASKS, len(ranges)), memory, blocks)
        for (copied, wanted), what in zip(expected, ranges):
            self.assertEqual(bytes(copied), wanted, what)

    def test_every_alignment(self):
        for size in (1, 15, 16, 17, 33, 70):
            self.check([(to, source, size) for to in range(16) for source in range(16)])

    def test_lengths(self):
        for to, source in ((0, 0), (16, 112), (3, 3), (0, 8), (5, 124), (15, 1), (4, 0)):
            self.check([(to, source, size) for size in
                        (1, 2, 31, 32, 127, 128, 129, 511, 2047, 2048, 2049, 5000, 16384)], 2)

    def test_lines_at_any_place(self):
        self.check([(16 * i, 16 * j, 600 + i) for i in range(8) for j in range(8)], 3)

    def test_as_many_blocks_as_one_likes(self):
        for count in (1, 7, 8, 9, 63, 100):
            for blocks in (1, 2, 13):
                self.check([(generator.randrange(128), generator.randrange(128),
                             generator.randrange(1, 300)) for _ in range(count)], blocks)


if __name__ == '__main__':
    with open(sys.argv.pop(1), encoding='ascii') as file:
        text = file.read()
    kernel_ptx.look('gather', text)
    kernel = ptx.Kernel(text, 'th_gather')
    unittest.main()
