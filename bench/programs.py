#!/usr/bin/env python3
"""Real programs under Pagetide: same output, how much of their memory is managed, and what it costs.

Installs what it needs (apt-get as root, pip into a directory of its own) and says what it could not. Each program runs
natively first, which gives its output, its time and its peak (anonymous and shared memory of all its processes). Then
it runs under `pagetide run --memory CAP` with CAP = factor × peak, in a cgroup without swap of CAP × 1.03 + 32 MiB, and
is looked at four times a second: what is managed, in memory or out of it, beside all there is. What comes out is
stored as it comes (--store is the default here); a program that has a result of today is left out (--again: run it once more).

    bench/programs.py                    # everything that has no result yet, then the table
    bench/programs.py --only node --again
    bench/programs.py --table            # docs/programs.md, from the newest results
"""

import argparse
import hashlib
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from pagetide_bench import store
from pagetide_bench.cgroup import Cgroup, Swap
from pagetide_bench.commands import have, pagetide_command, python, python_program
from pagetide_bench.inputs import heap_file
from pagetide_bench.machine import print_machine
from pagetide_bench.managed import Managed
from pagetide_bench.options import add_program_options
from pagetide_bench.packages import VENV, install_packages, install_wheels
from pagetide_bench.paths import DATA, PROGRAM_SOURCES, REPO, portable
from pagetide_bench.runs import SLACK_BYTES, SLACK_FACTOR, run_in, run_native
from pagetide_bench.sampling import Sampling
from pagetide_bench.script import BenchError, main_guard, progress
from pagetide_bench.sizes import MIB

JOBS = REPO / "bench" / "programs"
DOCUMENT = REPO / "docs" / "programs.md"
CAP_MIN_MIB = 16
PEAK_FACTOR_MAX = 1.03
# A share below this is called not managed, and wants a reason.
MANAGED_MIN = 0.15


@dataclass(frozen=True)
class Program:
    name: str
    what: str
    command: object  # a function that makes what the command needs and returns the command
    packages: tuple = ()  # of Debian
    needs: tuple = ()  # commands that those packages bring
    wheels: bool = False  # whether it needs the packages of Python
    env: dict = field(default_factory=dict)
    reason: str = ""  # why little of it is managed, where that is so


# --- What the jobs are ----------------------------------------------------------------------------------------------


def job(name):
    return str(JOBS / name)


def shell(script, *arguments):
    """In the directory of the data."""
    return ["bash", "-c", f"set -eo pipefail; {script}", "job", *map(str, arguments)]


def made(name, script, *sources):
    """A file in the directory of the data that a script makes as `$1`, of sources ($2, …), when they change."""
    path = DATA / name
    stamp = hashlib.sha256(script.encode() + b"".join(Path(source).read_bytes() for source in sources)).hexdigest()
    note = path.with_name(f"{name}.stamp")
    if not path.exists() or not note.exists() or note.read_text() != stamp:
        progress(f"making {name}")
        partial = path.with_name(f"partial-{name}")
        shutil.rmtree(partial, ignore_errors=True)
        subprocess.run(shell(script, partial, *sources), check=True, cwd=DATA, stdout=subprocess.DEVNULL)
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        partial.replace(path)
        note.write_text(stamp)
    return path


def java(collector):
    def command():
        classes = made("java", 'mkdir "$1"; javac -d "$1" "$2"', job("Index.java"))
        return ["java", f"-XX:+Use{collector}GC", "-Xmx256m", "-cp", classes, "Index"]

    return command


def go():
    build = 'export GOCACHE="$PWD/go-cache" GO111MODULE=off CGO_ENABLED=1; go build -o "$1" "$2"'
    return [made("trees-go", build, job("trees.go"))]


def ocaml():
    build = 'mkdir made-ml; cp "$2" made-ml/trees.ml; ocamlfind ocamlopt -package str -o "$1" made-ml/trees.ml 2>&1 || ocamlopt -o "$1" made-ml/trees.ml; rm -r made-ml'
    return [made("trees-ocaml", build, job("trees.ml"))]


def erlang():
    beams = made("erlang", 'mkdir "$1"; erlc -o "$1" "$2"', job("tables.erl"))
    return ["erl", "-noshell", "-pa", beams, "-s", "tables", "main"]


def source(kind, name):
    return made(name, f'{sys.executable} "$2" {kind} > "$1"', job("sources.py"))


def rustc():
    # Without rustup's wrapper: it is another program.
    compiler = subprocess.run(["rustc", "--print", "sysroot"], capture_output=True, text=True, check=True).stdout.strip()
    build = f'"{compiler}/bin/rustc" --crate-type=lib -C opt-level=1 -C codegen-units=4 --emit=obj -o made.o "$1"'
    return shell(f"{build}; sha256sum < made.o; rm made.o", source("rust", "large.rs"))


def ghc():
    build = 'rm -rf made-hs; mkdir made-hs; ghc -v0 -O1 -outputdir made-hs -c "$1" +RTS -A16m -RTS'
    return shell(f"{build}; sha256sum < $(find made-hs -name '*.o'); rm -r made-hs", source("haskell", "Large.hs"))


def haskell():
    build = 'mkdir made-table; cp "$2" made-table; ghc -v0 -O1 -outputdir made-table -o "$1" made-table/Table.hs; rm -r made-table'
    return [made("table-haskell", build, job("Table.hs"))]


def clang():
    large = made("large.c", f'{sys.executable} "$2" --output "$1"', PROGRAM_SOURCES / "gcc_source.py")
    return shell('clang -O2 -w -c "$1" -o clang.o; sha256sum < clang.o; rm clang.o', large)


def git():
    history = f'git init -q "$1"; {sys.executable} "$2" 500 | git -C "$1" fast-import --quiet'
    repository = made("history", history, PROGRAM_SOURCES / "repository.py")
    objects = "git rev-list --objects --all | cut -c -40 | sort | sha256sum"
    pack = "git -c pack.threads=2 repack -adfq --window-memory=100m && git fsck --full --no-progress"
    return shell(f'rm -rf packed; cp -r "$1/.git" packed; cd packed; {pack}; {objects}; cd ..; rm -rf packed', repository)


def zstd():
    return shell('head -c 12M "$1" | zstd -q -19 --long=27 -T2 | sha256sum', heap_file())


def imagemagick():
    # Debian's policy forbids this much memory; beyond its limits ImageMagick keeps pixels in a file.
    limits = "".join(f'<policy domain=\\"resource\\" name=\\"{name}\\" value=\\"8GiB\\"/>' for name in ("memory", "map", "area"))
    policy = made("policies", f'mkdir "$1"; echo "<policymap>{limits}</policymap>" > "$1/policy.xml"')
    script = 'MAGICK_CONFIGURE_PATH="$1" convert -size 3600x3600 gradient:red-blue -seed 7 +noise Gaussian -blur 0x3 -resize 90% -format "%# %wx%h\\n" info:'
    return shell(script, policy)


def libreoffice():
    convert = 'soffice -env:UserInstallation=file://"$PWD/office-home" --headless --convert-to "csv:Text - txt - csv (StarCalc):44,34,76" --outdir office "$1" >&2'
    return shell(f"rm -rf office office-home; {convert}; sha256sum < office/*.csv; rm -rf office office-home", source("sheet", "sheet.csv"))


def chromium():
    run = 'chromium --headless --no-sandbox --no-zygote --disable-gpu --disable-dev-shm-usage --user-data-dir="$PWD/chromium-home" --virtual-time-budget=100000 --dump-dom "file://$1"'
    return shell(f"rm -rf chromium-home; {run}; rm -rf chromium-home", job("page.html"))


def ffmpeg():
    encode = "ffmpeg -v error -f lavfi -i testsrc2=size=1920x1080:rate=25:duration=4 -c:v libx264 -preset medium -threads 4 -f rawvideo -"
    return shell(f"{encode} | sha256sum")


def wheel(name):
    return lambda: [VENV / "bin" / "python", job(name)]


def scripted(name):
    return lambda: python(job(name))


TORCH = Path("/usr/lib/python3/dist-packages/torch/__init__.py")
SBRK = "its collector takes memory by `brk`"
PROGRAMS = (
    Program("java-serial", "Java 17, `-XX:+UseSerialGC`", java("Serial"), ("openjdk-17-jdk-headless",), ("javac", "java")),
    Program("java-parallel", "Java 17, `-XX:+UseParallelGC`", java("Parallel"), ("openjdk-17-jdk-headless",), ("javac", "java")),
    Program("java-g1", "Java 17, `-XX:+UseG1GC`", java("G1"), ("openjdk-17-jdk-headless",), ("javac", "java")),
    Program("java-z", "Java 17, `-XX:+UseZGC`", java("Z"), ("openjdk-17-jdk-headless",), ("javac", "java")),
    Program("java-shenandoah", "Java 17, `-XX:+UseShenandoahGC`", java("Shenandoah"), ("openjdk-17-jdk-headless",), ("javac", "java")),
    Program("node", "Node.js", lambda: ["node", job("map.js")], ("nodejs",), ("node",)),
    Program("php", "PHP", lambda: ["php", job("table.php")], ("php-cli",), ("php",)),
    Program("ruby", "Ruby", lambda: ["ruby", job("words.rb")], ("ruby",), ("ruby",)),
    Program("perl", "Perl", lambda: ["perl", job("hash.pl")], ("perl",), ("perl",)),
    Program("python", "CPython", lambda: ["/usr/bin/python3", job("rows.py"), 1_000_000], ("python3",), ("/usr/bin/python3",)),
    Program("pypy", "PyPy", lambda: ["pypy3", job("rows.py"), 1_500_000], ("pypy3",), ("pypy3",)),
    Program("luajit", "LuaJIT", lambda: ["luajit", job("tables.lua")], ("luajit",), ("luajit",)),
    Program("r", "R", lambda: ["Rscript", "--vanilla", job("frame.R")], ("r-base-core",), ("Rscript",)),
    Program("octave", "GNU Octave", lambda: ["octave-cli", "-qf", job("matrix.m")], ("octave",), ("octave-cli",)),
    Program("ghc", "GHC, compiling", ghc, ("ghc",), ("ghc",)),
    Program("haskell", "Haskell, by GHC", haskell, ("ghc",), ("ghc",)),
    Program("guile", "Guile", lambda: ["guile", "--no-auto-compile", job("table.scm")], ("guile-3.0",), ("guile",), reason=SBRK),
    Program("erlang", "Erlang/OTP", erlang, ("erlang-base",), ("erl", "erlc")),
    Program("go", "Go, with cgo", go, ("golang-go", "gcc"), ("go", "gcc")),
    Program("ocaml", "OCaml", ocaml, ("ocaml-nox",), ("ocamlopt",)),
    Program("sbcl", "SBCL (Common Lisp)", lambda: ["sbcl", "--script", job("table.lisp")], ("sbcl",), ("sbcl",)),
    Program("prolog", "SWI-Prolog", lambda: ["swipl", "-q", "-g", "main", "-t", "halt", job("facts.pro")], ("swi-prolog-nox",), ("swipl",)),
    Program("rustc", "rustc, compiling", rustc, ("rustc",), ("rustc",)),
    Program("clang", "clang, compiling", clang, ("clang",), ("clang",)),
    Program("postgresql", "PostgreSQL", scripted("postgres.py"), ("postgresql",), ("psql", "setpriv")),
    Program("mariadb", "MariaDB", scripted("mariadb.py"), ("mariadb-server",), ("mariadbd", "mariadb")),
    Program("redis", "Redis", lambda: python_program("redis_bgsave.py"), ("redis-server",), ("redis-server",)),
    Program("memcached", "memcached", scripted("memcached.py"), ("memcached",), ("memcached",)),
    Program("duckdb", "DuckDB", wheel("query.py"), ("python3-venv",), wheels=True),
    Program("polars", "Polars", wheel("columns.py"), ("python3-venv",), wheels=True),
    Program("pandas", "pandas", wheel("frames.py"), ("python3-venv",), wheels=True),
    Program("numpy", "NumPy", wheel("arrays.py"), ("python3-venv",), wheels=True),
    Program("sklearn", "scikit-learn", wheel("forest.py"), ("python3-venv",), wheels=True),
    Program("pytorch", "PyTorch, a data loader's workers", lambda: ["/usr/bin/python3", job("batches.py")], ("python3-torch",), (TORCH,)),
    Program("ffmpeg", "FFmpeg, x264", ffmpeg, ("ffmpeg",), ("ffmpeg",)),
    Program("imagemagick", "ImageMagick", imagemagick, ("imagemagick",), ("convert-im6.q16",)),
    Program("libreoffice", "LibreOffice Calc", libreoffice, ("libreoffice-calc-nogui",), ("soffice",)),
    Program("chromium", "Chromium, `--no-sandbox --no-zygote`", chromium, ("chromium",), ("chromium",)),
    Program("git", "git repack", git, ("git",), ("git",)),
    Program("zstd", "zstd -19 --long", zstd, ("zstd",), ("zstd",)),
)  # fmt: skip


# --- Runs -----------------------------------------------------------------------------------------------------------


def prepare(program):
    """Installs what a program needs. Returns what is missing."""
    have_all = all(have(name) for name in program.needs)
    if program.needs and have_all and not program.wheels:
        return ""
    failed = install_packages(program.packages)
    if not failed and program.wheels:
        failed = install_wheels()
    missing = [str(name) for name in program.needs if not have(name)]
    return failed or (f"no {', '.join(missing)} in {', '.join(program.packages)}" if missing else "")


def native(program, command, options):
    run = run_native(command, env=program.env, sampling=Sampling.MEMORY, cwd=DATA, timeout_seconds=options.timeout)
    run.require_success()
    progress(f"{program.name}: native {run.wall_seconds:.1f} s ({run.cpu_seconds:.1f} s of processors), peak {run.resident_peak_bytes / MIB:.0f} MiB, says {run.stdout[:60]!r}")
    return run


def ours(program, command, cap_bytes, options):
    watched = Managed(options.pagetide)
    with Cgroup(int(cap_bytes * SLACK_FACTOR) + SLACK_BYTES, Swap.NONE) as cgroup:
        run = run_in(
            cgroup, pagetide_command(cap_bytes, command, options.pagetide, options.run_options),
            env=program.env, sampling=Sampling.MEMORY, cwd=DATA, timeout_seconds=options.timeout, watch=watched.look,
        )  # fmt: skip
    progress(f"{program.name}: in {cap_bytes // MIB} MiB {run.wall_seconds:.1f} s, status {run.timed_out or run.status}, peak {run.counted_peak_bytes / MIB:.0f} MiB")
    return run, watched


def warnings(stderr):
    """What the launcher and the library say beside the program's own words."""
    lines = re.findall(r"^pagetide\b.*", stderr.decode(errors="replace"), re.MULTILINE)
    return list(dict.fromkeys(re.sub(r"\b(pid |\[)\d+\]?", r"\1N", line) for line in lines))[:8]


def measure(program, options):
    command = list(program.command())
    first = native(program, command, options)
    cap_bytes = max(int(first.resident_peak_bytes * options.factor) // MIB, CAP_MIN_MIB) * MIB
    run, watched = ours(program, command, cap_bytes, options)
    return {
        "program": program.name,
        "native": {**first.figures(), "output_sha256": hashlib.sha256(first.stdout).hexdigest(), "output": first.stdout[:200].decode(errors="replace")},
        "factor": options.factor,
        "cap_bytes": cap_bytes,
        "ours": {**run.figures(), "output_sha256": hashlib.sha256(run.stdout).hexdigest(), "stderr": portable(run.stderr[-3000:].decode(errors="replace"))},
        "same_output": run.stdout == first.stdout and not run.status and not run.timed_out,
        "managed_bytes": watched.managed,
        "unmanaged_bytes": watched.unmanaged,
        "managed_share": watched.share(),
        "warnings": warnings(run.stderr),
    }  # fmt: skip


# --- The table ------------------------------------------------------------------------------------------------------

HEADER = ("program", "native peak", "cap", "same output", "managed", "native", "under Pagetide", "slow-down", "remark")


def remark(program, result):
    found = []
    run = result["ours"]
    if run["timed_out"]:
        found.append(run["timed_out"])
    elif run["status"]:
        found.append(f"**ended with status {run['status']}**")
    elif not result["same_output"]:
        found.append("**other output**")
    if run["oom_kills"]:
        found.append("killed by the cgroup")
    elif run["counted_peak_bytes"] > result["cap_bytes"] * PEAK_FACTOR_MAX:
        found.append(f"took {run['counted_peak_bytes'] / MIB:.0f} MiB")
    share = result["managed_share"]
    if program.reason and (share is None or share < MANAGED_MIN * 2):
        found.append(program.reason)
    elif share is not None and share < MANAGED_MIN and result["warnings"]:
        found.append(result["warnings"][0].removeprefix("pagetide: ").replace("|", "\\|"))
    return "; ".join(found)


def row(program, result):
    if "missing" in result:
        return (program.what, "–", "–", "–", "–", "–", "–", "–", f"not installed: {result['missing']}")
    if "failed" in result:
        return (program.what, "–", "–", "–", "–", "–", "–", "–", f"does not run natively here: {result['failed']}")
    first, run, share = result["native"], result["ours"], result["managed_share"]
    return (
        program.what,
        f"{first['resident_peak_bytes'] / MIB:.0f} MiB",
        f"{result['cap_bytes'] / MIB:.0f} MiB",
        "yes" if result["same_output"] else "no",
        "?" if share is None else f"{share * 100:.0f} %",
        f"{first['wall_seconds']:.1f} s",
        f"{run['wall_seconds']:.1f} s",
        f"{run['wall_seconds'] / first['wall_seconds']:.1f} ×",
        remark(program, result),
    )


TEXT = """# Programs that were tried

Made by `bench/programs.py --table` from {source}; the jobs lie in `bench/programs/`. {machine}.

Each program does a fixed job that prints a digest, natively and then in {factor:g} of its native peak (anonymous and
shared memory of all its processes). *Managed* is the part of what it needs, in memory or out of it, that Pagetide may
take out of memory: when most is there, four looks a second. What is not managed is counted, and stays. The slow-down
holds for this machine, and for jobs that touch nearly all of their memory all the time: the hardest case.

{table}

{summary}
"""


def write_table(path):
    stored = store.load(path)
    facts, results = stored["machine"], {result["program"]: result for result in stored["rows"]}
    rows = [row(program, results[program.name]) for program in PROGRAMS if program.name in results]
    lines = ["| " + " | ".join(HEADER) + " |", "|---|" + "---:|" * 2 + "---|" + "---:|" * 4 + "---|"]
    lines += ["| " + " | ".join(cells) + " |" for cells in rows]
    ran = [result for result in results.values() if "ours" in result]
    same = sum(result["same_output"] for result in ran)
    machine = f"{facts['kernel']}, {facts['processors']} × {facts['model']}, {facts['memory_mib']} MiB, load {facts['load']:.1f} at the start"
    summary = f"{len(ran)} programs ran; {same} printed the same."
    text = TEXT.format(source=f"`{portable(str(path))}`", machine=machine, factor=ran[0]["factor"] if ran else 0, table="\n".join(lines), summary=summary)
    DOCUMENT.write_text(text)
    progress(f"{portable(str(DOCUMENT))}: {summary}")


# --- The command ----------------------------------------------------------------------------------------------------


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [program.name for program in PROGRAMS]
    parser.add_argument("--only", action="append", choices=names, metavar="NAME", help=f"of {', '.join(names)} (may be repeated)")
    parser.add_argument("--again", action="store_true", help="run also what has a result")
    parser.add_argument("--native", action="store_true", help="run natively only, and store nothing")
    parser.add_argument("--check", action="store_true", help="install and store nothing, status 1 if a program that is here prints other than natively")
    parser.add_argument("--table", action="store_true", help="run nothing: write docs/programs.md")
    parser.add_argument("--runs", type=Path, metavar="PATH", help="the file of results (default bench/runs/DATE-MACHINE/programs.json; --table: the newest)")
    parser.add_argument("--factor", type=float, default=0.6, help="cap as a part of the native peak (default %(default)s)")
    parser.add_argument("--timeout", type=float, default=600, help="seconds until a run is given up (default %(default)s)")
    parser.add_argument("--run-options", type=lambda text: text.split(), default=[], metavar="OPTIONS", help="more options for `pagetide run`, in one word")
    add_program_options(parser)
    return parser.parse_args()


def run_one(program, options):
    """The result, to be stored; None if there is nothing to store."""
    if missing := prepare(program):
        progress(f"SKIPPED {program.name}: {missing}")
        return {"program": program.name, "missing": missing}
    try:
        if options.native:
            native(program, list(program.command()), options)
            return None
        return measure(program, options)
    except (BenchError, subprocess.CalledProcessError) as error:
        failed = str(error).strip().splitlines()[-1][:200]
        progress(f"FAILED {program.name}: {error}")
        return {"program": program.name, "failed": failed}


def check(options):
    """Runs what is installed. Returns 1 if a program ended otherwise than natively, or above its cap."""
    print_machine()
    wrong, ran = [], 0
    for program in PROGRAMS:
        if (options.only and program.name not in options.only) or program.wheels or not all(have(name) for name in program.needs):
            continue
        result = measure(program, options)
        ran += 1
        if not result["same_output"] or result["ours"]["counted_peak_bytes"] > result["cap_bytes"] * PEAK_FACTOR_MAX:
            wrong.append(f"{program.name}: {remark(program, result)}")
    print("\n".join([*wrong, f"{ran} programs ran, {len(wrong)} wrong"]))
    return 1 if wrong or not ran else 0


def main(options):
    DATA.mkdir(parents=True, exist_ok=True)
    if options.table:
        path = options.runs or store.newest("programs")
        if path is None:
            raise BenchError("no results under bench/runs: run without --table first")
        write_table(path.resolve())
        return 0
    if options.check:
        return check(options)
    path = (options.runs or store.directory() / "programs.json").resolve()
    results = {result["program"]: result for result in store.load(path)["rows"]} if path.exists() else {}
    facts = print_machine()
    for program in PROGRAMS:
        if (options.only and program.name not in options.only) or (program.name in results and not options.again and not options.native):
            continue
        result = run_one(program, options)
        if result and not options.native:
            results[program.name] = result
            for target in filter(None, (path, options.json)):
                if target.is_dir():
                    store.write(target / f"{program.name}.json", result)
                else:
                    store.write(target, store.result(facts, list(results.values())))
    if not options.native and path.exists():
        write_table(path)
    return 0


if __name__ == "__main__":
    main_guard(parse, main)
