#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every option and key of a daemon stands on its page, and what stands there is one.

keys.py SOURCE_ROOT

A page names a long option in an item `.It Fl c , Fl Fl config Ar file`, and a key in an item `.It
Cm lease.suspect , lease.dead`. A key that is named like a long option, with underscores for dashes,
needs no item of its own. Prints `path: sentence` for each finding.
"""

import os
import re
import sys

# The page, where the options are, where the keys are, and how they are written there.
DAEMONS = (
    ('man/thserverd.8', 'server/host/server_options.c', 'server/host/server_options.c',
     r'\[KEY_\w+\] = "([\w.]+)"'),
    ('man/thagentd.8', 'daemon/host/config/agent_options.c', 'daemon/host/config/options_set.c',
     r'^const char \*const options_keys\[\] = \{(.*?)^\};'),
)
FEWEST = 15  # keys of a daemon: fewer means that they were not found


def read(root, path):
    with open(os.path.join(root, path), encoding='utf-8') as file:
        return file.read()


def keys_of(text, pattern):
    found = re.findall(pattern, text, re.MULTILINE | re.DOTALL)
    if len(found) == 1:  # the whole table
        found = re.findall(r'^\t"([\w.]+)"', found[0], re.MULTILINE)
    return found


def options_of(text):
    """Long options of the tables of argp; those without a long name by their letter."""
    rows = re.findall(r'^\t\{(?:"([\w-]+)"|NULL), (?:\'(.)\'|OPTION_\w+),', text, re.MULTILINE)
    return [long or letter for long, letter in rows]


def items_of(page):
    """(options, keys) that the items of a page name."""
    options, keys = [], []
    for line in re.findall(r'^\.It (.*)$', page, re.MULTILINE):
        line = line.replace('\\-', '-')
        for long, letter in re.findall(r'Fl (?:Fl ([\w-]+)|(\w)\b)', line):
            options.append(long or letter)
        if line.startswith('Cm '):
            keys += re.findall(r'[a-z][\w.]*', line[3:])
    return options, keys


def problems(page_path, page, options, keys):
    there, documented = items_of(page)
    for option in options:
        if option not in there:
            yield f'{page_path}: option {option} is missing'
    for option in there:
        long = {o for o in options if len(o) > 1}
        # A letter beside its long name.
        if len(option) > 1 and option not in long:
            yield f'{page_path}: there is no option --{option}'
    like_options = {o.replace('-', '_') for o in options}
    for key in keys:
        if key not in documented and key not in like_options:
            yield f'{page_path}: key {key} is missing'
    for key in documented:
        if key not in keys:
            yield f'{page_path}: there is no key {key}'
    for name in sorted({k for k in documented if documented.count(k) > 1}):
        yield f'{page_path}: key {name} is there twice'


SELF_PAGE = '''.It Fl c , Fl Fl config Ar file
.It Fl Fl gone
.It Cm lease.dead , lease.over
.It Cm lease.dead
'''


def self_test():
    """The checker itself finds each kind of mistake."""
    found = list(problems('p', SELF_PAGE, ['config', 'peers', 't'],
                          ['config', 'lease.dead', 'lease.gone']))
    expected = ['p: option peers is missing', 'p: option t is missing',
                'p: there is no option --gone', 'p: key lease.gone is missing',
                'p: there is no key lease.over', 'p: key lease.dead is there twice']
    assert found == expected, found


def main():
    self_test()
    root, failed = sys.argv[1], False
    for page_path, options_path, keys_path, pattern in DAEMONS:
        options = options_of(read(root, options_path))
        keys = keys_of(read(root, keys_path), pattern)
        if len(keys) < FEWEST or len(options) < 5:
            print(f'{keys_path}: only {len(keys)} keys and {len(options)} options were found')
            failed = True
        for problem in problems(page_path, read(root, page_path), options, keys):
            print(problem)
            failed = True
    return 1 if failed else 0


if __name__ == '__main__':
    sys.exit(main())
