#!/usr/bin/env python3
"""Runs a command as a container runtime would, without one: what `pagetide` meets in Docker, Podman and Kubernetes.

The command has mount, pid and IPC namespaces of its own, a root file system that cannot be written, a /dev with a few
nodes, a device cgroup that allows those only, Docker's default capabilities (none if it is not root), no way to gain
privileges, and a runtime's own seccomp profile, loaded by libseccomp.

    tests/container.py [--user 65534] [--device /dev/userfaultfd] [--volume DIR] [--profile FILE] -- COMMAND ...

The exit status is the command's; 126 if the container cannot be made. Needs root, the device controller of cgroup
version 1, and (Debian) python3-seccomp and golang-github-containers-common, which has the profile of Podman and
cri-o: that of Docker with small changes.
"""

import argparse
import contextlib
import json
import os
import platform
import stat
import subprocess
import sys
from pathlib import Path

PROFILE = Path("/usr/share/containers/seccomp.json")
NODES = ("null", "zero", "full", "random", "urandom")
# What Docker leaves to root.
CAPABILITIES = (
    "chown", "dac_override", "fowner", "fsetid", "kill", "setgid", "setuid", "setpcap", "net_bind_service", "net_raw",
    "sys_chroot", "mknod", "audit_write", "setfcap",
)  # fmt: skip
NOT_MADE = 126


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--user", type=int, default=65534, help="the user's number (default %(default)s)")
    parser.add_argument("--device", type=Path, action="append", default=[], help="a device that is there, for everybody (may be repeated)")
    parser.add_argument("--volume", type=Path, action="append", default=[], help="a directory that can be written (may be repeated)")
    parser.add_argument("--profile", type=Path, default=PROFILE, help="the seccomp profile (default %(default)s)")
    parser.add_argument("--stage", choices=("inside", "filtered"), help=argparse.SUPPRESS)
    parser.add_argument("command", nargs="+", metavar="COMMAND")
    return parser.parse_args()


def controller(name):
    """Where a controller of cgroup version 1 is mounted."""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        left, _, right = line.partition(" - ")
        kind, _, options = right.split(" ", 2)
        if kind == "cgroup" and name in options.split(","):
            return Path(left.split()[4])
    raise OSError(f"the {name} controller of cgroup version 1 is not mounted")


def again(options, stage):
    """Our own command line, for the next stage."""
    command = [sys.executable, os.path.abspath(__file__), "--stage", stage, "--user", str(options.user), "--profile", str(options.profile)]
    for name in ("device", "volume"):
        for value in getattr(options, name):
            command += [f"--{name}", str(value)]
    return [*command, "--", *options.command]


@contextlib.contextmanager
def device_cgroup(devices):
    group = controller("devices") / f"pagetide-test-{os.getpid()}"
    group.mkdir()
    try:
        (group / "devices.deny").write_text("a")
        for device in devices:
            number = os.stat(device).st_rdev
            (group / "devices.allow").write_text(f"c {os.major(number)}:{os.minor(number)} rw")
        yield group
    finally:
        group.rmdir()


def outside(options):
    devices = [Path("/dev") / name for name in NODES] + options.device
    with device_cgroup(devices) as group:
        # The nodes are made before the cgroup forbids it.
        entering = ["unshare", "--mount", "--pid", "--fork", "--ipc", "--kill-child", *again(options, "inside")]
        child = subprocess.Popen(entering, env={**os.environ, "CONTAINER_CGROUP": str(group / "cgroup.procs")})
        return child.wait()


def mount(*arguments):
    subprocess.run(["mount", *map(str, arguments)], check=True)


def inside(options):
    """In the namespaces, as root: makes the file system and goes on as the user."""
    join = Path(os.environ.pop("CONTAINER_CGROUP"))
    join_fd = os.open(join, os.O_WRONLY)
    mount("--make-rprivate", "/")
    numbers = {Path(device): os.stat(device).st_rdev for device in [*(Path("/dev") / name for name in NODES), *options.device]}
    for volume in options.volume:
        mount("--bind", volume, volume)
    mounted = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    mount("-t", "proc", "proc", "/proc")
    mount("-t", "tmpfs", "-o", "mode=755", "tmpfs", "/dev")
    for device, number in numbers.items():
        os.mknod(device, stat.S_IFCHR | 0o666, number)
        os.chmod(device, 0o666)
    writable = {str(volume) for volume in options.volume}
    for place in dict.fromkeys(["/", "/dev", *mounted]):
        if place not in writable and not place.startswith(("/proc/", "/dev/")):
            # What lies under another mount is out of sight already.
            subprocess.run(["mount", "-o", "remount,bind,ro", place], stderr=subprocess.DEVNULL)
    os.write(join_fd, b"0")
    os.close(join_fd)
    kept = ",".join(["-all", *(f"+{name}" for name in CAPABILITIES)])
    user = ["--reuid", str(options.user), "--regid", str(options.user), "--clear-groups"] if options.user else []
    os.execvp("setpriv", ["setpriv", *user, "--bounding-set", kept, "--inh-caps", "-all", "--no-new-privs", *again(options, "filtered")])


def applies(rule, capabilities):
    """Whether a rule of the profile is for this machine and these capabilities."""
    names = {"x86_64": ("amd64", "x86", "x32")}.get(platform.machine(), (platform.machine(),))
    included, excluded = rule.get("includes") or {}, rule.get("excludes") or {}
    if any(capability not in capabilities for capability in included.get("caps", ())):
        return False
    if included.get("arches") and not set(included["arches"]) & set(names):
        return False
    if any(capability in capabilities for capability in excluded.get("caps", ())):
        return False
    return not set(excluded.get("arches", ())) & set(names)


def load(profile, capabilities):
    import errno

    import seccomp

    comparisons = {
        "SCMP_CMP_EQ": seccomp.EQ, "SCMP_CMP_NE": seccomp.NE, "SCMP_CMP_LT": seccomp.LT, "SCMP_CMP_LE": seccomp.LE,
        "SCMP_CMP_GE": seccomp.GE, "SCMP_CMP_GT": seccomp.GT, "SCMP_CMP_MASKED_EQ": seccomp.MASKED_EQ,
    }  # fmt: skip

    def action(name, errno_ret):
        return seccomp.ALLOW if name == "SCMP_ACT_ALLOW" else seccomp.ERRNO(errno.EPERM if errno_ret is None else errno_ret)

    default = (profile["defaultAction"], profile.get("defaultErrnoRet"))
    syscalls = seccomp.SyscallFilter(action(*default))
    for rule in profile["syscalls"]:
        meant = (rule["action"], rule.get("errnoRet"))
        if not applies(rule, capabilities) or action(*meant) == action(*default):
            continue
        arguments = [
            seccomp.Arg(argument["index"], comparisons[argument["op"]], argument["value"], argument.get("valueTwo", 0))
            if argument["op"] == "SCMP_CMP_MASKED_EQ"
            else seccomp.Arg(argument["index"], comparisons[argument["op"]], argument["value"])
            for argument in rule.get("args") or ()
        ]
        for name in rule["names"]:
            # A name that this libseccomp does not know is a call that it cannot allow.
            with contextlib.suppress(RuntimeError):
                syscalls.add_rule(action(*meant), name, *arguments)
    syscalls.load()


def filtered(options):
    """As the user: under the filter."""
    capabilities = {f"CAP_{name.upper()}" for name in CAPABILITIES} if options.user == 0 else set()
    load(json.loads(options.profile.read_text()), capabilities)
    os.execvp(options.command[0], options.command)


def main(options):
    try:
        return {"inside": inside, "filtered": filtered, None: outside}[options.stage](options)
    except (OSError, ImportError, subprocess.CalledProcessError) as error:
        print(f"container.py: {error}", file=sys.stderr)
        return NOT_MADE


if __name__ == "__main__":
    sys.exit(main(parse()))
