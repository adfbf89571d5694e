"""Commands of programs under test."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from .paths import PAGETIDE, PRELOAD, PROGRAM_SOURCES, PROGRAMS
from .script import BenchError
from .sizes import whole_mib


def build_programs(*names):
    """Compiles tests/programs/NAME.c where it, or a header, is newer than its program. Returns the paths."""
    PROGRAMS.mkdir(parents=True, exist_ok=True)
    headers = max(header.stat().st_mtime for header in PROGRAM_SOURCES.glob("**/*.h"))
    paths = []
    for name in names:
        source, program = PROGRAM_SOURCES / f"{name}.c", PROGRAMS / name
        if not program.exists() or program.stat().st_mtime < max(source.stat().st_mtime, headers):
            subprocess.run(["gcc", "-O2", "-Wall", "-pthread", "-o", program, source], check=True)
        paths.append(program)
    return paths


def python(script, *arguments):
    """The command of a Python script, by the interpreter itself and not by a wrapper of it."""
    return [os.path.realpath(sys.executable), str(script), *map(str, arguments)]


def python_program(name, *arguments):
    return python(PROGRAM_SOURCES / name, *arguments)


def pagetide_command(cap_bytes, command, pagetide=PAGETIDE, run_options=()):
    memory = f"{whole_mib(cap_bytes)}M"
    return [str(Path(pagetide).resolve()), "run", "-q", "--memory", memory, *run_options, "--", *map(str, command)]


def preload_environment(preload=PRELOAD):
    """Our allocator alone: the library without a run around it."""
    return {"LD_PRELOAD": str(Path(preload).resolve())}


def have(program):
    """Whether a program is installed, or a file (given by its path) is there."""
    return shutil.which(program) is not None or (isinstance(program, Path) and program.exists())


def require(packages):
    """Fails unless of each of Debian's packages the program (or file) is there."""
    if missing := [package for package, program in packages.items() if not have(program)]:
        raise BenchError(f"not installed: apt-get install {' '.join(missing)}")
