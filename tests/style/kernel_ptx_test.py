#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""That the PTX of a kernel is of other sources is noticed, also where no clang can make it anew."""

import contextlib
import io
import os
import shutil
import sys
import tempfile
import unittest

HERE = os.path.dirname(os.path.realpath(__file__))
sys.path.insert(0, os.path.join(HERE, '..', '..', 'transport', 'cuda'))
import kernel_ptx  # noqa: E402

FOLDER = kernel_ptx.FOLDER


class Stale(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.there = os.path.join(folder.name, 'transport', 'cuda')
        shutil.copytree(FOLDER, self.there)
        kernel_ptx.ROOT, kernel_ptx.FOLDER = folder.name, self.there

    def check(self):
        """What an empty machine says of each kernel; None: all is well."""
        said = {}
        for name in kernel_ptx.KERNELS:
            try:
                with contextlib.redirect_stdout(io.StringIO()):
                    said[name] = kernel_ptx.check_one(None, None, name)
            except SystemExit as end:
                said[name] = end.code
        return said

    def change(self, file):
        with open(os.path.join(self.there, file), 'a', encoding='ascii') as f:
            f.write('/* another one */\n')

    def test_as_it_is(self):
        self.assertEqual(set(self.check().values()), {None})

    def test_each_source(self):
        for file, kernels in (('leaf_kernel.cu', {'leaf'}), ('gather_task.h', {'gather'}),
                              ('kernel_memory.h', {'leaf', 'gather'})):
            self.setUp()
            self.change(file)
            stale = {name for name, said in self.check().items() if said}
            self.assertEqual(stale, kernels, file)

    def test_what_to_do_is_said(self):
        self.change('leaf_kernel.h')
        self.assertIn('--make', self.check()['leaf'])


if __name__ == '__main__':
    unittest.main()
