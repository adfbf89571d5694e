//! Staging: the frames of slots, into which pages leave the program, and from which runs come in.
//!
//! What is known of the pages in a slot is [`pagetide_swap::probation`]'s. A slot whose pages have all left may be kept
//! for its frames, as a *donor* of them for runs that come in.

use super::lock;
use std::ops::Index;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering::Relaxed};

/// Donors that are kept at most.
pub(super) const DONORS_MAX: usize = 4;

/// Whether pages of a slot were stored just now.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum WereStored {
    No,
    Yes,
}

impl WereStored {
    /// Whether so many pages are some.
    pub(super) fn some(pages: usize) -> Self {
        if pages > 0 { Self::Yes } else { Self::No }
    }
}

/// The slots of an engine.
pub(super) struct Staging<S> {
    slots: Box<[Mutex<S>]>,
    donors: Mutex<Vec<u16>>,
    /// Pages of memory that the slots have.
    pub(super) frames: AtomicI64,
    /// Frames beside those that are the kernel's zero page, and so no memory.
    zero: AtomicI64,
    /// Those pages of memory that are spare.
    spare: AtomicI64,
    /// Whether a spare frame was used since the last look.
    spare_used: AtomicBool,
    /// Frames of each slot that are dead: their page was copied into the program.
    dead: Box<[AtomicUsize]>,
    /// The number of those.
    dead_in_all: AtomicUsize,
    /// Runs that came in since the last donor was made.
    runs_wanted: AtomicUsize,
    /// Whether a donor was asked for since the last look.
    donors_used: AtomicBool,
}

impl<S> Staging<S> {
    /// Returns staging of these slots, which are empty.
    pub(super) fn new(slots: Vec<S>) -> Self {
        Self {
            dead: slots.iter().map(|_| AtomicUsize::new(0)).collect(),
            dead_in_all: AtomicUsize::new(0),
            slots: slots.into_iter().map(Mutex::new).collect(),
            donors: Mutex::default(),
            frames: AtomicI64::new(0),
            zero: AtomicI64::new(0),
            spare: AtomicI64::new(0),
            spare_used: AtomicBool::new(false),
            runs_wanted: AtomicUsize::new(0),
            donors_used: AtomicBool::new(false),
        }
    }

    /// Iterates over all slots.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Mutex<S>> {
        self.slots.iter()
    }

    /// Returns the pages of memory that the slots have.
    pub(super) fn frames(&self) -> i64 {
        self.frames.load(Relaxed)
    }

    /// Notes that the slots have more pages of memory, or fewer.
    pub(super) fn add_frames(&self, pages: i64) {
        self.frames.fetch_add(pages, Relaxed);
    }

    /// Returns the number of frames that take no memory.
    pub(super) fn zero(&self) -> i64 {
        self.zero.load(Relaxed)
    }

    /// Notes that there are more frames that take no memory, or fewer.
    pub(super) fn add_zero(&self, frames: i64) {
        self.zero.fetch_add(frames, Relaxed);
    }

    /// Returns the number of spare frames.
    pub(super) fn spare(&self) -> i64 {
        self.spare.load(Relaxed)
    }

    /// Notes that there will be up to `frames` spare frames more, but `most` in all. Returns how many.
    pub(super) fn reserve_spare(&self, frames: usize, most: i64) -> usize {
        let more = |spare: i64| (most - spare).clamp(0, frames as i64);
        let before = self.spare.fetch_update(Relaxed, Relaxed, |spare| Some(spare + more(spare)));
        before.map_or(0, more) as usize
    }

    /// Notes that there are more spare frames, or fewer.
    pub(super) fn add_spare(&self, frames: i64) {
        self.spare.fetch_add(frames, Relaxed);
    }

    /// Notes that spare frames were used.
    pub(super) fn use_spare(&self, frames: i64) {
        if frames > 0 {
            self.add_spare(-frames);
            self.spare_used.store(true, Relaxed);
        }
    }

    /// Returns whether spare frames were used since this was last asked.
    pub(super) fn was_spare_used(&self) -> bool {
        self.spare_used.swap(false, Relaxed)
    }

    /// Notes that frames of a slot are dead.
    pub(super) fn note_dead(&self, slot: u16, frames: usize) {
        self.dead[usize::from(slot)].fetch_add(frames, Relaxed);
        self.dead_in_all.fetch_add(frames, Relaxed);
    }

    /// Returns the number of frames that were noted as dead, and not taken since.
    pub(super) fn dead(&self) -> usize {
        self.dead_in_all.load(Relaxed)
    }

    /// Takes the slots that have dead frames.
    pub(super) fn take_dead(&self) -> impl Iterator<Item = u16> {
        (0..self.slots.len() as u16).filter(|&slot| self.forget_dead(slot) > 0)
    }

    /// Forgets the dead frames of a slot. Returns how many were noted.
    pub(super) fn forget_dead(&self, slot: u16) -> usize {
        let dead = &self.dead[usize::from(slot)];
        let frames = if dead.load(Relaxed) > 0 { dead.swap(0, Relaxed) } else { 0 };
        self.dead_in_all.fetch_sub(frames, Relaxed);
        frames
    }

    /// Takes a donor.
    pub(super) fn take_donor(&self) -> Option<u16> {
        lock(&self.donors).pop()
    }

    /// Adds a donor.
    pub(super) fn add_donor(&self, slot: u16) {
        lock(&self.donors).push(slot);
    }

    /// Returns whether there may be another donor.
    pub(super) fn has_room_for_donor(&self) -> bool {
        lock(&self.donors).len() < DONORS_MAX
    }

    /// Notes that a run comes in, for which a donor is wanted.
    pub(super) fn want_donor(&self) {
        self.runs_wanted.fetch_add(1, Relaxed);
        self.donors_used.store(true, Relaxed);
    }

    /// Returns whether runs came in since this was last asked, so that a donor should be made.
    pub(super) fn is_donor_wanted(&self) -> bool {
        self.runs_wanted.swap(0, Relaxed) > 0
    }

    /// Returns whether a donor was wanted since this was last asked.
    pub(super) fn was_donor_wanted(&self) -> bool {
        self.donors_used.swap(false, Relaxed)
    }
}

impl<S> Index<u16> for Staging<S> {
    type Output = Mutex<S>;

    fn index(&self, slot: u16) -> &Mutex<S> {
        &self.slots[usize::from(slot)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_donor_is_wanted_once_a_run() {
        let staging = Staging::new(vec![(); 8]);
        assert!(!staging.is_donor_wanted() && !staging.was_donor_wanted());
        staging.want_donor();
        assert!(staging.is_donor_wanted() && !staging.is_donor_wanted());
        assert!(staging.was_donor_wanted() && !staging.was_donor_wanted());
        (0..DONORS_MAX as u16).for_each(|slot| staging.add_donor(slot));
        assert!(
            !staging.has_room_for_donor() && staging.take_donor().is_some() && staging.has_room_for_donor()
        );
    }
}
