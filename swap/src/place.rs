//! Places: where the contents of a page are that is not in the program.

use pagetide_page::FOLIO_PAGES;

/// A place of swapped contents.
///
/// | kind | value | bytes elsewhere |
/// |---|---|---|
/// | `Same` | a 32-bit pattern that fills the page (0 for the zero page) | none |
/// | `Pool` | handle of a compressed copy: of a page alone, or a piece of a folio | header and payload in the pool |
/// | `Device` | block number, in pages from the start of the device | one page, its hash in memory |
///
/// ```
/// use pagetide_swap::Place;
///
/// assert_eq!(Place::same_filled(&[0; 4096]), Some(Place::ZERO));
/// assert_eq!(Place::same_filled(&[7; 4096]), Some(Place::Same(0x0707_0707)));
/// let mut page = [7; 4096];
/// page[100] = 8;
/// assert_eq!(Place::same_filled(&page), None);
/// Place::fill(0x0707_0707, &mut page);
/// assert_eq!(page, [7; 4096]);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// Nowhere else: the page is this 32-bit word, repeated.
    Same(u32),
    /// A compressed copy in the pool.
    Pool(Handle),
    /// The block of this number on the device.
    Device(u64),
}

/// A name of a compressed copy in the pool.
///
/// ```text
///  39                      3    0
/// ┌──┬──────────────────┬─────┐
/// │ 1│ number of a folio│piece│    one of sixteen pages that left together
/// ├──┼──────────────────┴─────┤
/// │ 0│ number of an entry     │    a page that left alone
/// └──┴────────────────────────┘
/// ```
///
/// So the handle of a folio's next piece is one more. Bits 36 to 38 are no part of the handle: in a word they say how
/// often the shrinker's hand spares the copy yet ([`crate::Word::chances`]).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct Handle(u64);

/// The entry of the pool that a [`Handle`] names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Entry {
    /// The entry of this number: a page that left alone.
    Page(u32),
    /// The folio of this number, and the piece of it: 0 to 15.
    Piece(u32, usize),
}

impl Handle {
    pub(crate) const FOLIO: u64 = 1 << 39;
    pub(crate) const CHANCES_SHIFT: u32 = 36;
    pub(crate) const CHANCES_MAX: u8 = 7;
    const CHANCES: u64 = (Self::CHANCES_MAX as u64) << Self::CHANCES_SHIFT;
    const PIECE_BITS: u32 = FOLIO_PAGES.ilog2();

    /// Returns the handle of entry `number`, a page that left alone.
    pub const fn page(number: u32) -> Self {
        Self(number as u64)
    }

    /// Returns the handle of a piece, 0 to 15, of folio number `folio`.
    pub const fn piece(folio: u32, piece: usize) -> Self {
        Self(Self::FOLIO | (folio as u64) << Self::PIECE_BITS | piece as u64)
    }

    /// Returns the handle of the piece `count` pieces after this one, in the same folio.
    pub const fn nth(self, count: usize) -> Self {
        Self(self.0 + count as u64)
    }

    /// Returns the entry that the handle names.
    pub const fn entry(self) -> Entry {
        if self.0 & Self::FOLIO == 0 {
            return Entry::Page(self.0 as u32);
        }
        Entry::Piece((self.0 >> Self::PIECE_BITS) as u32, self.0 as usize & (FOLIO_PAGES - 1))
    }
}

impl Place {
    /// The zero page.
    pub const ZERO: Self = Self::Same(0);
    /// The number of bits that tell the kind, and the values that they have.
    pub(crate) const KIND_BITS: u32 = 2;
    const KIND_SAME: u64 = 1;
    pub(crate) const KIND_POOL: u64 = 2;
    pub(crate) const KIND_DEVICE: u64 = 3;
    /// The number of bits that a place takes in a word: kind and value.
    pub const BITS: u32 = 42;
    /// The largest block number that a place can hold.
    pub const BLOCK_MAX: u64 = (1 << 40) - 1;

    pub(crate) const fn to_bits(place: Option<Self>) -> u64 {
        match place {
            None => 0,
            Some(Self::Same(pattern)) => Self::KIND_SAME | (pattern as u64) << Self::KIND_BITS,
            Some(Self::Pool(handle)) => Self::KIND_POOL | handle.0 << Self::KIND_BITS,
            Some(Self::Device(block)) => {
                assert!(block <= Self::BLOCK_MAX);
                Self::KIND_DEVICE | block << Self::KIND_BITS
            }
        }
    }

    pub(crate) const fn from_bits(bits: u64) -> Option<Self> {
        let value = bits >> Self::KIND_BITS;
        match bits & ((1 << Self::KIND_BITS) - 1) {
            Self::KIND_SAME => Some(Self::Same(value as u32)),
            Self::KIND_POOL => Some(Self::Pool(Handle(value & !Handle::CHANCES))),
            Self::KIND_DEVICE => Some(Self::Device(value)),
            _ => None,
        }
    }

    /// Returns the place of a page that is one 32-bit word, repeated; `None` if it is not.
    pub fn same_filled(page: &[u8]) -> Option<Self> {
        let (words, rest) = page.as_chunks::<8>();
        let first = u64::from_ne_bytes(*words.first()?);
        // Most pages differ in the first words or at the end: look there before the full walk.
        if !rest.is_empty() || first as u32 != (first >> 32) as u32 || words[words.len() - 1] != words[0] {
            return None;
        }
        let lanes = words.chunks(16);
        for lane in lanes {
            if lane.iter().fold(0, |differs, word| differs | (u64::from_ne_bytes(*word) ^ first)) != 0 {
                return None;
            }
        }
        Some(Self::Same(first as u32))
    }

    /// Fills `page` with a pattern.
    pub fn fill(pattern: u32, page: &mut [u8]) {
        if pattern == 0 {
            page.fill(0);
        } else {
            for word in page.as_chunks_mut::<4>().0 {
                *word = pattern.to_ne_bytes();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_round_trip() {
        for place in [
            None,
            Some(Place::ZERO),
            Some(Place::Same(u32::MAX)),
            Some(Place::Pool(Handle::page(u32::MAX))),
            Some(Place::Pool(Handle::piece(u32::MAX, 15))),
            Some(Place::Device(Place::BLOCK_MAX)),
        ] {
            let bits = Place::to_bits(place);
            assert!(bits < 1 << Place::BITS);
            assert_eq!(Place::from_bits(bits), place);
        }
    }

    #[test]
    fn a_handle_names_what_it_was_made_of() {
        for number in [0, 1, 77, u32::MAX] {
            assert_eq!(Handle::page(number).entry(), Entry::Page(number));
            for piece in 0..FOLIO_PAGES {
                assert_eq!(Handle::piece(number, piece).entry(), Entry::Piece(number, piece));
                assert_eq!(Handle::piece(number, 0).0 + piece as u64, Handle::piece(number, piece).0);
            }
        }
    }

    #[test]
    fn a_page_is_same_filled_only_if_every_word_agrees() {
        let mut page = vec![0u8; 4096];
        for pattern in [0, 0xffff_ffff, 0x0102_0304] {
            Place::fill(pattern, &mut page);
            assert_eq!(Place::same_filled(&page), Some(Place::Same(pattern)));
            for at in [0, 7, 100, 2048, 4095] {
                page[at] ^= 1;
                assert_eq!(Place::same_filled(&page), None, "byte {at}");
                page[at] ^= 1;
            }
        }
    }
}
