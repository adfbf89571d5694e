//! Cross-memory attach (`process_vm_readv`, `process_vm_writev`): calls for which the kernel pins pages of another
//! process, or of the caller's own, without a descriptor that tells of it.
//!
//! Up to 1024 pages are pinned while the kernel copies, and it may wait for pages of the caller meanwhile. A page that
//! left by its page table would take the pin along: what the kernel writes then would be lost, and what it reads another
//! page's. So a caller says in its slot that it crosses, and then waits for the take-outs under way, in all processes; a
//! take-out says in its process's slot that it has begun, and then looks for callers. One of the two sees the other.

use super::{Field, Group, ProcessSlot};
use std::sync::atomic::Ordering::SeqCst;

impl Group {
    /// Notes that the process of a slot is about to make such a call, and waits until no page leaves any more in a way that takes
    /// pinned ones along.
    pub fn begin_crossing(&self, own: ProcessSlot) {
        own.word(Field::Crossing).fetch_add(1, SeqCst);
        for slot in self.live() {
            // One that is killed meanwhile loses its slot.
            while slot.get(Field::Taken) != 0 && slot.word(Field::Taking).load(SeqCst) != 0 {
                std::thread::yield_now();
            }
        }
    }

    /// Notes that such a call has ended.
    pub fn end_crossing(&self, own: ProcessSlot) {
        own.word(Field::Crossing).fetch_sub(1, SeqCst);
    }

    /// Returns whether a process of the run makes such a call just now.
    pub fn is_crossing(&self) -> bool {
        self.live().any(|slot| slot.word(Field::Crossing).load(SeqCst) != 0)
    }

    /// Begins a take-out that would take pinned pages along, for which such calls wait until it has ended. Returns false,
    /// with nothing begun, while one is under way.
    pub fn begin_taking(&self, own: ProcessSlot) -> bool {
        let taking = own.word(Field::Taking);
        taking.fetch_add(1, SeqCst);
        let may = !self.is_crossing();
        if !may {
            taking.fetch_sub(1, SeqCst);
        }
        may
    }

    /// Ends a take-out that has begun.
    pub fn end_taking(&self, own: ProcessSlot) {
        own.word(Field::Taking).fetch_sub(1, SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::super::Setup;
    use super::*;
    use pagetide_sys::procfs::Identity;
    use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

    #[test]
    fn a_call_waits_for_take_outs_and_no_other_begins_before_it_has_ended() {
        let (_fd, group) = Group::create(Setup::new(1000, Identity::own())).unwrap();
        let [own, other] = [1, 2].map(|pid| group.claim(Identity { pid, ..Identity::own() }).unwrap());
        assert!(group.begin_taking(other) && group.begin_taking(own));
        let crosses = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                group.begin_crossing(own);
                crosses.store(true, Relaxed);
            });
            while !group.is_crossing() {
                std::thread::yield_now();
            }
            assert!(!group.begin_taking(own) && !group.begin_taking(other));
            group.end_taking(own);
            std::thread::yield_now();
            assert!(!crosses.load(Relaxed), "a take-out of another process is under way");
            group.end_taking(other);
        });
        group.begin_crossing(other);
        group.end_crossing(own);
        assert!(!group.begin_taking(own), "another call is under way");
        group.end_crossing(other);
        assert!(group.begin_taking(own));
        // A process that is killed amid either has nobody wait for ever.
        group.release([own]);
        group.begin_crossing(other);
        group.release([other]);
        assert!(!group.is_crossing());
        let again = group.claim(Identity::own()).unwrap();
        assert!(group.begin_taking(again) && !group.is_crossing());
    }
}
