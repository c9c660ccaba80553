#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Plants each break of the contract in a small tree and expects contract.py and contract_seen.py to
find exactly that."""

import os
import tempfile
import unittest

import contract
import contract_seen
from contract_begin import FLAGS, NAME_BYTES, make_table

HEADER = '''/* thc_gone(); is not declared: this is a comment */
#define THC_SIZE 8
enum {
	THC_OK = 0,
	THC_E_INVALID = -5001, /* THC_E_NOT is none */
	THC_E_STATE = -5002,
};
enum thc_flags { THC_FAST = 1u << 0 };
struct thc_thing {
	size_t struct_size;
	uint64_t left, right[THC_SIZE];
};
int thc_do(struct thc_thing *thing, uint32_t flags,
	int64_t timeout_ms);
const char *thc_text(void);
'''
MAP = 'THC_1 {\n\tglobal:\n\t\tthc_do;\n\t\tthc_text;\n\tlocal:\n\t\t*;\n};\n'
ALIASES = "foreach page, names : {\n    'thc_do': ['thc_text'],\n  }\n"
PAGE = '''.Sh NAME
.Nm thc_do ,
.Nm thc_text
.Nd do
.Sh SYNOPSIS
.Ft int
.Fo thc_do
.Fa "struct thc_thing *thing"
.Fa "uint32_t flags"
.Fa "int64_t timeout_ms"
.Fc
.Ft "const char *"
.Fo thc_text
.Fa "void"
.Fc
.Sh DESCRIPTION
.Vt struct thc_thing
has struct_size, left, right; THC_SIZE, THC_FAST and THC_OK.
.Sh ERRORS
.Bl -tag -width Ds
.It Bq Er THC_E_INVALID
Wrong.
.El
'''
OVERVIEW = '''.Sh NAME
.Nm libthc
.Sh ERRORS
.Bl -tag -width Ds
.It Bq Er THC_E_INVALID
Wrong.
.It Bq Er THC_E_STATE
Not now.
.El
.Sh NOT IN THIS RELEASE
.Bl -tag -width Ds
.It Dv THC_E_STATE
Later.
.El
'''
CLEAN = {'libthc/thc.h': HEADER, 'libthc/thc.map': MAP, 'man/meson.build': ALIASES,
         'man/thc_do.3': PAGE, 'man/libthc.3': OVERVIEW}


class Planted(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = folder.name
        for path, text in CLEAN.items():
            self.write(path, text)

    def write(self, path, text):
        full = os.path.join(self.root, path)
        os.makedirs(os.path.dirname(full), exist_ok=True)
        with open(full, 'w', encoding='utf-8') as file:
            file.write(text)

    def change(self, path, before, after):
        self.assertIn(before, CLEAN[path])
        self.write(path, CLEAN[path].replace(before, after))

    def expect(self, *findings):
        tree = contract.Tree(self.root)
        found = [f for check in contract.CHECKS for f in check(tree)]
        self.assertEqual(len(found), len(findings), found)
        for finding, part in zip(found, findings):
            self.assertIn(part, finding)


class Places(Planted):
    def test_clean(self):
        self.expect()
        header = contract.Tree(self.root).header
        self.assertEqual(header.functions['thc_do'], (
            13, 'int', ['struct thc_thing *thing', 'uint32_t flags', 'int64_t timeout_ms']))
        self.assertEqual(header.structs, {'thc_thing': ['struct_size', 'left', 'right']})
        self.assertEqual(header.codes, {'THC_E_INVALID': -5001, 'THC_E_STATE': -5002})
        self.assertEqual(header.with_code(), ['thc_do'])

    def test_map_lacks_a_call(self):
        self.change('libthc/thc.map', '\t\tthc_do;\n', '')
        self.expect('thc.h:13: thc_do is not in')

    def test_map_has_more(self):
        self.change('libthc/thc.map', 'thc_text;', 'thc_text; thc_secret;')
        self.expect('thc_secret is exported and not declared')

    def test_map_with_a_pattern(self):
        self.change('libthc/thc.map', 'thc_text;', 'thc_text; thc_*;')
        self.expect('thc_* is exported')

    def test_map_twice(self):
        self.change('libthc/thc.map', 'thc_text;', 'thc_text; thc_text;')
        self.expect('thc_text is there twice')

    def test_map_exports_the_rest(self):
        self.change('libthc/thc.map', '\tlocal:\n\t\t*;\n', '')
        self.expect('is not local')

    def test_call_without_page(self):
        self.write('libthc/thc.h', HEADER + 'int thc_new(void);\n')
        self.write('libthc/thc.map', MAP.replace('thc_text;', 'thc_text; thc_new;'))
        self.expect('thc_new has no page')

    def test_alias_of_nothing(self):
        self.change('man/meson.build', "['thc_text']", "['thc_text', 'thc_old']")
        self.expect('the alias thc_old is no call')

    def test_alias_to_nothing(self):
        self.change('man/meson.build', "  }", "    'thc_more': ['thc_text'],\n  }")
        self.expect('thc_text has no page', 'there is no page thc_more.3')

    def test_page_does_not_list_the_call(self):
        self.change('man/thc_do.3', '.Nm thc_do ,\n.Nm thc_text\n', '.Nm thc_do\n')
        self.expect('its NAME does not list thc_text')

    def test_prototype_is_missing(self):
        self.change('man/thc_do.3', '.Fo thc_text\n.Fa "void"\n.Fc\n', '')
        self.expect('has no prototype of thc_text')

    def test_prototype_is_another(self):
        self.change('man/thc_do.3', 'uint32_t flags', 'uint64_t flags')
        self.expect('the prototype of thc_do is not that of thc.h')

    def test_prototype_of_nothing(self):
        self.change('man/thc_do.3', '.Sh DESC', '.Fo thc_old\n.Fc\n.Sh DESC')
        self.expect('thc_old is no call')

    def test_flag_is_not_explained(self):
        self.change('man/thc_do.3', 'THC_FAST', 'It')
        self.expect('no page names THC_FAST')

    def test_field_is_not_explained(self):
        self.change('man/thc_do.3', 'left, ', '')
        self.expect('names its field left')

    def test_code_that_is_none(self):
        self.change('man/thc_do.3', 'THC_E_INVALID', 'THC_E_ODD')
        self.expect('THC_E_ODD is no code', 'no call returns THC_E_INVALID')

    def test_code_twice(self):
        self.change('man/thc_do.3', '.El', '.It Bq Er THC_E_INVALID\nAgain.\n.El')
        self.expect('is there twice')

    def test_code_without_text(self):
        self.change('man/thc_do.3', 'Wrong.\n', '')
        self.expect('has no text')

    def test_code_of_another_call(self):
        self.change('man/thc_do.3', 'Wrong.', '.Fn thc_text :\nWrong.')
        self.expect('thc_text is no call of this page that returns a code')

    def test_all_calls_named(self):
        self.change('man/thc_do.3', 'Wrong.', '.Fn thc_do :\nWrong.')
        self.expect('leave them out')

    def test_calls_without_colon(self):
        self.change('man/thc_do.3', 'Wrong.\n', '.Fn thc_do\n')
        self.expect('has no text, or no colon', 'leave them out')

    def test_no_errors_section(self):
        self.change('man/thc_do.3', '.It Bq Er THC_E_INVALID\nWrong.\n', '')
        self.expect('has no section ERRORS', 'no call returns THC_E_INVALID')

    def test_overview_lacks_a_code(self):
        self.change('man/libthc.3', '.It Bq Er THC_E_STATE\nNot now.\n', '')
        self.expect('its ERRORS lack THC_E_STATE')

    def test_code_nobody_returns(self):
        self.change('man/libthc.3', '.It Dv THC_E_STATE\nLater.\n', '')
        self.expect('no call returns THC_E_STATE')

    def test_code_said_not_to_occur(self):
        self.change('man/libthc.3', 'Later.', 'Later.\n.It Dv THC_E_INVALID\nNever.')
        self.expect('THC_E_INVALID is said not to occur')

    def test_library_that_is_not_there(self):
        found = list(contract.check_exports(contract.Tree(self.root), self.root + '/none.so'))
        self.assertEqual(len(found), 1)
        self.assertIn('nm cannot read', found[0])


class Seen(Planted):
    GOOD = {'thc_do': {None, 'THC_E_INVALID'}}
    REAL = {'thc_do': {None}, 'thc_text': {None}}

    def judge(self, seen, real, excused=(), *parts):
        tree = contract.Tree(self.root)
        found = list(contract_seen.judge(tree, seen, real, excused))
        self.assertEqual(len(found), len(parts), found)
        for finding, part in zip(found, parts):
            self.assertIn(part, finding)

    def test_clean(self):
        self.judge(self.GOOD, self.REAL)

    def test_documented_and_not_seen(self):
        self.judge({}, self.REAL, (), 'says THC_E_INVALID, and no test')

    def test_seen_with_real_daemons_only(self):
        self.judge({}, {'thc_do': {None, 'THC_E_INVALID'}, 'thc_text': {None}})

    def test_seen_and_not_documented(self):
        seen = {'thc_do': {'THC_E_INVALID', 'THC_E_STATE'}}
        self.judge(seen, self.REAL, (), 'seen THC_E_STATE (in a unit test)')

    def test_seen_in_reality_and_not_documented(self):
        real = {'thc_do': {None, 'THC_E_STATE'}, 'thc_text': {None}}
        self.judge(self.GOOD, real, (), 'seen THC_E_STATE (with real daemons)')

    def test_code_that_is_none(self):
        self.judge({'thc_do': {'THC_E_INVALID', 'unknown 31'}}, self.REAL, (), 'unknown 31')

    def test_errno_that_the_page_does_not_mention(self):
        self.judge({'thc_do': {'THC_E_INVALID', 'errno'}}, self.REAL, (), 'errno')

    def test_errno_that_the_page_mentions(self):
        self.change('man/thc_do.3', '.El', '.El\nOr an errno.')
        self.judge({'thc_do': {'THC_E_INVALID', 'errno'}}, self.REAL)

    def test_no_success_in_reality(self):
        self.judge(self.GOOD, {'thc_do': {None}}, (), 'thc_text: no test with real daemons')

    def test_excused(self):
        self.judge({}, self.REAL, {('thc_do', 'THC_E_INVALID'): 'why'})

    def test_excused_and_not_documented(self):
        self.judge(self.GOOD, self.REAL, {('thc_do', 'THC_E_STATE'): 'why'}, 'is excused')

    def test_excused_and_seen(self):
        self.judge(self.GOOD, self.REAL, {('thc_do', 'THC_E_INVALID'): 'why'}, 'and was seen')

    def test_table(self):
        header = contract.Tree(self.root).header
        table = bytearray(make_table(header.functions))
        table[NAME_BYTES + 0] = table[NAME_BYTES + 2] = 1
        table[NAME_BYTES + FLAGS + 30] = table[NAME_BYTES + FLAGS + 9] = 1
        seen, real = contract_seen.read_table(bytes(table), header.codes)
        self.assertEqual(seen, {'thc_do': {None, 'THC_E_STATE'}, 'thc_text': set()})
        self.assertEqual(real, {'thc_do': {'errno', 'unknown 9'}, 'thc_text': set()})


if __name__ == '__main__':
    unittest.main()
