//! Staging: the slots of frames into which pages leave the program, and from which runs come in.
//!
//! A slot is on one of three lists, or in the hands of a thread:
//!
//! ```text
//! empty ──take-out──▶ on probation ──stored, or back in the program──▶ empty
//!                                   └──its free frames are kept──▶ donor ──▶ empty
//! ```

use super::lock;
use crate::memory::PageSet;
use std::collections::VecDeque;
use std::ops::Index;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU16, AtomicU64, AtomicUsize, Ordering::Relaxed};

/// Donors that are kept at most.
pub(super) const DONORS_MAX: usize = 4;

/// A slot, and what is in it.
pub(super) struct Staged<S> {
    /// Its frames.
    pub slot: Mutex<S>,
    /// Pages that are cached here, and one for whoever processes the slot.
    pub refs: AtomicUsize,
    /// The cluster of the pages.
    pub cluster: AtomicU64,
    /// Whether the slot stands among those on probation.
    pub queued: AtomicBool,
    /// Whether the device was too busy for it.
    pub late: AtomicBool,
    /// What its pages leave behind.
    pub shadow: AtomicU16,
    /// Pages that were found not to compress: they are not tried again.
    pub poor: Mutex<PageSet>,
}

#[derive(Debug)]
struct Lists {
    empty: Vec<u16>,
    probation: VecDeque<u16>,
    donors: Vec<u16>,
}

/// The slots of an engine.
pub(super) struct Staging<S> {
    slots: Box<[Staged<S>]>,
    lists: Mutex<Lists>,
    /// Pages of memory that the slots have.
    frames: AtomicI64,
    /// Runs that came in since the last donor was made.
    runs_wanted: AtomicUsize,
    /// Whether a donor was asked for since the last look.
    donors_used: AtomicBool,
}

impl<S> Staging<S> {
    /// Staging of these slots, which are empty.
    pub fn new(slots: Vec<S>) -> Self {
        let empty = (0..slots.len() as u16).rev().collect();
        let staged = |slot| Staged {
            slot: Mutex::new(slot),
            refs: AtomicUsize::new(0),
            cluster: AtomicU64::new(0),
            queued: AtomicBool::new(false),
            late: AtomicBool::new(false),
            shadow: AtomicU16::new(0),
            poor: Mutex::default(),
        };
        Self {
            slots: slots.into_iter().map(staged).collect(),
            lists: Mutex::new(Lists { empty, probation: VecDeque::new(), donors: Vec::new() }),
            frames: AtomicI64::new(0),
            runs_wanted: AtomicUsize::new(0),
            donors_used: AtomicBool::new(false),
        }
    }

    /// Iterates over all slots.
    pub fn iter(&self) -> impl Iterator<Item = &Staged<S>> {
        self.slots.iter()
    }

    /// Whether all slots are empty.
    pub fn is_empty(&self) -> bool {
        lock(&self.lists).empty.len() == self.slots.len()
    }

    /// Returns the pages of memory that the slots have.
    pub fn frames(&self) -> i64 {
        self.frames.load(Relaxed)
    }

    /// Notes that the slots have more pages of memory, or fewer.
    pub fn add_frames(&self, pages: i64) {
        self.frames.fetch_add(pages, Relaxed);
    }

    /// Takes an empty slot.
    pub fn take_empty(&self) -> Option<u16> {
        lock(&self.lists).empty.pop()
    }

    /// Adds a slot that has become empty. It is the next to be taken.
    pub fn add_empty(&self, slot: u16) {
        lock(&self.lists).empty.push(slot);
    }

    /// Puts back an empty slot into which nothing could be taken. It is the last to be taken: it may be at fault
    /// itself, having lost a part.
    pub fn put_back_empty(&self, slot: u16) {
        lock(&self.lists).empty.insert(0, slot);
    }

    /// Puts a slot on probation, behind the others.
    pub fn add_to_probation(&self, slot: u16) {
        lock(&self.lists).probation.push_back(slot);
    }

    /// Takes the slot that has been on probation the longest.
    pub fn take_oldest(&self) -> Option<u16> {
        lock(&self.lists).probation.pop_front()
    }

    /// Takes a slot off probation that was put there just now. False if somebody else has.
    pub fn take_from_probation(&self, slot: u16) -> bool {
        let probation = &mut lock(&self.lists).probation;
        let at = probation.iter().rposition(|&queued| queued == slot);
        at.and_then(|at| probation.remove(at)).is_some()
    }

    /// Returns the number of slots on probation.
    pub fn on_probation(&self) -> usize {
        lock(&self.lists).probation.len()
    }

    /// Takes a donor.
    pub fn take_donor(&self) -> Option<u16> {
        lock(&self.lists).donors.pop()
    }

    /// Adds a donor.
    pub fn add_donor(&self, slot: u16) {
        lock(&self.lists).donors.push(slot);
    }

    /// Whether there may be another donor.
    pub fn has_room_for_donor(&self) -> bool {
        lock(&self.lists).donors.len() < DONORS_MAX
    }

    /// Notes that a run comes in, for which a donor is wanted.
    pub fn want_donor(&self) {
        self.runs_wanted.fetch_add(1, Relaxed);
        self.donors_used.store(true, Relaxed);
    }

    /// Whether runs came in since this was last asked, so that a donor should be made.
    pub fn is_donor_wanted(&self) -> bool {
        self.runs_wanted.swap(0, Relaxed) > 0
    }

    /// Whether a donor was wanted since this was last asked.
    pub fn was_donor_wanted(&self) -> bool {
        self.donors_used.swap(false, Relaxed)
    }
}

impl<S> Index<u16> for Staging<S> {
    type Output = Staged<S>;

    fn index(&self, slot: u16) -> &Staged<S> {
        &self.slots[usize::from(slot)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_taken_in_the_order_of_their_lists() {
        let staging = Staging::new(vec![(); 4]);
        let taken = [(); 4].map(|()| staging.take_empty());
        assert_eq!((taken, staging.take_empty()), ([Some(0), Some(1), Some(2), Some(3)], None));
        staging.add_empty(2);
        staging.put_back_empty(3);
        assert_eq!([staging.take_empty(), staging.take_empty()], [Some(2), Some(3)]);
        (0..3).for_each(|slot| staging.add_to_probation(slot));
        assert!(staging.take_from_probation(1) && !staging.take_from_probation(1));
        assert_eq!(
            (staging.on_probation(), staging.take_oldest(), staging.take_oldest()),
            (2, Some(0), Some(2))
        );
        (0..4).for_each(|slot| staging.add_empty(slot));
        assert!(staging.is_empty());
    }

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
