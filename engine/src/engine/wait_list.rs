//! Faults that are parked: their threads sleep in the kernel until somebody answers.

use super::lock;
use crate::dump::board::{Board, Why};
use pagetide_swap::PageIndex;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, OnceLock};

/// A fault that is parked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Parked {
    /// The page.
    pub(super) page: PageIndex,
    /// Whether the fault was a write.
    pub(super) write: bool,
    /// The time at which the fault came, in nanoseconds of the engine's clock.
    pub(super) since: u64,
    /// The time at which it was parked last.
    pub(super) parked: u64,
    /// The pages of its window.
    pub(super) wants: usize,
}

/// The parked faults of an engine, in the order in which they were parked: those that wait for room, those that the
/// device had too much to do for, and those of a process that rests.
#[derive(Debug)]
pub(super) struct WaitList {
    waiting: Mutex<VecDeque<Entry>>,
    /// The pages that those that wait for room want.
    wanted: AtomicUsize,
    refused: Mutex<VecDeque<Entry>>,
    resting: Mutex<VecDeque<Entry>>,
    board: OnceLock<Board>,
    /// Whether waiting faults are held back.
    pub(super) held: AtomicBool,
    /// Whether faults are served although the budget is spent.
    pub(super) overdrawing: AtomicBool,
}

/// A fault, and its place on the board.
type Entry = (Parked, Option<u8>);

impl WaitList {
    /// Returns an empty list, with room for 64 faults of each kind.
    pub(super) fn new() -> Self {
        let list = || Mutex::new(VecDeque::with_capacity(64));
        let off = || AtomicBool::new(false);
        Self {
            waiting: list(),
            wanted: AtomicUsize::new(0),
            refused: list(),
            resting: list(),
            board: OnceLock::new(),
            held: off(),
            overdrawing: off(),
        }
    }

    /// Shows parked faults on `board` from now on.
    pub(super) fn show_on(&self, board: Board) {
        let _ = self.board.set(board);
    }

    fn shown(&self, fault: Parked, why: Why) -> Entry {
        let Parked { page, write, since, parked, .. } = fault;
        (fault, self.board.get().and_then(|board| board.park(page, write, why, [since, parked])))
    }

    fn hidden(&self, (fault, place): Entry) -> Parked {
        if let Some(board) = self.board.get() {
            board.unpark(place);
        }
        fault
    }

    /// Adds a fault that waits for room.
    pub(super) fn push(&self, fault: Parked) {
        self.wanted.fetch_add(fault.wants, Relaxed);
        lock(&self.waiting).push_back(self.shown(fault, Why::Room));
    }

    /// Adds a fault that waits for the end of a rest, however much room there is.
    pub(super) fn rest(&self, fault: Parked) {
        lock(&self.resting).push_back(self.shown(fault, Why::Rest));
    }

    /// Adds a fault for which the device had too much to do.
    pub(super) fn refuse(&self, fault: Parked) {
        lock(&self.refused).push_back(self.shown(fault, Why::Device));
    }

    /// Takes the fault that has waited for the device the longest.
    pub(super) fn pop_refused(&self) -> Option<Parked> {
        lock(&self.refused).pop_front().map(|entry| self.hidden(entry))
    }

    /// Returns the number of faults for which the device had too much to do.
    pub(super) fn refused(&self) -> usize {
        lock(&self.refused).len()
    }

    /// Takes the fault that has waited for room the longest.
    pub(super) fn pop(&self) -> Option<Parked> {
        let fault = lock(&self.waiting).pop_front().map(|entry| self.hidden(entry))?;
        self.wanted.fetch_sub(fault.wants, Relaxed);
        Some(fault)
    }

    /// Takes the faults that wait for room, or rest, and are as asked for. Returns of each whether it waited.
    pub(super) fn take_if(&self, mut is_one: impl FnMut(&Parked) -> bool) -> Vec<(Parked, bool)> {
        let mut taken = Vec::new();
        for (list, waits) in [(&self.waiting, true), (&self.resting, false)] {
            lock(list).retain(|entry| {
                let stays = !is_one(&entry.0);
                if !stays {
                    taken.push((self.hidden(*entry), waits));
                    self.wanted.fetch_sub(if waits { entry.0.wants } else { 0 }, Relaxed);
                }
                stays
            });
        }
        taken
    }

    /// Returns the number of pages that the faults that wait for room want.
    pub(super) fn wanted(&self) -> usize {
        self.wanted.load(Relaxed)
    }

    /// Returns the number of faults that wait for room.
    pub(super) fn waiting(&self) -> usize {
        lock(&self.waiting).len()
    }

    /// Calls `each` with the time at which each fault came that waits for room or for the device.
    pub(super) fn for_each_since(&self, mut each: impl FnMut(u64)) {
        for list in [&self.waiting, &self.refused] {
            lock(list).iter().for_each(|(fault, _)| each(fault.since));
        }
    }

    /// Calls `each` with the time since which each fault rests.
    pub(super) fn for_each_rest(&self, mut each: impl FnMut(u64)) {
        lock(&self.resting).iter().for_each(|(fault, _)| each(fault.parked));
    }

    /// Has the faults that rest wait for room, as if they came at `now`. Calls `each` with the time since which each has
    /// rested. Returns their number.
    pub(super) fn end_rest(&self, now: u64, mut each: impl FnMut(u64)) -> usize {
        let mut resting = std::mem::take(&mut *lock(&self.resting));
        for entry in &mut resting {
            let fault = self.hidden(*entry);
            each(fault.parked);
            self.wanted.fetch_add(fault.wants, Relaxed);
            *entry = self.shown(Parked { since: now, parked: now, ..fault }, Why::Room);
        }
        let count = resting.len();
        lock(&self.waiting).append(&mut resting);
        count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_that_rested_wait_behind_those_that_waited() {
        let list = WaitList::new();
        let fault =
            |page, parked| Parked { page: PageIndex(page), write: true, since: parked, parked, wants: 1 };
        list.rest(fault(1, 10));
        list.push(fault(2, 20));
        list.rest(fault(3, 30));
        assert_eq!((list.waiting(), list.wanted()), (1, 1));
        let mut rested = Vec::new();
        list.for_each_rest(|since| rested.push(since));
        assert_eq!(list.end_rest(50, |since| rested.push(since)), 2);
        assert_eq!((rested, list.waiting()), (vec![10, 30, 10, 30], 3));
        let mut waiting = Vec::new();
        list.for_each_since(|since| waiting.push(since));
        assert_eq!(waiting, [20, 50, 50]);
        assert_eq!(
            [list.pop(), list.pop(), list.pop()].map(Option::unwrap),
            [fault(2, 20), fault(1, 50), fault(3, 50)]
        );
        list.push(fault(4, 70));
        list.rest(fault(5, 80));
        list.push(fault(6, 90));
        assert_eq!(list.take_if(|fault| fault.page.0 < 6), [(fault(4, 70), true), (fault(5, 80), false)]);
        assert_eq!((list.wanted(), list.pop()), (1, Some(fault(6, 90))));
        assert_eq!((list.pop(), list.end_rest(60, |_| unreachable!("none rests"))), (None, 0));
        assert_eq!(list.wanted(), 0);
    }
}
