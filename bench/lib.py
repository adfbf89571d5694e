"""What the benchmarks share: the machine, memory cgroups, kernel swap set up and taken down, runs and their figures.

Everything that changes the machine is a context manager. Signals become exceptions, so that the `with` blocks unwind;
what an exit leaves open is closed by `atexit`. Needs root, the memory controller of cgroup v1, and (for the kernel's
arm) zram.
"""

import argparse
import atexit
import contextlib
import enum
import fcntl
import itertools
import json
import os
import platform
import shlex
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

REPO = Path(__file__).resolve().parent.parent
PROGRAM_SOURCES = REPO / "tests" / "programs"
PROGRAMS = REPO / "target" / "programs"
DATA = REPO / "target" / "bench-data"
PAGETIDE = REPO / "target" / "release" / "pagetide"
PRELOAD = REPO / "target" / "release" / "libpagetide_preload.so"

MIB = 1 << 20
SAMPLE_SECONDS = 0.010
WATCH_SECONDS = 0.25
TIMEOUT_SECONDS = 1800
# What a cgroup adds to a cap, so that the kernel's limit does not strike before ours is measured (docs/testing.md).
SLACK_FACTOR = 1.03
SLACK_BYTES = 32 * MIB

ZRAM_CONTROL = Path("/sys/class/zram-control")
ZRAM_DISK_BYTES = 8 << 30
ZSWAP = Path("/sys/module/zswap/parameters")
THP = Path("/sys/kernel/mm/transparent_hugepage")
PAGE_CLUSTER = Path("/proc/sys/vm/page-cluster")
SWAPPINESS = Path("/proc/sys/vm/swappiness")


class BenchError(Exception):
    """Something outside the measured programs is not as it must be; the message says what to do."""


# --- Start, end and cleaning up -------------------------------------------------------------------------------------


def main_guard(parse, main):
    """Runs a script: signals unwind it, errors are one line, only one benchmark runs at a time."""
    options = parse()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _frame: sys.exit(128 + number))
    try:
        with only_one_benchmark():
            sys.exit(main(options))
    except BenchError as error:
        sys.exit(f"{Path(sys.argv[0]).name}: {error}")


@contextlib.contextmanager
def only_one_benchmark():
    (REPO / "target").mkdir(exist_ok=True)
    with open(REPO / "target" / "bench.lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BenchError("another benchmark of this checkout is running") from None
        yield


class Resource:
    """A context manager whose close() is idempotent and also runs at exit."""

    def __enter__(self):
        atexit.register(self.close)
        try:
            self.open()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_exception):
        self.close()
        atexit.unregister(self.close)


# --- Small things ---------------------------------------------------------------------------------------------------


def parse_bytes(text):
    """'256M' -> bytes. A plain number is bytes."""
    units = {"K": 10, "M": 20, "G": 30}
    number, unit = (text[:-1], text[-1].upper()) if text[-1:].upper() in units else (text, "")
    try:
        return int(float(number) * (1 << units.get(unit, 0)))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no size: write 512M or 2G") from None


def read_fields(path):
    """A file of lines `name value …` as a dict of ints."""
    fields = {}
    for line in Path(path).read_text().splitlines():
        name, _, value = line.partition(" ")
        with contextlib.suppress(ValueError, IndexError):
            fields[name.rstrip(":")] = int(value.split()[0])
    return fields


def chosen(path):
    """The bracketed word of a sysfs file such as `always [madvise] never`."""
    text = Path(path).read_text().strip()
    return text[text.index("[") + 1 : text.index("]")] if "[" in text else text


def quartiles(values):
    """(first quartile, median, third quartile)."""
    if len(values) == 1:
        return values[0], values[0], values[0]
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, statistics.median(values), high


def show_quartiles(values, digits=0):
    low, median, high = quartiles(values)
    return f"{median:.{digits}f} ({low:.{digits}f}–{high:.{digits}f})"


def print_table(header, rows):
    texts = [[str(cell) for cell in row] for row in (header, *rows)]
    widths = [max(len(row[i]) for row in texts) for i in range(len(header))]
    for number, row in enumerate(texts):
        cells = (cell.ljust(width) if i == 0 else cell.rjust(width) for i, (cell, width) in enumerate(zip(row, widths)))
        print("  ".join(cells).rstrip())
        if number == 0:
            print("  ".join("-" * width for width in widths))
    sys.stdout.flush()


def progress(text):
    print(f"  {text}", file=sys.stderr, flush=True)


# --- The machine ----------------------------------------------------------------------------------------------------


def stolen_seconds():
    """Processor time that the host gave to others: how noisy the machine is."""
    return int(Path("/proc/stat").read_text().split()[8]) / os.sysconf("SC_CLK_TCK")


def cpu_model():
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


def thp_settings():
    settings = {"enabled": chosen(THP / "enabled"), "defrag": chosen(THP / "defrag")}
    for size in sorted(THP.glob("hugepages-*kB")):
        if (size / "enabled").exists() and chosen(size / "enabled") != "never":
            settings[size.name] = chosen(size / "enabled")
    return settings


def damon_actions():
    """What the kernel's DAMON is told to do on this machine: it may page out what is idle when swap is on."""
    schemes = Path("/sys/kernel/mm/damon/admin/kdamonds").glob("*/contexts/*/schemes/*/action")
    return sorted({path.read_text().strip() for path in schemes})


def machine():
    uname = os.uname()
    return {
        "kernel": f"{uname.sysname} {uname.release} {uname.machine}",
        "processors": os.cpu_count(),
        "model": cpu_model(),
        "memory_mib": read_fields("/proc/meminfo")["MemTotal"] // 1024,
        "load": os.getloadavg()[0],
        "thp": thp_settings(),
        "page_cluster": int(PAGE_CLUSTER.read_text()),
        "swappiness": int(SWAPPINESS.read_text()),
        "zswap": ZSWAP.exists() and (ZSWAP / "enabled").read_text().strip(),
        "damon": damon_actions(),
        "python": platform.python_version(),
    }


def print_machine():
    facts = machine()
    print(f"machine   {facts['kernel']}, {facts['processors']} × {facts['model']}, {facts['memory_mib']} MiB, load {facts['load']:.2f}")
    thp = ", ".join(f"{name} {value}" for name, value in facts["thp"].items())
    print(f"settings  THP {thp}; page-cluster {facts['page_cluster']}; swappiness {facts['swappiness']}; zswap {facts['zswap']}")
    if facts["damon"]:
        print(f"NOTE      DAMON runs here ({', '.join(facts['damon'])}): with swap on it may page out what was idle for long")
    if facts["load"] > 0.7:
        print("WARNING   the machine is busy with other work: the figures are noisy")
    sys.stdout.flush()
    return facts


# --- Programs under test --------------------------------------------------------------------------------------------


def build_programs(*names):
    """Compiles tests/programs/NAME.c where it is newer than its program. Returns the paths."""
    PROGRAMS.mkdir(parents=True, exist_ok=True)
    paths = []
    for name in names:
        source, program = PROGRAM_SOURCES / f"{name}.c", PROGRAMS / name
        if not program.exists() or program.stat().st_mtime < source.stat().st_mtime:
            subprocess.run(["gcc", "-O2", "-Wall", "-pthread", "-o", program, source], check=True)
        paths.append(program)
    return paths


def python(script, *arguments):
    """The command of a Python script, by the interpreter itself and not by a wrapper of it."""
    return [os.path.realpath(sys.executable), str(script), *map(str, arguments)]


def python_program(name, *arguments):
    return python(PROGRAM_SOURCES / name, *arguments)


def heap_file():
    """The file of real heap pages, made at first use."""
    path = DATA / "heap.pages"
    if not path.exists():
        DATA.mkdir(parents=True, exist_ok=True)
        subprocess.run(python(REPO / "bench" / "heap_dump.py", path), check=True, stdout=subprocess.DEVNULL)
    return path


def whole_mib(size_bytes):
    """Rounded down, so that the cap that is asked for is never above the cap that is meant."""
    return size_bytes // MIB


def pagetide_command(cap_bytes, command, pagetide=PAGETIDE, run_options=()):
    memory = f"{whole_mib(cap_bytes)}M"
    return [str(Path(pagetide).resolve()), "run", "-q", "--memory", memory, *run_options, "--", *map(str, command)]


def add_program_options(parser):
    parser.add_argument("--pagetide", type=Path, default=PAGETIDE, help="the program under test (default target/release)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures to FILE")


def add_arm_options(parser):
    add_program_options(parser)
    parser.add_argument("--preload", type=Path, default=PRELOAD, help="its preload library, for runs with our allocator only")
    parser.add_argument("--run-options", type=shlex.split, default=[], metavar="OPTIONS", help="more options for `pagetide run`, in one word")


# --- Memory cgroups -------------------------------------------------------------------------------------------------


def memory_controller():
    """Where the memory controller of cgroup v1 is mounted."""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        left, _, right = line.partition(" - ")
        kind, _, options = right.split(" ", 2)
        if kind == "cgroup" and "memory" in options.split(","):
            return Path(left.split()[4])
    raise BenchError("the memory controller of cgroup v1 is not mounted (boot with systemd.unified_cgroup_hierarchy=0)")


class Swap(enum.Enum):
    ALLOWED = "allowed"
    NONE = "none"


class Cgroup(Resource):
    """A memory cgroup for one run. limit_bytes None: no limit."""

    numbers = itertools.count(1)

    def __init__(self, limit_bytes=None, swap=Swap.NONE):
        self.limit_bytes, self.swap = limit_bytes, swap
        self.path = memory_controller() / f"pagetide-bench-{os.getpid()}-{next(self.numbers)}"

    def open(self):
        if os.geteuid() != 0:
            raise BenchError("memory cgroups need root")
        self.path.mkdir()
        self.write("memory.swappiness", 0 if self.swap is Swap.NONE else 60)
        if self.limit_bytes is None:
            return
        self.write("memory.limit_in_bytes", self.limit_bytes)
        if self.swap is Swap.NONE and (self.path / "memory.memsw.limit_in_bytes").exists():
            self.write("memory.memsw.limit_in_bytes", self.limit_bytes)

    def close(self):
        if not self.path.exists():
            return
        self.kill_all()
        self.write("memory.force_empty", 0)
        self.path.rmdir()

    def write(self, name, value):
        (self.path / name).write_text(str(value))

    def processes(self):
        try:
            return [int(line) for line in (self.path / "cgroup.procs").read_text().split()]
        except OSError:  # the cgroup has gone: another thread of ours has closed it
            return []

    def kill_all(self):
        """Ends what still runs inside, and waits until it is gone."""
        deadline = time.monotonic() + 30
        while pids := self.processes():
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if time.monotonic() > deadline:
                raise BenchError(f"processes {pids} in {self.path} do not end")
            time.sleep(0.02)

    def oom_kills(self):
        return read_fields(self.path / "memory.oom_control").get("oom_kill", 0)

    def peak_usage_bytes(self):
        """Of everything that is charged, page cache and kernel memory included."""
        return int((self.path / "memory.max_usage_in_bytes").read_text())

    def resident_bytes(self):
        """Anonymous and shared memory, at this moment."""
        fields = read_fields(self.path / "memory.stat")
        return fields["total_rss"] + fields["total_shmem"]

    def page_table_bytes(self):
        return sum(page_table_bytes(pid) for pid in self.processes())


def page_table_bytes(pid):
    try:
        with open(f"/proc/{pid}/status", "rb", buffering=0) as status:
            text = status.read(4096)
    except (FileNotFoundError, ProcessLookupError):
        return 0
    at = text.find(b"VmPTE:")
    return int(text[at + 6 : text.index(b"kB", at)]) * 1024 if at >= 0 else 0


# --- Kernel settings and kernel swap --------------------------------------------------------------------------------


class Setting(Resource):
    """Writes a kernel setting and puts the old value back."""

    def __init__(self, path, value):
        self.path, self.value, self.before = Path(path), str(value), None

    def open(self):
        before = chosen(self.path)
        if before != self.value:
            try:
                self.path.write_text(self.value)
            except OSError as error:
                raise OSError(error.errno, f"{error.strerror}: writing {self.value}", str(self.path)) from None
            self.before = before

    def close(self):
        if self.before is not None:
            self.path.write_text(self.before)
            self.before = None


class Zram(Resource):
    """A zram device of its own, in use as the only swap device."""

    def __init__(self, algorithm):
        self.algorithm, self.number = algorithm, None

    def open(self):
        if len(Path("/proc/swaps").read_text().splitlines()) > 1:
            raise BenchError("swap is in use on this machine: `swapoff -a` first, the arms must not share it")
        if not ZRAM_CONTROL.exists():
            raise BenchError("no zram here: `modprobe zram`, or build a kernel with it")
        self.number = int((ZRAM_CONTROL / "hot_add").read_text())
        (self.sys / "comp_algorithm").write_text(self.algorithm)
        (self.sys / "disksize").write_text(str(ZRAM_DISK_BYTES))
        deadline = time.monotonic() + 5
        while not Path(self.device).exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        subprocess.run(["mkswap", self.device], check=True, stdout=subprocess.DEVNULL)
        subprocess.run(["swapon", "--priority", "100", self.device], check=True)

    def close(self):
        if self.number is None:
            return
        if self.device in Path("/proc/swaps").read_text():
            subprocess.run(["swapoff", self.device], check=True)
        (self.sys / "reset").write_text("1")
        (ZRAM_CONTROL / "hot_remove").write_text(str(self.number))
        self.number = None

    @property
    def device(self):
        return f"/dev/zram{self.number}"

    @property
    def sys(self):
        return Path(f"/sys/block/zram{self.number}")

    def statistics(self):
        """The fields of mm_stat that matter here, in bytes."""
        fields = [int(word) for word in (self.sys / "mm_stat").read_text().split()]
        return {"stored": fields[0], "compressed": fields[1], "used": fields[2], "used_peak": fields[4]}


@dataclass(frozen=True)
class KernelConfig:
    """One way to set up the kernel's own swap."""

    name: str
    algorithm: str = "lz4"
    page_cluster: int = 0
    thp: str = "madvise"
    mthp_64k: str = "never"
    zswap: str = "N"

    def describe(self):
        back_end = f"zswap {self.algorithm} over zram" if self.zswap == "Y" else f"zram {self.algorithm}"
        return f"{back_end}, page-cluster {self.page_cluster}, THP {self.thp}, 64 KiB mTHP {self.mthp_64k}"

    @contextlib.contextmanager
    def memory_settings(self):
        """THP as this configuration has it: holds for both arms of a pair."""
        with contextlib.ExitStack() as stack:
            stack.enter_context(Setting(THP / "enabled", self.thp))
            if (THP / "hugepages-64kB").exists():
                stack.enter_context(Setting(THP / "hugepages-64kB" / "enabled", self.mthp_64k))
            yield

    @contextlib.contextmanager
    def swap_space(self):
        """Swap on, for the kernel's arm only. Yields the zram device."""
        with contextlib.ExitStack() as stack:
            stack.enter_context(Setting(PAGE_CLUSTER, self.page_cluster))
            if self.zswap == "Y":
                stack.enter_context(Setting(ZSWAP / "compressor", self.algorithm))
                stack.enter_context(Setting(ZSWAP / "max_pool_percent", 50))
            if ZSWAP.exists():
                stack.enter_context(Setting(ZSWAP / "enabled", self.zswap))
            yield stack.enter_context(Zram(self.algorithm))


KERNEL_CONFIGS = {
    config.name: config
    for config in (
        KernelConfig("zram-lz4"),
        KernelConfig("zram-lzo-rle", algorithm="lzo-rle"),
        KernelConfig("zram-lz4-readahead", page_cluster=3),
        KernelConfig("zram-lz4-mthp", mthp_64k="always"),
        KernelConfig("zram-lzo-rle-mthp", algorithm="lzo-rle", mthp_64k="always"),
        KernelConfig("zram-lz4-thp", thp="always"),
        KernelConfig("zswap-lz4", zswap="Y"),
    )
}


def zswap_pool_bytes():
    return read_fields("/proc/meminfo").get("Zswap", 0) * 1024


# --- Runs -----------------------------------------------------------------------------------------------------------


@dataclass
class Run:
    """What one run of a command gave."""

    command: list
    status: int = 0
    timed_out: str = ""
    wall_seconds: float = 0.0
    cpu_seconds: float = 0.0
    stolen_seconds: float = 0.0
    major_faults: int = 0
    stdout: bytes = b""
    stderr: bytes = b""
    resident_peak_bytes: int = 0
    page_tables_peak_bytes: int = 0
    counted_peak_bytes: int = 0  # resident and page tables at the same moment
    usage_peak_bytes: int = 0
    oom_kills: int = 0
    swap_used_peak_bytes: int = 0  # what zram and zswap took, outside the cgroup
    extra: dict = field(default_factory=dict)

    def require_success(self):
        if self.status or self.timed_out:
            tail = (self.stderr + self.stdout).decode(errors="replace")[-600:]
            raise BenchError(f"`{shlex.join(map(str, self.command))[:300]}` ended with {self.timed_out or self.status}\n{tail}")
        return self

    def figures(self):
        """For JSON: everything but the outputs."""
        hidden = ("stdout", "stderr", "command")
        figures = {name: value for name, value in vars(self).items() if name not in hidden}
        return {**figures, "command": portable(shlex.join(map(str, self.command)))}


def portable(text):
    """Paths as they are called in the repository, and below the home directory."""
    return text.replace(f"{REPO}/", "").replace(str(Path.home()), "~")


class Sampling(enum.Enum):
    NONE = 0
    SWAP_POOL = 1  # zswap's pool, whose peak the kernel does not keep
    MEMORY = 2  # what the cgroup's processes hold


def sample_memory(cgroup, run):
    resident, page_tables = cgroup.resident_bytes(), cgroup.page_table_bytes()
    run.resident_peak_bytes = max(run.resident_peak_bytes, resident)
    run.page_tables_peak_bytes = max(run.page_tables_peak_bytes, page_tables)
    run.counted_peak_bytes = max(run.counted_peak_bytes, resident + page_tables)


def sample_swap_pool(_cgroup, run):
    run.swap_used_peak_bytes = max(run.swap_used_peak_bytes, zswap_pool_bytes())


SAMPLERS = {Sampling.MEMORY: sample_memory, Sampling.SWAP_POOL: sample_swap_pool}


@contextlib.contextmanager
def sampled(sampling, cgroup, run):
    """Samples from a thread of this process while the block runs."""
    if sampling is Sampling.NONE:
        yield
        return
    done = threading.Event()

    def loop():
        while not done.wait(SAMPLE_SECONDS):
            with contextlib.suppress(OSError):  # the cgroup has gone
                SAMPLERS[sampling](cgroup, run)

    thread = threading.Thread(target=loop, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


@contextlib.contextmanager
def watched(watch, pid):
    """Calls `watch` with the pid, from a thread of this process, while the block runs."""
    if watch is None:
        yield
        return
    done = threading.Event()

    def loop():
        while not done.wait(WATCH_SECONDS):
            watch(pid)

    thread = threading.Thread(target=loop, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def run_in(cgroup, command, env=None, sampling=Sampling.NONE, timeout_seconds=TIMEOUT_SECONDS, cwd=None, watch=None):
    """Runs a command inside the cgroup from its first instruction on, and measures it."""
    run = Run(list(map(str, command)))
    environment = {**os.environ, "PYTHONHASHSEED": "0", **(env or {})}
    # A shell moves itself into the cgroup and becomes the command.
    entering = ["sh", "-c", 'echo 0 > "$0" && exec "$@"', str(cgroup.path / "cgroup.procs"), *run.command]
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        started, stolen_before = time.monotonic(), stolen_seconds()
        # Not in our session: a ^C unwinds us, and the cgroup ends the command.
        process = subprocess.Popen(
            entering, stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=environment, cwd=cwd, start_new_session=True
        )

        def give_up():
            run.timed_out = f"time-out after {timeout_seconds} s"
            cgroup.kill_all()

        timer = threading.Timer(timeout_seconds, give_up)
        timer.start()
        try:
            with sampled(sampling, cgroup, run), watched(watch, process.pid):
                _, status, usage = os.wait4(process.pid, 0)
        finally:
            timer.cancel()
        run.wall_seconds = time.monotonic() - started
        run.stolen_seconds = stolen_seconds() - stolen_before
        process.returncode = run.status = os.waitstatus_to_exitcode(status)
        run.cpu_seconds = usage.ru_utime + usage.ru_stime
        run.major_faults = usage.ru_majflt
        for stream, name in ((out, "stdout"), (err, "stderr")):
            stream.seek(0)
            setattr(run, name, stream.read())
    run.oom_kills, run.usage_peak_bytes = cgroup.oom_kills(), cgroup.peak_usage_bytes()
    return run


def run_native(command, **options):
    """Without a limit."""
    with Cgroup() as cgroup:
        return run_in(cgroup, command, **options)


def run_kernel(config, limit_bytes, command, sampling=Sampling.NONE, **options):
    """In a cgroup of limit_bytes with the kernel's swap; run.swap_used_peak_bytes is Z."""
    if config.zswap == "Y" and sampling is Sampling.NONE:
        sampling = Sampling.SWAP_POOL
    with config.memory_settings(), config.swap_space() as zram, Cgroup(limit_bytes, Swap.ALLOWED) as cgroup:
        run = run_in(cgroup, command, sampling=sampling, **options)
        run.extra["zram"] = zram.statistics()
        run.swap_used_peak_bytes += run.extra["zram"]["used_peak"]
        return run


def run_pagetide(cap_bytes, command, pagetide=PAGETIDE, run_options=(), **options):
    """In a cgroup without swap, of the cap and the slack of docs/testing.md."""
    with Cgroup(int(cap_bytes * SLACK_FACTOR) + SLACK_BYTES, Swap.NONE) as cgroup:
        return run_in(cgroup, pagetide_command(cap_bytes, command, pagetide, run_options), **options)


def preload_environment(preload=PRELOAD):
    """Our allocator alone: the library without a run around it."""
    return {"LD_PRELOAD": str(Path(preload).resolve())}


def write_json(path, results):
    if path:
        path.write_text(json.dumps(results, indent=1, default=str) + "\n")


def have(program):
    """Whether a program is installed, or a file (given by its path) is there."""
    return shutil.which(program) is not None or (isinstance(program, Path) and program.exists())


def require(packages):
    """Fails unless of each of Debian's packages the program (or file) is there."""
    if missing := [package for package, program in packages.items() if not have(program)]:
        raise BenchError(f"not installed: apt-get install {' '.join(missing)}")


if __name__ == "__main__":
    sys.exit("lib.py holds what speed.py, cap.py and fits.py share; run one of those")
