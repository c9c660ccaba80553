#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the text of the GPU's kernel, which no test without a GPU could, against libxxhash.

    leaf_kernel_test.py PTX

The kernel's source runs on the CPU in unit_cuda_hash; here it is what a compiler made of it.
"""

import ctypes
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

LEAF = 65536
SHORT = 240
TASKS, VALUES, BYTES, COPIES = 0x1000, 0x2000, 0x100000, 0x900000
xxhash = ctypes.CDLL('libxxhash.so.0')
xxhash.XXH3_64bits.restype = ctypes.c_uint64
xxhash.XXH3_64bits.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
generator = random.Random(1)
content = generator.randbytes(6 * LEAF)


def xxh3(data):
    return xxhash.XXH3_64bits(data, len(data))


class Leaf(unittest.TestCase):
    def run_leaf(self, pieces, copy=0):
        """Pieces: where in the content, and how many bytes. The value, and what was copied."""
        data = b''.join(content[at:at + size] for at, size in pieces)
        memory = ptx.Memory()
        # Nothing but the 16 bytes around each piece is there.
        for at, size in pieces:
            first, end = at & ~15, (at + size + 15) & ~15
            memory.add(BYTES + first, end - first, content[first:end])
        table, start = b'', 0
        for at, size in pieces:
            table += struct.pack('<QII', BYTES + at, start, size)
            start += size
        address = BYTES + pieces[0][0] if len(pieces) == 1 else TASKS + 32
        short = COPIES + 1 if len(data) <= SHORT else copy
        task = struct.pack('<QQIIQ', address, short, len(data), len(pieces), 0)
        memory.add(TASKS, len(task + table), task + table)
        memory.add(VALUES, 16)
        copied = memory.add(COPIES, LEAF + 16, b'\0' * (LEAF + 16))
        kernel.run_block(0, (TASKS, VALUES + 8), memory)
        return memory.load(VALUES + 8, 8), bytes(copied), data

    def check(self, *pieces):
        value, copied, data = self.run_leaf(pieces)
        if len(data) <= SHORT:
            self.assertEqual(copied, b'\0' + data + b'\0' * (LEAF + 15 - len(data)), pieces)
            self.assertEqual(value, 0)
        else:
            self.assertEqual(value, xxh3(data), pieces)
            self.assertEqual(copied.count(0), len(copied))

    def test_whole_leaf(self):
        self.check((0, LEAF))
        self.check((48, LEAF))

    def test_whole_leaf_that_is_copied(self):
        value, copied, data = self.run_leaf([(32, LEAF)], copy=COPIES + 16)
        self.assertEqual(value, xxh3(data))
        self.assertEqual(copied, b'\0' * 16 + data)

    def test_whole_leaf_anywhere(self):
        for at in (1, 8, 15):
            self.check((at, LEAF))

    def test_lengths(self):
        for size in (1, 16, 239, 240, 241, 1023, 1024, 1025, 1088, 1089, 2049, 40000, LEAF - 1):
            self.check((generator.randrange(64), size))

    def test_pieces(self):
        self.check((3, 100), (5000, 7), (20000, LEAF - 107))
        self.check((100, LEAF - 1), (90000, 1))
        self.check((16, 2), (64, 100), (1000, 1), (300, 97))
        self.check((16, 1000), (4096, 25))

    def test_many_pieces(self):
        pieces, left = [], LEAF
        for i in range(512):
            size = left if i == 511 else generator.randrange(1, 2 * left // (512 - i))
            pieces.append((i * 512 + generator.randrange(16), min(size, 490)))
            left -= pieces[-1][1]
        self.check(*pieces)
        self.check(*((i * 64 + i % 16, 1) for i in range(SHORT)))


if __name__ == '__main__':
    with open(sys.argv.pop(1), encoding='ascii') as file:
        text = file.read()
    kernel_ptx.look('leaf', text)
    kernel = ptx.Kernel(text, 'th_leaf_digests')
    unittest.main()
