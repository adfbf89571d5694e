//! Threads that answer faults, and the one that ends requests to the device.

use super::{Runtime, clock};
use crate::dump::board::{Activity, Kind, Seat};
use crate::engine::Workspace;
use crate::group::Field;
use crate::injection::Fault;
use crate::readers::Reader;
use pagetide_swap::PageIndex;
use pagetide_sys::{procfs, task, uffd};
use std::io::ErrorKind;
use std::sync::atomic::Ordering::Relaxed;

impl Runtime {
    /// Reads faults, and answers them.
    pub(super) fn serve_faults(&self, number: usize) {
        let mut work = Workspace::default();
        let mut reader = Reader::new(&self.readers, number);
        let seat = self.board.sit(Kind::Fault, number);
        loop {
            seat.idles(Activity::StandsBy);
            reader.take_seat();
            seat.idles(Activity::AwaitsFaults);
            match self.engine.memory().wait() {
                Ok(Some(fault)) => {
                    let since = clock();
                    let page = PageIndex::of_address(fault.address);
                    seat.now(Activity::Answers, page.0, since);
                    self.injection.strike(Fault::StallFault, Fault::PanicFault);
                    let memory = self.engine.memory();
                    // Other processes' threads stay where they are: noted is whether several fault.
                    if let Some(processor) = reader.note(fault.tid, since, |tid| self.processor_of(tid))
                        && !memory.is_shared()
                    {
                        // Woken in vain it faults again at once, over there.
                        memory.wake_at(fault.tid, processor, page);
                        memory.catch_up();
                        self.engine.waited(since);
                        continue;
                    }
                    self.engine.saw(fault.tid, since);
                    self.answer(page, fault, since, &mut work);
                    self.faults.fetch_add(1, Relaxed);
                    if self.engine.is_short() || self.engine.has_dead_frames() {
                        self.wakeup.if_sleeping();
                        self.reclaim_directly(&seat, &mut work);
                    }
                    memory.catch_up();
                }
                Ok(None) => self.help(&mut work),
                Err(error) if matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::WouldBlock) => {}
                // The descriptor is gone: nothing can be answered any more, which no code of ours does.
                Err(error) => {
                    task::say(&format!("reading faults failed: {error}"));
                    task::kill_self();
                }
            }
        }
    }

    /// Returns the processor that a thread ran on last whose fault was read. `None` for one of another namespace, which
    /// tells its own number of it.
    fn processor_of(&self, tid: u32) -> Option<usize> {
        if !self.engine.memory().is_shared() {
            return procfs::processor_of(tid);
        }
        let own = self.slot.get(Field::Namespace);
        let knows_all = self.group.live().all(|slot| slot.get(Field::Namespace) == own);
        knows_all.then(|| procfs::processor_of_any(tid)).flatten()
    }

    /// Finds where the only thread that faults runs now.
    pub(super) fn follow_faults(&self) {
        self.readers.follow(|tid| self.processor_of(tid));
    }

    /// Makes room for faults that wait for it, beside the reclaim thread: whoever reads faults would only wait, too.
    fn reclaim_directly(&self, seat: &Seat, work: &mut Workspace) {
        if self.engine.waiting() > 0 && self.pause.try_spare_work() {
            seat.now(Activity::Reclaims, 0, clock());
            if self.engine.memory().is_shared() {
                // Before anything is taken out, as the reclaim thread does.
                self.look_for_pins();
            }
            self.engine.reclaim_directly(work);
            self.pause.end_work();
        }
    }

    /// Answers faults that wait for room, beside the reclaim thread.
    fn help(&self, work: &mut Workspace) {
        if self.engine.waiting() > 0 && self.pause.try_work(0) {
            self.engine.retry_waiting(work);
            self.pause.end_work();
            if self.engine.is_short() {
                self.wakeup.if_sleeping();
            }
        }
    }

    /// Answers a fault, or leaves it parked for whoever can: that which was read at `since`, whoever reads faults.
    fn answer(&self, page: PageIndex, fault: uffd::Fault, since: u64, work: &mut Workspace) {
        let answer = |work: &mut Workspace| match fault.protected && !self.engine.memory().is_shared() {
            true => self.engine.write_fault(page, since),
            false => self.engine.fault(page, fault.write, since, work),
        };
        if self.engine.is_unsharing(fault.tid) {
            // Frozen or not: that thread's work is what a freeze waits for.
            self.pause.begin_completion();
            answer(work);
            self.pause.end_completion();
        } else if self.rests() && !self.group.is_crossing() {
            // (Pages that such a call has pinned are in others' way.)
            self.engine.rest(page, fault.write);
        } else if self.pause.try_work(fault.tid) {
            answer(work);
            self.pause.end_work();
        } else {
            self.engine.park(page, fault.write, since);
        }
    }

    /// Ends requests to the device as they come back.
    pub(super) fn complete_io(&self) {
        let mut work = Workspace::default();
        let mut done = Vec::new();
        let seat = self.board.sit(Kind::Io, 0);
        let device = self.engine.device().expect("the thread is started for a device");
        loop {
            seat.now(Activity::AwaitsRequests, 0, clock());
            device.wait(&mut done);
            seat.now(Activity::EndsRequests, done.len() as u64, clock());
            self.injection.strike(Fault::StallIo, Fault::PanicIo);
            self.pause.begin_completion();
            self.engine.complete(&mut done, &mut work);
            self.pause.end_completion();
            self.wakeup.if_sleeping();
            self.engine.memory().catch_up();
        }
    }
}
