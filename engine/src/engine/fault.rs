//! Faults: each is answered, or parked until it can be.

use super::wait_list::Parked;
use super::{Engine, Workspace};
use crate::memory::{Memory, PageSet};
use crate::regions::Access;
use pagetide_swap::streams::{AHEAD_MAX, Look};
use pagetide_swap::trace::{Event, Found};
use pagetide_swap::{Counter, PageIndex, Source, Swapin, Window};
use std::sync::PoisonError;
use std::sync::atomic::{Ordering::Relaxed, Ordering::SeqCst};

impl<M: Memory> Engine<M> {
    /// Answers a fault at `page`, or leaves it parked for a thread that can answer it later. `since` is the time of the
    /// engine's clock at which the fault was read.
    pub fn fault(&self, page: PageIndex, write: bool, since: u64, work: &mut Workspace) {
        // Held until the pages are claimed: a mapping call that removes the region then waits for the claim,
        // and no fault claims a page of a mapping that is moving.
        let regions = self.regions.read().unwrap_or_else(PoisonError::into_inner);
        let Some((around, attributes)) = regions.around(page) else {
            // Not ours (any more): the kernel decides when the thread looks again.
            drop(regions);
            self.memory.wake(page, 1);
            self.waited(since);
            return;
        };
        // What a forking thread touches at last, that page and no more: staging is empty and stays so.
        let held = self.parked.held.load(SeqCst);
        let look = if held { Look::default() } else { self.streams.look(page) };
        let found = self.swap.swapin(page, around, look.announced.unwrap_or(look.window));
        drop(regions);
        match found {
            Swapin::Present => {
                // Usually mapped since the thread faulted. But a system call that nobody told us of may
                // have dropped the page: then it is a hole, and the thread faults again.
                let absent = || !self.memory.presence(page..page.plus(1)).present.contains(page.offset());
                if self.swap.lost(page, absent) {
                    self.charge(page.cluster(), PageSet::range(page.offset()..page.offset() + 1));
                    self.budget.give(1);
                }
                self.memory.wake(page, 1);
                self.waited(since);
            }
            Swapin::Pending => {
                self.join(page, since);
                if look.announced.is_some() {
                    // The call has caught up with what came in with an earlier page.
                    self.bring_announced(look.called(page), None, write, work);
                } else if !held && let Some(ahead) = self.streams.caught_up(page) {
                    let window = Window::ahead((ahead.end.0 - page.0) as usize);
                    let stop = page.plus(self.swap.reach_ahead(window) as u64);
                    let end = self.read_on(ahead.start, stop, write, work);
                    self.streams.went_on(page, end);
                }
            }
            Swapin::Poisoned => {
                self.poison(page, None);
                self.waited(since);
            }
            Swapin::Inserted(transfer) => {
                let from = found_in(transfer.source);
                self.note(|| Event::Access { page, write, from });
                let writable = attributes.access == Access::Write;
                self.bring_with(transfer, look, write, since, writable, work);
            }
        }
    }

    /// Reads pages from `next` on that nobody has asked for, up to `stop`, as long as there is room and nobody waits.
    /// What lies on the device arrives piece by piece, each mapped while the next is read. Returns the first page that
    /// was not asked for.
    pub(super) fn read_on(
        &self,
        mut next: PageIndex,
        stop: PageIndex,
        write: bool,
        work: &mut Workspace,
    ) -> PageIndex {
        while next < stop && self.may_read_ahead() {
            let regions = self.regions.read().unwrap_or_else(PoisonError::into_inner);
            let Some((around, attributes)) = regions.around(next) else { break };
            let window = Window::ahead((stop.0 - next.0) as usize);
            let found = self.swap.swapin(next, next..around.end, window);
            drop(regions);
            let Swapin::Inserted(mut transfer) = found else { break };
            transfer.ahead = true;
            let end = transfer.pages().end;
            match transfer.source {
                Source::Zero => {
                    let moves = !self.maps_zero_page(next, write) && attributes.access == Access::Write;
                    if !moves || !self.bring_by_move(&transfer, work) {
                        if !self.budget.try_take(transfer.length) {
                            self.release(&transfer);
                            break;
                        }
                        self.bring_zeroes(&transfer, write);
                    }
                }
                Source::Device { block } if self.budget.try_take(transfer.length) => {
                    if !self.read(transfer, block, false, 0) {
                        break;
                    }
                }
                _ => {
                    self.release(&transfer);
                    break;
                }
            }
            next = end;
        }
        next
    }

    /// Returns whether pages may be read that nobody waits for.
    pub(super) fn may_read_ahead(&self) -> bool {
        self.requests() < AHEAD_MAX
            && self.waiting() == 0
            && self.parked.refused() == 0
            && !self.parked.held.load(SeqCst)
    }

    /// Leaves a fault parked until [`Engine::retry_waiting`].
    pub fn park(&self, page: PageIndex, write: bool, since: u64) {
        self.park_window(page, write, since, 1);
    }

    /// Leaves a fault parked that would bring in `wants` pages.
    pub(super) fn park_window(&self, page: PageIndex, write: bool, since: u64, wants: usize) {
        self.count(Counter::allocstall, 1);
        self.meters.stalled.fetch_add(1, Relaxed);
        self.parked.push(Parked { page, write, since, parked: self.now(), wants });
    }

    /// Leaves a fault parked until a request has ended: the device has too much to do.
    pub(super) fn park_for_device(&self, page: PageIndex, write: bool, since: u64) {
        self.count(Counter::allocstall, 1);
        self.meters.stalled.fetch_add(1, Relaxed);
        self.requests.refuse();
        self.parked.refuse(Parked { page, write, since, parked: self.now(), wants: 1 });
    }

    /// Answers the faults for which the device had too much to do, also while others are held back: a fork may wait for
    /// one of them, and nobody waits for room. To be called when the device has ended something, or may take more.
    pub(super) fn retry_refused(&self, work: &mut Workspace) {
        // Each once: what is refused again waits again, behind the others.
        for _ in 0..self.parked.refused() {
            let Some(Parked { page, write, since, parked, .. }) = self.parked.pop_refused() else { return };
            // A fork waits for it, as for the request that it now leads to.
            let _again = self.requests.refused_again();
            self.meters.stalled.fetch_sub(1, Relaxed);
            self.swap.counters().add(Counter::parked_ns, self.now().saturating_sub(parked));
            self.fault(page, write, since, work);
        }
    }

    /// Leaves a fault parked until [`Engine::end_rest`], however much room there is: the process makes way for others.
    pub fn rest(&self, page: PageIndex, write: bool) {
        let now = self.now();
        self.parked.rest(Parked { page, write, since: now, parked: now, wants: 1 });
    }

    /// Has the faults that rest wait for room only, for [`Engine::retry_waiting`] to answer. Returns whether there were
    /// any. The time of their rest is counted apart from that for which they wait for memory.
    pub fn end_rest(&self) -> bool {
        let count = self.parked.end_rest(self.now(), |since| {
            self.rested(since);
            self.meters.stalled.fetch_add(1, Relaxed);
        });
        count > 0
    }

    /// Holds the faults that wait back, while a fork is under way, or lets them go.
    pub fn hold_waiting(&self, on: bool) {
        self.parked.held.store(on, SeqCst);
    }

    /// Answers waiting faults although the budget is spent: for a process that has next to nothing in
    /// memory, whose charge is mostly what it may come to copy of its parent's.
    pub fn overdraw(&self, work: &mut Workspace) {
        self.parked.overdrawing.store(true, SeqCst);
        self.retry_waiting(work);
        self.parked.overdrawing.store(false, SeqCst);
    }

    /// Answers all faults that wait, also while they are held back and there is no room: a fork waits for those
    /// threads, which may have locks that it needs.
    pub fn answer_waiting(&self, work: &mut Workspace) {
        debug_assert!(self.cannot_wait(), "a fault that waits again would wait for the end of the fork");
        self.retry_refused(work);
        for _ in 0..self.waiting() {
            let Some(Parked { page, write, since, .. }) = self.parked.pop() else { return };
            self.meters.stalled.fetch_sub(1, Relaxed);
            self.answer_parked(page, write, since, work);
        }
    }

    /// Answers a fault that was parked. A write may have been stopped: then it is the page's charge that is waited for.
    fn answer_parked(&self, page: PageIndex, write: bool, since: u64, work: &mut Workspace) {
        match write && self.is_borrowed(page) {
            true => self.write_fault(page, since),
            false => self.fault(page, write, since, work),
        }
    }

    /// Has faults that waited for room answered, by another thread if there is one: whoever reclaims has other work.
    pub fn have_waiting_retried(&self, work: &mut Workspace) {
        if self.waiting() > 0 && !self.memory.ring() {
            self.retry_waiting(work);
        }
    }

    /// Answers faults that waited for room, or for the device. To be called when there is some.
    pub fn retry_waiting(&self, work: &mut Workspace) {
        if !self.parked.held.load(SeqCst) {
            self.retry_refused(work);
        }
        // Each is tried once a call: what finds no room waits again, behind the others.
        for _ in 0..self.waiting() {
            let overdrawing = self.parked.overdrawing.load(SeqCst) || self.memory.is_crossed();
            if (self.budget.free() <= 0 && !overdrawing) || self.parked.held.load(SeqCst) {
                return;
            }
            let Some(Parked { page, write, since, parked, .. }) = self.parked.pop() else { return };
            self.meters.stalled.fetch_sub(1, Relaxed);
            self.swap.counters().add(Counter::parked_ns, self.now().saturating_sub(parked));
            self.answer_parked(page, write, since, work);
        }
    }

    /// Returns whether a fault must be answered though there is no room. The forking thread's own: nobody would retry
    /// it before the fork, which waits for it. Or reclaim's: nobody else makes room. Or while nothing may be taken out.
    pub(super) fn cannot_wait(&self) -> bool {
        self.parked.held.load(SeqCst)
            || self.parked.overdrawing.load(SeqCst)
            || self.unsharing.thread.load(SeqCst) != 0
            || self.memory.is_crossed()
    }
}

fn found_in(source: Source) -> Found {
    match source {
        Source::Hole => Found::Hole,
        Source::Frames { .. } => Found::Probation,
        Source::Zero => Found::Same,
        Source::Memory => Found::Pool,
        Source::Device { .. } => Found::Device,
    }
}
