#!/usr/bin/env python3
"""Runs processes that share memory under Pagetide for long, and checks every byte and what is left of it.

    tests/shared.py integrity [--seconds 600]    eight processes, by each kind of memory and each way out
    tests/shared.py soak [--seconds 1200]        eight processes with shared and with private memory, one of which is
                                                 killed every two seconds, run after run; in the end their keeper is

A failure is a wrong or an old page, a program that ends otherwise than it should, or a page, block, descriptor or
process that is left. It is said with the command that repeats it. Needs root or another way to userfaultfd
(docs/permissions.md), gcc, and a build: cargo build --workspace.
"""

import argparse
import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

REPO = Path(__file__).resolve().parent.parent
PAGETIDE = REPO / "target" / "debug" / "pagetide"
SOURCE = REPO / "tests" / "programs" / "integrity.c"
KINDS = ("shared", "memfd", "shm")
MASKS = ("", "pool", "ring", "ring,pool")
PROCESSES = 8
MIB, MEMORY = 96, "48M"
KILL_EVERY_MS = 2000
# A run that is this much longer than it should be hangs: machines are slow and busy.
PATIENCE_SECONDS = 300


class Failure(Exception):
    pass


def build(directory):
    program = Path(directory) / "integrity"
    subprocess.run(["gcc", "-O2", "-pthread", "-o", program, SOURCE], check=True)
    return program


def job(program, kind, seconds, seed, *more):
    # Its generations lie in a file on a disk: what is shared through /dev/shm would be swapped with the rest.
    words = ["--mib", MIB, "--seconds", seconds, "--seed", seed, "--alloc", kind, "--dir", "/var/tmp", *more]
    return [str(word) for word in (program, *words)]


def shared_job(program, kind, seconds, seed, *more):
    return job(program, kind, seconds, seed, "--processes", PROCESSES, "--threads", 1, *more)


def start(command, mask, **settings):
    environment = {**os.environ, "PAGETIDE_MASK": mask}
    words = [str(PAGETIDE), "run", "--memory", settings.pop("memory", MEMORY), "--", *command]
    print(f"+ PAGETIDE_MASK={mask} {' '.join(words)}", flush=True)
    return subprocess.Popen(words, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def end(run, seconds):
    """Waits for a run's end. Returns its status and what it and Pagetide have said."""
    try:
        said, _ = run.communicate(timeout=seconds + PATIENCE_SECONDS)
    except subprocess.TimeoutExpired:
        raise Failure(f"it does not end; look at it: pagetide dump {run.pid}") from None
    if "MISMATCH" in said:
        raise Failure(said)
    return run.returncode, said


def succeeds(run, seconds):
    status, said = end(run, seconds)
    if status or "0 errors" not in said or "nothing was swapped" in said:
        raise Failure(f"status {status}: {said}")
    return said


def keeper_of(run):
    for task in Path(f"/proc/{run.pid}/task").iterdir():
        with contextlib.suppress(OSError):
            for child in (task / "children").read_text().split():
                if Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0")[1:2] == [b"keeper"]:
                    return int(child)
    return None


def until(what, happens, seconds=PATIENCE_SECONDS):
    for _ in range(seconds * 10):
        if result := happens():
            return result
        time.sleep(0.1)
    raise Failure(f"{what} never happens")


def statistics(run):
    said = subprocess.run([PAGETIDE, "stat", str(run.pid), "--json"], capture_output=True, text=True)
    return json.loads(said.stdout) if said.returncode == 0 else None


def nothing_is_left(run):
    """Whether the keeper has no page, entry of the pool, block or object any more, of programs that have ended."""
    report, keeper = statistics(run), keeper_of(run)
    if not report or not keeper:
        return False
    held = {name: report["bytes"]["now"][name] for name in ("resident", "pool", "disk", "swapped")}
    objects = []
    for link in Path(f"/proc/{keeper}/fd").iterdir():
        with contextlib.suppress(OSError):
            objects.append(os.readlink(link))
    uffds = sum("userfaultfd" in target for target in objects)
    files = sum("memfd:" in target and "memfd:pagetide-group" not in target or "/dev/shm" in target for target in objects)
    return not any(held.values()) and (uffds, files) == (0, 0)


def integrity(program, seconds, seed):
    cases = list(itertools.product(KINDS, MASKS))
    for nth, (kind, mask) in enumerate(cases):
        share = max(seconds // len(cases), 2)
        said = succeeds(start(shared_job(program, kind, share, seed + nth), mask), share)
        print(next(line for line in said.splitlines() if "slots checked" in line), flush=True)


def soak(program, seconds, seed):
    """Runs of a minute until the time is over, then one whose keeper is killed."""
    stop = time.monotonic() + seconds
    for nth in itertools.count():
        share = min(60, int(stop - time.monotonic()))
        if share < 10:
            break
        kind, other = KINDS[nth % 3], KINDS[(nth + 1) % 3]
        jobs = [
            shared_job(program, kind, share, seed + 3 * nth, "--kill-every", KILL_EVERY_MS),
            shared_job(program, other, share, seed + 3 * nth + 1, "--kill-every", KILL_EVERY_MS),
            job(program, "malloc", share, seed + 3 * nth + 2),
        ]
        # The run goes on when the programs have ended, until its input does: so that it can be looked at.
        # Of two that end at once `wait -n` may miss one.
        script = "pids=; " + " ".join(f'{" ".join(words)} & pids="$pids $!";' for words in jobs) + " status=0; for pid in $pids; do wait $pid || status=1; done; read line; exit $status"
        run = start(["bash", "-c", script], MASKS[nth % len(MASKS)], memory="96M")
        until("a keeper", lambda run=run: keeper_of(run) or run.poll() is not None)
        time.sleep(share)
        until("an end without a page, block or descriptor that is left", lambda run=run: run.poll() is not None or nothing_is_left(run))
        said = succeeds(run, 0)
        print("\n".join(line for line in said.splitlines() if "slots checked" in line), flush=True)
    kill_the_keeper(program, seed)


def kill_the_keeper(program, seed):
    """All processes of a run whose keeper is killed end with its message, and none has read a wrong byte."""
    run = start(shared_job(program, "shm", 3600, seed), "")
    try:
        until("swapping", lambda: (statistics(run) or {}).get("nr_swapped", 0) > 1000)
        os.kill(until("a keeper", lambda: keeper_of(run)), signal.SIGKILL)
    except Failure:
        run.terminate()
        raise
    status, said = end(run, 0)
    if status == 0 or "the keeper of the run's shared memory has ended" not in said:
        raise Failure(f"status {status}: {said}")
    print("the keeper was killed, and all ended with the message", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("integrity", "soak"))
    parser.add_argument("--seconds", type=int)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="pagetide-shared-") as directory:
        program = build(directory)
        try:
            if options.what == "integrity":
                integrity(program, options.seconds or 600, options.seed)
            else:
                soak(program, options.seconds or 1200, options.seed)
        except Failure as failure:
            print(f"FAILED: {failure}", file=sys.stderr)
            return 1
    print("nothing wrong")
    return 0


if __name__ == "__main__":
    sys.exit(main())
