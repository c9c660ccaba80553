#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every failpoint of ipc/base/failpoint.h stands at one place, and at one that may have one.

failpoints.py SOURCE_ROOT
"""

import os
import re
import sys

FOLDERS = ('daemon', 'libthc', 'server', 'transport')
LEAST = 45
PARTIES = {'server': 'server/host', 'agent': 'daemon/host', 'leg': 'transport',
           'copy': 'transport', 'worker': 'libthc'}


def points(root):
    with open(os.path.join(root, 'ipc/base/failpoint.h'), encoding='utf-8') as file:
        return re.findall(r'^\tX\((\w+)\)', file.read(), re.MULTILINE)


def uses(root):
    """{point: [(folder, path)]}"""
    found = {}
    for folder in FOLDERS:
        for where, _, names in os.walk(os.path.join(root, folder)):
            for name in names:
                if not name.endswith(('.c', '.h')):
                    continue
                path = os.path.relpath(os.path.join(where, name), root)
                with open(os.path.join(root, path), encoding='utf-8') as file:
                    text = file.read()
                for point in re.findall(r'(?:TH_FP\w*\(|FAILPOINT_)([a-z]\w+)', text):
                    found.setdefault(point, []).append(path)
    return found


def problems(root):
    names, found = points(root), uses(root)
    if len(names) < LEAST:
        yield f'ipc/base/failpoint.h: only {len(names)} points'
    for name in sorted(set(n for n in names if names.count(n) > 1)):
        yield f'ipc/base/failpoint.h: {name} is there twice'
    for name in names:
        folder = PARTIES.get(name.split('_')[0])
        if folder is None:
            yield f'ipc/base/failpoint.h: {name}: its first word is no party'
        elif len(found.get(name, [])) != 1:
            yield f'{name} stands at {len(found.get(name, []))} places: {found.get(name, [])}'
        elif not found[name][0].startswith(folder):
            yield f'{found[name][0]}: {name} belongs into {folder}'
    # TH_FP_OF takes a table: its first word is no point.
    tables = ('points_asked', 'points_answered', 'points_sends', 'points_told')
    for name in sorted(set(found) - set(names) - set(tables)):
        yield f'{found[name][0]}: {name} is no row of ipc/base/failpoint.h'
    for table in tables:
        if table not in found:
            yield f'the table {table} is looked at nowhere'


def main():
    found = list(problems(sys.argv[1]))
    for sentence in found:
        print(sentence)
    print(f'{len(points(sys.argv[1]))} failpoints, {len(found)} problems')
    sys.exit(1 if found else 0)


if __name__ == '__main__':
    main()
