#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks what a compiler does not: who includes what, what a core may call, what libthc exports.

    layers.py SOURCE_ROOT [BUILD_ROOT]

Each check is one function that yields `path:line: sentence`. A check whose subject is not in the
tree has nothing to say; one whose subject is there and cannot be examined says so, which fails.
Without BUILD_ROOT only the sources are checked.
"""

import json
import os
import re
import subprocess
import sys

LINES_MAX = 900  # one idea; a file that grows beyond has two
COLUMNS_MAX = 100
TAB = 8

FOLDERS = ('ipc', 'transport', 'libthc', 'daemon', 'server', 'tools', 'tests', 'man')
TOP_LEVEL = set(FOLDERS) | {
    'meson.build', 'meson_options.txt', 'README.md', 'LICENSE', 'CONTRIBUTING.md', 'SECURITY.md',
    'CHANGELOG.md'}

# Who may include what of ours. ipc/net is not below libthc, so nothing that libthc uses has it.
# Within transport the paths of a leg do not know each other, and the leg knows none of them.
TRANSPORT = (
    'ipc/base', 'ipc/cuda', 'ipc/proto', 'transport/part', 'transport/hash', 'transport/loop',
    'transport/transport.h', 'transport/transport_own.h', 'transport/mover_events.h')
GPUS = ('transport/cuda/agent',)
SHARED_IPC = ('ipc/base', 'ipc/proto', 'ipc/shm', 'ipc/sock')
MAY_INCLUDE = {
    'ipc/base': ('ipc/base',),
    'ipc/proto': SHARED_IPC,
    'ipc/plan': ('ipc/base', 'ipc/proto', 'ipc/plan'),
    'ipc/shm': SHARED_IPC,
    'ipc/sock': SHARED_IPC,
    'ipc/cuda': ('ipc/base', 'ipc/cuda'),
    'ipc/net': SHARED_IPC + ('ipc/net',),
    'transport': ('ipc/base', 'ipc/cuda', 'ipc/proto', 'transport'),
    'transport/cast': ('ipc/base', 'transport/cast'),
    'transport/hash': TRANSPORT + GPUS,
    'transport/part': TRANSPORT + GPUS + (
        'transport/rdma/device/verbs.h', 'transport/rdma/memory/region.h'),
    'transport/loop': TRANSPORT + GPUS,
    # What is in the payloads of RDMA's frames is checked with them.
    'transport/leg': TRANSPORT + GPUS + ('transport/leg', 'transport/rdma/leg/rdma_wire.h'),
    'transport/tcp': TRANSPORT + ('transport/leg', 'transport/tcp'),
    'transport/local': TRANSPORT + GPUS + ('transport/leg', 'transport/local'),
    'transport/rdma': TRANSPORT + GPUS + ('transport/leg', 'transport/rdma'),
    'transport/cuda': TRANSPORT + ('transport/cuda',),
    'libthc': SHARED_IPC + ('ipc/cuda', 'ipc/plan', 'libthc'),
    'daemon/core': ('ipc/base', 'daemon/core'),
    'daemon/host': ('daemon', 'transport', 'ipc'),
    'server/core': ('ipc/base', 'server/core'),
    'server/host': ('server', 'ipc'),
    # thbench measures the digest and conversions themselves, not only legs.
    'tools': ('libthc/thc.h', 'ipc', 'transport/hash/digest.h', 'transport/cast/cast.h', 'tools'),
    'tests': FOLDERS,
}

# Third-party headers that have one home.
HOMES = {
    'nng/': ('ipc/net', 'tests'),
    'liburing': ('transport', 'tests'),
    'infiniband/': ('transport', 'tests'),
    'rdma/': ('transport', 'tests'),
    'criterion/': ('tests',),
    # Nothing of NVIDIA's is needed to build; a test compares.
    'cuda': ('tests/support/cuda',),
}

CORES = ('daemon/core', 'ipc/plan', 'server/core')
CORE_HEADERS = {
    'errno.h', 'inttypes.h', 'limits.h', 'stdalign.h', 'stdarg.h', 'stdbool.h', 'stddef.h',
    'stdint.h', 'stdio.h', 'stdlib.h', 'string.h', 'uthash.h', 'utlist.h', 'utarray.h', 'xxhash.h'}

# What a core may call: memory, strings, formatting into memory, digests, and the pure part of
# ipc/base; the planner of ipc/plan also sorts, and asks the manifest, which is as pure.
CORE_SYMBOLS = re.compile(r'''
    malloc | calloc | realloc | free
  | mem(cpy|move|set|cmp|chr|rchr|mem)
  | str(len|nlen|cmp|ncmp|chr|rchr|str|spn|cspn|pbrk|cpy|ncpy|cat|ncat|dup|ndup)
  | v?snprintf | XXH\w+ | qsort(_r)? | manifest_(check|dtype)_\w+
  | th_(strerror|errname|fail|assert_fail|state_refuse|splitmix64|spec_parse
       |(rng|reader|read|writer|write|bytes|name|cluster|hash|version|retain|utf8|print)_\w+
       |parse_(duration|size)|calloc|realloc|strdup|memdup)
    # what the compiler adds for stack protection, fortification and the sanitizers
  | __stack_chk_fail | __(mem|str|v?s)\w+_chk | __(asan|ubsan|tsan|sanitizer|gcov)_\w+
  | _GLOBAL_OFFSET_TABLE_
''', re.VERBOSE)

# libthc needs libc; a sanitized build adds its runtime.
LIBTHC_NEEDS = re.compile(r'(libc\.so\.6|ld-linux.*|lib(asan|ubsan|tsan)\.so\.\d+)')

SOURCE_ENDINGS = ('.c', '.h', '.py', '.proto', '.sh')


class Tree:
    """The text files of the project, read once."""

    def __init__(self, root):
        self.root = root
        self.texts = {}
        for folder in FOLDERS:
            for where, folders, names in os.walk(os.path.join(root, folder)):
                folders[:] = sorted(f for f in folders if f[0] != '.' and f != '__pycache__')
                for name in sorted(names):
                    self._read(os.path.relpath(os.path.join(where, name), root))
        for name in sorted(os.listdir(root)):
            if name in TOP_LEVEL and os.path.isfile(os.path.join(root, name)):
                self._read(name)

    def _read(self, path):
        try:
            with open(os.path.join(self.root, path), encoding='utf-8', newline='') as file:
                self.texts[path] = file.read()
        except (UnicodeDecodeError, FileNotFoundError):
            pass  # a binary fixture, or an editor's file that is gone again

    def is_source(self, path):
        text = self.texts[path]
        return path.endswith(SOURCE_ENDINGS) or text.startswith('#!')

    def sources(self):
        return (p for p in self.texts if self.is_source(p))

    def lines(self, path):
        return enumerate(self.texts[path].split('\n'), 1)

    def c_files(self, *folders):
        for path in self.texts:
            if path.endswith(('.c', '.h')) and (not folders or in_any(path, folders)):
                yield path


def in_any(path, folders):
    return any(path == f or path.startswith(f + '/') for f in folders)


def home_of(path):
    found = [f for f in MAY_INCLUDE if in_any(path, (f,))]
    return max(found, key=len) if found else None


INCLUDE = re.compile(r'\s*#\s*include\s*(["<])([^">]+)[">]')


def includes(tree, path):
    for number, line in tree.lines(path):
        match = INCLUDE.match(line)
        if match:
            yield number, match.group(1) == '"', match.group(2)


def check_includes(tree):
    """A folder includes only what stands below it."""
    for path in tree.c_files():
        home = home_of(path)
        if home is None:
            yield f'{path}:1: no layer is known for this folder; CONTRIBUTING.md lists them'
            continue
        for number, ours, name in includes(tree, path):
            where = f'{path}:{number}'
            if not ours:
                for prefix, homes in HOMES.items():
                    if name.startswith(prefix) and not in_any(path, homes):
                        yield f'{where}: <{name}> is for {" and ".join(homes)} only'
            elif '/' not in name:
                yield f'{where}: "{name}" is not named from the root of the repository'
            elif not in_any(name, MAY_INCLUDE[home]):
                yield f'{where}: {home} may not include {name}'
            elif name not in tree.texts and not name.endswith('.pb-c.h'):
                yield f'{where}: there is no {name}'


def check_own_header_first(tree):
    """Each header compiles alone: its own source includes it before all others."""
    for path in tree.c_files():
        own = path[:-2] + '.h'
        if path.endswith('.c') and own in tree.texts:
            first = next(iter(includes(tree, path)), (1, True, None))
            if first[2] != own:
                yield f'{path}:{first[0]}: its own header is not the first include'


def check_include_cycles(tree):
    """No header includes itself by way of others."""
    done = set()

    def visit(path, trail):
        if path in trail:
            yield f'{path}:1: include cycle {" -> ".join(trail[trail.index(path):] + [path])}'
            return
        if path in done:
            return
        for _, ours, name in includes(tree, path):
            if ours and name in tree.texts:
                yield from visit(name, trail + [path])
        done.add(path)

    for path in tree.c_files():
        yield from visit(path, [])


def check_core_headers(tree):
    """A core has no clock and does no I/O, so it has no headers for that."""
    for path in tree.c_files(*CORES):
        for number, ours, name in includes(tree, path):
            if not ours and name not in CORE_HEADERS:
                yield f'{path}:{number}: a core may not include <{name}>'
            if ours and name in ('ipc/base/clock.h', 'ipc/base/log.h', 'ipc/base/fd.h'):
                yield f'{path}:{number}: a core may not include {name}'


def check_guards(tree):
    """Include guards are named after the path; the public header is named after itself."""
    for path in tree.c_files():
        if not path.endswith('.h') or path == 'libthc/thc.h':
            continue
        guard = 'TH_' + re.sub(r'[^A-Za-z0-9]', '_', path).upper()
        text = tree.texts[path]
        if '#pragma once' in text:
            yield f'{path}:1: #pragma once where an include guard belongs'
        elif not re.search(rf'^#ifndef {guard}\n#define {guard}\n', text, re.MULTILINE):
            yield f'{path}:1: the include guard is not {guard}'


def check_license(tree):
    """Every source says its licence in its first line (after #! in a script)."""
    for path in tree.sources():
        lines = tree.texts[path].split('\n')
        first = lines[1] if lines[0].startswith('#!') and len(lines) > 1 else lines[0]
        if not re.fullmatch(r'(/\* (.*) \*/|(//|#) (.*))', first) or \
                'SPDX-License-Identifier: Apache-2.0' not in first:
            yield f'{path}:1: the first line is not the SPDX licence line'


def check_open_ends(tree):
    """What is not done is not in the tree."""
    marks = re.compile(r'\b(' + '|'.join(('TO' 'DO', 'FIX' 'ME', 'XX' 'X')) + r')\b')
    for path in tree.sources():
        for number, line in tree.lines(path):
            match = marks.search(line)
            if match:
                yield f'{path}:{number}: {match.group(1)}: finish it or leave it out'


def check_form(tree):
    """Line length, tabs, ends of lines and files."""
    for path in tree.sources():
        text = tree.texts[path]
        is_c = path.endswith(('.c', '.h'))
        for number, line in tree.lines(path):
            where = f'{path}:{number}'
            columns = len(line.expandtabs(TAB))
            if columns > COLUMNS_MAX:
                yield f'{where}: {columns} columns, {COLUMNS_MAX} are allowed'
            if line != line.rstrip():
                yield f'{where}: white space at the end of the line'
            # Not before a star: that is a comment beside code, aligned with its first line.
            if is_c and re.match(r'\t* {8,}[^ *]', line):
                yield f'{where}: spaces where a tab belongs'
        if text and not text.endswith('\n'):
            yield f'{path}:1: the last line has no end'


def check_size(tree):
    """A file is one idea."""
    for path in tree.sources():
        count = tree.texts[path].count('\n')
        if count > LINES_MAX:
            yield f'{path}:{LINES_MAX + 1}: {count} lines, {LINES_MAX} are allowed: split it'


def check_unit_exit(tree):
    """exit() within a Criterion test ends it as passed; a forked child takes _exit()."""
    for path in tree.c_files('tests/unit'):
        for number, line in tree.lines(path):
            if re.search(r'(?<![\w.>])exit\s*\(', line.split('/*')[0]):
                yield f'{path}:{number}: exit() makes Criterion count the test as passed'


def check_top_level(tree):
    """A stranger finds everything from ls, so nothing else lies there."""
    if os.path.exists(os.path.join(tree.root, '.git')):
        # The checkout may belong to another user than the one who runs the checks.
        listed = run('git', '-c', 'safe.directory=*', '-C', tree.root, 'ls-files')
        if listed is None:
            yield '.:1: git cannot list the files of this checkout'
            return
        names = {line.split('/')[0] for line in listed.splitlines()}
    else:
        names = set(os.listdir(tree.root))
    for name in sorted(names - TOP_LEVEL):
        if name[0] != '.' and not name.startswith('build'):
            yield f'{name}:1: not one of the files and folders of the top level'


def check_manual(tree):
    """The pages are well-formed."""
    pages = [p for p in tree.texts if re.fullmatch(r'man/.*\.[1-9]', p)]
    if not pages:
        return
    try:
        found = subprocess.run(['mandoc', '-T', 'lint', '-W', 'warning'] + pages, cwd=tree.root,
                               capture_output=True, text=True, check=False)
    except FileNotFoundError:
        yield 'man:1: mandoc is not installed: tools/check --deps-only'
        return
    for line in found.stdout.splitlines():
        match = re.match(r'mandoc: (.*?):(\d+):\d+: (.*)', line)
        yield f'{match.group(1)}:{match.group(2)}: {match.group(3)}' if match else f'man:1: {line}'


# ---- what was built ---------------------------------------------------------------------------


def run(*command):
    """The output of a command, or None when it fails."""
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return None


class Build:
    """A Meson build folder."""

    def __init__(self, root, tree):
        self.tree = tree
        with open(os.path.join(root, 'meson-info', 'intro-targets.json'), encoding='utf-8') as file:
            self.targets = json.load(file)
        with open(os.path.join(root, 'meson-info', 'intro-tests.json'), encoding='utf-8') as file:
            self.tests = json.load(file)

    def sources_of(self, target):
        paths = []
        for part in target['target_sources']:
            for source in part.get('sources', []):
                paths.append(os.path.relpath(source, self.tree.root))
        return [p for p in paths if p.endswith('.c')]

    def is_simulated(self, target):
        """The cores once more for the simulator, with its marks and planted bugs."""
        return any('-DTH_SIM' in part.get('parameters', []) for part in target['target_sources'])

    def library(self, kind, name):
        for target in self.targets:
            if target['type'] == kind and target['name'] == name:
                return target['filename'][0]
        return None


def check_core_symbols(build):
    """What a core calls: memory and string functions, and what is pure in ipc/base."""
    built = set()
    for target in build.targets:
        sources = build.sources_of(target)
        cores = [p for p in sources if in_any(p, CORES)]
        if not cores or target['defined_in'].startswith(
                os.path.join(build.tree.root, 'tests') + os.sep) or build.is_simulated(target):
            continue
        if len(cores) != len(sources) or target['type'] != 'static library':
            yield (f'{cores[0]}:1: a core is a static library of its own, '
                   f'{target["name"]} is more than that')
            continue
        built.update(cores)
        yield from core_symbols_of(target['filename'][0], cores)
    for path in build.tree.c_files(*CORES):
        if path.endswith('.c') and path not in built:
            yield f'{path}:1: in no static library, so nobody can say what it calls'


def core_symbols_of(library, cores):
    home = next(c for c in CORES if in_any(cores[0], (c,)))
    undefined = run('nm', '--undefined-only', '--format=just-symbols', library)
    defined = run('nm', '--defined-only', '--format=just-symbols', library)
    if undefined is None or defined is None:
        yield f'{home}:1: nm cannot read {library}: build it first'
        return
    own = set(defined.split())
    for symbol in sorted(set(undefined.split()) - own):
        if symbol.endswith(':') or CORE_SYMBOLS.fullmatch(symbol):
            continue
        yield f'{home}:1: a core may not call {symbol}'


def check_libthc_exports(build):
    """The public calls and nothing else."""
    library = build.library('shared library', 'thc')
    if library is None:
        return
    listed = run('nm', '--dynamic', '--defined-only', library)
    if listed is None:
        yield f'libthc:1: nm cannot read {library}: build it first'
        return
    header = build.tree.texts.get('libthc/thc.h', '')
    for line in listed.splitlines():
        _, kind, name = line.split()
        name = name.split('@')[0]
        if kind == 'A':
            continue  # the name of a symbol version
        if not name.startswith('thc_'):
            yield f'libthc:1: exports {name}'
        elif not re.search(rf'\b{name}\b', header):
            yield f'libthc/thc.h:1: {name} is exported and not declared'


def check_libthc_needs(build):
    """A worker gets no library that it did not have."""
    library = build.library('shared library', 'thc')
    if library is None:
        return
    listed = run('readelf', '--dynamic', '--wide', library)
    if listed is None:
        yield f'libthc:1: readelf cannot read {library}: build it first'
        return
    for name in re.findall(r'\(NEEDED\).*\[(.*)\]', listed):
        if not LIBTHC_NEEDS.fullmatch(name):
            yield f'libthc:1: needs {name}'


def check_parallel(build):
    """Only tests that wait or end soon run beside others: two that work starve each other."""
    for test in build.tests:
        suites = {suite.split(':')[-1] for suite in test['suite']}
        if test['is_parallel'] and 'waiting' not in suites:
            yield (f'tests:1: {test["name"]} would run beside others: give it is_parallel: false, '
                   f"or the suite 'waiting' if it waits or ends soon")


SOURCE_CHECKS = (
    check_includes, check_own_header_first, check_include_cycles, check_core_headers, check_guards,
    check_license, check_open_ends, check_form, check_size, check_unit_exit, check_top_level,
    check_manual)
BUILD_CHECKS = (check_core_symbols, check_libthc_exports, check_libthc_needs, check_parallel)


def main(arguments):
    if len(arguments) not in (1, 2):
        print(__doc__, file=sys.stderr)
        return 2
    tree = Tree(os.path.realpath(arguments[0]))
    found = [f for check in SOURCE_CHECKS for f in check(tree)]
    if len(arguments) == 2:
        build = Build(os.path.realpath(arguments[1]), tree)
        found += [f for check in BUILD_CHECKS for f in check(build)]
    for finding in found:
        print(finding)
    print(f'{len(tree.texts)} files, {len(found)} findings')
    return 1 if found else 0


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
