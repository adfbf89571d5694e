//! Children of `vfork`: until they call `exec` they run in the memory of their parents.

use pagetide::group::{Field, Group};
use pagetide_sys::procfs::{self, Stat};
use pagetide_sys::task;
use std::collections::HashSet;
use std::time::Duration;

/// The time for which a child of `vfork` may be one: it calls `exec` soon, for its parent waits for that.
const YOUNG: Duration = Duration::from_secs(2);

/// The processes of a run that have a slot, if that tells who was forked: a fork takes a slot for its child, `vfork`
/// does not. In a run that never had as many processes as there are slots, that is.
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
        Self(Some(pids).filter(|_| !group.was_full()))
    }

    /// Returns whether a process has a slot.
    pub(crate) fn have(&self, pid: u32) -> bool {
        self.0.as_ref().is_some_and(|pids| pids.contains(&pid))
    }

    /// Returns whether a process that has not called `exec` runs in the memory of its parent; `None` if nobody can tell. The
    /// kernel does, unless it lacks `kcmp` or a seccomp filter forbids that (Docker's, without CAP_SYS_PTRACE).
    pub(crate) fn borrows(&self, pid: u32, stat: Stat) -> Option<bool> {
        let is_young = || procfs::age(stat.start_time).is_some_and(|age| age < YOUNG);
        task::share_memory(pid, stat.parent).ok().or_else(|| self.says(pid, stat.parent, is_young))
    }

    /// The same by the slots alone.
    fn says(&self, pid: u32, parent: u32, is_young: impl FnOnce() -> bool) -> Option<bool> {
        match (self.have(parent), self.have(pid)) {
            (false, _) => None,
            (true, true) => Some(false),
            (true, false) => is_young().then_some(true),
        }
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
        let [parent, forked, other] = [1 << 30, (1 << 30) + 1, (1 << 30) + 2];
        claim(parent);
        claim(forked);
        let known = Forked::of(&group);
        assert_eq!([forked, other].map(|pid| known.says(pid, parent, || true)), [Some(false), Some(true)]);
        assert_eq!(known.says(other, parent, || false), None, "it has not called exec for long");
        assert_eq!(known.says(other, other + 1, || true), None, "its parent has no slot either");
        claim(other).set(Field::KnownAs, 0);
        assert_eq!(Forked::of(&group).says(other, parent, || true), None, "a fork is under way");
        let (own, stat) = (std::process::id(), Stat::of("self").unwrap());
        assert_eq!(
            Forked::default().borrows(own, Stat { parent: own, ..stat }),
            Some(true),
            "the kernel tells"
        );
        while group.claim(Identity::own()).is_some() {}
        group.release([group.slot(0)]);
        assert_eq!(Forked::of(&group).says(other, parent, || true), None, "some had no slot");
    }
}
