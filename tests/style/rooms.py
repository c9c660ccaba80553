#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Each source of a room is named in the room's README, and each file that a README names is there.

rooms.py SOURCE_ROOT

A room is a folder at the top with a README.md. That names a source by its stem in backquotes,
alone, with its ending or behind a path: `leg_in`, `frame.h`, `leg/leg_in.c`. What stands in
backquotes with a path or an ending must be a file or a folder, from the root or from the room; a
name without a path may lie anywhere in the room. Prints `path: sentence` for each finding.
"""

import os
import re
import sys

ROOMS = ('daemon', 'ipc', 'libthc', 'server', 'transport')

SOURCES = ('.c', '.h')
ENDINGS = SOURCES + ('.build', '.cu', '.cuh', '.json', '.map', '.md', '.pml', '.proto', '.ptx',
                     '.py', '.sh')
NAME = re.compile(r'`([^`\s]+)`')
BLOCK = re.compile(r'^```.*?^```', re.MULTILINE | re.DOTALL)


def stem(path):
    return os.path.splitext(os.path.basename(path))[0]


def files_of(root, room):
    """All files below a room, from the root."""
    for where, folders, names in os.walk(os.path.join(root, room)):
        folders[:] = sorted(f for f in folders if f[0] != '.' and f != '__pycache__')
        for name in sorted(names):
            yield os.path.relpath(os.path.join(where, name), root)


def names_of(root, page):
    """What a page has in backquotes, in its order; blocks of commands are none of it."""
    with open(os.path.join(root, page), encoding='utf-8') as file:
        return NAME.findall(BLOCK.sub('', file.read()))


def is_file(name):
    """A path or a file's name; no address, no pattern, nothing of the system."""
    if name.startswith(('/', '-')) or '://' in name or '*' in name:
        return False
    return '/' in name or name.endswith(ENDINGS)


def is_there(root, room, files, name):
    if '/' not in name and any(os.path.basename(path) == name for path in files):
        return True
    found = [os.path.join(root, name), os.path.join(root, room, name)]
    return any(os.path.exists(path + ending) for path in found for ending in ('',) + SOURCES)


def room_problems(root, room):
    page = f'{room}/README.md'
    if not os.path.isfile(os.path.join(root, page)):
        yield f'{page}: there is none'
        return
    files, names = list(files_of(root, room)), names_of(root, page)
    stems = {stem(name) for name in names}
    for path in files:
        if path.endswith(SOURCES) and stem(path) not in stems:
            yield f'{path}: {page} does not name `{stem(path)}`'
    for name in sorted(set(names)):
        if is_file(name) and not is_there(root, room, files, name):
            yield f'{page}: `{name}` is not there'


def problems(root):
    for room in ROOMS:
        yield from room_problems(root, room)


def main():
    root = sys.argv[1]
    found = list(problems(root))
    for sentence in found:
        print(sentence)
    print(f'{len(ROOMS)} rooms, {len(found)} problems')
    sys.exit(1 if found else 0)


if __name__ == '__main__':
    main()
