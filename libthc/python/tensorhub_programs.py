# SPDX-License-Identifier: Apache-2.0
"""The console scripts: each becomes the program of its name that came with the package. No part of
the package itself, so that a program starts without Python loading libthc first."""

import os
import sys
from typing import NoReturn


def _become(name: str) -> NoReturn:
    here = os.path.dirname(os.path.abspath(__file__))
    path = os.path.join(here, "tensorhub", "_bin", name)
    try:
        os.execv(path, [name, *sys.argv[1:]])
    except OSError as e:
        sys.exit(f"{name}: {path}: {e.strerror}; install the wheel, or {name} of the distribution")


def thctl() -> NoReturn:
    _become("thctl")


def thagentd() -> NoReturn:
    _become("thagentd")


def thserverd() -> NoReturn:
    _become("thserverd")
