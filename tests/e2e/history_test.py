# SPDX-License-Identifier: Apache-2.0
"""The history checker finds each breach that is planted, and nothing in a history without one."""

import unittest
from dataclasses import replace

from history import Call, History

TEXT = "a sentence that is long enough"
PULL = Call("reader worker", "r", 1, 0, 3, "update", "latest", 2.0, 0.1, version=7, held=7)
MATE = replace(PULL, party="mate worker", shard=1)


class HistoryTest(unittest.TestCase):
    def found(self, *calls):
        return [p.split(":")[0] for p in History(list(calls)).check()]

    def test_clean(self):
        lost = replace(MATE, code="GROUP_BROKEN", text=TEXT, version=None, held=None)
        died = replace(MATE, code="DIED", text="gone", version=None, held=None, seconds=99.0)
        for mate in (MATE, lost, died):
            self.assertEqual(self.found(PULL, mate), [])

    def test_both_failed_differently(self):
        fail = replace(PULL, code="TIMEOUT", text=TEXT, version=None, held=None)
        self.assertEqual(self.found(fail, replace(fail, shard=1, code="NO_SERVER")), [])

    def test_too_late(self):
        self.assertEqual(self.found(replace(PULL, seconds=3.2)), [])
        self.assertEqual(self.found(replace(PULL, seconds=3.6)), ["too late"])
        # The machine did not wake this process for half a second.
        self.assertEqual(self.found(replace(PULL, seconds=3.6, late=0.5)), [])

    def test_wrong_bytes(self):
        self.assertEqual(self.found(replace(PULL, wrong_at=0)), ["wrong bytes at 0"])

    def test_success_for_one_only(self):
        failed = replace(MATE, code="VERSION_LOST", text=TEXT, version=None, held=None)
        self.assertEqual(self.found(PULL, failed), ["two outcomes"])

    def test_two_versions(self):
        self.assertEqual(self.found(PULL, replace(MATE, version=8, held=8)), ["two outcomes"])

    def test_other_operation_or_life(self):
        other = replace(MATE, version=8, held=8)
        self.assertEqual(self.found(PULL, replace(other, index=4)), [])
        self.assertEqual(self.found(PULL, replace(other, life=2)), [])

    def test_backwards(self):
        back = replace(PULL, index=4, version=6, held=6)
        self.assertEqual(self.found(PULL, back), ["held 7 before"])
        self.assertEqual(self.found(PULL, replace(back, spec="6")), [])

    def test_never(self):
        bad = replace(PULL, code="CHECKSUM", text=TEXT, version=None, held=None)
        self.assertEqual(self.found(bad), ["a code that no fault excuses"])

    def test_no_sentence(self):
        bad = replace(PULL, code="TIMEOUT", text="?", version=None, held=None)
        self.assertEqual(self.found(bad), ["no sentence"])


if __name__ == "__main__":
    unittest.main()
