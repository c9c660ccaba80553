# SPDX-License-Identifier: Apache-2.0
"""The package is written for the oldest Python that pyproject.toml names, whichever runs this.

What can be read off the text: syntax, and unions by | in annotations, which 3.9 evaluates and
refuses. What a function of the standard library was not yet able to do only that Python says:
`meson configure -Dtest_python=python3.9` runs all of these tests by it.
"""

import ast
import glob
import os
import re

import pytest

PACKAGE = os.path.join(os.path.dirname(__file__), "..", "..", "libthc", "python")
PATHS = [
    os.path.join(PACKAGE, "build_wheel.py"),
    os.path.join(PACKAGE, "tensorhub_programs.py"),
    *glob.glob(os.path.join(PACKAGE, "tensorhub", "**", "*.py"), recursive=True),
]


def oldest():
    with open(os.path.join(PACKAGE, "pyproject.toml"), encoding="utf-8") as f:
        major, minor = re.search(r'^requires-python = ">=(\d+)\.(\d+)"$', f.read(), re.M).groups()
    return int(major), int(minor)


def annotations(tree):
    for node in ast.walk(tree):
        if isinstance(node, (ast.arg, ast.AnnAssign)):
            yield node.annotation
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node.returns


def too_new(text, version):
    """Sentences; none: this Python reads it."""
    try:
        tree = ast.parse(text, feature_version=version)
    except SyntaxError as e:
        return [f"line {e.lineno}: {e.msg}"]
    if version >= (3, 10):
        return []
    return [
        f"line {part.lineno}: a union by |"
        for annotation in annotations(tree)
        if annotation is not None
        for part in ast.walk(annotation)
        if isinstance(part, ast.BinOp) and isinstance(part.op, ast.BitOr)
    ]


@pytest.mark.parametrize("path", PATHS, ids=os.path.basename)
def test_the_oldest_python_reads_it(path):
    with open(path, encoding="utf-8") as f:
        assert too_new(f.read(), oldest()) == []


@pytest.mark.parametrize(
    "text",
    [
        "match a:\n    case 1:\n        pass\n",
        "try:\n    pass\nexcept* ValueError:\n    pass\n",
        "def f(a: int | None):\n    pass\n",
        "async def f() -> list[int | str]:\n    pass\n",
        "class C:\n    a: 'int' | None = None\n",
    ],
)
def test_what_is_newer_is_found(text):
    assert len(too_new(text, (3, 9))) == 1


def test_the_oldest_is_what_users_are_promised():
    assert oldest() == (3, 9)
    assert len(PATHS) > 10
