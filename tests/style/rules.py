#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Each numbered case, decision and invariant that the code names has its row, and each row stands
for code that is there.

rules.py SOURCE_ROOT

A row is a line `| C26 | ...` of a page: corner cases (C) and decisions (D) in server/README.md,
invariants (I) in tests/sim/README.md. The code names a number by a mark, TH_MARK(c26_other_layout),
by what a checker ends a run with, sim_fail("I4", ...), or in a comment. A row names marks, and
files from the root of the repository, in backquotes. Prints `path: sentence` for each finding.
"""

import os
import re
import sys

PAGES = {'C': 'server/README.md', 'D': 'server/README.md', 'I': 'tests/sim/README.md'}
MARKED = ('daemon', 'ipc', 'libthc', 'server', 'transport')
DEFINITION = 'ipc/base/sim.h'  # what a mark is, with one for example
# Where a letter and a number are one of these, and no tensor's type and no standard.
SAID = ('daemon/core', 'server/core', 'tests/sim', 'tests/support/core', 'tests/unit/agent',
        'tests/unit/server')

ROW = re.compile(r'^\| ([CDI][1-9]\d?) \|(.*)$', re.MULTILINE)
NAME = re.compile(r'`([^`]+)`')
MARK = re.compile(r'\bTH_MARK\(([cdi]\d\d_\w+)\)')
MARK_NAME = re.compile(r'([cdi])(\d\d)_\w+')
NUMBER = re.compile(r'(?<![\w-])([CDI][1-9]\d?)(?!\w)')


def read(root, path):
    with open(os.path.join(root, path), encoding='utf-8') as file:
        return file.read()


def sources(root, folders):
    for folder in folders:
        for where, _, names in os.walk(os.path.join(root, folder)):
            for name in sorted(names):
                if name.endswith(('.c', '.h')):
                    yield os.path.relpath(os.path.join(where, name), root)


def number_of(mark):
    """'C1' of 'c01_stalled_leg_is_fenced'; None: it is no numbered mark."""
    match = MARK_NAME.fullmatch(mark)
    return match and f'{match[1].upper()}{int(match[2])}'


def rows_of(root):
    """[(page, number, [what it names in backquotes])]"""
    for page in sorted(set(PAGES.values())):
        for number, rest in ROW.findall(read(root, page)):
            yield page, number, NAME.findall(rest)


def marks_of(root):
    """{mark: file}"""
    return {mark: path for path in sources(root, MARKED) if path != DEFINITION
            for mark in MARK.findall(read(root, path))}


def said_of(root):
    """{number: {files that say it}}"""
    said = {}
    for path in sources(root, SAID):
        for number in NUMBER.findall(read(root, path)):
            said.setdefault(number, set()).add(path)
    return said


def row_problems(root, number, names, marks, said):
    """What is wrong with one row, as the end of a sentence."""
    found = [name for name in names if name in marks]
    files = [name for name in names if os.path.isfile(os.path.join(root, name))]
    for name in names:
        if number_of(name) not in (None, number):
            yield f'names {name}, which belongs to {number_of(name)}'
        elif number_of(name) and name not in marks:
            yield f'names {name}, which is no mark'
        elif '/' in name and name not in files:
            yield f'names {name}, which is not there'
    if not found and not files:
        yield 'names no mark and no file'
    elif number[0] == 'I' and not said.get(number, set()).intersection(files):
        yield f'names no file that says {number}'


def problems(root):
    rows, marks, said = list(rows_of(root)), marks_of(root), said_of(root)
    numbers = [number for _, number, _ in rows]
    for page, number, names in rows:
        if PAGES[number[0]] != page:
            yield f'{page}: {number} belongs into {PAGES[number[0]]}'
        if numbers.count(number) > 1:
            yield f'{page}: {number} has {numbers.count(number)} rows'
        for sentence in row_problems(root, number, names, marks, said):
            yield f'{page}: {number} {sentence}'
    for mark, path in sorted(marks.items()):
        number = number_of(mark)
        if number not in numbers:
            yield f'{path}: {mark}: there is no row {number} in {PAGES[number[0]]}'
        elif all(mark not in names for _, other, names in rows if other == number):
            yield f'{path}: {mark}: row {number} of {PAGES[number[0]]} does not name it'
    for number in sorted(set(said) - set(numbers)):
        yield f'{min(said[number])}: {number}: there is no such row in {PAGES[number[0]]}'


def main():
    root = sys.argv[1]
    found = list(problems(root))
    for sentence in found:
        print(sentence)
    print(f'{len(list(rows_of(root)))} rows, {len(marks_of(root))} marks, {len(found)} problems')
    sys.exit(1 if found else 0)


if __name__ == '__main__':
    main()
