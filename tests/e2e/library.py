# SPDX-License-Identifier: Apache-2.0
"""For who loads libthc in a test: what its calls return is remembered from here on."""

import mmap
import os

import tensorhub as th
from tensorhub import _abi


def _remember():
    """Each call's codes go into the table of TH_CALLS_SEEN (calls_seen.c says how it
    looks), as seen with real daemons. Nothing is opened when a call returns."""
    try:
        with open(os.path.join(os.environ["TH_CALLS_SEEN"], "table"), "r+b") as file:
            table = mmap.mmap(file.fileno(), 0)
    except (KeyError, OSError):
        return
    coded = {name for name, (returns, _) in _abi.PROTOTYPES.items() if returns is _abi.c.c_int}
    for at in range(0, len(table), 96):
        name = table[at : at + 32].rstrip(b"\0").decode()

        def note(result, _function, _args, at=at, coded=name in coded):
            flag = 0
            if coded and result < 0:
                flag = 30 if result >= -4095 else -5000 - result if result >= -5026 else 31
            table[at + 64 + flag] = 1
            return result

        getattr(_abi.lib, name).errcheck = note


_remember()


def opened(agent, replica, model="m", **options):
    """A handle whose verbs end in time to say so, before the test is ended."""
    options.setdefault("timeout", 10)
    handle = th.open(model, replica=replica, agent=agent.runtime, **options)
    handle.timeout = 30
    return handle
