#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Each message between threads is listed in transport/README.md, and each that is listed is there.

messages.py SOURCE_ROOT

A message is a task (transport/loop/mover_loop.h): a field `struct loop_task NAME` of what it is
about. The section "Messages" has tables whose third column is the file that declares the field,
from transport/, and whose fourth names the fields in backquotes. Prints `path: sentence` for each
finding.
"""

import os
import re
import sys

PAGE = 'transport/README.md'
FIELD = re.compile(r'^\s+struct loop_task ([\w, ]+);', re.MULTILINE)
SECTION = re.compile(r'^## Messages\n(.*?)(?=^## )', re.MULTILINE | re.DOTALL)
NAME = re.compile(r'`([^`\s]+)`')


def declared(root):
    """(file from transport/, field) of each task in the code."""
    top = os.path.join(root, 'transport')
    for where, folders, names in os.walk(top):
        folders.sort()
        for name in sorted(names):
            if not name.endswith(('.c', '.h')):
                continue
            path = os.path.join(where, name)
            with open(path, encoding='utf-8') as file:
                text = file.read()
            for fields in FIELD.findall(text):
                for field in fields.split(','):
                    yield os.path.relpath(path, top), field.strip()


def listed(root):
    """The same of each that the page names."""
    with open(os.path.join(root, PAGE), encoding='utf-8') as file:
        found = SECTION.search(file.read())
    for line in found.group(1).splitlines() if found else ():
        cells = [cell.strip() for cell in line.strip().strip('|').split('|')]
        if not line.startswith('|') or len(cells) != 4:
            continue
        for path in NAME.findall(cells[2]):
            for field in NAME.findall(cells[3]):
                yield path, field


def problems(root):
    code, page = set(declared(root)), list(listed(root))
    for path, field in sorted(code - set(page)):
        yield f'transport/{path}: {field} is a message that {PAGE} does not list'
    for path, field in sorted(set(page) - code):
        yield f'{PAGE}: {field} is no message of transport/{path}'
    for path, field in sorted({entry for entry in page if page.count(entry) > 1}):
        yield f'{PAGE}: {field} of {path} is listed twice'


def main():
    found = list(problems(sys.argv[1]))
    print('\n'.join(found + [f'{len(found)} findings']))
    return 1 if found else 0


if __name__ == '__main__':
    sys.exit(main())
