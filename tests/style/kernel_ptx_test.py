#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""That the PTX of a kernel is of other sources, or was changed, is noticed, also where no clang can
make it anew."""

import contextlib
import io
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

HERE = os.path.dirname(os.path.realpath(__file__))
sys.path.insert(0, os.path.join(HERE, '..', '..', 'transport', 'cuda', 'kernels'))
import kernel_ptx  # noqa: E402

FOLDER = kernel_ptx.FOLDER


class Stale(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.there = os.path.join(folder.name, 'transport', 'cuda', 'kernels')
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

    def test_each_part_of_the_text(self):
        """In another register, in a comment, one line less, and at both ends."""
        for name in kernel_ptx.KERNELS:
            with open(kernel_ptx.file_of(name, 'ptx'), encoding='ascii') as file:
                text = file.read()
            lines = text.splitlines(keepends=True)
            middle = next(i for i, line in enumerate(lines) if line.startswith('\tadd.s64'))
            register = lines[middle].rstrip(';\n') + '1;\n'
            for changed in (lines[:middle] + [register] + lines[middle + 1:],
                            lines[:middle] + lines[middle + 1:], ['//\n', *lines], lines[1:],
                            [*lines, '\n'], lines[:-1], [*lines[:-2], '\n', lines[-1]], []):
                with open(kernel_ptx.file_of(name, 'ptx'), 'w', encoding='ascii') as file:
                    file.writelines(changed)
                self.assertIn('--make', self.check()[name], name)
            with open(kernel_ptx.file_of(name, 'ptx'), 'w', encoding='ascii') as file:
                file.write(text)
            self.assertEqual(set(self.check().values()), {None})

    def test_each_program_that_reads_it(self):
        """What runs the texts looks first, too."""
        for name in kernel_ptx.KERNELS:
            with open(os.path.join(FOLDER, f'{name}_kernel.ptx'), encoding='ascii') as file:
                text = file.read()
            path = kernel_ptx.file_of(name, 'ptx')
            with open(path, 'w', encoding='ascii') as file:
                file.write(text.replace('\tadd.s64', '\tsub.s64', 1))
            done = subprocess.run(
                [sys.executable, os.path.join(HERE, f'{name}_kernel_test.py'), path],
                capture_output=True, text=True, check=False)
            self.assertEqual(done.returncode, 1)
            self.assertIn('--make', done.stderr)

    def test_what_to_do_is_said(self):
        self.change('leaf_kernel.h')
        self.assertIn('--make', self.check()['leaf'])


if __name__ == '__main__':
    unittest.main()
