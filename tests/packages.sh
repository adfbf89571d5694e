#!/bin/bash
# Installs what scripts/release has made, each thing in a fresh Debian, and runs a job there as a user who is not root.
#
#   tests/packages.sh DIST        as root, with debootstrap; the roots are kept in target/, fresh copies of them are used
set -euo pipefail
dist=$(realpath "$1")
cd "$(dirname "$0")/.."
mirror=${DEBIAN_MIRROR:-http://deb.debian.org/debian}

fail() { echo "FAILED: $*" >&2; exit 1; }

base() { # SUITE
    local root=target/fresh-$1
    if [ ! -e "$root/made" ]; then
        rm -rf "$root"
        debootstrap --variant=minbase --include=python3-minimal,python3-venv,udev "$1" "$root" "$mirror" > "$root.log" 2>&1 ||
            fail "debootstrap $1: $(tail -n 1 "$root.log")"
        touch "$root/made"
    fi
}

# Runs the shell function $2 in a fresh copy of a Debian $1: as root, with private nodes in /dev.
in_fresh() {
    base "$1"
    local root
    root=$(mktemp -d /var/tmp/pagetide-fresh-XXXXXX)
    cp -a "target/fresh-$1/." "$root"
    cp "$dist"/* "$root/root/"
    local status=0
    unshare --mount bash -euo pipefail -c '
        root=$1 steps=$2
        mount --make-rprivate /
        minor=$(awk "\$2 == \"userfaultfd\" { print \$1 }" /proc/misc)
        mount -t tmpfs -o mode=755 none "$root/dev"
        for node in "null 666 1 3" "zero 666 1 5" "random 666 1 8" "urandom 666 1 9" "userfaultfd 600 10 $minor"; do
            set -- $node
            mknod -m "$2" "$root/dev/$1" c "$3" "$4"
        done
        mkdir -m 1777 "$root/dev/shm"
        mkdir "$root/dev/pts" && ln -s pts/ptmx "$root/dev/ptmx"
        mount -t devpts -o newinstance,ptmxmode=666 none "$root/dev/pts"
        mount -t proc none "$root/proc"
        exec chroot "$root" /usr/bin/env -i HOME=/root PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
            DEBIAN_FRONTEND=noninteractive bash -euo pipefail -c "$steps"
    ' bash "$root" "$(declare -f "$2" common); common; $2" || status=$?
    rm -rf "$root"
    [ $status = 0 ] || fail "$2, in Debian $1"
    echo "$2, in Debian $1: good"
}

# What every way shares, in the chroot.
common() {
    fail() { echo "FAILED: $*" >&2; exit 1; }
    useradd --create-home ada
    # As ada, who has logged in since she was made a member of what she is a member of.
    as_ada() { setpriv --reuid ada --regid ada --init-groups env -i HOME=/home/ada PATH="$PATH" "$@"; }
    job() {
        as_ada "$@" run --memory 64M -- python3 -c 'held = bytearray(range(256)) * (400 << 10); print(sum(held[::4096]), len(held))'
    }
    # The job as ada by the program $1: right, and swapped.
    works() {
        local said
        said=$(job "$@" 2>&1) || fail "the job: $said"
        grep -qx '0 104857600' <<< "$said" || fail "its result: $said"
        grep -q '^pagetide: out [0-9]* k pages' <<< "$said" || fail "nothing was swapped: $said"
        as_ada "$@" doctor > /dev/null || fail "doctor: $(as_ada "$@" doctor)"
        # She watches a run, and has a page of it. The job goes on when something is written to the pipe.
        mkfifo /home/ada/go /home/ada/quiet
        as_ada "$@" run --quiet --memory 64M --report /home/ada/page.html --stats /home/ada/run.jsonl -- \
            python3 -c 'held = bytearray(range(256)) * (400 << 10); print("held", flush=True); input()' \
            <> /home/ada/go > /home/ada/said &
        until grep -qs held /home/ada/said; do kill -0 $! || fail "the job that waits: $(cat /home/ada/said)"; sleep 0.1; done
        local runs top
        runs=$(as_ada "$@" ps)
        top=$(as_ada TERM=xterm script -qc "stty rows 24 cols 80; timeout --foreground 3 $* top" /dev/null <> /home/ada/quiet || true)
        as_ada "$@" stat --json > /dev/null || fail "stat"
        echo > /home/ada/go
        wait $!
        rm /home/ada/go /home/ada/quiet /home/ada/said
        grep -q '64 MiB.*python3' <<< "$runs" || fail "ps: $runs"
        grep -q '64 MiB' <<< "$top" || fail "top: $top"
        as_ada "$@" report /home/ada/run.jsonl --output /home/ada/again.html || fail "report"
        cmp /home/ada/page.html /home/ada/again.html || fail "the pages differ"
        grep -q 'Memory over time' /home/ada/again.html || fail "the page: $(head -c 2000 /home/ada/again.html)"
    }
    # That she is told what would help.
    closed() {
        local said
        if said=$(job "$@" 2>&1); then fail "without permission: $said"; fi
        grep -q 'setup --user ada' <<< "$said" || fail "what it says without permission: $said"
    }
}

debian_package() {
    dpkg -i /root/pagetide_*.deb > /dev/null
    closed pagetide
    usermod --append --groups pagetide ada
    # udev does not run here; where it does, the package's rule does this.
    chgrp pagetide /dev/userfaultfd && chmod 660 /dev/userfaultfd
    works pagetide
    [ ! -e /home/ada/.cache ] || fail "the package's library was not used"
    # Its units and its rule are known to setup, which writes none of its own.
    pagetide setup --user ada > /dev/null
    [ ! -e /etc/udev/rules.d/60-pagetide.rules ] || fail "setup wrote the package's rule once more"
    # Installed over itself, then removed.
    dpkg -i /root/pagetide_*.deb > /dev/null
    gpasswd --delete ada pagetide > /dev/null
    dpkg --purge pagetide > /dev/null
    hash -r
    if getent group pagetide || command -v pagetide; then fail "the package left something"; fi
    left=$(find / -xdev -name '*pagetide*' -not -path '/root/*' -not -path '/proc/*' -not -path '/var/lib/dpkg/*' -not -path '/var/log/*')
    [ -z "$left" ] || fail "the package left $left"
}

archive() {
    tar -xf /root/pagetide-*.tar.gz -C /usr/local --strip-components=1
    closed pagetide
    pagetide setup --user ada
    works pagetide
    chmod 600 /dev/userfaultfd
    pagetide broker 2> /root/broker.log &
    local broker=$!
    trap 'kill $(jobs -p) 2> /dev/null || true' EXIT
    until [ -S /run/pagetide/broker.socket ]; do sleep 0.05; done
    works pagetide
    kill $broker
    pagetide setup --undo > /dev/null
    closed pagetide
}

wheel() {
    as_ada python3 -m venv /home/ada/env
    cp /root/*.whl /home/ada/
    as_ada /home/ada/env/bin/pip install --quiet --no-index /home/ada/pagetide-*.whl
    closed /home/ada/env/bin/pagetide
    /home/ada/env/bin/pagetide setup --user ada
    works /home/ada/env/bin/pagetide
    limit=$(as_ada /home/ada/env/bin/pagetide run -q -m 64M -- /home/ada/env/bin/python -c 'import pagetide; print(pagetide.limit())')
    [ "$limit" = 67108864 ] || fail "the module says $limit"
    as_ada /home/ada/env/bin/pip uninstall --quiet --yes pagetide
    [ ! -e /home/ada/env/bin/pagetide ] || fail "pip left the program"
}

for suite in bullseye bookworm; do
    in_fresh $suite debian_package
    in_fresh $suite archive
    in_fresh $suite wheel
done
echo "packages: all good"
