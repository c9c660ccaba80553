# SPDX-License-Identifier: Apache-2.0
"""Runs a kernel's PTX without a GPU, as far as those of transport/cuda need it.

The text becomes a Python function, a generator for each thread of a block that stops at barriers.
Stricter than a GPU: memory that is not there and accesses that are not aligned raise, and so do a
barrier that some threads do not reach and an instruction that is not known here.
"""

import re
import struct

SHARED = 1 << 60
CONST = 1 << 61
WIDTHS = {'u8': 8, 's16': 16, 'u16': 16, 'b16': 16, 's32': 32, 'u32': 32, 'b32': 32,
          's64': 64, 'u64': 64, 'b64': 64, 'pred': 1}
COMPARE = {'eq': '==', 'ne': '!=', 'lt': '<', 'le': '<=', 'gt': '>', 'ge': '>='}


class Memory:
    """Pieces of memory by their addresses."""

    def __init__(self):
        self.pieces = []

    def add(self, address, size, data=None):
        piece = bytearray(data) if data is not None else bytearray(size)
        self.pieces.append((address, address + size, piece))
        return piece

    def find(self, address, size):
        if address % size:
            raise ValueError(f'{size} bytes at {address:#x}: not aligned')
        for i, (start, end, piece) in enumerate(self.pieces):
            if start <= address and address + size <= end:
                if i:  # the next one is likely there, too
                    self.pieces.insert(0, self.pieces.pop(i))
                return piece, address - start
        raise ValueError(f'{size} bytes at {address:#x}: nothing is there')

    def load(self, address, size):
        piece, at = self.find(address, size)
        return int.from_bytes(piece[at:at + size], 'little')

    def load_two(self, address):
        piece, at = self.find(address, 16)
        return struct.unpack_from('<QQ', piece, at)

    def store(self, address, size, value):
        piece, at = self.find(address, size)
        piece[at:at + size] = value.to_bytes(size, 'little')

    def store_two(self, address, low, high):
        piece, at = self.find(address, 16)
        struct.pack_into('<QQ', piece, at, low, high)


class Kernel:
    """One entry of a PTX text."""

    def __init__(self, text, name):
        self.text = text
        self.symbols = {}
        self.constants = Memory()
        address = CONST
        for symbol, size, values in re.findall(
                r'\.const \.align \d+ \.b8 (\w+)\[(\d+)\] = \{([^}]*)\};', text):
            self.constants.add(address, int(size), bytes(map(int, values.split(','))))
            self.symbols[symbol] = address
            address += 4096
        entry = re.search(rf'\.visible \.entry {name}\((.*?)\)(.*?)\n\{{\n(.*?)\n\}}', text, re.S)
        self.parameters = re.findall(r'\.param \.u64 (\w+)', entry.group(1))
        self.threads = int(re.search(r'\.maxntid (\d+)', entry.group(2)).group(1))
        body = entry.group(3)
        shared = re.search(r'\.shared \.align \d+ \.b8 (\w+)\[(\d+)\];', body)
        self.shared_bytes = int(shared.group(2)) if shared else 0
        if shared:
            self.symbols[shared.group(1)] = SHARED
        self.function = self.compiled(body)

    # ---- translation ------------------------------------------------------------------------

    def value(self, text, width=64):
        if text.startswith('%'):
            special = {'%tid.x': 'tid', '%ctaid.x': 'ctaid', '%nctaid.x': 'nctaid'}
            return special.get(text, text[1:])
        if text in self.symbols:
            return str(self.symbols[text])
        return str(int(text, 0) & (1 << width) - 1)

    def address(self, text):
        name, offset = re.fullmatch(r'\[([%\w.]+?)(?:\+(-?\d+))?\]', text).groups()
        base = self.value(name)
        if offset is None:
            return base
        return f'{base} + {offset}'

    def access(self, kind, space, form, operands):
        memory = {'global': 'memory', 'shared': 'shared', 'const': 'constants'}[space]
        if form == 'v2.u64':
            if kind == 'ld':
                low, high, place = operands
                return f'{self.value(low)}, {self.value(high)} = ' \
                       f'{memory}.load_two({self.address(place)})'
            place, low, high = operands
            return f'{memory}.store_two({self.address(place)}, {self.value(low)}, ' \
                   f'{self.value(high)})'
        size = WIDTHS[form] // 8
        if kind == 'ld':
            return f'{self.value(operands[0])} = {memory}.load({self.address(operands[1])}, {size})'
        mask = (1 << 8 * size) - 1
        return f'{memory}.store({self.address(operands[0])}, {size}, ' \
               f'{self.value(operands[1])} & {mask})'

    def statement(self, opcode, operands):
        parts = opcode.split('.')
        if opcode in ('ld.param.u64', 'ld.param.u32'):
            number = self.parameters.index(operands[1][1:-1])
            mask = (1 << WIDTHS[parts[-1]]) - 1
            return f'{self.value(operands[0])} = parameters[{number}] & {mask}'
        if parts[0] in ('ld', 'st'):
            return self.access(parts[0], parts[1], '.'.join(parts[2:]), operands)
        width = WIDTHS[parts[-1]]
        mask = (1 << width) - 1
        to = self.value(operands[0])
        args = [self.value(operand, width) for operand in operands[1:]]
        name = '.'.join(parts[:-1])
        binary = {'add': '+', 'sub': '-', 'mul.lo': '*', 'and': '&', 'or': '|', 'xor': '^'}
        if name == 'mov':
            return f'{to} = {args[0]}'
        if name == 'neg':
            return f'{to} = -{args[0]} & {mask}'
        if name == 'min' and parts[-1][0] == 'u':
            return f'{to} = min({args[0]}, {args[1]})'
        if name in binary:
            return f'{to} = ({args[0]} {binary[name]} {args[1]}) & {mask}'
        if name == 'mul.wide' and parts[-1] == 'u32':
            return f'{to} = {args[0]} * {args[1]}'
        if name == 'mul.hi' and parts[-1][0] == 'u':
            return f'{to} = {args[0]} * {args[1]} >> {width}'
        if name == 'mad.lo':
            return f'{to} = ({args[0]} * {args[1]} + {args[2]}) & {mask}'
        if name == 'shl':
            return f'{to} = ({args[0]} << min({args[1]}, {width})) & {mask}'
        if name == 'shr' and parts[-1][0] == 'u':
            return f'{to} = {args[0]} >> min({args[1]}, {width})'
        if opcode == 'bfe.u32':
            return f'{to} = {args[0]} >> {args[1]} & (1 << {args[2]}) - 1'
        if name == 'selp':
            return f'{to} = {args[0]} if {args[2]} else {args[1]}'
        if parts[0] == 'cvt' and parts[1][0] == 'u' and parts[2][0] == 'u':
            return f'{to} = {args[0]} & {(1 << WIDTHS[parts[1]]) - 1}'
        if opcode == 'cvt.s64.s32':
            return f'{to} = ({args[0]} ^ 1 << 31) - (1 << 31) & {(1 << 64) - 1}'
        if parts[0] == 'setp' and (parts[1] in ('eq', 'ne') or parts[2][0] == 'u'):
            return f'{to} = {args[0]} {COMPARE[parts[1]]} {args[1]}'
        raise ValueError(f'{opcode} is not known here')

    def compiled(self, body):
        blocks, labels = [[]], {}
        for line in body.split('\n'):
            line = line.split('//')[0].strip()
            if not line or line.startswith('.'):
                continue
            if line.endswith(':'):
                blocks.append([])
                labels[line[:-1]] = len(blocks) - 1
                continue
            guard, line = re.fullmatch(r'(?:@(!?%p\d+)\s+)?(.*);', line).groups()
            opcode, _, rest = line.replace('\t', ' ').partition(' ')
            operands = [o.strip() for o in re.sub('[{}]', '', rest).split(',')]
            blocks[-1].append((guard, opcode, operands))
            if opcode.startswith(('bra', 'bar', 'ret')):
                blocks.append([])
        # The first line makes it a generator where there is no barrier, too.
        lines = ['def thread(tid, ctaid, nctaid, parameters, memory, shared, constants):',
                 ' if tid < 0: yield', ' at = 0', ' while True:']
        for number, block in enumerate(blocks):
            lines.append(f'  {"if" if number == 0 else "elif"} at == {number}:')
            lines.append(f'   at = {number + 1}')
            for guard, opcode, operands in block:
                lines.append('   ' + self.line(guard, opcode, operands, labels))
        names = {}
        exec('\n'.join(lines), names)  # of our own text
        return names['thread']

    def line(self, guard, opcode, operands, labels):
        if opcode in ('bra', 'bra.uni'):
            text = f'at = {labels[operands[0]]}'
        elif opcode == 'bar.sync':
            text = 'yield'
        elif opcode == 'ret':
            text = 'return'
        else:
            text = self.statement(opcode, operands)
        if guard:
            text = f'if {"not " if guard[0] == "!" else ""}{guard.lstrip("!%")}: {text}'
        return text

    # ---- running ----------------------------------------------------------------------------

    def run_block(self, block, parameters, memory, blocks=1):
        shared = Memory()
        # What a kernel reads before it wrote it is not zero.
        shared.add(SHARED, self.shared_bytes, b'\xa5' * self.shared_bytes)
        threads = [self.function(tid, block, blocks, parameters, memory, shared, self.constants)
                   for tid in range(self.threads)]
        while threads:
            stopped = []
            for thread in threads:
                try:
                    next(thread)
                    stopped.append(thread)
                except StopIteration:
                    pass
            if stopped and len(stopped) != len(threads):
                raise ValueError('a barrier that some threads do not reach')
            threads = stopped
