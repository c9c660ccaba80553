#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Counts what the tests of one or more Meson builds really did, and ends with one line.

    count.py [--allowed FILE] [--fault SENTENCE]... [BUILD[:SUITE | :!SUITE]]...

Meson's own summary counts programs and believes their exit status. That hides a Criterion program
that ran no test, a test case that was skipped inside a program, and a run that was cut off. Here
a Criterion program and an end-to-end script count case by case, any other program as one, and
all that is left open is a failure: a registered test without a result, an unknown result, a skip
that FILE does not allow. Each --fault is one more failure (a build that did not compile). Exit
status 0: nothing failed and something passed. SUITE: the tests of it had to run, with ! the others.

FILE holds lines `NAME REGEX`: NAME is the test, or TEST/SUITE::CASE for a Criterion case, or
TEST/CASE for one of a script (a pattern as of the shell: a script with GPU memory of some kind is
SCRIPT_KIND), and the regular expression must be found in the reason that the skip gives.
"""

import fnmatch
import json
import os
import re
import sys

SYNTHESIS = re.compile(
    r'Synthesis: Tested: (\d+) \| Passing: (\d+) \| Failing: (\d+) \| Crashing: (\d+)')
SKIPPED_CASE = re.compile(r'^\[SKIP\] (\S+::\w+): ?(.*)$', re.MULTILINE)
SCRIPT_CASE = re.compile(r'^(ok|FAILED|skip) (\w+)(?::? ?(.*))$', re.MULTILINE)
SCRIPT_SUMMARY = re.compile(r'^(\d+) passed, (\d+) failed, (\d+) skipped$', re.MULTILINE)
COLOUR = re.compile(r'\x1b\[[0-9;]*m')
TAIL_LINES = 40


class Count:
    def __init__(self, allowed):
        self.passed = self.failed = self.skipped = 0
        self.allowed = allowed

    def fail(self, sentence, number=1):
        self.failed += number
        print(f'FAILED {sentence}')

    def skip(self, build, name, reason):
        if any(fnmatch.fnmatchcase(name, n) and r.search(reason) for n, r in self.allowed):
            self.skipped += 1
            print(f'SKIPPED {build} {name}: {reason}')
        else:
            self.fail(f'{build} {name}: skipped, which is not allowed: {reason}')


def read_allowed(path):
    allowed = []
    with open(path, encoding='utf-8') as file:
        for line in file:
            line = line.strip()
            if line and not line.startswith('#'):
                name, _, pattern = line.partition(' ')
                if not pattern.strip():
                    raise ValueError(f'{path}: "{line}" gives no reason')
                allowed.append((name, re.compile(pattern.strip())))
    return allowed


def output_of(entry):
    text = entry.get('stdout', '') + '\n' + entry.get('stderr', '')
    return COLOUR.sub('', text).strip()


def show_tail(entry):
    for line in output_of(entry).splitlines()[-TAIL_LINES:]:
        print(f'    {line}')


def count_criterion(count, build, name, entry, output):
    """Case by case; all programs of the suite 'unit', and others that use Criterion."""
    found = SYNTHESIS.findall(output)
    if len(found) != 1:
        count.fail(f'{build} {name}: {entry["result"]}, without a summary of Criterion')
        show_tail(entry)
        return
    tested, passing, failing, crashing = map(int, found[0])
    skipped = SKIPPED_CASE.findall(output)
    count.passed += passing
    if '[----] Criterion' not in output:
        count.fail(f'{build} {name}: runs without --verbose, so skipped cases do not show')
    elif tested + len(skipped) == 0:
        count.fail(f'{build} {name}: ran no test')
    for case, reason in skipped:
        count.skip(build, f'{name}/{case}', reason)
    if failing + crashing > 0:
        count.fail(f'{build} {name}: {failing} failing, {crashing} crashing', failing + crashing)
        show_tail(entry)
    elif entry['result'] != 'OK':
        count.fail(f'{build} {name}: {entry["result"]} after {entry["duration"]:.0f} s')
        show_tail(entry)


def count_script(count, build, name, entry, output):
    """Case by case; the suites 'e2e', 'vm' and 'python'; see tests/e2e/cluster.py:main."""
    cases = SCRIPT_CASE.findall(output)
    found = [kind for kind, _, _ in cases]
    summary = SCRIPT_SUMMARY.findall(output)
    stated = tuple(map(int, summary[-1])) if summary else None
    if stated != (found.count('ok'), found.count('FAILED'), found.count('skip')) or not cases:
        count.fail(f'{build} {name}: {entry["result"]}, its summary and its cases do not agree')
        show_tail(entry)
        return
    count.passed += found.count('ok')
    for kind, case, reason in cases:
        if kind == 'skip':
            count.skip(build, f'{name}/{case}', reason)
        elif kind == 'FAILED':
            count.fail(f'{build} {name}/{case}')
    if 'FAILED' in found:
        show_tail(entry)
    elif entry['result'] not in ('OK', 'SKIP'):
        count.fail(f'{build} {name}: {entry["result"]} after {entry["duration"]:.0f} s')
        show_tail(entry)


def count_program(count, build, name, entry, output):
    result = entry['result']
    if result in ('OK', 'EXPECTEDFAIL'):
        count.passed += 1
    elif result == 'SKIP':
        count.skip(build, name, output.splitlines()[-1] if output else 'no reason given')
    else:
        count.fail(f'{build} {name}: {result} after {entry["duration"]:.0f} s')
        show_tail(entry)


def registered(folder, suite):
    """Name -> suites of the tests that had to run: those of `suite`, or with ! those of no such."""
    with open(os.path.join(folder, 'meson-info', 'intro-tests.json'), encoding='utf-8') as file:
        tests = json.load(file)
    found = {}
    for test in tests:
        suites = {s.split(':')[-1] for s in test['suite']}
        if not suite or (suite[1:] not in suites if suite[0] == '!' else suite in suites):
            if test['name'] in found:
                raise ValueError(f"two tests are called {test['name']}")
            found[test['name']] = suites
    return found


def count_build(count, argument):
    folder, _, suite = argument.partition(':')
    build = os.path.basename(os.path.normpath(folder))
    try:
        expected = registered(folder, suite)
        with open(os.path.join(folder, 'meson-logs', 'testlog.json'), encoding='utf-8') as file:
            entries = [json.loads(line) for line in file if line.strip()]
    except (OSError, ValueError) as problem:
        count.fail(f'{build}: no results: {problem}')
        return
    if not expected:
        count.fail(f'{build}: no tests' + (f' in the suite {suite}' if suite else ''))
    seen = set()
    for entry in entries:
        # Meson puts the suites before the name when there are several.
        name = entry['name'].split(' / ')[-1]
        seen.add(name)
        output = output_of(entry)
        if 'unit' in expected.get(name, ()) or SYNTHESIS.search(output):
            count_criterion(count, build, name, entry, output)
        elif {'e2e', 'vm', 'python'} & set(expected.get(name, ())):
            count_script(count, build, name, entry, output)
        else:
            count_program(count, build, name, entry, output)
    missing = [name for name in expected if name not in seen]
    if missing:
        count.fail(f'{build}: the run was cut off before {len(missing)} of {len(expected)} tests: '
                   f'{", ".join(missing)}', len(missing))


def main(arguments):
    allowed, faults, builds = [], [], []
    rest = iter(arguments)
    for argument in rest:
        if argument == '--allowed':
            allowed = read_allowed(next(rest))
        elif argument == '--fault':
            faults.append(next(rest))
        elif argument.startswith('-'):
            print(__doc__, file=sys.stderr)
            return 2
        else:
            builds.append(argument)
    count = Count(allowed)
    for build in builds:
        count_build(count, build)
    for fault in faults:
        count.fail(fault)
    if count.passed + count.failed == 0:
        count.fail('nothing ran')
    print(f'{count.passed} passed, {count.failed} failed, {count.skipped} skipped')
    return 1 if count.failed else 0


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
