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

    def test_no_server_for_one_only(self):
        # The one whose agent reached no server, and the one who was told that nothing is new.
        alone = replace(PULL, code="NO_SERVER", text=TEXT, version=None, held=6)
        nothing = replace(MATE, version=None, held=6)
        self.assertEqual(self.found(alone, nothing), [])
        self.assertEqual(self.found(alone, MATE), ["two outcomes"])
        pull = {"cmd": "replicate", "spec": "7"}
        others = replace(alone, **pull), replace(nothing, **pull)
        self.assertEqual(self.found(*others), ["two outcomes"])
        late = replace(alone, code="TIMEOUT")
        self.assertEqual(self.found(late, nothing), ["two outcomes"])

    def test_after_no_server_numbers_are_not_compared(self):
        alone = replace(PULL, index=2, code="NO_SERVER", text=TEXT, version=None, held=None)
        nothing = replace(MATE, version=None, held=6)
        self.assertEqual(self.found(PULL, nothing, alone), [])
        self.assertEqual(self.found(PULL, nothing, replace(alone, life=2)), ["two outcomes"])
        self.assertEqual(self.found(PULL, nothing, replace(alone, index=4)), ["two outcomes"])

    def test_no_server_and_another_version(self):
        alone = replace(PULL, index=4, code="NO_SERVER", text=TEXT, version=None, held=8)
        self.assertEqual(self.found(PULL, alone), ["held 7 before and found no server"])
        open_end = replace(PULL, code="UNKNOWN", text=TEXT, version=None)
        self.assertEqual(self.found(open_end, alone), [])

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
