# SPDX-License-Identifier: Apache-2.0
"""The package's view of thc.h against the compiler's: structs, constants, functions."""

import ctypes
import os
import re
import subprocess

import pytest
from conftest import ROOT
from tensorhub import _abi, dtypes, errors
from tensorhub.handle import Event

LIBTHC = os.path.join(ROOT, "libthc")
STRUCTS = {
    "thc_tensor": _abi.Tensor,
    "thc_open_opts": _abi.OpenOpts,
    "thc_result": _abi.Result,
    "thc_attribute": _abi.Attribute,
    "thc_manifest": _abi.Manifest,
    "thc_replica_info": _abi.ReplicaInfo,
    "thc_version_info": _abi.VersionInfo,
    "thc_listing": _abi.Listing,
}
NUMBERS = {
    "THC_FOREVER": _abi.FOREVER,
    "THC_NO_VERSION": _abi.NO_VERSION,
    "THC_DIMS_MAX": _abi.DIMS_MAX,
    "THC_NAME_MAX": _abi.NAME_MAX,
    "THC_HOST": _abi.HOST,
    "THC_SPOT": _abi.SPOT,
    "THC_REQUIRE_RDMA": _abi.REQUIRE_RDMA,
    "THC_OFFLOAD_SEED": _abi.OFFLOAD_SEED,
    "THC_NO_MEMORY_FD": _abi.NO_MEMORY_FD,
    "THC_STAGED": _abi.STAGED,
    "THC_PREFETCH": _abi.PREFETCH,
    "THC_CLOSE_ABANDON": _abi.CLOSE_ABANDON,
    "THC_ALLOC_HUGE": _abi.ALLOC_HUGE,
    "THC_FORCE": _abi.FORCE,
    "THC_LIST_GROUP": _abi.LIST_GROUP,
    **{f"THC_EV_{bit.name}": bit.value for bit in Event},
    **{f"THC_{kind.name}": code for code, kind in dtypes.BY_CODE.items()},
}


def text_of(*path):
    with open(os.path.join(LIBTHC, *path)) as file:
        return file.read()


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """What a C compiler makes of each of these expressions."""
    sizes = {f"sizeof(struct {name})" for name in STRUCTS}
    offsets = {
        f"offsetof(struct {name}, {field[0]})"
        for name, struct in STRUCTS.items()
        for field in struct._fields_
    }
    expressions = sorted(sizes | offsets | set(NUMBERS))
    where = tmp_path_factory.mktemp("abi")
    source, program = where / "abi.c", where / "abi"
    lines = (f'\tprintf("%lld\\n", (long long)({text}));' for text in expressions)
    source.write_text(
        "#include <stddef.h>\n#include <stdio.h>\n#include <thc.h>\nint main(void)\n{\n"
        + "\n".join(lines)
        + "\n}\n"
    )
    command = [os.environ.get("CC", "cc"), "-I", LIBTHC, "-o", str(program), str(source)]
    subprocess.run(command, check=True, timeout=60)
    out = subprocess.run([program], check=True, timeout=60, capture_output=True, text=True).stdout
    return dict(zip(expressions, map(int, out.split())))


@pytest.mark.parametrize("name", STRUCTS)
def test_a_struct_lies_as_in_c(compiled, name):
    struct = STRUCTS[name]
    assert ctypes.sizeof(struct) == compiled[f"sizeof(struct {name})"]
    for field, *_ in struct._fields_:
        assert getattr(struct, field).offset == compiled[f"offsetof(struct {name}, {field})"], field


def test_each_number_is_that_of_c(compiled):
    assert {name: value % 2**64 for name, value in NUMBERS.items()} == {
        name: compiled[name] % 2**64 for name in NUMBERS
    }


def test_each_type_and_event_of_c_has_its_number():
    header = text_of("thc.h")
    (types,) = re.findall(r"enum thc_dtype \{(.*?)\};", header, re.S)
    (events,) = re.findall(r"enum thc_event_bits \{(.*?)\};", header, re.S)
    named = set(re.findall(r"\bTHC_[A-Z0-9_]+(?=[ ,=])", re.sub(r"/\*.*?\*/", "", types + events)))
    assert named <= set(NUMBERS), named - set(NUMBERS)


def test_each_failure_of_c_has_a_class():
    codes = dict(re.findall(r"\b(THC_E_[A-Z_]+) = (-\d+)", text_of("thc.h")))
    assert len(codes) > 20
    assert {int(code) for code in codes.values()} == set(errors.CLASSES)
    for name, code in codes.items():
        assert f"THC_E_{errors.from_code(int(code), 'x').name}" == name


def test_each_function_of_c_has_a_prototype():
    exported = set(re.findall(r"^\t\t(thc_\w+);", text_of("thc.map"), re.M))
    assert exported == set(_abi.PROTOTYPES)
