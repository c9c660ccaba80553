#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Lets PyPI's torch load where no CUDA library is: cuda_stubs.py FOLDER, which is torch/lib.

PyPI has torch for CUDA only, and what it links there (cuBLAS, cuDNN, NCCL and others) is gigabytes
that a test on the CPU never calls; the loader wants each of these libraries and each of their
symbols all the same. The C compiler makes them here: one library has a function for each symbol,
and each of the others, empty, needs that one. (Were they one file, the loader would look for the
versions of their symbols in it.) Which ones is read from torch's own libraries, so another version
of torch needs no change:

  a library is wanted when one of FOLDER needs it and FOLDER has it not;
  a function is wanted when one of FOLDER leaves it undefined and none of FOLDER defines it;
  and both are named as CUDA's are.

FOLDER is where torch's libraries look for others first (their RPATH has $ORIGIN), so nothing is
set in the environment, and a CUDA that is installed is not touched. Every function answers 100,
which is cudaErrorNoDevice: torch.cuda.is_available() is False. The driver, libcuda.so.1, is left
out: only what asks for it by name loads it, and finds the machine's own or none.
"""

import os
import re
import subprocess
import sys

STUBS = "libcuda_stubs.so"
DRIVER = "libcuda.so.1"
LIBRARY = re.compile(r"lib(cu|nccl|nv)")
FUNCTION = re.compile(r"(__)?(cu|nccl|nv)")
TEXT = re.compile(r"Error(String|Name)|StatusString")


def lines(*command):
    return subprocess.check_output(command, text=True).splitlines()


def needed(path):
    found = (re.search(r"\(NEEDED\).*\[(.*)\]", line) for line in lines("readelf", "-dW", path))
    return {match[1] for match in found if match}


def wanted(folder):
    """The names of the libraries and of the functions that are missing."""
    own, libraries, undefined, defined = set(), set(), set(), set()
    for name in os.listdir(folder):
        path = os.path.join(folder, name)
        if ".so" not in name or name == STUBS or STUBS in needed(path):
            continue
        own.add(name)
        libraries |= needed(path)
        for line in lines("nm", "-D", path):
            kind, symbol = line.split()[-2:]
            symbol = symbol.partition("@")[0]
            (undefined if kind in "Uwv" else defined).add(symbol)
    missing = {name for name in libraries - own if LIBRARY.match(name)}
    functions = {name for name in undefined - defined if FUNCTION.match(name)}
    return sorted(missing - {DRIVER}), sorted(functions)


def source(functions):
    for name in functions:
        if TEXT.search(name):
            yield f'const char *{name}(void) {{ return "CUDA is a stub here"; }}'
        else:
            yield f"long {name}(void) {{ return 100; }}"


def link(folder, name, text, *needs):
    path = os.path.join(folder, name)
    options = ["-shared", "-fPIC", "-w", "-O1", f"-Wl,-soname,{name}", "-Wl,-rpath,$ORIGIN"]
    subprocess.run(
        ["cc", *options, "-o", path, "-x", "c", "-", "-x", "none", *needs],
        input=text, check=True, text=True,
    )  # fmt: skip


def main(folder):
    libraries, functions = wanted(folder)
    link(folder, STUBS, "\n".join(source(functions)))
    for name in libraries:
        link(folder, name, "", "-Wl,--no-as-needed", "-L" + folder, "-l:" + STUBS)
    print(f"{len(functions)} functions of {len(libraries)} libraries: {' '.join(libraries)}")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(f"usage: {sys.argv[0]} FOLDER")
    main(sys.argv[1])
