#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""leaf_kernel.ptx: what clang makes of leaf_kernel.cu, kept beside it, so that no build needs it.

    leaf_ptx.py --make             writes leaf_kernel.ptx anew
    leaf_ptx.py --check            ... only says whether it would be another one; ptxas assembles it
    leaf_ptx.py --embed PTX C      writes a C file that has its text; every build does this

Nothing of NVIDIA's takes part but ptxas, which --check uses where it is.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile

FOLDER = os.path.dirname(os.path.realpath(__file__))
ROOT = os.path.dirname(os.path.dirname(FOLDER))
PTX = os.path.join(FOLDER, 'leaf_kernel.ptx')
CLANG = '14.0.6'  # the text is this one's: others make other text of the same meaning
TARGET = 'sm_70'  # and all that came later
ASSEMBLED = ('sm_70', 'sm_75', 'sm_80', 'sm_86', 'sm_89', 'sm_90', 'sm_100', 'sm_120')
REGISTERS_MAX = 64  # four leaves on a processor at once
SPILLED_MAX = 64  # bytes: none for most; no loop of the fast way has any
SKIPPED = 77


def clang():
    """The compiler whose text it is, or None."""
    for name in ('clang-14', 'clang'):
        path = shutil.which(name)
        if not path:
            continue
        text = subprocess.run([path, '--version'], capture_output=True, text=True, check=False)
        if f'version {CLANG}' in text.stdout:
            return path
    return None


def compiled(compiler):
    """The kernel's text. No SDK is looked for: the language is clang's, the functions are ours."""
    command = [compiler, '-x', 'cuda', '--cuda-device-only', f'--cuda-gpu-arch={TARGET}',
               '--cuda-path=/nonexistent', '-nocudainc', '-nocudalib', '-std=c++14',
               '-ffreestanding', '-O3', '-Wall', '-Werror', '-I', ROOT, '-S', '-o', '-',
               os.path.join(FOLDER, 'leaf_kernel.cu')]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f'{compiler} does not compile the kernel:\n{done.stderr}')
    # A device needs only the text; no path, no date is in it.
    return '\n'.join(line.rstrip() for line in done.stdout.split('\n'))


def make():
    compiler = clang()
    if not compiler:
        sys.exit(f'clang {CLANG} is not there: Debian 12 has it as clang-14')
    with open(PTX, 'w', encoding='ascii') as file:
        file.write(compiled(compiler))


def assemble(ptxas):
    """For each kind of GPU that this ptxas knows: with few registers, all of them real ones."""
    known = subprocess.run([ptxas, '--help'], capture_output=True, text=True, check=False).stdout
    done = []
    for arch in ASSEMBLED:
        if f"'{arch}'" not in known:
            continue
        with tempfile.NamedTemporaryFile(suffix='.cubin') as output:
            run = subprocess.run([ptxas, '-v', '-arch', arch, '-o', output.name, PTX],
                                 capture_output=True, text=True, check=False)
        text = run.stdout + run.stderr
        if run.returncode != 0:
            sys.exit(f'ptxas refuses the text for {arch}:\n{text}')
        used = re.search(r'Used (\d+) registers', text)
        spilled = re.search(r'(\d+) bytes spill stores', text)
        if not used or int(used.group(1)) > REGISTERS_MAX:
            sys.exit(f'{arch}: more than {REGISTERS_MAX} registers:\n{text}')
        if not spilled or int(spilled.group(1)) > SPILLED_MAX:
            sys.exit(f'{arch}: too many registers are spilled:\n{text}')
        done.append(f'{arch} ({used.group(1)} registers)')
    return ', '.join(done)


def check():
    compiler, ptxas = clang(), shutil.which('ptxas') or shutil.which('/usr/local/cuda/bin/ptxas')
    with open(PTX, encoding='ascii') as file:
        text = file.read()
    if compiler:
        if compiled(compiler) != text:
            sys.exit('leaf_kernel.ptx is not what clang makes of its source now: '
                     'transport/cuda/leaf_ptx.py --make')
        print(f'leaf_kernel.ptx is what {compiler} makes of its source')
    else:
        print(f'clang {CLANG} is not here: the text is not compared with its source')
    if ptxas:
        print(f'{ptxas} assembles it for {assemble(ptxas)}')
    else:
        print('ptxas is not here: the text is not assembled')
    return 0 if compiler or ptxas else SKIPPED


def embed(ptx, output):
    with open(ptx, 'rb') as file:
        data = file.read()
    rows = [', '.join(str(byte) for byte in data[i:i + 24]) for i in range(0, len(data), 24)]
    with open(output, 'w', encoding='ascii') as file:
        file.write('#include "transport/cuda/leaf_ptx.h"\n\nconst char leaf_ptx[] = {\n')
        file.writelines(f'\t{row},\n' for row in rows)
        file.write('\t0};\n')


def main(arguments):
    if arguments == ['--make']:
        return make()
    if arguments == ['--check']:
        return check()
    if len(arguments) == 3 and arguments[0] == '--embed':
        return embed(*arguments[1:])
    print(__doc__, file=sys.stderr)
    return 2


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
