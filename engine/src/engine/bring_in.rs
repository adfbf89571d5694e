//! Bringing in: pages come from the pool, from frames, from the device, or as zeroes.

use super::requests::{Ended, Pending};
use super::{Engine, Workspace, lock};
use crate::mask::Mask;
use crate::memory::{MapError, Mapped, Memory, PageSet, StagingSlot};
use pagetide_device::{Buffer, Completion, Direction, Request};
use pagetide_swap::streams::Look;
use pagetide_swap::swap::MapConflict;
use pagetide_swap::{Counter, LoadError, PAGE_SIZE, PageIndex, Scratch, Source, Transfer};
use std::ops::Range;
use std::sync::PoisonError;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

/// Runs of at least this many pages come in by MOVE into frames; shorter ones by COPY, which needs no
/// frame and interrupts no other processor.
const MOVE_RUN_MIN: usize = 8;

/// One page in so many keeps its copy although copies are not worth it just now.
const COPY_SAMPLE: u64 = 16;

impl<M: Memory> Engine<M> {
    /// Brings in the page that a fault waits for, and what comes in with it.
    pub(super) fn bring_with(
        &self,
        transfer: Transfer,
        look: Look,
        write: bool,
        since: u64,
        writable: bool,
        work: &mut Workspace,
    ) {
        let (page, source) = (transfer.demanded(), transfer.source);
        let called = look.called(page);
        // The thread sleeps while the device reads: then its own page is asked for first.
        let is_device = matches!(source, Source::Device { .. });
        if look.announced.is_some() && !is_device {
            self.bring_announced(called.clone(), Some(&transfer), write, work);
        }
        let Some(mut pages) = self.bring_in(transfer, write, since, writable, work) else {
            // When it is tried again, its window is looked up again.
            return;
        };
        if self.parked.held.load(SeqCst) {
            return;
        }
        let is_placed = !matches!(source, Source::Hole | Source::Frames { .. });
        let mut ahead = pages.end.0 - pages.start.0 - 1;
        if look.announced.is_some() {
            if is_device {
                self.bring_announced(called.clone(), Some(&transfer), write, work);
            }
            // The call touches them. So they are counted here, and no scan has to pass them.
            self.count(Counter::swap_ra_hit, if is_placed { ahead as usize } else { 0 });
            (pages.end, ahead) = (called.end, 0);
        } else if is_device || source == Source::Zero {
            let stop = page.plus(1 + self.swap.reach(page, source, look.window).after as u64);
            let end = self.read_on(pages.end, stop, write, work);
            ahead += end.0 - pages.end.0;
            pages.end = end;
        }
        self.count(Counter::swap_ra_hit, look.passed);
        self.streams.brought_in(page, look, pages, is_placed.then_some(ahead as usize));
    }

    /// Brings a transfer in, or as much of it as there is room for. Returns the pages that came in, or are being read;
    /// `None` if the fault is parked.
    pub(super) fn bring_in(
        &self,
        mut transfer: Transfer,
        write: bool,
        since: u64,
        writable: bool,
        work: &mut Workspace,
    ) -> Option<Range<PageIndex>> {
        if let Source::Frames { slot } = transfer.source {
            self.bring_from_frames(&transfer, slot, writable);
            self.answered(since);
            return Some(transfer.pages());
        }
        if self.bring_long_run(&transfer, write, writable, work) {
            self.answered(since);
            return Some(transfer.pages());
        }
        let wants = transfer.length;
        let share = if wants > 1 { self.share_of_room(wants) } else { 1 };
        let taken = self.budget.take_up_to(share);
        self.narrow(&mut transfer, taken.max(1));
        if taken == 0 {
            if !self.cannot_wait() {
                self.swap.finish_swapin(&transfer, 0, true);
                self.park_window(transfer.first, write, since, wants);
                return None;
            }
            self.budget.take(1);
        }
        let pages = transfer.pages();
        match transfer.source {
            Source::Hole | Source::Zero => self.bring_zeroes(&transfer, write),
            Source::Memory => self.bring_loaded(transfer, work),
            Source::Device { block } => {
                return self.read(transfer, block, write, since).then_some(pages);
            }
            Source::Frames { .. } => unreachable!("handled above"),
        }
        self.answered(since);
        Some(pages)
    }

    /// The pages of `wants` that one fault may take of those that are free: as many as each of those that wait.
    pub(super) fn share_of_room(&self, wants: usize) -> usize {
        let free = self.budget.free().max(1) as usize;
        (free / (self.waiting() + 1)).clamp(1, wants)
    }

    /// Lets go of pages of a transfer beyond so many, but never of the one that is waited for.
    pub(super) fn narrow(&self, transfer: &mut Transfer, pages: usize) {
        transfer.narrow(pages, |rest| self.release(rest));
    }

    /// Lets go of a transfer's pages.
    pub(super) fn release(&self, transfer: &Transfer) {
        let end = || {
            let wanted = self.swap.finish_swapin(transfer, 0, true);
            self.wake_wanted(transfer, wanted);
            self.end_waits(transfer.pages());
        };
        match transfer.source {
            Source::Frames { slot } => self.let_go(slot, end),
            _ => end(),
        }
    }

    /// Faults that wait for pages which were not brought in after all look again.
    pub(super) fn wake_wanted(&self, transfer: &Transfer, wanted: u64) {
        for nth in 0..transfer.length {
            if wanted >> nth & 1 == 1 {
                self.memory.wake(transfer.first.plus(nth as u64), 1);
            }
        }
    }

    pub(super) fn load(
        &self,
        transfer: &Transfer,
        into: &mut [u8],
        scratch: &mut Scratch,
    ) -> (usize, Option<LoadError>) {
        for (nth, page) in into.chunks_exact_mut(PAGE_SIZE).take(transfer.length).enumerate() {
            if let Err(error) = self.swap.load(transfer, nth, page, scratch) {
                return (nth, Some(error));
            }
        }
        (transfer.length, None)
    }

    /// Brings in a transfer from the pool that was paid for.
    pub(super) fn bring_loaded(&self, mut transfer: Transfer, work: &mut Workspace) {
        work.make_room(transfer.length);
        let Workspace { pages, scratch, .. } = work;
        let (mut loaded, mut error) = self.load(&transfer, pages, scratch);
        if loaded <= transfer.demand && transfer.length > 1 && !transfer.ahead {
            // One of the neighbours is damaged: that is for whoever wants it.
            self.budget.give(transfer.length as i64 - 1);
            self.narrow(&mut transfer, 1);
            (loaded, error) = self.load(&transfer, pages, scratch);
        }
        self.map_loaded(&transfer, loaded, error, pages);
    }

    /// Maps the first `loaded` pages of a transfer for whose whole length was paid.
    fn map_loaded(&self, transfer: &Transfer, loaded: usize, error: Option<LoadError>, bytes: &[u8]) {
        if loaded == 0 {
            self.budget.give(transfer.length as i64);
            return match error.expect("a load that stopped has a reason") {
                // Nobody has asked for it: what is lost is lost to whoever does, and the device may read it later. What is
                // damaged on a device that goes out of use is never read again.
                error if transfer.ahead && (matches!(error, LoadError::Io(_)) || !self.is_swapped_off()) => {
                    self.count_error(error);
                    self.release(transfer);
                }
                error if transfer.length == 1 => self.fail(transfer, error),
                _ => self.release(transfer),
            };
        }
        let mapped = self.memory.copy_in(transfer.first, &bytes[..loaded * PAGE_SIZE]);
        self.conclude(transfer, mapped, transfer.length);
    }

    /// Returns whether stored copies of pages that come in are kept.
    fn keeps_copies(&self, transfer: &Transfer) -> bool {
        match transfer.source {
            Source::Memory => {
                // As long as the pool has room: these copies are the first to go when it has not.
                // Some are kept in any case, to see what becomes of them.
                let keep = self.copies_kept.load(Relaxed) || transfer.first.0.is_multiple_of(COPY_SAMPLE);
                keep && !self.swap.zswap().is_nearly_full()
            }
            Source::Device { .. } => {
                self.can_write() && self.swap.blocks().used() * 2 < self.swap.blocks().limit()
            }
            _ => false,
        }
    }

    /// Ends a transfer for which `paid` pages were taken from the budget.
    pub(super) fn conclude(&self, transfer: &Transfer, mapped: Mapped, paid: usize) {
        let (keep, met) = (self.keeps_copies(transfer), met(transfer, mapped));
        let wanted = self.swap.finish_swapin_at(transfer, mapped.pages, keep, met);
        self.memory.wake_late(transfer.first, mapped.pages);
        self.budget.give((paid - mapped.pages) as i64);
        self.charge_pool();
        if let Some(error) = mapped.error {
            let page = transfer.first.plus(mapped.pages as u64);
            if error == MapError::Exists {
                self.budget.take(1);
                let found = self.memory.presence(page..page.plus(1));
                self.zero_pages.come(found.zero.len());
            } else if error == MapError::NoMemory && mapped.pages == 0 {
                // The machine is out of memory for a moment: the thread faults again.
                std::thread::yield_now();
            }
            self.memory.wake(page, 1);
        }
        if !transfer.ahead && transfer.demand >= mapped.pages {
            self.memory.wake(transfer.demanded(), 1);
        }
        self.wake_wanted(transfer, wanted);
        self.end_waits(transfer.pages());
    }

    fn count_error(&self, error: LoadError) {
        let counter = match error {
            LoadError::Io(_) => Counter::read_error,
            LoadError::Decompress | LoadError::Hash => Counter::decompress_fail,
        };
        self.count(counter, 1);
    }

    fn fail(&self, transfer: &Transfer, error: LoadError) {
        self.count_error(error);
        self.swap.fail_swapin(transfer);
        self.poison(transfer.first, Some(error));
        self.end_waits(transfer.pages());
    }

    pub(super) fn poison(&self, page: PageIndex, error: Option<LoadError>) {
        if let Some(error) = error {
            let regions = self.regions.read().unwrap_or_else(PoisonError::into_inner);
            let whole = PageIndex(0)..PageIndex(u64::MAX);
            let place = regions.pieces(whole).find(|(part, _)| part.contains(&page)).map(|(part, _)| {
                let (start, end) = (part.start.address(), part.end.address());
                format!(" (offset {:#x} in the mapping {start:#x}-{end:#x})", page.address() - start)
            });
            drop(regions);
            pagetide_sys::task::say(&format!(
                "the page at {:#x}{} is lost: {error}; an access to it gets SIGBUS",
                page.address(),
                place.unwrap_or_default()
            ));
        }
        // Unless the program has dropped the page meanwhile: what is there now is new.
        if self.swap.if_poisoned(page, || self.memory.poison(page)) == Some(false) {
            // Before Linux 6.6 one page cannot be made unreadable; zeroes would be worse than an end.
            pagetide_sys::task::say("this kernel cannot poison a page (6.6): ending the program");
            pagetide_sys::task::kill_self();
        }
        self.memory.wake(page, 1);
    }

    /// Brings pages back from probation.
    pub(super) fn bring_from_frames(&self, transfer: &Transfer, slot_id: u16, writable: bool) {
        let first = transfer.first.offset();
        // A copy's frame is free only when reclaim has come by: where there is no room for both, the page moves.
        let room =
            self.budget.free() >= transfer.length as i64 && self.idle_frames() < self.watermarks.high();
        let moves = writable && self.moves(transfer.length, room);
        let (mut paid, mut dead) = (0, 0);
        let mapped = {
            let mut slot = lock(&self.staging[slot_id]);
            let mut mapped = Mapped { pages: 0, error: None };
            if moves {
                let before = slot.memory_pages();
                mapped = self.memory.move_from(&mut slot, first, transfer.length, transfer.first);
                let gone = (before - slot.memory_pages()) as i64;
                self.staging.add_frames(-gone);
                let zero = (mapped.pages as i64 - gone).max(0);
                self.staging.add_zero(-zero);
                self.zero_pages.come(zero as usize);
                // A zero page takes no frame, but counts once it is in the program.
                self.budget.take(mapped.pages as i64 - gone);
                paid = mapped.pages;
            }
            let rest = transfer.length - mapped.pages;
            // That a mapping is gone only COPY says for sure.
            let again = matches!(mapped.error, Some(MapError::Refused | MapError::Gone));
            if rest > 0 && (!moves || again) {
                self.count(Counter::move_refused, usize::from(mapped.error == Some(MapError::Refused)));
                // The frame is free again soon: overdrawing is bounded by what is on probation.
                self.budget.take(rest as i64);
                paid += rest;
                let done = mapped.pages;
                let copied =
                    self.memory.copy_from(&slot, first + done, rest, transfer.first.plus(done as u64));
                mapped = Mapped { pages: done + copied.pages, error: copied.error };
                let copied = PageSet::range(first + done..first + mapped.pages);
                if room || self.memory.can_move() {
                    dead = copied.minus(slot.zero()).len();
                } else {
                    // Where nothing moves both would stay until reclaim comes by.
                    let kept = slot.populated().minus(copied);
                    self.drop_bytes(&mut slot, kept);
                }
            }
            mapped
        };
        let left = mapped.pages + usize::from(met(transfer, mapped).is_some());
        let conclude = || self.conclude(transfer, mapped, paid.max(mapped.pages));
        if left < transfer.length {
            self.let_go(slot_id, conclude)
        } else {
            conclude()
        }
        // Until now their pages were on probation, and reclaim would have passed over them.
        self.staging.note_dead(slot_id, dead);
        self.unref(slot_id, left);
    }

    /// Returns whether a run of pages goes back from its frames by MOVE. Where there is no `room` for frames and copies only
    /// what cannot move is copied.
    pub(super) fn moves(&self, pages: usize, room: bool) -> bool {
        self.memory.can_move() && (pages >= MOVE_RUN_MIN || !room || self.mask.masks(Mask::NO_COPY))
    }

    /// Brings a run in by MOVE where it is long enough for that. Returns false if it is to come in by another way.
    pub(super) fn bring_long_run(
        &self,
        transfer: &Transfer,
        write: bool,
        writable: bool,
        work: &mut Workspace,
    ) -> bool {
        let moves = match transfer.source {
            Source::Device { .. } | Source::Frames { .. } => false,
            Source::Hole | Source::Zero => !self.maps_zero_page(transfer.first, write),
            Source::Memory => true,
        };
        if transfer.length < MOVE_RUN_MIN || !writable || !moves {
            return false;
        }
        self.staging.want_donor();
        self.bring_by_move(transfer, work)
    }

    /// Brings a run in through free frames: read into them, then moved as one.
    pub(super) fn bring_by_move(&self, transfer: &Transfer, work: &mut Workspace) -> bool {
        if !self.memory.can_move() {
            return false;
        }
        let Some(donor) = self.staging.take_donor() else { return false };
        let mut slot = lock(&self.staging[donor]);
        let Some(frame) = slot.populated().find_run(0, transfer.length) else {
            self.drop_frames(donor, slot);
            return false;
        };
        let done = match slot.frames_mut(frame, transfer.length) {
            None => None,
            Some(bytes) => match transfer.source {
                Source::Memory => Some(self.load(transfer, bytes, &mut work.scratch)),
                _ => {
                    bytes.fill(0);
                    Some((transfer.length, None))
                }
            },
        };
        let mut mapped = Mapped { pages: 0, error: None };
        if let Some((loaded, _)) = done
            && loaded > 0
        {
            mapped = self.memory.move_from(&mut slot, frame, loaded, transfer.first);
            self.staging.add_frames(-(mapped.pages as i64));
        }
        drop(slot);
        self.staging.add_donor(donor);
        if mapped.pages == 0 && mapped.error.is_none_or(|error| error == MapError::Refused) {
            // Nothing was mapped: the ordinary way says why.
            return false;
        }
        self.conclude(transfer, mapped, mapped.pages);
        true
    }

    /// Starts to read a transfer that was paid for. False if the device has too much to do: then it has been let go,
    /// and the fault waits.
    pub(super) fn read(&self, transfer: Transfer, block: u64, write: bool, since: u64) -> bool {
        let asked = i64::from(!transfer.ahead);
        self.meters.stalled.fetch_add(asked, Relaxed);
        let completions = self.outage.completions.load(SeqCst);
        let Err(refused) = self.submit_read(Pending::Read { transfer, write, since }, &transfer, block)
        else {
            return true;
        };
        self.meters.stalled.fetch_sub(asked, Relaxed);
        // The queue is full of requests: each that ends lets a waiting fault try again.
        if !transfer.ahead {
            self.park_for_device(transfer.demanded(), write, since);
            if self.outage.completions.load(SeqCst) != completions
                && let Some(device) = &self.device
            {
                // Whoever ended requests meanwhile may have looked before this one waited.
                device.nudge();
            }
        }
        drop(refused);
        false
    }

    /// Hands a read to the device. If that has too much to do the transfer has been let go, and what was paid for it
    /// given back; the request is under way until what is returned is dropped.
    pub(super) fn submit_read(
        &self,
        pending: Pending,
        transfer: &Transfer,
        block: u64,
    ) -> Result<(), Ended<'_>> {
        let device = self.device.as_ref().expect("a page on the device has a device");
        let token = self.requests.begin(pending);
        let buffer = Buffer::new(transfer.length);
        if device.submit(Request { token, direction: Direction::Read, block, buffer }).is_ok() {
            return Ok(());
        }
        let (_, ended) = self.requests.end(token);
        self.release(transfer);
        self.budget.give(transfer.length as i64);
        Err(ended)
    }

    /// Handles the requests in `done`, which have ended, and empties it.
    pub fn complete(&self, done: &mut Vec<Completion>, work: &mut Workspace) {
        for completion in done.drain(..) {
            let Completion { token, mut buffer, result } = completion;
            let (pending, _ended) = self.requests.end(token);
            match pending {
                Pending::Read { transfer, write, since } => {
                    self.read_ended(transfer, write, since, &mut buffer, result);
                }
                Pending::Move { transfer } => self.move_ended(&transfer, &mut buffer, &result, work),
                Pending::Store { slot, pages, block } => self.store_ended(slot, &pages, block, result),
                Pending::Writeback { entries, block } => self.writeback_ended(&entries, block, result),
            }
        }
        self.charge_pool();
        self.outage.completions.fetch_add(1, SeqCst);
        self.retry_refused(work);
        self.retry_waiting(work);
    }

    fn read_ended(
        &self,
        mut transfer: Transfer,
        write: bool,
        since: u64,
        bytes: &mut [u8],
        result: std::io::Result<()>,
    ) {
        let waited = self.now().saturating_sub(since);
        if !transfer.ahead {
            self.meters.stalled.fetch_sub(1, Relaxed);
            self.swap.counters().add(Counter::parked_ns, waited);
            self.swap.counters().add(Counter::pswpin_ns, waited);
            self.meters.read_ns.fetch_add(waited, Relaxed);
        }
        let (loaded, error) = match result {
            Err(error) => (0, Some(LoadError::Io(error.raw_os_error().unwrap_or(5)))),
            Ok(()) => {
                let mut pages = bytes.chunks_exact_mut(PAGE_SIZE).take(transfer.length).enumerate();
                let bad = pages.find_map(|(nth, page)| {
                    self.swap.open(&transfer, nth, page).err().map(|error| (nth, error))
                });
                bad.map_or((transfer.length, None), |(nth, error)| (nth, Some(error)))
            }
        };
        if loaded <= transfer.demand && transfer.length > 1 && !transfer.ahead {
            // Which of them cannot be read is not known, or it is a neighbour: what is waited for is read alone.
            self.budget.give(transfer.length as i64 - 1);
            self.narrow(&mut transfer, 1);
            let Source::Device { block } = transfer.source else {
                unreachable!("it was read from the device")
            };
            self.read(transfer, block, write, since);
            return;
        }
        self.map_loaded(&transfer, loaded, error, bytes);
        if !transfer.ahead {
            self.answered(since);
        }
    }
}

/// Returns the obstacle that stopped a transfer at the page behind those that were mapped. It is sure that nothing is
/// mapped there only where one page alone was to come from its frame: a run may reach past the end of a mapping.
fn met(transfer: &Transfer, mapped: Mapped) -> Option<MapConflict> {
    match mapped.error? {
        MapError::Exists => Some(MapConflict::Page),
        MapError::Gone if transfer.length == 1 && matches!(transfer.source, Source::Frames { .. }) => {
            Some(MapConflict::Nothing)
        }
        _ => None,
    }
}
