#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The last test of a whole run: do the pages name exactly the codes that the tests have seen?

    contract_seen.py SOURCE_ROOT BUILD_ROOT FOLDER

FOLDER is what contract_begin.py made and the tests of this run have filled. Three rules: what a
page says of a call was seen; what was seen stands on the call's page; each call has succeeded once
with real daemons. Exit status 77: not all tests have run since FOLDER was made, so nothing can be
said; tools/check counts that as a failure.
"""

import json
import os
import sys

import contract
from contract_begin import FLAGS, NAME_BYTES, ROW_BYTES

FLAG_ERRNO, FLAG_OTHER = 30, 31

# What no test of this build can bring about: rows `(call, code): why`.
EXCUSED = {}


def read_table(data, codes):
    """(seen, real): {call: {code}}; a success is None, an errno 'errno'."""
    names = {-5000 - number: name for name, number in codes.items()}
    names.update({0: None, FLAG_ERRNO: 'errno'})
    seen, real = {}, {}
    for at in range(0, len(data) - ROW_BYTES + 1, ROW_BYTES):
        name = data[at:at + NAME_BYTES].rstrip(b'\0').decode()
        for found, start in ((seen, NAME_BYTES), (real, NAME_BYTES + FLAGS)):
            flags = data[at + start:at + start + FLAGS]
            found[name] = {names.get(i, f'unknown {i}') for i, flag in enumerate(flags) if flag}
    return seen, real


def expected(build):
    """The programs that leave a mark: with the wrapped calls inside, or a script of e2e."""
    def load(name):
        with open(os.path.join(build, 'meson-info', name), encoding='utf-8') as file:
            return json.load(file)
    wrapped = set()
    for target in load('intro-targets.json'):
        sources = [s for part in target['target_sources'] for s in part.get('sources', [])]
        if any(s.endswith('/tests/support/calls_seen.c') for s in sources):
            wrapped.update(os.path.basename(path) for path in target['filename'])
    programs = set()
    for test in load('intro-tests.json'):
        program = os.path.basename(test['cmd'][0])
        if any(suite.split(':')[-1] == 'e2e' for suite in test['suite']):
            programs.add(os.path.basename(test['cmd'][-1]))
        elif program in wrapped:
            # As program_invocation_short_name, which is what the mark has.
            programs.add(program)
    return programs


def judge(tree, seen, real, excused):
    """Yields a sentence for each finding."""
    promised = contract.documented(tree)
    for call, code in sorted(promised):
        if code not in seen.get(call, ()) and code not in real.get(call, ()) and \
                (call, code) not in excused:
            yield f'{call}: its page says {code}, and no test has seen it'
    for call, code in sorted(excused):
        if (call, code) not in promised:
            yield f'{call}: {code} is excused from being seen, and no page has it'
        elif code in seen.get(call, ()) or code in real.get(call, ()):
            yield f'{call}: {code} is excused from being seen, and was seen'
    for call in sorted(set(seen) | set(real)):
        for code in sorted((seen.get(call, set()) | real.get(call, set())) - {None}):
            if code == 'errno':
                page = tree.page_of(call)
                if page is None or 'errno' not in page.words:
                    yield f'{call}: a test has seen an errno, and its page does not speak of it'
            elif (call, code) not in promised:
                how = 'with real daemons' if code in real.get(call, ()) else 'in a unit test'
                yield f'{call}: a test has seen {code} ({how}), and its page does not have it'
    for call in tree.header.functions:
        if None not in real.get(call, ()):
            yield f'{call}: no test with real daemons has seen it succeed'


def main(arguments):
    root, build, folder = arguments
    tree = contract.Tree(root)
    programs = expected(build)
    absent = sorted(p for p in programs if not os.path.exists(os.path.join(folder, 'ran.' + p)))
    if not programs or absent:
        print(f'{len(absent)} of {len(programs)} programs have not run since the last whole run '
              f'began ({", ".join(absent[:5])}, ...): run all tests')
        return 77
    with open(os.path.join(folder, 'table'), 'rb') as file:
        seen, real = read_table(file.read(), tree.header.codes)
    found = list(judge(tree, seen, real, EXCUSED))
    for finding in found:
        print(finding)
    pairs = {(call, code) for table in (seen, real) for call in table for code in table[call]}
    print(f'{len(pairs)} pairs of a call and a code seen, '
          f'{sum(len(codes) for codes in real.values())} of them with real daemons, '
          f'{len(found)} findings')
    return 1 if found else 0


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
