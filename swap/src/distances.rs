//! A histogram of refault distances: how much more memory would have kept pages that had to come back.
//!
//! A page comes back when `distance` pages have left since it did, and `present` pages are in memory. In a memory of
//! `present + distance` pages it would have stayed (Weiner 2014; the stack distance of Mattson et al. 1970, as far as
//! evictions show it). The buckets are of the *growth* `(present + distance) / present`, so that they add up over
//! processes of unlike size: eight for each time that it doubles, from 1 to 16; the last has all that lies beyond.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The number of buckets.
pub const BUCKETS: usize = 32;
const EIGHTHS: u32 = 3;
/// Bits behind the point of a growth.
const POINT: u32 = 6;

/// The place from which a page came back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Tier {
    /// The pool, or a pattern.
    Pool,
    /// The device.
    Device,
}

/// The histogram, for each tier, over shared words.
///
/// ```
/// use pagetide_swap::distances::{Tier, growth};
/// use pagetide_swap::{Counters, distances};
///
/// let counters = Counters::private();
/// // A thousand pages are in memory, and 400 have left since this one did.
/// counters.distances().record(Tier::Pool, 400, 1000);
/// let counts = counters.distances().get(Tier::Pool);
/// let bucket = counts.iter().position(|&count| count == 1).unwrap();
/// // It would have stayed in 1.4 times the memory.
/// assert!(growth(bucket - 1) <= 1.4 && 1.4 < growth(bucket));
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Distances(&'static [AtomicU64]);

impl Distances {
    /// The number of words that the histogram takes.
    pub const WORDS: usize = 2 * BUCKETS;

    pub(crate) fn new(words: &'static [AtomicU64]) -> Self {
        Self(&words[..Self::WORDS])
    }

    fn of(self, tier: Tier) -> &'static [AtomicU64] {
        let (pool, device) = self.0.split_at(BUCKETS);
        match tier {
            Tier::Pool => pool,
            Tier::Device => device,
        }
    }

    /// Counts a fault for a page that came back after `distance` evictions, while `present` pages are in memory.
    pub fn record(self, tier: Tier, distance: u64, present: u64) {
        self.of(tier)[bucket(distance, present)].fetch_add(1, Relaxed);
    }

    /// Returns the counts of a tier, each at most 2⁴⁸: other processes can write there, and sums must not overflow.
    pub fn get(self, tier: Tier) -> [u64; BUCKETS] {
        std::array::from_fn(|nth| self.of(tier)[nth].load(Relaxed).min(1 << 48))
    }

    /// Adds the counts of another.
    pub fn add(self, other: Self) {
        for tier in [Tier::Pool, Tier::Device] {
            for (to, count) in self.of(tier).iter().zip(other.get(tier)) {
                to.fetch_add(count, Relaxed);
            }
        }
    }
}

fn bucket(distance: u64, present: u64) -> usize {
    let growth = (u128::from(present) + u128::from(distance)) << POINT;
    let Some(growth) = growth.checked_div(present.into()) else { return BUCKETS - 1 };
    let octave = growth.ilog2() - POINT;
    let eighth = (growth >> (octave + POINT - EIGHTHS)) as usize & ((1 << EIGHTHS) - 1);
    ((octave as usize) << EIGHTHS | eighth).min(BUCKETS - 1)
}

/// Returns the growth that the pages of a bucket stay below, the last one's excepted.
pub fn growth(bucket: usize) -> f64 {
    let (octave, eighth) = (bucket >> EIGHTHS, bucket & ((1 << EIGHTHS) - 1));
    (1u64 << octave) as f64 * (1.0 + (eighth + 1) as f64 / f64::from(1 << EIGHTHS))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_distance_lies_in_the_bucket_of_its_growth() {
        for present in [1, 7, 1000, 1 << 20, 1 << 40] {
            for distance in [0, 1, present / 9, present / 2, present, 3 * present, 14 * present] {
                let found = bucket(distance, present);
                let grown = (present + distance) as f64 / present as f64;
                let below = if found == 0 { 1.0 } else { growth(found - 1) };
                // The growth has six bits behind the point.
                assert!(
                    (below..growth(found) + 1.0 / 64.0).contains(&grown),
                    "{present} {distance}: {found}"
                );
            }
        }
        assert_eq!((growth(0), growth(BUCKETS - 1)), (1.125, 16.0));
    }

    #[test]
    fn what_lies_beyond_is_in_the_last_bucket() {
        for (distance, present) in [(16, 1), (u64::MAX, 1), (u64::MAX, u64::MAX / 20), (0, 0), (5, 0)] {
            assert_eq!(bucket(distance, present), BUCKETS - 1, "{distance} {present}");
        }
        assert_eq!(bucket(u64::MAX, u64::MAX), 8);
    }
}
