#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The nng that is linked is the one that ipc/net repairs, or needs no repair.

    nng_repair.py HEADER NET NET_LOST

HEADER defines NET_NNG_REPAIRED, the version that is known. NET and NET_LOST are the unit programs
of these names, linked so that nng does not find the repair: sendmsg and nng's streams of
net_common.c are hidden (--exclude-libs). What the repair is for is run in them.

Of the version that is known each of these cases has to fail there, or they would not show what the
repair does; with it they pass as part of the unit tests. One that fails by chance only (RACES) is
left out then. Of any other version each has to pass: then that nng needs no repair, and all is
well; otherwise the repair is to be looked at again.
"""

import ctypes
import re
import subprocess
import sys

CASES = {
    'net': ['guests__that_leave_before_the_greeting__do_not_hurt_the_others',
            'hosts__that_leave_before_the_greeting__are_dialed_again'],
    'net_lost': ['given_up__in_the_length_of_an_answer__is_freed',
                 'given_up__before_the_text_of_an_answer__is_freed'],
}
RACES = ['guests__that_leave_before_the_greeting__do_not_hurt_the_others']
FAILS_S = 3    # who waits for what does not come any more
PASSES_S = 60


def linked_version(program):
    said = subprocess.run(['ldd', program], check=True, capture_output=True, text=True).stdout
    path = re.search(r'libnng\S* => (\S+)', said).group(1)
    nng = ctypes.CDLL(path)
    nng.nng_version.restype = ctypes.c_char_p
    return nng.nng_version().decode()


def start(program, suite, case, seconds):
    return subprocess.Popen([program, '--filter', f'{suite}/{case}', '--timeout', str(seconds)],
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def outcome(process):
    """True: it passed; False: it failed; None: it did not run."""
    text, _ = process.communicate()
    found = re.search(r'Tested: .*?(\d+).*?Passing: .*?(\d+)', re.sub(r'\x1b\[[0-9;]*m', '', text))
    if found is None or found.group(1) != '1':
        print(text)
        return None
    return found.group(2) == '1' and process.returncode == 0


def main():
    header, *programs = sys.argv[1:]
    with open(header, encoding='utf-8') as file:
        known = re.search(r'#define NET_NNG_REPAIRED "(\S+)"', file.read()).group(1)
    linked = linked_version(programs[0])
    seconds = FAILS_S if linked == known else PASSES_S
    running = [(case, start(program, suite, case, seconds))
               for program, (suite, cases) in zip(programs, CASES.items()) for case in cases
               if linked != known or case not in RACES]
    ended = [(case, outcome(process)) for case, process in running]
    for case, passed in ended:
        print(f'{case}: {"did not run" if passed is None else "passes" if passed else "fails"} '
              f'with nng {linked} alone')
    if any(passed is None for _, passed in ended):
        return 1
    if linked == known:
        if any(passed for _, passed in ended):
            print(f'nng {known} passes without what net_common.c does for it: the case does not '
                  'see what is repaired, or nothing is')
            return 1
    elif not all(passed for _, passed in ended):
        print(f'nng {linked} is linked; ipc/net/net_common.c repairs {known}, and what that is for '
              'is needed here as well: look whether the repair fits this version, then change '
              'NET_NNG_REPAIRED, or link another nng')
        return 1
    return 0


if __name__ == '__main__':
    sys.exit(main())
