#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Gives count.py planted logs, each with one way in which a test run looks better than it is."""

import contextlib
import io
import json
import os
import re
import sys
import tempfile
import unittest

TESTS = os.path.join(os.path.dirname(os.path.abspath(__file__)), '..')
sys.path.insert(0, os.path.join(TESTS, 'support'))
import count  # noqa: E402


def synthesis(passing, failing=0, crashing=0):
    return (f'[====] Synthesis: Tested: {passing + failing + crashing} | Passing: {passing} | '
            f'Failing: {failing} | Crashing: {crashing} \n')


def criterion(*lines, **numbers):
    return '[----] Criterion v2.4.1\n' + ''.join(f'{x}\n' for x in lines) + synthesis(**numbers)


class Counted(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = os.path.join(folder.name, 'build-x')
        os.makedirs(os.path.join(self.root, 'meson-info'))
        os.makedirs(os.path.join(self.root, 'meson-logs'))
        self.tests, self.entries = [], []

    def add(self, name, suite, result='OK', stdout='', stderr='', logged=True):
        self.tests.append({'name': name, 'suite': [f'tensorhub:{suite}']})
        if logged:
            self.entries.append({'name': f'tensorhub:{suite} / {name}', 'result': result,
                                 'duration': 1.5, 'stdout': stdout, 'stderr': stderr})

    def write(self, path, text):
        with open(os.path.join(self.root, path), 'w', encoding='utf-8') as file:
            file.write(text)

    def count(self, *arguments, suite=''):
        self.write('meson-info/intro-tests.json', json.dumps(self.tests))
        self.write('meson-logs/testlog.json', ''.join(json.dumps(e) + '\n' for e in self.entries))
        return self.run_count(*arguments, self.root + suite)

    def run_count(self, *arguments):
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            status = count.main(list(arguments))
        self.said = said.getvalue()
        last = self.said.splitlines()[-1]
        self.assertRegex(last, r'^\d+ passed, \d+ failed, \d+ skipped$')
        numbers = tuple(map(int, re.findall(r'\d+', last)))
        self.assertEqual(status, 1 if numbers[1] else 0)
        return numbers

    def allow(self, text):
        self.write('allowed', text)
        return '--allowed', os.path.join(self.root, 'allowed')

    def test_two_of_one_name(self):
        self.add('digest', 'e2e', stdout='1 passed, 0 failed, 0 skipped\n')
        self.add('digest', 'unit', stdout=criterion(passing=1))
        self.assertEqual(self.count(), (0, 1, 0))
        self.assertIn('two tests are called digest', self.said)

    def test_programs_and_cases_that_pass(self):
        self.add('err', 'unit', stderr=criterion(passing=8))
        self.add('layers', 'style', stdout='3 files, 0 findings')
        self.assertEqual(self.count(), (9, 0, 0))

    def test_name_without_suites(self):
        self.add('err', 'unit', stderr=criterion(passing=8))
        self.entries[0]['name'] = 'err'
        self.assertEqual(self.count(), (8, 0, 0))

    def test_each_bad_result(self):
        for result in ('FAIL', 'ERROR', 'TIMEOUT', 'INTERRUPT', 'UNEXPECTEDPASS', 'NEW'):
            self.add(f'a-{result}', 'stress', result=result)
        self.add('b', 'stress', result='EXPECTEDFAIL')
        self.assertEqual(self.count(), (1, 6, 0))
        self.assertIn('a-TIMEOUT: TIMEOUT after 2 s', self.said)

    def test_failing_and_crashing_cases(self):
        self.add('err', 'unit', result='FAIL',
                 stderr=criterion('the reason', passing=5, failing=2, crashing=1))
        self.assertEqual(self.count(), (5, 3, 0))
        self.assertIn('    the reason', self.said)

    def test_all_cases_pass_and_the_program_fails(self):
        self.add('err', 'unit', result='FAIL', stderr=criterion(passing=5) + 'LeakSanitizer\n')
        self.assertEqual(self.count(), (5, 1, 0))

    def test_criterion_that_ran_nothing(self):
        self.add('err', 'unit', stderr=criterion(passing=0))
        self.assertEqual(self.count(), (0, 1, 0))

    def test_unit_program_without_a_summary(self):
        self.add('err', 'unit')
        self.assertEqual(self.count(), (0, 1, 0))

    def test_criterion_that_is_not_verbose(self):
        self.add('err', 'unit', stderr=synthesis(passing=3))
        self.assertEqual(self.count(), (3, 1, 0))

    def test_colours_do_not_hide_the_numbers(self):
        text = criterion(passing=4).replace('Tested: 4', 'Tested: \x1b[0;34m4\x1b[0m')
        self.add('err', 'unit', stderr=text)
        self.assertEqual(self.count(), (4, 0, 0))

    def test_skipped_case(self):
        text = criterion('[SKIP] err::gone: no device', passing=4)
        self.add('err', 'unit', stderr=text)
        self.assertEqual(self.count(), (4, 1, 0))
        self.assertEqual(self.count(*self.allow('err/err::gone device\n')), (4, 0, 1))
        self.assertEqual(self.count(*self.allow('err/err::gone driver\n')), (4, 1, 0))

    def test_script_case_by_case(self):
        self.add('drain', 'e2e', stdout='ok a 1.0 s\n  3 rounds\nok b 0.2 s\n'
                 '2 passed, 0 failed, 0 skipped')
        self.assertEqual(self.count(), (2, 0, 0))

    def test_script_with_a_hidden_skip(self):
        self.add('shim', 'e2e', stdout='ok a 1.0 s\nskip b: no compiler\n'
                 '1 passed, 0 failed, 1 skipped')
        self.assertEqual(self.count(), (1, 1, 0))
        self.assertEqual(self.count(*self.allow('shim/b no compiler')), (1, 0, 1))
        self.assertEqual(self.count(*self.allow('shim*/b no compiler')), (1, 0, 1))
        self.assertEqual(self.count(*self.allow('shi/b no compiler')), (1, 1, 0))

    def test_what_real_gpus_cannot_be_made_to_do(self):
        """It is skipped where no other test sees it, and nothing passes that did not happen."""
        folder = os.path.join(TESTS, 'e2e')
        with open(os.path.join(folder, 'cluster.py'), encoding='utf-8') as file:
            reason = re.search(r'raise Skip\("(no plans[^"]*)"\)', file.read())[1]
        allowed = count.read_allowed(os.path.join(TESTS, 'allowed-skips'))
        scripts = [name for name in sorted(os.listdir(folder)) if name.endswith('_test.py')]
        found = set()
        for script in scripts:
            with open(os.path.join(folder, script), encoding='utf-8') as file:
                text = file.read()
            self.assertIsNone(re.search(r'(?i)if .*hardware:\n +return\n', text), script)
            cases = re.findall(
                r'^def (\w+)\(\):\n(?:    """[^"]+"""\n)?    needs_plans\(\)', text, re.MULTILINE)
            self.assertEqual(len(cases), text.count('\n    needs_plans()'), script)
            for case in cases:
                name = f'{script.removesuffix("_test.py")}/{case}'
                found.add(script)
                counted = count.Count(allowed)
                with contextlib.redirect_stdout(io.StringIO()):
                    counted.skip('build', name, reason)
                self.assertEqual((counted.skipped, counted.failed), (1, 0), name)
        self.assertLessEqual({'gpu_test.py', 'gpu_harness_test.py', 'gpu_kill_test.py'}, found)
        # There may be no namespaces either, which is no excuse elsewhere.
        for test, failed in (('hosts_chunks', 0), ('hosts', 1)):
            counted = count.Count(allowed)
            with contextlib.redirect_stdout(io.StringIO()):
                counted.skip('build', f'{test}/a_case', 'network namespaces need root and iproute2')
            self.assertEqual(counted.failed, failed, test)

    def test_script_with_a_failed_case(self):
        self.add('fork', 'e2e', result='FAIL', stdout='ok a 1.0 s\nFAILED b\n'
                 '1 passed, 1 failed, 0 skipped')
        self.assertEqual(self.count(), (1, 1, 0))

    def test_script_that_was_cut_off(self):
        self.add('leak', 'e2e', result='TIMEOUT', stdout='ok a 1.0 s\n')
        self.assertEqual(self.count(), (0, 1, 0))

    def test_script_that_ran_nothing(self):
        self.add('leak', 'e2e', stdout='0 passed, 0 failed, 0 skipped')
        self.assertEqual(self.count(), (0, 1, 0))

    def test_skipped_program(self):
        self.add('rdma', 'hw', result='SKIP', stdout='found nothing\nno RDMA device')
        self.add('layers', 'style')
        self.assertEqual(self.count(), (1, 1, 0))
        self.assertEqual(self.count(*self.allow('# x\n\nrdma ^no RDMA device$\n')), (1, 0, 1))
        self.assertIn('SKIPPED build-x rdma: no RDMA device', self.said)
        self.assertEqual(self.count(*self.allow('rdma found\n')), (1, 1, 0))
        self.assertEqual(self.count(*self.allow('rdm .\n')), (1, 1, 0))

    def test_allowed_without_a_reason(self):
        with self.assertRaises(ValueError):
            self.count(*self.allow('rdma\n'))

    def test_run_that_was_cut_off(self):
        self.add('a', 'stress')
        self.add('b', 'stress', logged=False)
        self.add('c', 'stress', logged=False)
        self.assertEqual(self.count(), (1, 2, 0))
        self.assertIn('was cut off before 2 of 3 tests: b, c', self.said)

    def test_one_suite(self):
        self.add('a', 'stress')
        self.add('b', 'style', logged=False)
        self.assertEqual(self.count(suite=':stress'), (1, 0, 0))

    def test_all_but_one_suite(self):
        self.add('a', 'stress')
        self.add('b', 'style', logged=False)
        self.assertEqual(self.count(suite=':!style'), (1, 0, 0))
        self.add('c', 'unit', logged=False)
        self.assertEqual(self.count(suite=':!style'), (1, 1, 0))
        self.assertIn('was cut off before 1 of 2 tests: c', self.said)

    def test_suite_without_tests(self):
        self.add('b', 'stress', logged=False)
        self.assertEqual(self.count(suite=':stress'), (0, 1, 0))

    def test_no_log(self):
        self.assertEqual(self.run_count(self.root), (0, 1, 0))

    def test_broken_log(self):
        self.write('meson-info/intro-tests.json', '[]')
        self.write('meson-logs/testlog.json', '{"name": "a", "resu')
        self.assertEqual(self.run_count(self.root), (0, 1, 0))

    def test_fault(self):
        self.add('a', 'stress')
        self.assertEqual(self.count('--fault', 'the build failed'), (1, 1, 0))
        self.assertIn('FAILED the build failed', self.said)

    def test_nothing_at_all(self):
        self.assertEqual(self.run_count(), (0, 1, 0))


if __name__ == '__main__':
    unittest.main()
