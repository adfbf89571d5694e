#!/bin/bash
# `pagetide setup`, the broker and `--undo` from a user's side, on a machine of their own: private mounts of /etc, /run and
# /dev. As root:  unshare --mount tests/setup.sh PAGETIDE     (everybody can read it, and the library beside it)
set -euo pipefail

pagetide=$1
ada=(setpriv --reuid 1 --regid 1 --clear-groups)      # `daemon`, as which nobody logs in
grace=(setpriv --reuid 2 --regid 2 --clear-groups)    # `bin`
job=(run --memory 64M -- /usr/bin/python3 -c 'held = bytearray(100 << 20); print(sum(held[::4096]))')

mount --make-rprivate /
etc=$(mktemp -d)
cp -a /etc/. "$etc"
mount --bind "$etc" /etc
number=$(stat -c '%Lr' /dev/userfaultfd 2>/dev/null || awk '$2 == "userfaultfd" { print $1 }' /proc/misc)
mount -t tmpfs -o mode=755 none /dev
mknod -m 666 /dev/null c 1 3
mknod -m 666 /dev/zero c 1 5
mknod -m 666 /dev/urandom c 1 9
mkdir -m 1777 /dev/shm
mknod -m 600 /dev/userfaultfd c 10 "$number"
mount -t tmpfs -o mode=755 none /run
trap 'kill $(jobs -p) 2>/dev/null; cd /; umount /etc; rm -rf "$etc"' EXIT

fail() { echo "FAILED: $*"; exit 1; }
said=
# The job as a user, its status and what it says.
try() { status=0; said=$("$@" "$pagetide" "${job[@]}" 2>&1) || status=$?; }

try "${ada[@]}"
[ $status = 125 ] || fail "without permission: $status: $said"
# In a container other lines help, and none of them is a command.
is_machine=no
if [ "$(readlink /proc/self/ns/pid)" = 'pid:[4026531836]' ] && [ -z "${container-}" ]; then
    is_machine=yes
fi
if [ $is_machine = yes ]; then
    grep -q "setup --user daemon" <<< "$said" || fail "it does not say what would help: $said"
fi
said=$("${ada[@]}" "$pagetide" setup 2>&1) && fail "setup by a user"
grep -q "sudo .* setup" <<< "$said" || fail "setup by a user: $said"
said=$("$pagetide" setup --user nosuchuser 2>&1) && fail "a user that is none"
grep -q 'there is no user "nosuchuser"' <<< "$said" || fail "a user that is none: $said"
if getent group pagetide; then fail "a group was made for a user that is none"; fi

"$pagetide" setup --user daemon
"$pagetide" setup --user daemon > /dev/null || fail "setup a second time"
[ "$(stat -c '%a %u %G' /dev/userfaultfd)" = "660 0 pagetide" ] || fail "the device: $(stat -c '%a %u %G' /dev/userfaultfd)"
[ "$(stat -c '%a %u' /etc/udev/rules.d/60-pagetide.rules)" = "644 0" ] || fail "the rule"
id -nG daemon | grep -qw pagetide || fail "no member"

# Who has logged in since then opens the device.
try "${ada[@]/--clear-groups/--groups=$(getent group pagetide | cut -d: -f3)}"
[ $status = 0 ] || fail "a member: $status: $said"
# Who has not asks the broker.
try "${ada[@]}"
[ $status = 125 ] || fail "no broker: $status: $said"
"$pagetide" broker 2> "$etc/broker.log" &
until [ -S /run/pagetide/broker.socket ]; do sleep 0.01; done
try "${ada[@]}"
[ $status = 0 ] || fail "by the broker: $status: $said"
grep -q "the cap of 64 MiB held" <<< "$said" || fail "the last lines: $said"
"${ada[@]}" "$pagetide" doctor | grep -q "^ok *userfaultfd: broker" || fail "doctor: $("${ada[@]}" "$pagetide" doctor)"
# A program that becomes another user has its launcher's permission.
status=0; said=$("$pagetide" run -m 64M -- "${grace[@]}" "${job[@]:4}" 2>&1) || status=$?
[ $status = 0 ] || fail "a program that changes its user: $status: $said"
try "${grace[@]}"
[ $status = 125 ] || fail "no member: $status: $said"
grep -q "this user is not in the group pagetide" <<< "$said" || fail "why not: $said"
# What somebody else put there is no device.
PAGETIDE_BROKER=/dev/null try "${grace[@]}"
[ $status = 125 ] || fail "a broker that is none: $status: $said"

# doctor --fix asks first.
status=0; said=$(echo n | "${grace[@]}" "$pagetide" doctor --fix) || status=$?
unchanged="nothing was changed"
[ $is_machine = yes ] || unchanged="no command mends that"
[ $status = 1 ] && grep -q "$unchanged" <<< "$said" || fail "doctor --fix, answered no: $status: $said"
status=0; said=$("$pagetide" doctor --fix < /dev/null) || status=$?
[ $status = 0 ] && grep -q "nothing to mend" <<< "$said" || fail "doctor --fix by root: $status: $said"

"$pagetide" setup --undo
[ "$(stat -c '%a %u %g' /dev/userfaultfd)" = "600 0 0" ] || fail "the device, undone"
if getent group pagetide || [ -e /etc/udev/rules.d/60-pagetide.rules ] || [ -e /run/pagetide ]; then fail "what setup made is still there"; fi
"$pagetide" setup --undo > /dev/null || fail "undone twice"
try "${ada[@]}"
[ $status = 125 ] || fail "undone: $status: $said"
# A missing node is made.
rm /dev/userfaultfd
"$pagetide" setup --user daemon > /dev/null
[ -c /dev/userfaultfd ] || fail "no node"
echo "setup: as it should be"
