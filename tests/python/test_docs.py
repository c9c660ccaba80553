# SPDX-License-Identifier: Apache-2.0
"""What is public has a docstring, and tensorhub-python(7) names what is there and nothing else."""

import asyncio
import glob
import importlib
import inspect
import os
import pydoc
import re

import pytest
import tensorhub as th
from conftest import ROOT

with open(os.path.join(ROOT, "man", "tensorhub-python.7"), encoding="utf-8") as file:
    PAGE = file.read()


def section(title):
    return re.search(rf"^\.S[hs] {title}$(.*?)(?=^\.S[hs] |\Z)", PAGE, re.MULTILINE | re.DOTALL)[1]


def table(title):
    """Lines of the table of a section, without its head."""
    block = re.search(r"^\.Bd -literal\n(.*?)^\.Ed", section(title), re.MULTILINE | re.DOTALL)[1]
    return block.splitlines()[1:]


def public(thing):
    """(name, object) of what a module or a class has of its own, or of a base of the package."""
    if inspect.ismodule(thing):
        own = [name for name, one in vars(thing).items()
               if getattr(one, "__module__", "") == thing.__name__]  # fmt: skip
        names = getattr(thing, "__all__", own)
    else:
        kinds = [kind for kind in thing.__mro__ if kind.__module__.startswith("tensorhub")]
        names = {name for kind in kinds for name in vars(kind)}
    return [(name, inspect.getattr_static(thing, name, None) or getattr(thing, name))
            for name in sorted(names) if not name.startswith("_")]  # fmt: skip


def documented():
    """{name: docstring or None} of all that is public and can have one."""
    found = {}
    doctor = importlib.import_module("tensorhub.doctor")
    for module in (th, th.aio, th.distributed, th.errors, doctor):
        found[module.__name__] = module.__doc__
        for name, one in public(module):
            label = f"{module.__name__}.{name}"
            if inspect.isclass(one):
                found[label] = one.__doc__
                for method, what in public(one):
                    if inspect.isfunction(what) or isinstance(what, property):
                        found[f"{label}.{method}"] = inspect.getdoc(what)
            elif inspect.isroutine(one):
                found[label] = one.__doc__
    return found


def test_all_that_is_public_has_a_docstring():
    found = documented()
    assert {"tensorhub.aio.Handle.update", "tensorhub.Handle.held", "tensorhub.load"} <= set(found)
    assert not [name for name, text in found.items() if not text or not text.strip()]


@pytest.mark.parametrize(
    "name, sentence",
    [
        ("tensorhub", "Offers the registered tensors as this version."),
        ("tensorhub.aio", "Offers the registered tensors as this version."),
        ("tensorhub.distributed", "Opens this rank's shard of a replica."),
    ],
)  # fmt: skip
def test_pydoc_renders_it(name, sentence):
    assert sentence in pydoc.render_doc(name, renderer=pydoc.plaintext)


def coroutines(kind):
    return {name for name, one in public(kind) if asyncio.iscoroutinefunction(one)}


def test_the_table_of_calls_is_the_package():
    first = [line.split()[0] for line in table("Calls")]
    calls = {prefix: {word[2:].split("(")[0] for word in first if word.startswith(f"{prefix}.")}
             for prefix in ("h", "w", "p")}  # fmt: skip
    assert calls["h"] == coroutines(th.aio.Handle)
    assert calls["w"] == coroutines(th.aio.Watch)
    assert calls["p"] == coroutines(th.aio.Publisher)
    forms = {word for line in table("Calls") for word in re.findall(r"h\.(\w+_async)\b", line)}
    assert forms == {name for name, _ in public(th.Handle) if name.endswith("_async")}


def test_the_page_names_all_that_is_public():
    words = set(re.findall(r"\w+", PAGE))
    assert not [name for name in th.__all__ if name not in words]
    assert not [name for name, _ in public(th.Handle) if name not in words]


def test_what_the_page_names_is_there():
    for name in re.findall(r"\bth\.((?:aio\.|distributed\.)?\w+)", PAGE):
        where, _, last = name.rpartition(".")
        assert hasattr(getattr(th, where) if where else th, last), name
    for prefix, kind in (("h", th.Handle), ("w", th.Watch), ("p", th.Publisher)):
        for name in re.findall(rf"(?<![\w.]){prefix}\.(\w+)", PAGE):
            assert hasattr(kind, name), f"{prefix}.{name}"


def test_the_table_of_errors_is_the_package():
    rows = [line.split() for line in table("Errors")]
    builtin = {kind: [base.__name__ for base in kind.__mro__[2:3] if base is not Exception]
               for kind in th.errors.CLASSES.values()}  # fmt: skip
    assert rows == [[kind.__name__, kind.name, *builtin[kind]] for kind in builtin]


def test_the_environment_is_that_of_the_code():
    sources = glob.glob(os.path.join(ROOT, "libthc", "*.c"))
    sources += glob.glob(os.path.join(ROOT, "libthc", "python", "tensorhub", "*.py"))
    read = set()
    for path in sources:
        with open(path, encoding="utf-8") as source:
            read |= set(re.findall(r'(?:getenv\(|environ\.get\(|environ\[)"(\w+)"', source.read()))
    items = re.findall(r"^\.It Ev (.*)$", section("ENVIRONMENT"), re.MULTILINE)
    named = {name for item in items for name in item.split(" , ")}
    assert read <= named and {"THC_AGENT", "THC_LIBRARY", "SLURM_JOB_ID"} <= read
