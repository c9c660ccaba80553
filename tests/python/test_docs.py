# SPDX-License-Identifier: Apache-2.0
"""What is public has a docstring."""

import importlib
import inspect
import pydoc

import pytest
import tensorhub as th

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
