#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every fuzz target is built and has a corpus, and no corpus is left without its target.

    corpora.py FOLDER NAME...

FOLDER is tests/fuzz, each NAME a target of the build. What is kept stays small: it is run on every
check, and people clone it.
"""

import os
import sys

BYTES_MAX = 300 * 1000


def main():
    folder, names = sys.argv[1], sys.argv[2:]
    corpus = os.path.join(folder, 'corpus')
    faults, total = [], 0
    sources = {name[:-len('_fuzz.c')] for name in os.listdir(folder) if name.endswith('_fuzz.c')}
    for source in sorted(sources):
        if not any(name == source or name.startswith(source + '_') for name in names):
            faults.append(f'{source}_fuzz.c is in no target of meson.build')
    for name in sorted(set(os.listdir(corpus)) - set(names)):
        faults.append(f'corpus/{name} belongs to no target')
    for name in names:
        path = os.path.join(corpus, name)
        inputs = os.listdir(path) if os.path.isdir(path) else []
        if not inputs:
            faults.append(f'{name} has no input in corpus/{name}: it tests nothing')
        total += sum(os.path.getsize(os.path.join(path, entry)) for entry in inputs)
    if total > BYTES_MAX:
        faults.append(f'the corpora have {total} bytes, over {BYTES_MAX}: minimise them')
    for fault in faults:
        print(f'corpora: {fault}')
    print(f'{len(names)} targets, {total} bytes')
    return 1 if faults else 0


if __name__ == '__main__':
    sys.exit(main())
