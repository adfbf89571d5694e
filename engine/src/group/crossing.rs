//! Cross-memory attach (`process_vm_readv`, `process_vm_writev`): calls for which the kernel pins pages of another
//! process, or of the caller's own, without a descriptor that tells of it.
//!
//! Up to 1024 pages are pinned while the kernel copies, and it may wait for pages of the caller meanwhile. A page that
//! left by its page table would take the pin along: what the kernel writes then would be lost, and what it reads another
//! page's. So a caller says in its slot that it crosses, and then waits for the take-outs under way, in all processes; a
//! take-out says in its process's slot that it has begun, and then looks for callers. One of the two sees the other.

use super::layout::Header;
use super::{Field, Group, ProcessSlot};
use std::sync::atomic::{Ordering::Relaxed, Ordering::SeqCst};
use std::time::{Duration, Instant};

/// Between looks at a take-out that is waited for.
const STEP: Duration = Duration::from_micros(100);
/// A take-out that takes this long may be that of a thread that is stopped.
const LATE: Duration = Duration::from_millis(5);
/// For so long a call waits that take-outs have their turn, where others have called all the time.
const TURN: Duration = Duration::from_millis(1);

impl Group {
    /// Notes that the process of a slot is about to make such a call, and waits until no page leaves any more in a way that takes
    /// pinned ones along. Signals are to be blocked until [`Group::end_crossing`].
    pub fn begin_crossing(&self, own: ProcessSlot) {
        let (refused, since) = (&self.header[Header::TakingRefused as usize], Instant::now());
        while refused.load(Relaxed) != 0 && since.elapsed() < TURN {
            std::thread::sleep(STEP);
        }
        // They have had their turn, or need none any more.
        refused.store(0, Relaxed);
        own.word(Field::Crossing).fetch_add(1, SeqCst);
        self.live().for_each(Self::await_taking);
    }

    /// Waits for the take-outs under way in a process. Not where its engine is stopped, perhaps by the caller, who is its tracer, or
    /// was ended by an exec: it moves nothing before it goes on.
    fn await_taking(slot: ProcessSlot) {
        let is_under_way = || slot.get(Field::Taken) != 0 && slot.word(Field::Taking).load(SeqCst) != 0;
        let mut since = Instant::now();
        for _ in 0..64 {
            if !is_under_way() {
                return;
            }
            std::thread::yield_now();
        }
        while is_under_way() {
            std::thread::sleep(STEP);
            if since.elapsed() > LATE {
                if slot.process().engine_is_held() {
                    return;
                }
                since = Instant::now();
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
        let may = self.may_take();
        if !may {
            taking.fetch_sub(1, SeqCst);
        }
        may
    }

    /// Returns whether no process makes such a call just now. Where one does, the next ones wait a moment.
    pub fn may_take(&self) -> bool {
        let (crossed, refused) = (self.is_crossing(), &self.header[Header::TakingRefused as usize]);
        if crossed != (refused.load(Relaxed) != 0) {
            refused.store(crossed.into(), Relaxed);
        }
        !crossed
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
        let [own, other] = [0, 1].map(|_| group.claim(Identity::own()).unwrap());
        assert!(group.begin_taking(other) && group.begin_taking(own));
        let crosses = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let cross = || {
                group.begin_crossing(own);
                crosses.store(true, Relaxed);
            };
            // A thread of an engine, by its name, which is not stopped.
            let name = "pagetide-crosses".to_owned();
            std::thread::Builder::new().name(name).spawn_scoped(scope, cross).unwrap();
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
        // A process that is killed amid either has nobody wait for ever, nor has one whose threads are gone.
        group.release([own]);
        let without = group.claim(Identity { pid: u32::MAX, ..Identity::own() }).unwrap();
        assert!(group.begin_taking(without));
        group.begin_crossing(other);
        group.release([without]);
        group.release([other]);
        assert!(!group.is_crossing());
        let again = group.claim(Identity::own()).unwrap();
        assert!(group.begin_taking(again) && !group.is_crossing());
    }
}
