//! Swapoff of a run: how far each process is with giving up the swap file.

use super::layout::{Field, Header};
use super::{Group, ProcessSlot};
use std::sync::atomic::{Ordering::AcqRel, Ordering::Acquire};

pagetide_page::numbered_enum! {
    /// The state of a process's giving up the swap file.
    pub enum OffState: u64 {
        /// The process has not begun.
        Used = 0,
        /// The process brings back the pages that it has there.
        Leaving = 1,
        /// The process has no page there, and writes none any more.
        Off = 2,
        /// There is no room for the pages that are left there.
        NoRoom = 3,
    }
}

impl OffState {
    const BITS: u32 = 2;

    /// The state in a process's word, below the number of what it follows.
    fn of_word(word: u64) -> Self {
        Self::from_bits(word & ((1 << Self::BITS) - 1)).unwrap_or(Self::Used)
    }
}

impl Group {
    /// Returns whether the swap file is to be used no more.
    pub fn is_swapped_off(&self) -> bool {
        self.swapoffs() % 2 == 1
    }

    fn swapoffs(&self) -> u64 {
        self.header[Header::Swapoffs as usize].load(Acquire)
    }

    /// Sets whether the swap file is used: each process sees it within some hundredths of a second.
    pub fn set_swapped_off(&self, off: bool) {
        let next = |count: u64| (count % 2 != u64::from(off)).then_some(count.wrapping_add(1));
        let _ = self.header[Header::Swapoffs as usize].fetch_update(AcqRel, Acquire, next);
        self.live().for_each(|slot| slot.ring());
    }

    /// Returns the state of a process, for the last order to the run.
    pub fn off_state(&self, slot: ProcessSlot) -> OffState {
        let word = slot.get(Field::Swapoff);
        if word >> OffState::BITS == self.swapoffs() { OffState::of_word(word) } else { OffState::Used }
    }

    /// Has `step` take a process on, if there is more to do, by what it was told last: from a state to the next.
    pub fn follow_swapoff(&self, slot: ProcessSlot, step: impl FnOnce(bool, OffState) -> OffState) {
        let swapoffs = self.swapoffs();
        let word = slot.get(Field::Swapoff);
        let known = word >> OffState::BITS == swapoffs;
        let state = if known { OffState::of_word(word) } else { OffState::Used };
        if !known || state == OffState::Leaving || (state == OffState::Used && swapoffs % 2 == 1) {
            slot.set(Field::Swapoff, swapoffs << OffState::BITS | step(swapoffs % 2 == 1, state).to_bits());
        }
    }
}
