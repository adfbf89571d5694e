//! Probation: pages that have left the program and wait in frames, a slot for each cluster, until they are stored or
//! asked for again.
//!
//! The frames belong to the engine, which moves bytes, and so do slots that are not listed here. This module keeps what
//! is known of the pages in a slot:
//!
//! ```text
//! empty ──take-out──▶ on probation ──stored, or back in the program──▶ empty, or kept for its frames
//! ```
//!
//! A slot has a *reference* for each of its pages that is on probation, and one for the thread that processes it or
//! will. When the last is gone, no page is in the slot's frames.

use crate::sync::atomic::{
    AtomicBool, AtomicU16, AtomicU64, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst,
};
use crate::sync::{Mutex, lock};
use crate::workingset::Shadow;
use pagetide_page::{ClusterNumber, PageSet};
use std::collections::VecDeque;

/// The pages of one slot.
#[derive(Debug)]
struct Slot {
    refs: AtomicUsize,
    cluster: AtomicU64,
    /// Whether the slot stands in the queue.
    queued: AtomicBool,
    late: AtomicBool,
    shadow: AtomicU16,
    poor: Mutex<PageSet>,
}

#[derive(Debug)]
struct Lists {
    empty: Vec<u16>,
    queue: VecDeque<u16>,
}

/// The layout of the slots in memory, for a reader outside of the process. Offsets are bytes from a slot's start.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Anatomy {
    /// The address of the first slot.
    pub first: usize,
    /// The number of slots.
    pub count: usize,
    /// Bytes from one slot to the next.
    pub stride: usize,
    /// The offset of the number of references, a word.
    pub refs: usize,
    /// The offset of the cluster's number, a word.
    pub cluster: usize,
    /// The offset of whether the slot is queued, a byte.
    pub queued: usize,
    /// The offset of whether the slot is late, a byte.
    pub late: usize,
}

/// The slots with pages on probation: which are empty, which wait to be stored, and what is known of their pages.
#[derive(Debug)]
pub struct Probation {
    slots: Box<[Slot]>,
    lists: Mutex<Lists>,
}

impl Probation {
    /// Returns probation with this many slots, all empty. Their numbers count from 0.
    pub fn new(slots: u16) -> Self {
        let slot = |_| Slot {
            refs: AtomicUsize::new(0),
            cluster: AtomicU64::new(0),
            queued: AtomicBool::new(false),
            late: AtomicBool::new(false),
            shadow: AtomicU16::new(0),
            poor: Mutex::new(PageSet::default()),
        };
        Self {
            slots: (0..slots).map(slot).collect(),
            lists: Mutex::new(Lists { empty: (0..slots).rev().collect(), queue: VecDeque::new() }),
        }
    }

    /// Returns where the slots lie. They stay there.
    pub fn anatomy(&self) -> Anatomy {
        use std::mem::offset_of;
        Anatomy {
            first: self.slots.as_ptr().addr(),
            count: self.slots.len(),
            stride: size_of::<Slot>(),
            refs: offset_of!(Slot, refs),
            cluster: offset_of!(Slot, cluster),
            queued: offset_of!(Slot, queued),
            late: offset_of!(Slot, late),
        }
    }

    fn slot(&self, slot: u16) -> &Slot {
        &self.slots[usize::from(slot)]
    }

    /// Takes an empty slot; `None` if there is none.
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

    /// Returns whether all slots are empty.
    pub fn is_empty(&self) -> bool {
        lock(&self.lists).empty.len() == self.slots.len()
    }

    /// Notes that `pages` pages of a cluster are in a slot's frames. To be called under the cluster's lock: a fault may
    /// ask for one as soon as that is given back. [`Probation::push`] comes after.
    pub fn begin(&self, slot: u16, cluster: ClusterNumber, pages: usize, shadow: Shadow) {
        let this = self.slot(slot);
        this.cluster.store(cluster.0, Relaxed);
        this.shadow.store(shadow.0, Relaxed);
        *lock(&this.poor) = PageSet::default();
        this.refs.store(pages + 1, SeqCst);
        this.queued.store(true, SeqCst);
    }

    /// Puts a slot at the end of the queue.
    pub fn push(&self, slot: u16) {
        lock(&self.lists).queue.push_back(slot);
    }

    /// Takes the slot that has been on probation the longest. The reference for its processing goes to the caller.
    pub fn pop(&self) -> Option<u16> {
        lock(&self.lists).queue.pop_front()
    }

    /// Takes the slot that has been on probation the longest, as [`Probation::pop`], unless it is the only one.
    pub fn pop_of_several(&self) -> Option<u16> {
        let queue = &mut lock(&self.lists).queue;
        if queue.len() > 1 { queue.pop_front() } else { None }
    }

    /// Takes a slot out of the queue that was put there just now. Returns false if another thread has taken it before.
    pub fn take_back(&self, slot: u16) -> bool {
        let queue = &mut lock(&self.lists).queue;
        let at = queue.iter().rposition(|&queued| queued == slot);
        at.and_then(|at| queue.remove(at)).is_some()
    }

    /// Returns the number of slots in the queue.
    pub fn len(&self) -> usize {
        lock(&self.lists).queue.len()
    }

    /// Notes that the slot which [`Probation::pop`] gave is processed from now on.
    pub fn begin_processing(&self, slot: u16) {
        self.slot(slot).queued.store(false, SeqCst);
    }

    /// Puts a slot in the queue again whose pages stay on probation. It may be there already. The caller holds a
    /// reference of the slot that no other thread can give back: not one of a page.
    ///
    /// # Panics
    /// If nobody holds a reference of the slot.
    pub fn requeue(&self, slot: u16) {
        self.requeue_by(slot, VecDeque::push_back);
    }

    /// Puts a slot in the queue again of which only a part was processed: it is the next to be taken, unless it is in the
    /// queue already. Otherwise as [`Probation::requeue`].
    pub fn requeue_first(&self, slot: u16) {
        self.requeue_by(slot, VecDeque::push_front);
    }

    fn requeue_by(&self, slot: u16, push: fn(&mut VecDeque<u16>, u16)) {
        let this = self.slot(slot);
        if !this.queued.swap(true, SeqCst) {
            let others = this.refs.fetch_add(1, SeqCst);
            assert!(others > 0, "nothing keeps the slot from being used anew");
            push(&mut lock(&self.lists).queue, slot);
        }
    }

    /// Adds a reference.
    pub fn hold(&self, slot: u16) {
        self.slot(slot).refs.fetch_add(1, SeqCst);
    }

    /// Adds a reference if there is one already: the slot's pages stay where they are meanwhile. Returns whether it did.
    pub fn try_hold(&self, slot: u16) -> bool {
        self.slot(slot).refs.fetch_update(SeqCst, SeqCst, |refs| (refs > 0).then_some(refs + 1)).is_ok()
    }

    /// Gives references back. Returns whether none is left: the slot's frames are free, and the caller's.
    pub fn release(&self, slot: u16, references: usize) -> bool {
        references > 0 && self.slot(slot).refs.fetch_sub(references, SeqCst) == references
    }

    /// Returns whether a slot has references beside the one for its processing: those of pages on probation.
    pub fn has_pages(&self, slot: u16) -> bool {
        self.slot(slot).refs.load(SeqCst) > 1
    }

    /// Returns the cluster of a slot's pages.
    pub fn cluster(&self, slot: u16) -> ClusterNumber {
        ClusterNumber(self.slot(slot).cluster.load(Relaxed))
    }

    /// Returns the shadow that a slot's pages leave behind.
    pub fn shadow(&self, slot: u16) -> Shadow {
        Shadow(self.slot(slot).shadow.load(Relaxed))
    }

    /// Returns whether the device was too busy for a slot's pages when the slot was processed last.
    pub fn is_late(&self, slot: u16) -> bool {
        self.slot(slot).late.load(Relaxed)
    }

    /// Notes whether the device was too busy for a slot's pages.
    pub fn set_late(&self, slot: u16, late: bool) {
        self.slot(slot).late.store(late, Relaxed);
    }

    /// Returns the pages of a slot that were found not to compress: they are not tried again.
    pub fn poor(&self, slot: u16) -> PageSet {
        *lock(&self.slot(slot).poor)
    }

    /// Notes that a page of a slot does not compress.
    pub fn note_poor(&self, slot: u16, offset: usize) {
        lock(&self.slot(slot).poor).insert(offset);
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;

    #[test]
    fn slots_are_taken_in_the_order_of_their_lists() {
        let probation = Probation::new(4);
        let taken = [(); 4].map(|()| probation.take_empty());
        assert_eq!((taken, probation.take_empty()), ([Some(0), Some(1), Some(2), Some(3)], None));
        probation.add_empty(2);
        probation.put_back_empty(3);
        assert_eq!([probation.take_empty(), probation.take_empty()], [Some(2), Some(3)]);
        (0..3).for_each(|slot| probation.push(slot));
        assert!(probation.take_back(1) && !probation.take_back(1));
        assert_eq!((probation.len(), probation.pop(), probation.pop()), (2, Some(0), Some(2)));
        (0..4).for_each(|slot| probation.add_empty(slot));
        assert!(probation.is_empty());
    }

    #[test]
    fn a_slot_is_free_when_the_last_reference_is_given_back() {
        let probation = Probation::new(1);
        let slot = probation.take_empty().unwrap();
        probation.begin(slot, ClusterNumber(7), 2, Shadow(3));
        probation.push(slot);
        assert_eq!((probation.cluster(slot), probation.shadow(slot)), (ClusterNumber(7), Shadow(3)));
        assert!(!probation.release(slot, 1) && !probation.release(slot, 0));
        assert_eq!(probation.pop(), Some(slot));
        probation.begin_processing(slot);
        probation.note_poor(slot, 9);
        assert!(probation.poor(slot).contains(9) && probation.has_pages(slot));
        // The page that is left waits for the device: the slot comes again.
        probation.requeue(slot);
        probation.requeue(slot);
        assert!(!probation.release(slot, 1));
        assert_eq!((probation.pop(), probation.pop()), (Some(slot), None));
        probation.begin_processing(slot);
        assert!(probation.release(slot, 2));
        probation.begin(slot, ClusterNumber(8), 1, Shadow(0));
        assert!(probation.poor(slot).is_empty(), "of the cluster before");
    }
}
