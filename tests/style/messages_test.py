#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Plants each kind of mistake in a small tree and expects messages.py to find exactly that."""

import os
import tempfile
import unittest

import messages

PAGE = '''# Moving bytes
`lost_task` is a word of the text.

## Messages
| from | to | field of | messages |
|---|---|---|---|
| acceptor | mover | `tcp/tcp.h` | `open_task` it is yours; `close_task` no longer |
| mover | acceptor | `leg/leg_in.h` | `last_task` the end |

## Words
| `a` | `b` | `c.h` | `other_task` |
'''
CODE = {
    'tcp/tcp.h': 'struct data {\n\tstruct loop_task open_task, close_task; /* -> mover */\n};\n',
    'leg/leg_in.h': 'struct leg {\n\tstruct loop_task last_task;\n\tstruct loop_task *next;\n};\n',
}


class Planted(unittest.TestCase):
    def expect(self, page, code, *findings):
        with tempfile.TemporaryDirectory() as root:
            for path, text in {'README.md': page, **code}.items():
                full = os.path.join(root, 'transport', path)
                os.makedirs(os.path.dirname(full), exist_ok=True)
                with open(full, 'w', encoding='utf-8') as file:
                    file.write(text)
            self.assertEqual(list(messages.problems(root)), list(findings))

    def test_clean(self):
        self.expect(PAGE, CODE)

    def test_a_message_that_no_row_names(self):
        code = {**CODE, 'leg/look.c': 'struct look {\n\tstruct loop_task look_task;\n};\n'}
        self.expect(PAGE, code,
                    'transport/leg/look.c: look_task is a message that transport/README.md '
                    'does not list')

    def test_a_row_that_no_code_has(self):
        self.expect(PAGE.replace('`last_task`', '`last_task`, `first_task`'), CODE,
                    'transport/README.md: first_task is no message of transport/leg/leg_in.h')

    def test_a_row_of_another_file(self):
        self.expect(PAGE.replace('leg/leg_in.h', 'leg/leg.h'), CODE,
                    'transport/leg/leg_in.h: last_task is a message that transport/README.md '
                    'does not list',
                    'transport/README.md: last_task is no message of transport/leg/leg.h')

    def test_a_message_that_is_listed_twice(self):
        row = '| mover | any | `leg/leg_in.h` | `last_task` again |\n'
        self.expect(PAGE.replace('\n## Words', row + '\n## Words'), CODE,
                    'transport/README.md: last_task of leg/leg_in.h is listed twice')

    def test_no_table(self):
        self.expect('# Moving bytes\n', {'tcp/tcp.h': CODE['tcp/tcp.h']},
                    'transport/tcp/tcp.h: close_task is a message that transport/README.md '
                    'does not list',
                    'transport/tcp/tcp.h: open_task is a message that transport/README.md '
                    'does not list')


if __name__ == '__main__':
    unittest.main()
