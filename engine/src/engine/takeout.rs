//! Taking out: pages of a cluster leave the program for a slot of staging.

use super::census::Stays;
use super::parts::{run_of, whole};
use super::staging::WereStored;
use super::{Engine, lock};
use crate::census::Reason;
use crate::mask::Mask;
use crate::memory::{Memory, PageSet, StagingSlot, TakeOutWay};
use crate::regions::{Access, Attributes, Regions};
use pagetide_swap::reclaimer::frames_in_use;
use pagetide_swap::swap::{TakenOut, Victim};
use pagetide_swap::table::ClusterGuard;
use pagetide_swap::trace::Event;
use pagetide_swap::{CLUSTER_PAGES, ClusterNumber, Counter, PageIndex, State};
use std::ops::Range;
use std::sync::atomic::{Ordering::Relaxed, Ordering::SeqCst};
use std::sync::{MutexGuard, PoisonError};

/// Dead frames are dropped where they are this part of the free pages at which reclaim starts.
const DEAD_PART: i64 = 2;
/// A donor with fewer frames is not worth its slot.
const DONOR_MIN: usize = 64;

/// Returns those of a cluster's zero pages that are not charged. What is must leave; but where the zero page does not move, making it
/// a page of its own takes memory.
pub(super) fn uncharged(zero: PageSet, cluster: &ClusterGuard<'_>) -> PageSet {
    zero.iter().filter(|&at| cluster.get(at).state() != State::Present).collect()
}

impl<M: Memory> Engine<M> {
    /// Keeps a cluster in the program until [`Engine::unprotect`], since the caller's stack is there and the caller is
    /// about to take a lock. Returns a token; `None` if too many clusters are protected.
    pub fn protect(&self, cluster: ClusterNumber) -> Option<usize> {
        self.protection.begin(cluster)
    }

    /// Waits for the end of a take-out under way, which may not have seen what the caller did before.
    pub fn await_taken(&self) {
        self.protection.await_taken();
    }

    /// Ends the protection of this token.
    pub fn unprotect(&self, token: usize) {
        self.protection.end(token);
    }

    /// Takes the next cluster out of the program. `None` if nothing can be taken.
    pub(super) fn take_out(&self) -> Option<usize> {
        let slot_id = self.probation().take_empty()?;
        let mut shared = Vec::new();
        let taken = {
            let regions = self.regions.read().unwrap_or_else(PoisonError::into_inner);
            let victim = self.swap.next_victim(|asked| {
                let (number, watch) = asked.cluster();
                self.written(number, &regions, watch)
            });
            victim.map(|victim| self.take_out_into(slot_id, victim, &regions, &mut shared, None))
        };
        if let Some(taken) = taken {
            _ = self.hastened.fetch_update(Relaxed, Relaxed, |clusters| clusters.checked_sub(1));
            if taken == 0 {
                self.probation().put_back_empty(slot_id);
            }
        } else {
            self.hastened.store(0, Relaxed);
            // The slot is none the worse for it.
            self.probation().add_empty(slot_id);
        }
        if !shared.is_empty() {
            self.unshare(&shared);
        }
        taken
    }

    /// Returns the pages of a cluster that were written, or came in, since it was watched; with `watch` it is watched
    /// from now on. `None` if that is not known.
    fn written(&self, number: ClusterNumber, regions: &Regions, watch: bool) -> Option<PageSet> {
        let mut written = PageSet::default();
        for (range, region) in regions.pieces_of(number) {
            // What may not be written was not; what stays in any case is none of ours.
            if region.attributes.access == Access::Write && stays_for(&region.attributes).is_none() {
                written = written.or(self.memory.written(range, watch)?);
            }
        }
        Some(written)
    }

    /// Pages that would not move, all of one cluster: shared since a fork, or pinned. What was shared moves from
    /// now on. False if nothing was done, since a mapping is moving.
    pub(super) fn unshare(&self, runs: &[Range<PageIndex>]) -> bool {
        // With no lock of the engine held: a page that a call has dropped that nobody told us of is brought in by a
        // reader.
        self.unsharing.thread.store(pagetide_sys::task::tid(), SeqCst);
        let all = runs.iter().all(|run| self.memory.unshare(run.clone()));
        self.unsharing.thread.store(0, SeqCst);
        if !all {
            return false;
        }
        let whole = runs[0].start..runs[runs.len() - 1].end;
        // Pinned pages stay: the cluster waits for its turn like all others.
        if self.unsharing.last.swap(whole.start.cluster().0 + 1, Relaxed) != whole.start.cluster().0 + 1 {
            self.swap.hasten(whole);
        }
        true
    }

    /// Returns whether a thread is one that reclaims and faults itself ([`Memory::unshare`]): its faults are answered
    /// whatever the others wait for.
    pub fn is_unsharing(&self, tid: u32) -> bool {
        self.unsharing.thread.load(SeqCst) == tid
    }

    /// Takes a cluster's pages out. Notes in `shared` runs of pages that would not move, and in `stays` what was not
    /// asked to.
    pub(super) fn take_out_into(
        &self,
        slot_id: u16,
        Victim { mut cluster, hot }: Victim<'_>,
        regions: &Regions,
        shared: &mut Vec<Range<PageIndex>>,
        mut stays: Option<&mut Stays>,
    ) -> usize {
        let number = cluster.number();
        let (taking, protected) = self.protection.begin_taking(number);
        let pins = self.memory.begin_taking();
        let end_taking = || {
            self.memory.end_taking(pins);
            self.protection.end_taking(taking);
        };
        if protected || (pins && !self.memory.can_move()) {
            end_taking();
            if let Some(stays) = stays {
                stays.leave_out(0..CLUSTER_PAGES, if protected { Reason::Used } else { Reason::Pinned });
                stays.are_there(self.memory.presence(whole(number)).present);
            }
            self.swap.put_back(cluster);
            self.count(Counter::pgsteal_fail, 1);
            return 0;
        }
        let borrowed = self.borrowed_of(number);
        if is_all(borrowed, &cluster) {
            // What is charged elsewhere gives no memory.
            end_taking();
            self.swap.leave_out(cluster);
            return 0;
        }
        let mut slot = lock(&self.staging[slot_id]);
        assert_eq!(slot.memory_pages(), 0, "pages of others would be lost");
        // What leaves by copies has one way only. MOVE leaves alone what it is not to touch.
        let checks =
            pins || !borrowed.is_empty() || (self.mask.masks(Mask::NO_REMAP) && !self.memory.copies_out());
        let spare = slot.spare_pages();
        let hot = if self.memory.can_move() { hot.minus(borrowed) } else { PageSet::default() };
        // MOVE leaves them where they are; `mremap` takes all.
        let untouched = if checks { hot.or(borrowed) } else { PageSet::default() };
        let moving =
            self.take_out_pieces(&cluster, regions, checks, untouched, &mut slot, stays.as_deref_mut());
        let hot = self.put_back(number, hot, &mut slot);
        let populated = slot.populated();
        // What is neither here nor there was dropped by a call that nobody told us of.
        let expected = !checks && populated.len() + hot.len() == cluster.present() && stays.is_none();
        let still = match expected {
            true => hot,
            false => self.still_there(&cluster, moving.minus(hot), shared, stays),
        };
        // What a mapping took along that moves is at its new place. Its words follow, and cannot have while the cluster is locked.
        let moves = self.moves.are_under_way();
        let out = self.swap.taken_out(
            &mut cluster,
            slot_id,
            0..CLUSTER_PAGES,
            |offset| populated.contains(offset),
            |offset| !moves && !still.contains(offset),
        );
        end_taking();
        // Of those none was taken: a call dropped them that nobody told us of.
        let gone = borrowed.iter().filter(|&at| cluster.get(at).state() != State::Present).collect();
        self.charge_gone(number, gone);
        self.forget_lent(number, populated);
        self.note(|| Event::TakenOut { page: number.page(0), pages: out.taken as u64 });
        if out.taken == 0 && cluster.present() > 0 {
            self.count(Counter::pgsteal_fail, 1);
        }
        self.charge_frames(&slot, spare, &out);
        if out.taken == 0 {
            self.drop_bytes(&mut slot, PageSet::default());
            // The slot is the last to be taken from now on.
            self.drop_spare_of(&mut slot);
            return 0;
        }
        // Before the cluster is unlocked: a fault may bring the first page back at once.
        self.probation().begin(slot_id, number, out.taken, out.shadow);
        drop(cluster);
        drop(slot);
        self.probation().push(slot_id);
        for (slot, count) in out.left {
            self.unref(slot, count);
        }
        out.taken
    }

    /// Returns the pages of a cluster that are in the program after its take-out. Notes runs of those of `moving` in `shared`.
    fn still_there(
        &self,
        cluster: &ClusterGuard<'_>,
        moving: PageSet,
        shared: &mut Vec<Range<PageIndex>>,
        stays: Option<&mut Stays>,
    ) -> PageSet {
        let number = cluster.number();
        let found = self.memory.presence(whole(number));
        let there = found.present.minus(uncharged(found.zero, cluster));
        let stuck = there.and(moving);
        shared.extend(stuck.runs().map(|run| run_of(number, &run)));
        if let Some(stays) = stays {
            stays.are_there(there);
        }
        found.present
    }

    /// Charges a slot, into which pages were taken out, and gives back what they took. `spare` of its frames were spare before.
    fn charge_frames(&self, slot: &M::Slot, spare: usize, out: &TakenOut) {
        // Those are memory that was taken before.
        let filled = (spare - slot.spare_pages()) as i64;
        let memory = slot.memory_pages() as i64 - filled;
        self.staging.use_spare(filled);
        self.staging.add_frames(memory);
        let zero = slot.zero().len();
        self.staging.add_zero(zero as i64);
        // Whichever of them were adopted were not counted.
        self.zero_pages.leave(zero.saturating_sub(out.adopted));
        self.budget.take(out.adopted as i64);
        self.budget.give(out.taken as i64 - memory + out.dropped as i64);
    }

    /// Puts pages of a cluster that was taken out back into the program: they are hot. Returns those that went back.
    fn put_back(&self, number: ClusterNumber, hot: PageSet, slot: &mut M::Slot) -> PageSet {
        let taken = hot.and(slot.populated());
        let mut back = PageSet::default();
        let mut copied = PageSet::default();
        let mut room = self.budget.free();
        for run in taken.runs() {
            // What does not go back is on probation, like the others.
            let (count, to) = (run.len(), number.page(run.start));
            let moves = self.moves(count, room >= count as i64);
            let mapped = if moves {
                self.memory.move_from(slot, run.start, count, to)
            } else {
                self.memory.copy_from(slot, run.start, count, to)
            };
            let pages = PageSet::range(run.start..run.start + mapped.pages);
            back = back.or(pages);
            if !moves {
                room -= mapped.pages as i64;
                copied = copied.or(pages);
            }
        }
        slot.retain(slot.populated().minus(copied));
        back
    }

    /// Takes the pages of a cluster out, region by region, but those that are `untouched`. Returns those that were (also)
    /// tried by MOVE.
    fn take_out_pieces(
        &self,
        cluster: &ClusterGuard<'_>,
        regions: &Regions,
        checks: bool,
        untouched: PageSet,
        slot: &mut M::Slot,
        mut stays: Option<&mut Stays>,
    ) -> PageSet {
        let number = cluster.number();
        let mut moving = PageSet::default();
        let poisoned = match cluster.poisoned() {
            0 => PageSet::default(),
            _ => (0..CLUSTER_PAGES).filter(|&at| cluster.get(at).state() == State::Poisoned).collect(),
        };
        for (range, region) in regions.pieces_of(number) {
            let start = range.start.offset();
            let pages = start..start + (range.end.0 - range.start.0) as usize;
            let reason = stays_for(&region.attributes);
            if let (Some(reason), Some(stays)) = (reason, &mut stays) {
                stays.leave_out(pages.clone(), reason);
            }
            let Attributes { access, locked, kept, .. } = region.attributes;
            if locked || kept {
                continue;
            }
            let way = match access {
                _ if !checks => TakeOutWay::Remap,
                Access::Write => TakeOutWay::Move,
                Access::None | Access::Read => TakeOutWay::Sift,
            };
            let part = PageSet::range(pages);
            // Poison would travel with the others, and be read.
            for run in part.minus(poisoned).minus(untouched).runs() {
                let moved = self.take_out_run(number, run.clone(), access == Access::Write, way, slot);
                if moved && access == Access::Write {
                    moving = moving.or(PageSet::range(run));
                }
            }
        }
        moving
    }

    /// Takes a run of a cluster out. Whether that was (also) tried by MOVE, which some pages may have refused.
    fn take_out_run(
        &self,
        number: ClusterNumber,
        run: Range<usize>,
        writable: bool,
        way: TakeOutWay,
        slot: &mut M::Slot,
    ) -> bool {
        let range = run_of(number, &run);
        if self.memory.take_out(range.clone(), writable, way, slot) || way != TakeOutWay::Remap {
            return way == TakeOutWay::Move;
        }
        self.memory.can_move() && {
            self.memory.take_out(range, writable, TakeOutWay::Move, slot);
            true
        }
    }

    /// Gives a slot's frames back to the system but those of `kept`.
    pub(super) fn drop_bytes(&self, slot: &mut M::Slot, kept: PageSet) -> usize {
        let (before, zero) = (slot.memory_pages(), slot.zero().len());
        slot.retain(kept);
        let pages = before - slot.memory_pages();
        self.staging.add_frames(-(pages as i64));
        self.staging.add_zero(slot.zero().len() as i64 - zero as i64);
        self.budget.give(pages as i64);
        pages
    }

    /// Makes frames of a slot but those of `kept` spare ones, as many as there may be.
    ///
    /// To populate a frame and to give it back takes as long as all else that is done to take a page out, and each time
    /// that frames are given back the other processors are interrupted. Only frames of pages that were *stored* stay: where
    /// nothing finds a place they would be memory that comes and goes, and nobody would see that nothing leaves.
    fn keep_spare(&self, slot: &mut M::Slot, kept: PageSet) {
        if !self.memory.copies_out() {
            return;
        }
        let free = slot.populated().minus(kept);
        let granted = self.staging.reserve_spare(free.len(), self.watermarks.high());
        let before = slot.spare_pages();
        slot.set_aside(free.iter().take(granted).collect());
        let refused = granted - (slot.spare_pages() - before);
        self.staging.add_spare(-(refused as i64));
    }

    /// Gives the spare frames back to the system. Returns how many there were.
    pub(super) fn drop_spare(&self) -> usize {
        if self.staging.spare() <= 0 {
            return 0;
        }
        self.staging.iter().map(|slot| self.drop_spare_of(&mut lock(slot))).sum()
    }

    fn drop_spare_of(&self, slot: &mut M::Slot) -> usize {
        let pages = slot.drop_spare();
        self.staging.add_spare(-(pages as i64));
        self.staging.add_frames(-(pages as i64));
        self.budget.give(pages as i64);
        pages
    }

    /// Gives a donor's frames back to the system, if there is a donor.
    pub(super) fn drop_donor(&self) -> Option<usize> {
        let donor = self.staging.take_donor()?;
        Some(self.drop_frames(donor, lock(&self.staging[donor])))
    }

    /// Gives back frames that are kept to save work if they saved none since the last call: of a donor if no run came in,
    /// spare ones if no page left.
    pub fn drop_idle_frames(&self) {
        if !self.staging.was_spare_used() {
            self.drop_spare();
        }
        if !self.staging.was_donor_wanted() {
            self.drop_donor();
        }
    }

    /// Returns whether there are many frames whose page was copied into the program.
    pub fn has_dead_frames(&self) -> bool {
        self.staging.dead() as i64 >= (self.watermarks.low() / DEAD_PART).max(1)
    }

    /// Gives the frames back to the system whose page was copied into the program, if there are many: for a page that
    /// comes back a copy is cheaper than a move, which interrupts the other processors; here they are interrupted once a
    /// slot.
    pub fn drop_dead_frames(&self) {
        if !self.has_dead_frames() {
            return;
        }
        for slot_id in self.staging.take_dead() {
            if self.probation().try_hold(slot_id) {
                self.drop_unused(slot_id, CLUSTER_PAGES, WereStored::No);
                self.unref(slot_id, 1);
            }
        }
    }

    /// Gives the frames of pages that have left a slot back to the system, if those that stay are in `parts_max` parts at
    /// most. The caller holds a reference of the slot. Where pages were stored some frames stay as spare ones.
    pub(super) fn drop_unused(&self, slot_id: u16, parts_max: usize, stored: WereStored) {
        let populated = lock(&self.staging[slot_id]).populated();
        let used = frames_in_use(&self.swap, slot_id, self.probation().cluster(slot_id), populated);
        // No page comes into a slot but by a take-out, for which it must be empty: what has left stays away.
        if used.runs().count() <= parts_max {
            let mut slot = lock(&self.staging[slot_id]);
            if stored == WereStored::Yes {
                self.keep_spare(&mut slot, used);
            }
            self.drop_bytes(&mut slot, used);
        }
    }

    /// Gives a slot's frames back to the system.
    pub(super) fn drop_frames(&self, slot_id: u16, mut slot: MutexGuard<'_, M::Slot>) -> usize {
        let pages = self.drop_bytes(&mut slot, PageSet::default());
        drop(slot);
        self.probation().add_empty(slot_id);
        pages
    }

    /// `count` pages are no longer cached in the slot (or its processing has ended).
    pub(super) fn unref(&self, slot_id: u16, count: usize) -> usize {
        self.unref_with(slot_id, count, WereStored::No)
    }

    /// As [`Engine::unref`], after pages of the slot were stored or not: if they were, some of its frames stay as spare ones.
    pub(super) fn unref_with(&self, slot_id: u16, count: usize, stored: WereStored) -> usize {
        if !self.probation().release(slot_id, count) {
            return 0;
        }
        self.staging.forget_dead(slot_id);
        // Nobody refers to its frames: they are free, and populated.
        let mut slot = lock(&self.staging[slot_id]);
        if stored == WereStored::Yes {
            self.keep_spare(&mut slot, PageSet::default());
        }
        let pages = slot.memory_pages();
        if pages >= CLUSTER_PAGES / 2 && self.memory.can_move() && self.staging.is_donor_wanted() {
            let others = self.idle_frames() - pages as i64;
            let most = (self.watermarks.low() - others).clamp(0, pages as i64) as usize;
            if most >= DONOR_MIN && self.staging.has_room_for_donor() {
                let kept = slot.populated().minus(slot.zero()).iter().take(most).collect();
                self.drop_bytes(&mut slot, kept);
                drop(slot);
                self.staging.add_donor(slot_id);
                return pages;
            }
        }
        self.drop_frames(slot_id, slot)
    }

    /// Frames that no page on probation is in, and that are not spare: of copies that were mapped, of pages that were
    /// stored just now, and of donors. They are memory like any other, and save work only: so they are few.
    pub(super) fn idle_frames(&self) -> i64 {
        self.staging.frames() + self.staging.zero() - self.staging.spare() - self.swap.cached()
    }

    /// Lets go of pages of a slot, by `end`, which stay on probation: they could not be mapped, or were not wanted
    /// after all.
    pub(super) fn let_go(&self, slot_id: u16, end: impl FnOnce()) {
        // Others may take them at once, and the slot would be free.
        self.probation().hold(slot_id);
        end();
        self.probation().requeue(slot_id);
        self.unref(slot_id, 1);
    }
}

/// Returns whether these are all pages of a cluster that are in the program, and there are some.
fn is_all(pages: PageSet, cluster: &ClusterGuard<'_>) -> bool {
    let is_present = |&at: &usize| cluster.get(at).state() == State::Present;
    !pages.is_empty() && pages.iter().filter(is_present).count() == cluster.present()
}

/// Returns the reason for which the pages of a range stay, if the range's attributes tell one.
pub(super) fn stays_for(attributes: &Attributes) -> Option<Reason> {
    let Attributes { access, locked, kept, .. } = *attributes;
    match () {
        () if locked => Some(Reason::Locked),
        () if kept => Some(Reason::Kept),
        () if access != Access::Write => Some(Reason::Guarded),
        () => None,
    }
}
