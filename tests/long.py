#!/usr/bin/env python3
"""What takes longer than ./test: parts of at most 30 minutes, each of which can be run alone.

    ./test --long --list          the parts, with about the time that they take
    ./test --long                 all of them, one after another
    ./test --long stress model    these

What came of a part is stored in tests/results/PART.json: status, seconds, commit, date, machine, and its last lines. A
part that fails, is ended or takes too long leaves no process, mount, cgroup or changed setting behind. Needs what ./test
needs; parts that need more say so.
"""

import argparse
import contextlib
import ctypes
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path

REPO = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPO / "bench"))
sys.dont_write_bytecode = True

from pagetide_bench import machine, store  # noqa: E402
from pagetide_bench.procfs import chosen  # noqa: E402

RESULTS = REPO / "tests" / "results"
TIMEOUT_SECONDS = 30 * 60
LINES_KEPT = 12
# As timeout(1) and bash have them.
TIMED_OUT, NOT_FOUND = 124, 127
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
SETTINGS = ("/proc/sys/vm/overcommit_memory", "/proc/sys/kernel/core_pattern", "/proc/sys/vm/page-cluster", "/sys/kernel/mm/transparent_hugepage/enabled")
CGROUPS = Path("/sys/fs/cgroup")
LIBC = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class Part:
    name: str
    minutes: float  # an estimate, for two processors
    what: str
    commands: tuple  # of words; {target} stands for the host's triple
    env: dict = field(default_factory=dict)
    needs: tuple = ()  # programs that must be there
    nightly: bool = False


def cargo(text):
    return ("cargo", *text.split())


PROGRAMS = cargo("test -p pagetide-cli --test programs --")
BUILD = cargo("build --workspace")
RELEASE = cargo("build --release --workspace")
CPYTHON = ("mmap", "subprocess", "os", "multiprocessing_fork", "threading", "gc", "io")

PARTS = (
    Part("model", 22, "the engine and the keeper's, step by step: 5000 seeds of each", (cargo("test --release -p pagetide --test model --test objects seeds"),), {"PAGETIDE_MODEL_SEEDS": "5000"}),
    Part("table", 2, "the table against a flat array: 100 million operations", (cargo("test --release -p pagetide-swap --test table_model"),), {"PAGETIDE_TABLE_OPS": "100000000"}),
    Part(
        "stress", 10, "eight threads on the swap subsystem, and the engine's threads",
        (cargo("test --release -p pagetide-swap --test stress"), cargo("test --release -p pagetide --test threads")),
        {"PAGETIDE_STRESS_OPS": "200000", "PAGETIDE_THREADS_OPS": "100000", "PAGETIDE_SEED": "2", "RUST_TEST_THREADS": "1"},
    ),
    Part(
        "checkers", 15, "orders of threads: shuttle with forty times the schedules, loom",
        (cargo("test --release -p pagetide-swap --features shuttle --test protocol"), cargo("test --release -p pagetide-swap --features loom --lib latch")),
        {"PAGETIDE_SCHEDULES": "5000"},
    ),
    Part(
        "decoders", 17, "decoders and the trace's reader on damaged input, four minutes each",
        tuple(cargo(f"run --release -p pagetide-swap --example fuzz -- {name} 4") for name in ("lzpage", "lz4", "zstd", "trace")),
    ),
    Part("targets", 5, "the fuzz targets on the stable toolchain: two million mutations each", (cargo("test --release -p pagetide-cli --test targets"),), {"PAGETIDE_FUZZ_CASES": "2000000", "PAGETIDE_SEED": "3"}),
    Part("calls", 21, "tests/fuzz.py: random calls of programs, twenty minutes", (BUILD, ("python3", "tests/fuzz.py", "--seconds", "1200"))),
    Part("integrity", 12, "tests/shared.py: eight processes that share memory, by each kind of it and each way out", (BUILD, ("python3", "tests/shared.py", "integrity"))),
    Part("soak", 22, "tests/shared.py: processes with shared and private memory, killed now and then, and in the end their keeper", (BUILD, ("python3", "tests/shared.py", "soak"))),
    Part("remote", 10, "tests/remote.py: pages on Redis servers that are alone, of a cluster, slow, cut off, damaged or killed", (BUILD, ("python3", "-B", "tests/remote.py"))),
    Part("busy", 25, "tests under memory pressure beside eight spinning processes, five rounds", (("tests/busy.sh", "5", "8"),)),
    Part("forks", 15, "families of processes, five rounds, and a fan of children at 0.6 of its memory", (
        BUILD, *((*PROGRAMS, "forks::", "told_to_rest"),) * 5, RELEASE, ("python3", "bench/cap.py", "--skip-kernel", "--only", "fork-fan"))),
    Part("containers", 10, "containers, namespaces and disks that fill, five rounds", (BUILD, *((*PROGRAMS, "containers::", "disk::"),) * 5)),
    Part("masks", 14, "all programs, by every way out and in of each test", (BUILD, PROGRAMS, cargo("test -p pagetide-cli --test starving")), {"PAGETIDE_ALL_MASKS": "1"}),
    Part("browser", 4, "pages of runs in headless Chromium (installs Debian's chromium, chromium-driver, python3-selenium)", (
        ("apt-get", "update", "-q"), ("apt-get", "install", "-q", "--yes", "--no-install-recommends", "chromium", "chromium-driver", "python3-selenium"),
        BUILD, ("/usr/bin/python3", "-B", "tests/browser.py", "target/debug/pagetide"))),
    Part("notebook", 4, "a notebook under `pagetide jupyter install` (needs the network: ipykernel and nbconvert of PyPI)", (
        ("python3", "-m", "venv", "target/notebook"), ("target/notebook/bin/pip", "install", "--quiet", "ipykernel", "nbconvert"),
        BUILD, ("target/notebook/bin/python", "-B", "tests/notebook.py", "target/debug/pagetide"))),
    Part("manifests", 1, "deploy/ against Kubernetes' schemas (needs the network: kubernetes-validate of PyPI)", (
        ("python3", "-m", "venv", "target/manifests"), ("target/manifests/bin/pip", "install", "--quiet", "kubernetes-validate"),
        ("target/manifests/bin/kubernetes-validate", "--strict", "deploy/kubernetes/broker.yaml", "deploy/kubernetes/job.yaml"))),
    Part("packages", 15, "what scripts/release makes, each thing installed in fresh Debians 11 and 12 (needs debootstrap)", (
        ("scripts/release",), ("tests/packages.sh", "dist")), needs=("debootstrap",)),
    Part("release", 12, "all programs and the launcher, as users have them built", (RELEASE, cargo("test --release -p pagetide-cli"))),
    Part("cpython", 25, "CPython's own tests in a quarter of their memory (needs libpython3.11-testsuite)", (
        RELEASE, ("python3", "bench/cap.py", "--skip-kernel", "--factor", "0.25", "--timeout", "400", *(word for name in CPYTHON for word in ("--only", f"cpython-{name}"))))),
    Part("programs", 28, "real programs at 0.6 of their memory: those of bench/programs.py that are installed", (RELEASE, ("python3", "bench/programs.py", "--check", "--timeout", "900"))),
    Part("asan", 15, "memory errors, by AddressSanitizer (needs a nightly toolchain)", (
        cargo("+nightly test --target-dir target/asan --target {target} --tests -p pagetide-sys -p pagetide-swap -p pagetide-device -p pagetide"),),
        {"ASAN_OPTIONS": "detect_leaks=0", "RUSTFLAGS": "-Zsanitizer=address"}, nightly=True),
    Part("tsan", 25, "data races, by ThreadSanitizer (needs a nightly toolchain with rust-src)", (
        # Without the devices: it does not know the threads that they start (docs/decisions/0001-engine-threads-by-clone.md).
        cargo("+nightly test -Zbuild-std --target-dir target/tsan --target {target} --tests -p pagetide-swap -p pagetide"),),
        {"RUSTFLAGS": "-Zsanitizer=thread"}, nightly=True),
)  # fmt: skip


# --- The machine ----------------------------------------------------------------------------------------------------


def ours(path):
    return Path(path).name.startswith("pagetide")


def is_left(path):
    """Whether nobody has it any more: the first number of its name is the pid of who made it. What has none stays, for other
    tests may run on this machine."""
    pid = re.search(r"\d+", Path(path).name)
    return pid is not None and not Path(f"/proc/{pid[0]}").exists()


def cgroups():
    return {path for path in CGROUPS.glob("*/pagetide*") if path.is_dir()} | {path for path in CGROUPS.glob("pagetide*") if path.is_dir()}


def mounts():
    return [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines() if ours(line.split()[4])]


def files():
    return set(Path("/var/tmp").glob("pagetide*"))


def children():
    """All that this process has started, as far as it lives: orphans become its children, for it is a subreaper."""
    parents = {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            pid, _, rest = status.read_text().partition(" ")
            parents[int(pid)] = int(rest.rpartition(") ")[2].split()[1])
    found, new = set(), {os.getpid()}
    while new:
        new = {pid for pid, parent in parents.items() if parent in new} - found
        found |= new
    return found


def end_children():
    """Ends what has been started and lives on. Returns how many there were."""
    ended = set()
    while living := children():
        for pid in living:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        ended |= living
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(0.02)
    return len(ended)


@contextlib.contextmanager
def as_it_was():
    """Whatever happens inside: afterwards no process of it lives, and settings, mounts, cgroups and files are as before."""
    settings = {path: chosen(path) for path in SETTINGS if os.path.exists(path)}
    before = mounts(), cgroups(), files()
    try:
        yield
    finally:
        end_children()
        for path, value in settings.items():
            if chosen(path) != value:
                Path(path).write_text(value)
        for point in reversed(mounts()):
            if point not in before[0] and is_left(point):
                subprocess.run(["umount", "--lazy", point], check=False)
        for group in filter(is_left, cgroups() - before[1]):
            with contextlib.suppress(OSError):
                group.rmdir()
        for path in filter(is_left, files() - before[2]):
            shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)


# --- Running --------------------------------------------------------------------------------------------------------


def missing(part):
    """Why a part cannot be run here, or nothing."""
    if lacking := [name for name in part.needs if not shutil.which(name)]:
        return f"not installed: {', '.join(lacking)}"
    if part.nightly and subprocess.run(["cargo", "+nightly", "--version"], capture_output=True).returncode:
        return "no nightly toolchain: rustup toolchain install nightly --profile minimal --component rust-src"
    source = subprocess.run(["rustc", "+nightly", "--print", "sysroot"], capture_output=True, text=True).stdout.strip() if part.name == "tsan" else ""
    if source and not (Path(source) / "lib/rustlib/src/rust/library").exists():
        return "no source of the standard library: rustup component add rust-src --toolchain nightly"
    return ""


def host():
    said = subprocess.run(["rustc", "-vV"], capture_output=True, text=True, check=True).stdout
    return next(line.split()[1] for line in said.splitlines() if line.startswith("host:"))


def run_command(command, environment, end, lines):
    """Runs one command, shows what it says and keeps its last lines. Returns its status."""
    print(f"+ {' '.join(command)}", flush=True)
    try:
        child = subprocess.Popen(
            command, cwd=REPO, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            preexec_fn=lambda: LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGTERM), start_new_session=True,
        )  # fmt: skip
    except OSError as error:
        lines.append(str(error))
        return NOT_FOUND

    def give_up(_number, _frame):
        raise TimeoutError

    signal.signal(signal.SIGALRM, give_up)
    signal.setitimer(signal.ITIMER_REAL, max(end - time.monotonic(), 0.01))
    try:
        for line in child.stdout:
            text = line.decode(errors="replace").rstrip()
            print(text, flush=True)
            lines.append(text)
        return child.wait()
    except TimeoutError:
        lines.append(f"given up after {TIMEOUT_SECONDS // 60} minutes")
        child.kill()
        child.wait()
        return TIMED_OUT
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        child.stdout.close()


def run(part, directory):
    """Runs a part and stores what came of it. Returns its status, 0 if all is well."""
    if reason := missing(part):
        print(f"{part.name}: {reason}", flush=True)
        return NOT_FOUND
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", **part.env}
    started, date, lines, status = time.monotonic(), time.strftime("%Y-%m-%dT%H:%M:%S%z"), deque(maxlen=LINES_KEPT), 0
    triple = host()
    commands = [[word.replace("{target}", triple) for word in command] for command in part.commands]
    facts = machine.machine()
    try:
        with as_it_was():
            for command in commands:
                status = run_command(command, environment, started + TIMEOUT_SECONDS, lines)
                if status:
                    break
    except SystemExit as interrupted:
        # By a signal: what came of the part is not known, and that is stored too.
        status = interrupted.code
        lines.append(f"interrupted by signal {status - 128}")
        raise
    finally:
        seconds = round(time.monotonic() - started, 1)
        result = {"part": part.name, "rc": status, "seconds": seconds, "commit": store.commit(), "date": date, "machine": facts, "commands": [" ".join(command) for command in commands], "env": part.env, "last_lines": list(lines)}
        store.write(directory / f"{part.name}.json", result)
        print(f"{part.name}: status {status} after {seconds:.0f} s", flush=True)
    return status


def parse():
    parser = argparse.ArgumentParser(prog="./test --long", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help="which (default: all)")
    parser.add_argument("--list", action="store_true", help="list the parts and run none")
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="DIR", help="where the results are stored (default tests/results)")
    options = parser.parse_args()
    names = [part.name for part in PARTS]
    if unknown := [name for name in options.parts if name not in names]:
        parser.error(f"no part {', '.join(unknown)}: there are {', '.join(names)}")
    return options


def show_list():
    for part in PARTS:
        print(f"{part.name:<12} {part.minutes:>3.0f} min  {part.what}")
    print(f"{'all':<12} {sum(part.minutes for part in PARTS):>3.0f} min")


def main(options):
    if options.list:
        show_list()
        return 0
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _frame: sys.exit(128 + number))
    LIBC.prctl(PR_SET_CHILD_SUBREAPER, 1)
    chosen_parts = [part for part in PARTS if not options.parts or part.name in options.parts]
    ended = {part.name: run(part, options.results) for part in chosen_parts}
    failed = [name for name, status in ended.items() if status]
    print(f"{len(ended)} parts, {len(failed)} failed{': ' + ', '.join(failed) if failed else ''}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(parse()))
