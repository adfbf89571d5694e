//! The word of a page: 64 bits that say everything about it.
//!
//! ```text
//!  63            48 47                        8 7   6 5 4 3 2     0
//! ┌────────────────┬───────────────────────────┬─────┬─┬─┬─┬───────┐
//! │ slot or shadow │           place: value    │kind │W│B│L│ state │
//! └────────────────┴───────────────────────────┴─────┴─┴─┴─┴───────┘
//! L locked: a transfer is under way   B writeback   W wanted: a fault waits for the transfer
//! ```
//!
//! *Cached* keeps the staging slot in the top bits; *Swapped* keeps its shadow there. In the topmost bit of *Present* and
//! *Cached* stands whether the page has refaulted since it was new. They may have a place too: the copy that was kept
//! when the page came in.

use crate::place::{Handle, Place};
use crate::workingset::Shadow;

/// The state of a page: where its current contents are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum State {
    /// Nowhere: the page was never touched, or was discarded, and reads as zeroes.
    Hole = 0,
    /// In the program's page tables.
    Present = 1,
    /// In a frame outside of the program: the page is on probation.
    Cached = 2,
    /// At its place.
    Swapped = 3,
    /// Nowhere: the contents were lost to an I/O error, and an access gets SIGBUS.
    Poisoned = 4,
}

/// The word of a page.
///
/// ```
/// use pagetide_swap::workingset::Shadow;
/// use pagetide_swap::{Place, State, Word};
///
/// let word = Word::swapped(Place::Device(700), Shadow(3));
/// assert_eq!((word.state(), word.place()), (State::Swapped, Some(Place::Device(700))));
/// // One word can stand for a run: the page after it lies one block further.
/// assert_eq!(word.nth(1).place(), Some(Place::Device(701)));
/// // A fault waits for the page, which is being read.
/// let moving = word.locked().wanted();
/// assert!(moving.is_locked() && moving.is_wanted());
/// assert_eq!(moving.unlocked(), word);
/// ```
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Word(pub u64);

const LOCKED: u64 = 1 << 3;
const WRITEBACK: u64 = 1 << 4;
const WANTED: u64 = 1 << 5;
const PLACE_SHIFT: u32 = 6;
const BLOCK_SHIFT: u32 = PLACE_SHIFT + Place::KIND_BITS;
/// The largest number of chances.
pub(crate) const CHANCES_MAX: u8 = Handle::CHANCES_MAX;
const CHANCES: u64 = (CHANCES_MAX as u64) << CHANCES_SHIFT;
const CHANCES_SHIFT: u32 = BLOCK_SHIFT + Handle::CHANCES_SHIFT;
const TOP_SHIFT: u32 = 48;
const REFAULTED: u64 = 1 << 63;
/// The largest number of a slot.
const SLOT_MAX: u16 = (1 << 15) - 1;
const PLACE_MASK: u64 = ((1 << Place::BITS) - 1) << PLACE_SHIFT;
const _: () = assert!(PLACE_SHIFT + Place::BITS == TOP_SHIFT);

impl Word {
    /// The word of a page that was never touched.
    pub const HOLE: Self = Self(State::Hole as u64);
    /// The word of a page whose contents are lost.
    pub const POISONED: Self = Self(State::Poisoned as u64);

    /// Returns the word of a page in the program, of which a copy is `kept` or not.
    pub const fn present(kept: Option<Place>) -> Self {
        Self(State::Present as u64 | Place::to_bits(kept) << PLACE_SHIFT)
    }

    /// Returns the word of a page in the frame of staging slot `slot` at the page's own offset, of which a copy is
    /// `kept` or not.
    pub const fn cached(slot: u16, kept: Option<Place>) -> Self {
        Self(State::Cached as u64 | Place::to_bits(kept) << PLACE_SHIFT | (slot as u64) << TOP_SHIFT)
    }

    /// Returns the word of a page at its place, which left this shadow behind.
    pub const fn swapped(place: Place, shadow: Shadow) -> Self {
        Self(
            State::Swapped as u64
                | Place::to_bits(Some(place)) << PLACE_SHIFT
                | (shadow.0 as u64) << TOP_SHIFT,
        )
    }

    /// Returns the word of the page `count` pages after this one, where one word stands for a run. On the device that
    /// page lies as many blocks further, in the pool as many pieces.
    pub const fn nth(self, count: usize) -> Self {
        let steps = self.place_kind() == Place::KIND_DEVICE || self.is_piece();
        Self(self.0 + if steps { (count as u64) << BLOCK_SHIFT } else { 0 })
    }

    /// Returns whether the word can stand for a run. The word of a page that is an entry of the pool by itself cannot.
    pub const fn spreads(self) -> bool {
        self.place_kind() != Place::KIND_POOL || self.is_piece()
    }

    const fn is_piece(self) -> bool {
        self.place_kind() == Place::KIND_POOL && self.0 & Handle::FOLIO << BLOCK_SHIFT != 0
    }

    const fn place_kind(self) -> u64 {
        self.0 >> PLACE_SHIFT & ((1 << Place::KIND_BITS) - 1)
    }

    /// Returns whether the page is at a block of the device, or a copy of it is.
    pub(crate) const fn is_at_block(self, block: u64) -> bool {
        self.0 & PLACE_MASK == (Place::KIND_DEVICE | block << Place::KIND_BITS) << PLACE_SHIFT
    }

    /// Returns whether a word that was read from outside can be one: its state is known, and no word of its run
    /// overflows.
    pub(crate) const fn is_possible(self) -> bool {
        self.0 & 7 <= State::Poisoned as u64 && self.0 & PLACE_MASK <= PLACE_MASK - ((512 << BLOCK_SHIFT) - 1)
    }

    /// Returns the state of the page.
    pub const fn state(self) -> State {
        match self.0 & 7 {
            0 => State::Hole,
            1 => State::Present,
            2 => State::Cached,
            3 => State::Swapped,
            _ => State::Poisoned,
        }
    }

    /// Returns the place of a swapped page's contents, or of any other page's kept copy; `None` if there is none.
    pub const fn place(self) -> Option<Place> {
        Place::from_bits((self.0 & PLACE_MASK) >> PLACE_SHIFT)
    }

    /// Returns whether the page is in the program, and a copy of it is kept in the pool.
    pub const fn has_pool_copy(self) -> bool {
        matches!((self.state(), self.place()), (State::Present, Some(Place::Pool(_))))
    }

    /// Returns whether the page is swapped, and is one word, repeated.
    pub const fn is_same_filled(self) -> bool {
        matches!((self.state(), self.place()), (State::Swapped, Some(Place::Same(_))))
    }

    /// Returns how many times more the shrinker's hand spares the pool's copy, 0 to 7.
    pub const fn chances(self) -> u8 {
        match self.place_kind() {
            Place::KIND_POOL => ((self.0 & CHANCES) >> CHANCES_SHIFT) as u8,
            _ => 0,
        }
    }

    /// Returns the same word with this answer to [`Word::chances`]. A word without a copy in the pool stays as it is.
    pub const fn with_chances(self, chances: u8) -> Self {
        match self.place_kind() {
            Place::KIND_POOL => Self(self.0 & !CHANCES | (chances as u64) << CHANCES_SHIFT),
            _ => self,
        }
    }

    /// Returns the staging slot of a cached page.
    pub const fn slot(self) -> u16 {
        (self.0 >> TOP_SHIFT) as u16 & SLOT_MAX
    }

    /// Returns whether a page in the program or on probation has come back since it was new: from there, or from a place,
    /// asked for or beside a page that was.
    pub const fn has_refaulted(self) -> bool {
        matches!(self.state(), State::Present | State::Cached) && self.0 & REFAULTED != 0
    }

    /// Returns the word of a page in the program or on probation with this answer to [`Word::has_refaulted`].
    pub const fn with_refaulted(self, on: bool) -> Self {
        Self(if on { self.0 | REFAULTED } else { self.0 & !REFAULTED })
    }

    /// Returns the shadow that a swapped page left behind.
    pub const fn shadow(self) -> Shadow {
        Shadow((self.0 >> TOP_SHIFT) as u16)
    }

    /// Returns whether a transfer of the page is under way.
    pub const fn is_locked(self) -> bool {
        self.0 & LOCKED != 0
    }

    /// Returns whether a fault waits for the transfer.
    pub const fn is_wanted(self) -> bool {
        self.0 & WANTED != 0
    }

    /// Returns whether the pool's copy is being written to the device.
    pub const fn is_writeback(self) -> bool {
        self.0 & WRITEBACK != 0
    }

    /// Returns the same word with a transfer under way.
    pub const fn locked(self) -> Self {
        Self(self.0 | LOCKED)
    }

    /// Returns the same word without a transfer under way, and without a fault that waits for it.
    pub const fn unlocked(self) -> Self {
        Self(self.0 & !(LOCKED | WANTED))
    }

    /// Returns the same word with a fault waiting for the transfer.
    pub const fn wanted(self) -> Self {
        Self(self.0 | WANTED)
    }

    /// Returns the same word with its pool copy on the way to the device, or not.
    pub const fn with_writeback(self, on: bool) -> Self {
        Self(if on { self.0 | WRITEBACK } else { self.0 & !WRITEBACK })
    }

    /// Returns the same word without its kept copy.
    pub const fn without_place(self) -> Self {
        Self(self.0 & !(PLACE_MASK | WRITEBACK))
    }

    /// Returns the same word with another place.
    pub const fn with_place(self, place: Place) -> Self {
        Self(self.0 & !(PLACE_MASK | WRITEBACK) | Place::to_bits(Some(place)) << PLACE_SHIFT)
    }
}

impl std::fmt::Debug for Word {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}", self.state())?;
        if let Some(place) = self.place() {
            write!(f, "({place:?})")?;
        }
        if matches!(self.state(), State::Cached | State::Swapped) {
            let top = if self.state() == State::Cached { self.slot() } else { self.shadow().0 };
            write!(f, "@{top}")?;
        }
        for (on, name) in [
            (self.is_locked(), "+locked"),
            (self.is_wanted(), "+wanted"),
            (self.is_writeback(), "+writeback"),
            (self.has_refaulted(), "+refaulted"),
        ] {
            if on {
                f.write_str(name)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_do_not_overlap() {
        let word = Word::cached(SLOT_MAX, Some(Place::Device(Place::BLOCK_MAX)));
        assert_eq!(word.state(), State::Cached);
        assert_eq!((word.slot(), word.has_refaulted()), (SLOT_MAX, false));
        let refaulted = word.with_refaulted(true);
        assert_eq!(
            (refaulted.slot(), refaulted.has_refaulted(), refaulted.place()),
            (SLOT_MAX, true, word.place())
        );
        assert_eq!(refaulted.with_refaulted(false), word);
        assert!(!Word::swapped(Place::ZERO, Shadow(u16::MAX)).has_refaulted(), "that bit is its shadow's");
        assert_eq!(word.place(), Some(Place::Device(Place::BLOCK_MAX)));
        assert!(!word.is_locked() && !word.is_wanted() && !word.is_writeback());
        let locked = word.locked().wanted();
        assert!(locked.is_locked() && locked.is_wanted());
        assert_eq!(locked.unlocked(), word);
        assert_eq!(word.without_place(), Word::cached(SLOT_MAX, None));
        assert_eq!(word.with_chances(3), word);
        for place in [Handle::page(u32::MAX), Handle::piece(u32::MAX, 15)].map(Place::Pool) {
            let word = Word::swapped(place, Shadow(3));
            let spared = word.with_chances(CHANCES_MAX);
            assert_eq!((spared.chances(), word.chances()), (CHANCES_MAX, 0));
            assert_eq!((spared.place(), spared.with_chances(0)), (Some(place), word));
            assert_eq!(spared.spreads(), word.spreads());
        }
        assert_eq!(
            Word::swapped(Place::Pool(Handle::page(7)), Shadow(3))
                .with_writeback(true)
                .with_place(Place::Device(9)),
            Word::swapped(Place::Device(9), Shadow(3))
        );
    }
}
