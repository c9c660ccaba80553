#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Plants each kind of mistake in a small tree and expects rules.py to find exactly that."""

import os
import tempfile
import unittest

import rules

CLEAN = {
    'ipc/base/sim.h': ' *   TH_MARK(c99_example);\n',
    'server/core/route/leg.c': '/* I9: no circle. */\n\tTH_MARK(c02_partial_source_moves);\n'
                               '\tTH_MARK(some_mark_without_a_number);\n',
    'server/core/op/op.c': '\tTH_MARK(d01_restored);\n\tTH_MARK(i04_one_outcome);\n',
    'libthc/worker_events.c': '/* No number is said here. */\n',
    'tests/sim/check_group.c': 'sim_fail("I4", "two outcomes");\n',
    'server/README.md': '''# Server
| id | case | done | where |
|---|---|---|---|
| C2 | a source goes | it is moved, by `REROUTE` | `c02_partial_source_moves` |
| C23 | an agent is frozen | nothing | `libthc/worker_events.c` |
| D1 | before GO | restored | `d01_restored` |
''',
    'tests/sim/README.md': '''# Simulator
| I4 | one outcome | `tests/sim/check_group.c`, `i04_one_outcome` |
| I9 | no circle | `server/core/route/leg.c` |
''',
}
SERVER, SIM = 'server/README.md', 'tests/sim/README.md'


class Planted(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = folder.name
        for path, text in CLEAN.items():
            self.write(path, text)

    def write(self, path, text):
        full = os.path.join(self.root, path)
        os.makedirs(os.path.dirname(full), exist_ok=True)
        with open(full, 'w', encoding='utf-8') as file:
            file.write(text)

    def expect(self, path, old, new, *findings):
        self.assertIn(old, CLEAN[path])
        self.write(path, CLEAN[path].replace(old, new))
        self.assertEqual(list(rules.problems(self.root)), list(findings))

    def test_clean_tree(self):
        self.assertEqual(list(rules.problems(self.root)), [])

    def test_mark_without_row(self):
        self.expect('server/core/op/op.c', 'd01_restored', 'd01_restored);\nTH_MARK(c30_deadline',
                    f'server/core/op/op.c: c30_deadline: there is no row C30 in {SERVER}')

    def test_mark_that_its_row_does_not_name(self):
        self.expect('server/core/op/op.c', 'd01_restored', 'd01_restored);\nTH_MARK(d01_more',
                    f'server/core/op/op.c: d01_more: row D1 of {SERVER} does not name it')

    def test_row_names_a_mark_that_is_gone(self):
        self.expect(SERVER, '`d01_restored`', '`d01_restored`, `d01_gone`',
                    f'{SERVER}: D1 names d01_gone, which is no mark')

    def test_mark_that_was_renamed(self):
        self.expect('server/core/op/op.c', 'd01_restored', 'd01_renamed',
                    f'{SERVER}: D1 names d01_restored, which is no mark',
                    f'{SERVER}: D1 names no mark and no file',
                    f'server/core/op/op.c: d01_renamed: row D1 of {SERVER} does not name it')

    def test_row_names_a_mark_of_another(self):
        self.expect(SERVER, '| `d01_restored` |', '| `d01_restored`, `c02_partial_source_moves` |',
                    f'{SERVER}: D1 names c02_partial_source_moves, which belongs to C2')

    def test_row_names_a_file_that_is_gone(self):
        self.expect(SERVER, 'libthc/worker_events.c', 'libthc/moved.c',
                    f'{SERVER}: C23 names libthc/moved.c, which is not there',
                    f'{SERVER}: C23 names no mark and no file')

    def test_row_names_nothing(self):
        self.expect(SERVER, '`libthc/worker_events.c`', '`update`',
                    f'{SERVER}: C23 names no mark and no file')

    def test_row_that_is_there_twice(self):
        self.expect(SERVER, '| D1 |', '| C23 | again | `libthc/worker_events.c` |\n| D1 |',
                    *[f'{SERVER}: C23 has 2 rows'] * 2)

    def test_checker_without_row(self):
        self.expect('tests/sim/check_group.c', '"two', '"x");\nsim_fail("I6", "two',
                    f'tests/sim/check_group.c: I6: there is no such row in {SIM}')

    def test_comment_without_row(self):
        self.expect('server/core/route/leg.c', 'I9: no circle', 'I9, C17: no circle',
                    f'server/core/route/leg.c: C17: there is no such row in {SERVER}')

    def test_invariant_whose_checker_is_another(self):
        self.expect(SIM, '`server/core/route/leg.c`', '`server/core/op/op.c`',
                    f'{SIM}: I9 names no file that says I9')

    def test_row_on_the_wrong_page(self):
        self.expect(SIM, '| I9 |', '| D23 | here | `libthc/worker_events.c` |\n| I9 |',
                    f'{SIM}: D23 belongs into {SERVER}')

    def test_page_that_is_gone(self):
        os.remove(os.path.join(self.root, SIM))
        with self.assertRaises(FileNotFoundError):
            list(rules.problems(self.root))


if __name__ == '__main__':
    unittest.main()
