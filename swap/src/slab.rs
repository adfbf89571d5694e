//! Values that are found by number and never move: segments, sixteen of a size before the size doubles, so that
//! the slab of a small process is small, and that of a large one has a sixteenth of room at most.

use std::sync::OnceLock;

/// log2 of the segments of each size.
const STEP_BITS: u32 = 4;
const STEPS: usize = 1 << STEP_BITS;
pub(crate) const SEGMENTS: usize = 20 * STEPS;
/// Bits of a spot that tell the place in a segment.
pub(crate) const SPOT_BITS: u32 = 23;
const _: () = assert!(SEGMENTS < 1 << (u32::BITS - SPOT_BITS));

/// Values of a segment of a slab whose first segments hold `first` each.
pub(crate) const fn segment_len(first: usize, segment: usize) -> usize {
    first << (segment >> STEP_BITS)
}

/// Room for `FIRST` × 2²⁴ values and more; each of the first sixteen segments holds `FIRST`.
#[derive(Debug)]
pub(crate) struct Slab<T, const FIRST: usize> {
    segments: [OnceLock<Box<[T]>>; SEGMENTS],
}

impl<T, const FIRST: usize> Default for Slab<T, FIRST> {
    fn default() -> Self {
        Self { segments: [const { OnceLock::new() }; SEGMENTS] }
    }
}

impl<T, const FIRST: usize> Slab<T, FIRST> {
    /// The value of that number, if its segment was made.
    pub(crate) fn get(&self, id: u32) -> Option<&T> {
        let (segment, at) = Self::segment_of(id);
        Some(&self.segments.get(segment)?.get()?[at])
    }

    /// A number from which its segment is read off, in place of `id`.
    pub(crate) fn spot(id: u32) -> u32 {
        let (segment, at) = Self::segment_of(id);
        debug_assert!(at < 1 << SPOT_BITS);
        (segment as u32) << SPOT_BITS | at as u32
    }

    /// The value at a spot, if its segment was made.
    #[inline]
    pub(crate) fn at(&self, spot: u32) -> Option<&T> {
        self.segments.get((spot >> SPOT_BITS) as usize)?.get()?.get(spot as usize & ((1 << SPOT_BITS) - 1))
    }

    /// Makes the segment of that number, if there is none. Returns the bytes that it took.
    ///
    /// # Panics
    /// If the number is beyond the slab.
    pub(crate) fn make(&self, id: u32, mut value: impl FnMut() -> T) -> usize {
        let segment = Self::segment_of(id).0;
        let mut bytes = 0;
        self.segments[segment].get_or_init(|| {
            let values = segment_len(FIRST, segment);
            bytes = values * size_of::<T>();
            (0..values).map(|_| value()).collect()
        });
        bytes
    }

    /// The segment of a number and where its values begin, if it was made.
    pub(crate) fn segment(&self, id: u32) -> Option<(usize, usize)> {
        let (segment, _) = Self::segment_of(id);
        Some((segment, self.segments.get(segment)?.get()?.as_ptr().addr()))
    }

    /// The segment of a number, and its place there.
    fn segment_of(id: u32) -> (usize, usize) {
        let row = id as usize / FIRST + STEPS;
        let doublings = row.ilog2() - STEP_BITS;
        let step = row >> doublings;
        let segment = (doublings as usize * STEPS) + step - STEPS;
        (segment, id as usize - FIRST * ((step << doublings) - STEPS))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_has_a_place_of_its_own() {
        let mut next = (0, 0);
        for id in 0..50_000 {
            assert_eq!(Slab::<u8, 8>::segment_of(id), next);
            let spot = Slab::<u8, 8>::spot(id);
            assert_eq!(((spot >> SPOT_BITS) as usize, spot as usize & ((1 << SPOT_BITS) - 1)), next);
            next.1 += 1;
            if next.1 == 8 << (next.0 / STEPS) {
                next = (next.0 + 1, 0);
            }
        }
    }

    #[test]
    fn segments_are_made_once_and_only_where_asked() {
        let slab = Slab::<std::cell::Cell<u32>, 4>::default();
        assert!(slab.get(0).is_none() && slab.get(u32::MAX).is_none());
        assert_eq!(slab.make(64, || std::cell::Cell::new(7)), 8 * 4);
        assert!(slab.get(63).is_none() && slab.get(72).is_none());
        slab.get(65).unwrap().set(9);
        assert_eq!(slab.make(71, || std::cell::Cell::new(1)), 0);
        assert_eq!((slab.get(71).unwrap().get(), slab.get(65).unwrap().get()), (7, 9));
    }
}
