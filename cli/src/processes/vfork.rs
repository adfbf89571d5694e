//! Children of `vfork`: until they call `exec` they run in the memory of their parents.

use pagetide::group::{Field, Group, SLOTS};
use pagetide_sys::task;
use std::collections::HashSet;

/// The processes of a run that have a slot, if that tells who was forked: a fork takes a slot for its child, `vfork`
/// does not.
#[derive(Debug, Default)]
pub(crate) struct Forked(Option<HashSet<u32>>);

impl Forked {
    /// Reads the slots of a run. Call it after the processes are known of which is asked.
    pub(crate) fn of(group: &Group) -> Self {
        let mut pids = HashSet::new();
        for slot in group.live() {
            match slot.get(Field::KnownAs) {
                // The launcher does not know yet whose it is.
                0 => return Self(None),
                pid => _ = pids.insert(pid as u32),
            }
        }
        // With all of them taken a child that was forked has none.
        Self(Some(pids).filter(|pids| pids.len() < SLOTS))
    }

    /// Returns whether a process has a slot.
    pub(crate) fn have(&self, pid: u32) -> bool {
        self.0.as_ref().is_some_and(|pids| pids.contains(&pid))
    }

    /// Returns whether a process that has not called `exec` runs in the memory of its parent; `None` if nobody can tell. The
    /// kernel does, unless it lacks `kcmp` or a seccomp filter forbids that (Docker's, without CAP_SYS_PTRACE).
    pub(crate) fn borrows(&self, pid: u32, parent: u32) -> Option<bool> {
        let by_slots = || self.have(parent).then(|| !self.have(pid));
        task::share_memory(pid, parent).ok().or_else(by_slots)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::group;
    use pagetide_sys::procfs::Identity;

    #[test]
    fn slots_tell_forks_from_vforks() {
        let (_fd, group) = group(1000);
        let claim = |pid: u32| {
            let slot = group.claim(Identity { pid, ..Identity::own() }).unwrap();
            slot.set(Field::KnownAs, pid.into());
            slot
        };
        // Of such pids the kernel knows nothing.
        let [parent, forked, other] = [1 << 30, (1 << 30) + 1, (1 << 30) + 2];
        claim(parent);
        claim(forked);
        let known = Forked::of(&group);
        assert_eq!([forked, other].map(|pid| known.borrows(pid, parent)), [Some(false), Some(true)]);
        assert_eq!(known.borrows(other, other + 1), None, "its parent has no slot either");
        claim(other).set(Field::KnownAs, 0);
        assert_eq!(Forked::of(&group).borrows(other, parent), None, "a fork is under way");
        let own = std::process::id();
        assert_eq!(Forked::default().borrows(own, own), Some(true), "the kernel tells");
    }
}
