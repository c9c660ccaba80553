#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Plants one violation of each rule in a small tree and expects layers.py to find exactly that."""

import json
import os
import subprocess
import tempfile
import unittest

import layers

SPDX = '/* SPDX-License-Identifier: Apache-2.0 */\n'


def c_file(*lines):
    return SPDX + ''.join(line + '\n' for line in lines)


def header(guard, *lines):
    return c_file(f'#ifndef {guard}', f'#define {guard}', *lines, '#endif')


CLEAN = {
    'meson.build': "project('x')\n",
    'ipc/base/err.h': header('TH_IPC_BASE_ERR_H', 'int th_fail(void);'),
    'ipc/base/err.c': c_file('#include "ipc/base/err.h"', '', '#include <errno.h>'),
    'ipc/net/hub.h': header('TH_IPC_NET_HUB_H', '#include <nng/nng.h>'),
    'libthc/thc.h': header('THC_H', 'int thc_open(void);'),
    'server/core/refsrv.h': header('TH_SERVER_CORE_REFSRV_H', '#include "ipc/base/err.h"'),
    'tools/run': '#!/bin/sh\n# SPDX-License-Identifier: Apache-2.0\ntrue\n',
    'tests/unit/base/err_test.c': c_file('#include <criterion/criterion.h>'),
}


class Planted(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = os.path.realpath(folder.name)
        for path, text in CLEAN.items():
            self.write(path, text)

    def write(self, path, text):
        full = os.path.join(self.root, path)
        os.makedirs(os.path.dirname(full), exist_ok=True)
        with open(full, 'w', encoding='utf-8') as file:
            file.write(text)

    def found(self):
        tree = layers.Tree(self.root)
        return [f for check in layers.SOURCE_CHECKS for f in check(tree)]

    def expect(self, path, text, *findings):
        self.write(path, text)
        self.assertEqual(self.found(), list(findings))

    def test_clean_tree(self):
        self.assertEqual(self.found(), [])

    def test_include_of_a_higher_layer(self):
        self.expect('transport/tcp.c', c_file('', '#include "libthc/thc.h"'),
                    'transport/tcp.c:3: transport may not include libthc/thc.h')

    def test_paths_of_a_leg_do_not_know_each_other(self):
        self.write('transport/tcp/tcp.h', header('TH_TRANSPORT_TCP_TCP_H'))
        self.expect('transport/rdma/leg/a.c', c_file('#include "transport/tcp/tcp.h"'),
                    'transport/rdma/leg/a.c:2: transport/rdma may not include transport/tcp/tcp.h')
        os.remove(os.path.join(self.root, 'transport/rdma/leg/a.c'))
        self.expect('transport/leg/a.c', c_file('#include "transport/tcp/tcp.h"'),
                    'transport/leg/a.c:2: transport/leg may not include transport/tcp/tcp.h')

    def test_libthc_and_what_it_uses_has_no_net(self):
        self.expect('libthc/open_close.c', c_file('#include "ipc/net/hub.h"'),
                    'libthc/open_close.c:2: libthc may not include ipc/net/hub.h')
        os.remove(os.path.join(self.root, 'libthc/open_close.c'))
        self.expect('ipc/sock/a.c', c_file('#  include "ipc/net/hub.h"'),
                    'ipc/sock/a.c:2: ipc/sock may not include ipc/net/hub.h')

    def test_tools_take_the_public_header_only(self):
        self.write('libthc/ring.h', header('TH_LIBTHC_RING_H'))
        self.expect('tools/a.c', c_file('#include "libthc/thc.h"', '#include "libthc/ring.h"'),
                    'tools/a.c:3: tools may not include libthc/ring.h')

    def test_core_includes_base_only(self):
        self.write('ipc/shm/ring.h', header('TH_IPC_SHM_RING_H'))
        self.expect('daemon/core/a.c', c_file('#include "ipc/shm/ring.h"'),
                    'daemon/core/a.c:2: daemon/core may not include ipc/shm/ring.h')

    def test_nng_outside_its_home(self):
        self.expect('server/host/a.c', c_file('#include <nng/nng.h>'),
                    'server/host/a.c:2: <nng/nng.h> is for ipc/net and tests only')

    def test_include_not_from_the_root_or_not_there(self):
        self.expect('ipc/base/a.c', c_file('#include "err.h"', '#include "ipc/base/gone.h"'),
                    'ipc/base/a.c:2: "err.h" is not named from the root of the repository',
                    'ipc/base/a.c:3: there is no ipc/base/gone.h')

    def test_generated_header_need_not_be_there(self):
        self.expect('ipc/proto/a.c', c_file('#include "ipc/proto/tensorhub.pb-c.h"'))

    def test_unknown_folder(self):
        self.expect('daemon/a.c', c_file(),
                    'daemon/a.c:1: no layer is known for this folder; CONTRIBUTING.md lists them')

    def test_own_header_not_first(self):
        self.expect('ipc/base/err.c', c_file('#include <errno.h>', '#include "ipc/base/err.h"'),
                    'ipc/base/err.c:2: its own header is not the first include')

    def test_include_cycle(self):
        self.write('ipc/base/a.h', header('TH_IPC_BASE_A_H', '#include "ipc/base/b.h"'))
        self.expect(
            'ipc/base/b.h', header('TH_IPC_BASE_B_H', '#include "ipc/base/a.h"'),
            'ipc/base/a.h:1: include cycle ipc/base/a.h -> ipc/base/b.h -> ipc/base/a.h')

    def test_core_with_a_clock(self):
        self.write('ipc/base/clock.h', header('TH_IPC_BASE_CLOCK_H'))
        self.expect('server/core/a.c', c_file('#include <time.h>', '#include "ipc/base/clock.h"'),
                    'server/core/a.c:2: a core may not include <time.h>',
                    'server/core/a.c:3: a core may not include ipc/base/clock.h')

    def test_guard(self):
        self.expect('ipc/base/err.h', header('TH_BASE_ERR_H'),
                    'ipc/base/err.h:1: the include guard is not TH_IPC_BASE_ERR_H')
        self.expect('ipc/base/err.h', SPDX + '#pragma once\n',
                    'ipc/base/err.h:1: #pragma once where an include guard belongs')

    def test_licence(self):
        self.expect('tools/run', '#!/bin/sh\ntrue\n',
                    'tools/run:1: the first line is not the SPDX licence line')
        self.write('tools/run', CLEAN['tools/run'])
        self.expect('ipc/base/a.c', '\n' + SPDX,
                    'ipc/base/a.c:1: the first line is not the SPDX licence line')

    def test_open_end(self):
        mark = 'TO' + 'DO'
        self.expect('ipc/base/a.c', c_file(f'/* {mark}: later */'),
                    f'ipc/base/a.c:2: {mark}: finish it or leave it out')

    def test_form(self):
        self.expect('ipc/base/a.c',
                    c_file('\t' * 12 + '12345', '\t        x;', 'int x; ', ' ' * 9 + '* y'),
                    'ipc/base/a.c:2: 101 columns, 100 are allowed',
                    'ipc/base/a.c:3: spaces where a tab belongs',
                    'ipc/base/a.c:4: white space at the end of the line')
        self.expect('ipc/base/a.c', SPDX.rstrip(), 'ipc/base/a.c:1: the last line has no end')

    def test_size(self):
        self.expect('ipc/base/a.c', SPDX + ';\n' * 900,
                    'ipc/base/a.c:901: 901 lines, 900 are allowed: split it')

    def test_exit_in_a_unit_test(self):
        self.expect('tests/unit/a_test.c', c_file('_exit(0);', 'exit(0);', 'at_exit (1);'),
                    'tests/unit/a_test.c:3: exit() makes Criterion count the test as passed')

    def test_top_level(self):
        self.write('build-check-asan/x', '')
        self.expect('notes.txt', 'x\n',
                    'notes.txt:1: not one of the files and folders of the top level')

    def test_manual(self):
        self.write('man/a.1', '.Dd $Mdocdate$\n.Dt A 1\n.Os\n.Sh NAME\n.Nm a\n.Nd b\n.Xx\n')
        self.assertTrue(any(f.startswith('man/a.1:7: ') for f in self.found()), self.found())


class Built(unittest.TestCase):
    """The checks of what was built, on libraries that the compiler makes of a few lines."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = os.path.realpath(folder.name)
        self.targets = []
        self.tests = []
        self.write('libthc/thc.h', CLEAN['libthc/thc.h'])

    def write(self, path, text):
        full = os.path.join(self.root, path)
        os.makedirs(os.path.dirname(full), exist_ok=True)
        with open(full, 'w', encoding='utf-8') as file:
            file.write(text)
        return full

    def target(self, kind, name, output, *sources):
        self.targets.append({
            'type': kind, 'name': name, 'filename': [output],
            'defined_in': os.path.join(self.root, 'meson.build'),
            'target_sources': [{'sources': list(sources)}]})

    def static(self, path, code):
        source = self.write(path, SPDX + code)
        objects, library = source + '.o', source + '.a'
        subprocess.run(['cc', '-O1', '-c', source, '-o', objects], check=True)
        subprocess.run(['ar', 'rcs', library, objects], check=True)
        self.target('static library', 'core', library, source)

    def shared(self, code, *flags):
        source = self.write('libthc/open_close.c', SPDX + code)
        library = source + '.so'
        subprocess.run(['cc', '-shared', '-fPIC', '-Wl,--no-as-needed', source, '-o', library]
                       + list(flags), check=True)
        self.target('shared library', 'thc', library, source)

    def found(self):
        self.write('b/meson-info/intro-targets.json', json.dumps(self.targets))
        self.write('b/meson-info/intro-tests.json', json.dumps(self.tests))
        build = layers.Build(os.path.join(self.root, 'b'), layers.Tree(self.root))
        return [f for check in layers.BUILD_CHECKS for f in check(build)]

    def test_nothing_there(self):
        self.assertEqual(self.found(), [])

    def test_core_that_is_pure(self):
        self.static('server/core/a.c', '#include <stdlib.h>\n#include <string.h>\n'
                    'int th_version_compare(const char *);\n'
                    'int f(char *a) { a = realloc(a, strlen(a)); return th_version_compare(a); }\n')
        self.assertEqual(self.found(), [])

    def test_core_with_io_and_time(self):
        self.static('server/core/a.c', '#include <time.h>\n#include <unistd.h>\n'
                    'long th_now_ns(void);\n'
                    'long f(void) { return time(0) + write(1, "", 1) + th_now_ns(); }\n')
        self.assertEqual(self.found(), [
            'server/core:1: a core may not call th_now_ns',
            'server/core:1: a core may not call time',
            'server/core:1: a core may not call write'])

    def test_core_in_no_library(self):
        self.write('daemon/core/a.c', SPDX)
        self.assertEqual(self.found(), [
            'daemon/core/a.c:1: in no static library, so nobody can say what it calls'])

    def test_core_in_a_program(self):
        source = self.write('daemon/core/a.c', SPDX)
        self.target('executable', 'thagentd', 'x', source)
        self.assertIn('daemon/core/a.c:1: a core is a static library of its own, thagentd is more '
                      'than that', self.found())

    def test_core_not_built(self):
        source = self.write('daemon/core/a.c', SPDX)
        self.target('static library', 'core', '/nowhere/x.a', source)
        self.assertEqual(self.found(), [
            'daemon/core:1: nm cannot read /nowhere/x.a: build it first'])

    def test_libthc_that_is_clean(self):
        self.shared('int thc_open(void) { return 0; }\n')
        self.assertEqual(self.found(), [])

    def test_libthc_that_exports_more(self):
        self.shared('int thc_open(void) { return 0; }\nint thc_secret(void) { return 0; }\n'
                    'int th_fail(void) { return 0; }\n')
        self.assertEqual(self.found(), [
            'libthc:1: exports th_fail',
            'libthc/thc.h:1: thc_secret is exported and not declared'])

    def test_libthc_that_needs_more(self):
        self.shared('int thc_open(void) { return 0; }\n', '-lm')
        self.assertEqual(self.found(), ['libthc:1: needs libm.so.6'])

    def test_beside_others(self):
        self.tests = [
            {'name': 'wait', 'suite': ['tensorhub:e2e', 'tensorhub:waiting'], 'is_parallel': True},
            {'name': 'name', 'suite': ['tensorhub:unit'], 'is_parallel': False},
            {'name': 'hasty', 'suite': ['tensorhub:unit'], 'is_parallel': True}]
        self.assertEqual([f.split(':')[2].split()[0] for f in self.found()], ['hasty'])

    def test_libthc_not_built(self):
        self.target('shared library', 'thc', '/nowhere/x.so')
        self.assertEqual(len(self.found()), 2)


if __name__ == '__main__':
    unittest.main()
