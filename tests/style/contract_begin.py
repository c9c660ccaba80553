#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The first test of a whole run: forgets which codes earlier tests have seen.

    contract_begin.py SOURCE_ROOT FOLDER

Makes FOLDER new with `table`: a row for each call of thc.h, see calls_seen.c. The
tests fill it in and leave `ran.PROGRAM`; contract_seen.py judges both at the end of the run. A test
that is run alone adds to what is there.
"""

import os
import shutil
import sys

import contract

NAME_BYTES, FLAGS = 32, 32
ROW_BYTES = NAME_BYTES + 2 * FLAGS


def make_table(names):
    return b''.join(name.encode().ljust(NAME_BYTES, b'\0') + bytes(2 * FLAGS) for name in names)


def main(arguments):
    root, folder = arguments
    names = contract.Tree(root).header.functions
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    # A worker of another user may write too.
    os.chmod(folder, 0o777)
    path = os.path.join(folder, 'table')
    with open(path, 'xb') as file:
        file.write(make_table(names))
    os.chmod(path, 0o666)
    print(f'{len(names)} calls')


if __name__ == '__main__':
    main(sys.argv[1:])
