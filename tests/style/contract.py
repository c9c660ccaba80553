#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares what libthc promises in several places: thc.h, thc.map, its exports and the pages.

    contract.py SOURCE_ROOT [LIBRARY]

The pages are the one place where the codes of a call stand. In the section ERRORS of a page each
code is one item; it begins with the calls that return it, each as .Fn, the last followed by a
colon. An item without them holds for all calls of its page that return a code. What no call returns
yet stands in libthc(3), in the list of section NOT IN THIS RELEASE. Whether the calls really return
these codes, and no others, is found by tests: contract_seen.py.

Prints `path:line: sentence` for each finding. LIBRARY is the built libthc.so.
"""

import os
import re
import subprocess
import sys

HEADER, MAP = 'libthc/thc.h', 'libthc/thc.map'
ALIASES = 'man/meson.build'
OVERVIEW = 'man/libthc.3'


# ---- thc.h ------------------------------------------------------------------------------------


def blank_comments(text):
    """Comments and lines of the preprocessor become blanks: line numbers stay."""
    def blank(match):
        return re.sub(r'[^\n]', ' ', match.group(0))
    text = re.sub(r'/\*.*?\*/', blank, text, flags=re.DOTALL)
    return re.sub(r'^[ \t]*#(?:[^\n]*\\\n)*[^\n]*', blank, text, flags=re.MULTILINE)


def one_line(text):
    return re.sub(r'\s*\*\s*', ' *', re.sub(r'\s+', ' ', text)).strip()


class Header:
    """functions: name -> (line, type, [parameters]); structs: name -> [fields];
    constants: name -> line, of enums and of #define; codes: name -> number."""

    def __init__(self, text):
        plain = blank_comments(text)
        self.functions, self.structs, self.constants, self.codes = {}, {}, {}, {}
        for match in re.finditer(
                r'^((?:const )?\w+(?: \*)?) ?(thc_\w+)\(([^;{]*?)\);', plain, re.MULTILINE):
            parameters = [one_line(p) for p in match.group(3).split(',')]
            self.functions[match.group(2)] = (
                line_of(text, match.start()), one_line(match.group(1)), parameters)
        for match in re.finditer(r'^struct (thc_\w+) \{(.*?)^\};', plain, re.MULTILINE | re.DOTALL):
            self.structs[match.group(1)] = re.findall(r'(\w+)(?:\[\w+(?: \+ 1)?\])?\s*[,;]',
                                                      match.group(2))
        for match in re.finditer(r'^enum[^{;]*\{(.*?)\}', plain, re.MULTILINE | re.DOTALL):
            for item in re.finditer(r'\b(THC_\w+)(?:\s*=\s*(-?\d+))?', match.group(1)):
                at = line_of(text, match.start(1) + item.start())
                self.constants[item.group(1)] = at
                if item.group(1).startswith('THC_E_'):
                    self.codes[item.group(1)] = int(item.group(2))
        for match in re.finditer(r'^#define (THC_\w+)[ (]', text, re.MULTILINE):
            self.constants[match.group(1)] = line_of(text, match.start())

    def with_code(self):
        """The calls that return a code."""
        return [name for name, (_, kind, _) in self.functions.items() if kind == 'int']


def line_of(text, at):
    return text.count('\n', 0, at) + 1


# ---- pages ------------------------------------------------------------------------------------


class Page:
    """A page in mdoc. errors: [(line, code, [calls], has text)]; absent: codes that no call
    returns yet; words: every word of it."""

    def __init__(self, path, text):
        self.path, self.text = path, text
        self.names, self.prototypes, self.errors, self.absent = [], {}, [], []
        self.words = set(re.findall(r'\w+', text))
        self._section(text)

    def _section(self, text):
        section, kind, name, parameters = None, None, None, []
        for number, line in enumerate(text.split('\n'), 1):
            macro, _, rest = line.partition(' ')
            if macro == '.Sh':
                section = rest.strip()
            elif section == 'NAME' and macro == '.Nm':
                self.names.append(rest.rstrip(' ,'))
            elif macro == '.Ft':
                kind = rest.strip('"')
            elif macro == '.Fo':
                name, parameters = rest, []
            elif macro == '.Fa' and name is not None:
                parameters.append(one_line(rest.strip('"')))
            elif macro == '.Fc':
                self.prototypes[name] = (number, one_line(kind or ''), parameters)
                name = None
            elif section == 'ERRORS':
                self._error(number, macro, rest)
            elif section == 'NOT IN THIS RELEASE' and macro == '.It':
                self.absent += [(number, code) for code in re.findall(r'\bTHC_E_\w+', rest)]

    def _error(self, number, macro, rest):
        match = re.match(r'Bq Er (THC_E_\w+)$', rest)
        if macro == '.It' and match:
            self.errors.append([number, match.group(1), [], False])
        elif not self.errors or macro in ('', '.It', '.El', '.Pp', '.\\"'):
            return
        elif macro == '.Fn' and not self.errors[-1][3]:
            self.errors[-1][2].append(rest.rstrip(' ,:'))
            # The colon ends the list of calls: what comes after it is the text.
            self.errors[-1][3] = rest.endswith(':')
        else:
            self.errors[-1][3] = True


def aliases(text):
    """man/meson.build: name -> page."""
    found = {}
    for page, names in re.findall(r"'(\w+)': \[(.*?)\]", text, re.DOTALL):
        for name in re.findall(r"'(\w+)'", names):
            found[name] = page
    return found


class Tree:
    def __init__(self, root):
        self.root = root
        self.header = Header(self.read(HEADER))
        self.map = self.read(MAP)
        self.aliases = aliases(self.read(ALIASES))
        self.pages = {}
        for name in sorted(os.listdir(os.path.join(root, 'man'))):
            if name.endswith('.3'):
                path = 'man/' + name
                self.pages[name[:-2]] = Page(path, self.read(path))

    def read(self, path):
        with open(os.path.join(self.root, path), encoding='utf-8') as file:
            return file.read()

    def page_of(self, call):
        return self.pages.get(self.aliases.get(call, call))


def documented(tree):
    """{(call, code)}: what the pages say."""
    found = set()
    codes = tree.header.with_code()
    for page in tree.pages.values():
        if page.path == OVERVIEW:
            continue
        own = [name for name in page.names if name in codes]
        for _, code, calls, _ in page.errors:
            found.update((call, code) for call in calls or own)
    return found


# ---- findings ---------------------------------------------------------------------------------


def check_map(tree):
    """The map names each call, so that a new one is a decision; the versions are a chain."""
    listed = re.findall(r'\b(thc_\w+|thc_\*)\s*;', tree.map)
    for name in sorted(set(listed) - set(tree.header.functions)):
        yield f'{MAP}:1: {name} is exported and not declared in thc.h'
    for name in sorted(set(tree.header.functions) - set(listed)):
        yield f'{HEADER}:{tree.header.functions[name][0]}: {name} is not in {MAP}'
    for name in sorted({n for n in listed if listed.count(n) > 1}):
        yield f'{MAP}:1: {name} is there twice'
    if not re.search(r'local:\s*\*;', tree.map):
        yield f'{MAP}:1: what is not named is not local'


def check_exports(tree, library):
    """The library has each call, under a version of ours."""
    done = subprocess.run(['nm', '--dynamic', '--defined-only', library], capture_output=True,
                          text=True, check=False)
    if done.returncode != 0:
        yield f'{MAP}:1: nm cannot read {library}: build it first'
        return
    exported = {}
    for line in done.stdout.splitlines():
        _, kind, name = line.split()
        if kind != 'A':
            name, _, version = name.partition('@@')
            exported[name] = version
    for name, (line, _, _) in tree.header.functions.items():
        if name not in exported:
            yield f'{HEADER}:{line}: {name} is declared and not exported'
        elif not re.fullmatch(r'THC_1(\.\d+)?', exported[name]):
            yield f'{HEADER}:{line}: {name} is exported as version "{exported[name]}", not THC_1'


def check_pages(tree):
    """Each call has a page with its very prototype, by its own name or by an alias."""
    functions = tree.header.functions
    for call, (line, kind, parameters) in functions.items():
        page = tree.page_of(call)
        if page is None:
            yield f'{HEADER}:{line}: {call} has no page and no alias in {ALIASES}'
            continue
        if call not in page.names:
            yield f'{page.path}:1: its NAME does not list {call}'
        if call not in page.prototypes:
            yield f'{page.path}:1: has no prototype of {call}'
        elif page.prototypes[call][1:] != (kind, parameters):
            yield (f'{page.path}:{page.prototypes[call][0]}: the prototype of {call} is not that '
                   f'of thc.h: {kind} ({", ".join(parameters)})')
    for name, page in tree.aliases.items():
        if name not in functions:
            yield f'{ALIASES}:1: the alias {name} is no call of thc.h'
        if page not in tree.pages:
            yield f'{ALIASES}:1: there is no page {page}.3'
    for page in tree.pages.values():
        for name in page.prototypes:
            if name not in functions:
                yield f'{page.path}:{page.prototypes[name][0]}: {name} is no call of thc.h'


def check_names(tree):
    """Each flag, constant and field is explained somewhere."""
    words = set().union(*(page.words for page in tree.pages.values()))
    for name, line in tree.header.constants.items():
        if name not in words:
            yield f'{HEADER}:{line}: no page names {name}'
    for struct, fields in tree.header.structs.items():
        for field in fields:
            if not any(struct in page.words and field in page.words
                       for page in tree.pages.values()):
                yield f'{HEADER}:1: no page that has struct {struct} names its field {field}'


def check_errors(tree):
    """The codes of each page are codes, and its calls are its own."""
    codes = tree.header.with_code()
    for page in tree.pages.values():
        seen = set()
        own = [name for name in page.names if name in codes]
        if own and not page.errors:
            yield f'{page.path}:1: has no section ERRORS with codes'
        for line, code, calls, text in page.errors:
            where = f'{page.path}:{line}'
            if code not in tree.header.codes:
                yield f'{where}: {code} is no code of thc.h'
            if code in seen:
                yield f'{where}: {code} is there twice'
            seen.add(code)
            if not text:
                yield f'{where}: {code} has no text, or no colon after its calls'
            if page.path == OVERVIEW:
                continue
            for call in calls:
                if call not in own:
                    yield f'{where}: {call} is no call of this page that returns a code'
            for call in sorted({c for c in calls if calls.count(c) > 1}):
                yield f'{where}: {call} is there twice'
            if own and sorted(calls) == sorted(own):
                yield f'{where}: names all calls of the page: leave them out'


def check_overview(tree):
    """libthc(3) has every code, and says which ones do not occur yet."""
    page = tree.pages.get('libthc')
    if page is None:
        yield f'{OVERVIEW}:1: is missing'
        return
    listed = {code for _, code, _, _ in page.errors}
    for code in tree.header.codes:
        if code not in listed:
            yield f'{OVERVIEW}:1: its ERRORS lack {code}'
    returned = {code for _, code in documented(tree)}
    absent = {code for _, code in page.absent}
    for line, code in page.absent:
        if code in returned:
            yield f'{OVERVIEW}:{line}: {code} is said not to occur, and a page has it'
        elif code not in tree.header.codes:
            yield f'{OVERVIEW}:{line}: {code} is no code of thc.h'
    for code in sorted(set(tree.header.codes) - returned - absent):
        yield f'{OVERVIEW}:1: no call returns {code}: it is not under NOT IN THIS RELEASE'


CHECKS = (check_map, check_pages, check_names, check_errors, check_overview)


def main(arguments):
    if len(arguments) not in (1, 2):
        print(__doc__, file=sys.stderr)
        return 2
    tree = Tree(os.path.realpath(arguments[0]))
    found = [f for check in CHECKS for f in check(tree)]
    if len(arguments) == 2:
        found += check_exports(tree, arguments[1])
    for finding in found:
        print(finding)
    pairs = documented(tree)
    print(f'{len(tree.header.functions)} calls, {len(tree.pages)} pages, {len(pairs)} pairs of a '
          f'call and a code, {len(found)} findings')
    return 1 if found else 0


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
