#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Plants each kind of mistake in a small tree and expects rooms.py to find exactly that."""

import os
import tempfile
import unittest

import rooms

CLEAN = {
    'transport/README.md': '''# Moving bytes
| leg/ | `leg_in`, `frame.h` | asked over `tcp://HOST:PORT`, of /proc and `/proc/self/mem` |
`leg/leg_in.c` hashes (`tests/sim`), for `ipc/base/err.h`; `room/` and `room/odd_c` are rooms.
```
build/tests/sim/thsim --count 2   # `gone.c`
```
`convert_*.c` are many, and `agent.ipc` is a socket. `loop.py` draws it.
''',
    'transport/leg/leg_in.c': '',
    'transport/leg/leg_in.h': '',
    'transport/leg/frame.h': '',
    'transport/leg/meson.build': '',
    'transport/room/odd_c.c': '',
    'transport/room/loop.py': '',
    'tests/sim/sim.h': '',
    'daemon/README.md': '`agent_core`\n',
    'daemon/core/agent_core.c': '',
    'ipc/README.md': '`err`\n',
    'ipc/base/err.h': '',
    'libthc/README.md': '`thc.h`\n',
    'libthc/thc.h': '',
    'server/README.md': 'Nothing is here.\n',
}
PAGE = 'transport/README.md'


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

    def expect(self, *findings):
        self.assertEqual(list(rooms.problems(self.root)), list(findings))

    def say(self, old, new, *findings):
        self.assertIn(old, CLEAN[PAGE])
        self.write(PAGE, CLEAN[PAGE].replace(old, new))
        self.expect(*findings)

    def test_clean_tree(self):
        self.expect()

    def test_source_that_no_page_names(self):
        self.write('transport/rdma/engine/lane.c', '')
        self.expect(f'transport/rdma/engine/lane.c: {PAGE} does not name `lane`')

    def test_header_that_no_page_names(self):
        self.write('server/core/refsrv.h', '')
        self.expect('server/core/refsrv.h: server/README.md does not name `refsrv`')

    def test_source_that_is_named_without_backquotes(self):
        self.say('`frame.h`', 'frame.h', f'transport/leg/frame.h: {PAGE} does not name `frame`')

    def test_source_that_is_named_in_another_room(self):
        self.write('ipc/base/agent_core.c', '')
        self.expect('ipc/base/agent_core.c: ipc/README.md does not name `agent_core`')

    def test_source_that_is_named_in_commands_alone(self):
        self.write('transport/leg/gone.c', '')
        self.expect(f'transport/leg/gone.c: {PAGE} does not name `gone`')

    def test_file_that_was_moved(self):
        self.say('`leg/leg_in.c`', '`tcp/leg_in.c`', f'{PAGE}: `tcp/leg_in.c` is not there')

    def test_file_that_was_renamed(self):
        self.say('`leg_in`', '`leg_in`, `leg_out.h`', f'{PAGE}: `leg_out.h` is not there')

    def test_file_of_another_room_that_is_gone(self):
        os.remove(os.path.join(self.root, 'ipc/base/err.h'))
        self.expect(f'{PAGE}: `ipc/base/err.h` is not there')

    def test_file_of_another_room_without_its_path(self):
        self.say('`ipc/base/err.h`', '`err.h`', f'{PAGE}: `err.h` is not there')

    def test_folder_that_is_gone(self):
        self.say('`tests/sim`', '`tests/simulator`', f'{PAGE}: `tests/simulator` is not there')

    def test_room_without_a_page(self):
        os.remove(os.path.join(self.root, PAGE))
        self.expect(f'{PAGE}: there is none')


if __name__ == '__main__':
    unittest.main()
