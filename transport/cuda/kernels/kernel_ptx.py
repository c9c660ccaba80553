#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The PTX of the GPU's kernels: what clang makes of X_kernel.cu, kept beside it, so that no build
needs it.

    kernel_ptx.py --make          writes each X_kernel.ptx anew
    kernel_ptx.py --check         ... only says whether it would be another one; ptxas assembles it
                                  Without that clang, whether it is what it was when it was made,
                                  and of what is there now: each text's last line says so.
    kernel_ptx.py --embed PTX C   writes a C file that has its text; every build does this

Nothing of NVIDIA's takes part but ptxas, which --check uses where it is.
"""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile

FOLDER = os.path.dirname(os.path.realpath(__file__))
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(FOLDER)))
CLANG = '14.0.6'  # the text is this one's: others make other text of the same meaning
TARGET = 'sm_70'  # and all that came later
ASSEMBLED = ('sm_70', 'sm_75', 'sm_80', 'sm_86', 'sm_89', 'sm_90', 'sm_100', 'sm_120')
SKIPPED = 77
KERNELS = {  # registers of a thread at most, and bytes of them spilled
    # Four blocks are on a processor at once. No loop of the fast way spills any.
    'leaf': (64, 64),
    # One block is on a processor, beside others' work.
    'gather': (80, 0),
}


def file_of(name, ending):
    return os.path.join(FOLDER, f'{name}_kernel.{ending}')


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


# No SDK is looked for: the language is clang's, the functions are ours.
OPTIONS = ('-x', 'cuda', '--cuda-device-only', f'--cuda-gpu-arch={TARGET}',
           '--cuda-path=/nonexistent', '-nocudainc', '-nocudalib', '-std=c++14',
           '-ffreestanding', '-O3', '-Wall', '-Werror')


def sources(path, found):
    """It and the files of ours that it includes, in that order."""
    if path not in found:
        with open(path, encoding='ascii') as file:
            found[path] = file.read()
        for included in re.findall(r'^#include "(.*)"', found[path], re.MULTILINE):
            sources(os.path.join(ROOT, included), found)
    return found


def made_of(name, body):
    """The last line of a kernel's text: a digest of what it is made of, and of what was made."""
    parts = [CLANG, *OPTIONS, *sources(file_of(name, 'cu'), {}).values(), body]
    return f'// of {hashlib.sha256(chr(0).join(parts).encode()).hexdigest()}\n'


def look(name, text):
    """Ends the program where somebody has changed the text, or its sources, since it was made."""
    body = ''.join(text.splitlines(keepends=True)[:-1])
    if text != body + made_of(name, body):
        sys.exit(f'{name}_kernel.ptx is not what clang made of the source that is there: '
                 'transport/cuda/kernels/kernel_ptx.py --make')


def compiled(compiler, name):
    """A kernel's text."""
    command = [compiler, *OPTIONS, '-I', ROOT, '-S', '-o', '-', file_of(name, 'cu')]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f'{compiler} does not compile {name}_kernel.cu:\n{done.stderr}')
    # A device needs only the text; no path, no date is in it.
    body = '\n'.join(line.rstrip() for line in done.stdout.split('\n'))
    return body + made_of(name, body)


def make():
    compiler = clang()
    if not compiler:
        sys.exit(f'clang {CLANG} is not there: Debian 12 has it as clang-14')
    for name in KERNELS:
        with open(file_of(name, 'ptx'), 'w', encoding='ascii') as file:
            file.write(compiled(compiler, name))


def assemble(ptxas, name):
    """For each kind of GPU that this ptxas knows: with few registers, all of them real ones."""
    known = subprocess.run([ptxas, '--help'], capture_output=True, text=True, check=False).stdout
    registers_max, spilled_max = KERNELS[name]
    done = []
    for arch in ASSEMBLED:
        if f"'{arch}'" not in known:
            continue
        with tempfile.NamedTemporaryFile(suffix='.cubin') as output:
            run = subprocess.run([ptxas, '-v', '-arch', arch, '-o', output.name,
                                  file_of(name, 'ptx')],
                                 capture_output=True, text=True, check=False)
        text = run.stdout + run.stderr
        if run.returncode != 0:
            sys.exit(f'ptxas refuses the text for {arch}:\n{text}')
        used = re.search(r'Used (\d+) registers', text)
        spilled = re.search(r'(\d+) bytes spill stores', text)
        if not used or int(used.group(1)) > registers_max:
            sys.exit(f'{arch}: more than {registers_max} registers:\n{text}')
        if not spilled or int(spilled.group(1)) > spilled_max:
            sys.exit(f'{arch}: too many registers are spilled:\n{text}')
        done.append(f'{arch} ({used.group(1)} registers)')
    return ', '.join(done)


def check_one(compiler, ptxas, name):
    with open(file_of(name, 'ptx'), encoding='ascii') as file:
        text = file.read()
    look(name, text)
    if compiler and compiled(compiler, name) != text:
        sys.exit(f'{name}_kernel.ptx is not what {compiler} makes of its source: '
                 'transport/cuda/kernels/kernel_ptx.py --make')
    if compiler:
        print(f'{name}_kernel.ptx is what {compiler} makes of its source')
    if ptxas:
        print(f'{ptxas} assembles {name}_kernel.ptx for {assemble(ptxas, name)}')


def check():
    compiler, ptxas = clang(), shutil.which('ptxas') or shutil.which('/usr/local/cuda/bin/ptxas')
    for name in KERNELS:
        check_one(compiler, ptxas, name)
    if not compiler:
        print(f'clang {CLANG} is not here: the texts are as they were made, but not made again')
    if not ptxas:
        print('ptxas is not here: the texts are not assembled')
    return 0 if compiler or ptxas else SKIPPED


def embed(ptx, output):
    name = os.path.basename(ptx).removesuffix('_kernel.ptx')
    with open(ptx, 'rb') as file:
        data = file.read()
    rows = [', '.join(str(byte) for byte in data[i:i + 24]) for i in range(0, len(data), 24)]
    with open(output, 'w', encoding='ascii') as file:
        file.write('#include "transport/cuda/kernels/kernel_ptx.h"\n\n'
                   f'const char {name}_ptx[] = {{\n')
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
