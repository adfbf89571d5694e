//! A lock in one 32-bit word, which counts how often it was held: whoever reads without it can tell whether
//! what it read belongs together (a sequence lock, as Linux's `seqcount_t`, whose writers exclude each other).
//!
//! ```text
//!  31                                     2 1 0
//! ┌────────────────────────────────────────┬─┬─┐
//! │ how often it was released              │P│H│   H held   P somebody is parked
//! └────────────────────────────────────────┴─┴─┘
//! ```
//!
//! What it guards must be atomics: a reader may look while they change, and throws away what it saw. Whoever finds it
//! held spins for a moment, then parks: a holder may be within a system call. A release that sees nobody parked is a
//! plain store: it may overlook who parks at that very instant, so whoever is parked looks again after a millisecond.

#[cfg(not(feature = "loom"))]
use crate::sync::{Condvar, Mutex, atomic, spin_loop};
#[cfg(feature = "loom")]
use loom::{
    hint::spin_loop,
    sync::{Condvar, Mutex, atomic},
    thread::yield_now,
};
#[cfg(all(feature = "shuttle", not(feature = "loom")))]
use shuttle::thread::yield_now;

use atomic::{AtomicU32, Ordering::Acquire, Ordering::Relaxed, Ordering::Release, fence};
use std::sync::PoisonError;

const HELD: u32 = 1;
const PARKED: u32 = 2;
const FLAGS: u32 = HELD | PARKED;
/// Looks at a held latch before parking.
const SPINS: usize = if cfg!(feature = "loom") { 1 } else { 100 };
/// After which time one who is parked looks again.
#[cfg(not(any(feature = "loom", feature = "shuttle")))]
const LOOK_AGAIN: std::time::Duration = std::time::Duration::from_millis(1);
/// Places to park: latches share them.
const LOTS: usize = if cfg!(feature = "loom") { 1 } else { 16 };

/// Returns whether a thread holds the latch, by its word, which was read from outside.
pub(crate) const fn is_held(word: u32) -> bool {
    word & HELD != 0
}

/// Returns whether a thread is parked at the latch, by its word, which was read from outside.
pub(crate) const fn is_parked(word: u32) -> bool {
    word & PARKED != 0
}

/// See the module.
#[derive(Debug, Default)]
#[repr(transparent)]
pub(crate) struct Latch(AtomicU32);

/// The place where threads wait that find a latch held. It serves any number of latches.
#[derive(Debug, Default)]
pub(crate) struct Parking {
    lots: [(Mutex<()>, Condvar); LOTS],
}

/// A latch's count at the beginning of a read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Version(u32);

impl Latch {
    /// Waits until nobody else holds it, and holds it. `number` says where to park: any, but the same for each call.
    #[inline]
    pub(crate) fn acquire(&self, parking: &Parking, number: u32) {
        let mut spins = 0;
        let mut word = self.0.load(Relaxed);
        loop {
            if word & HELD == 0 {
                match self.0.compare_exchange_weak(word, word | HELD, Acquire, Relaxed) {
                    // What is written from here on is seen after the flag.
                    Ok(_) => return fence(Release),
                    Err(now) => word = now,
                }
                continue;
            }
            if spins < SPINS {
                spins += 1;
                spin_loop();
            } else {
                self.park(parking, number);
            }
            word = self.0.load(Relaxed);
        }
    }

    #[cold]
    #[cfg(not(any(feature = "loom", feature = "shuttle")))]
    fn park(&self, parking: &Parking, number: u32) {
        let (lot, released) = &parking.lots[number as usize % LOTS];
        let guard = lot.lock().unwrap_or_else(PoisonError::into_inner);
        // As a rule whoever releases it from here on sees the flag, and takes the lot's lock to wake us.
        if self.0.fetch_or(PARKED, Relaxed) & HELD != 0 {
            drop(released.wait_timeout(guard, LOOK_AGAIN).unwrap_or_else(PoisonError::into_inner));
        }
    }

    /// A checker knows no time, and that time passes is all that whoever is parked may rely on.
    #[cfg(any(feature = "loom", feature = "shuttle"))]
    fn park(&self, _: &Parking, _: u32) {
        yield_now();
    }

    /// Releases it. The caller must hold it.
    #[inline]
    pub(crate) fn release(&self, parking: &Parking, number: u32) {
        let word = self.0.load(Relaxed);
        debug_assert!(word & HELD != 0);
        let released = (word & !FLAGS).wrapping_add(FLAGS + 1);
        self.0.store(released, Release);
        if word & PARKED != 0 {
            wake(parking, number);
        }
    }

    /// Begins to read. `None` if somebody holds it.
    #[inline]
    pub(crate) fn read(&self) -> Option<Version> {
        let word = self.0.load(Acquire);
        (word & HELD == 0).then_some(Version(word & !FLAGS))
    }

    /// Returns whether nobody has held it since `version`: then what was read belongs together.
    #[inline]
    pub(crate) fn is_still(&self, version: Version) -> bool {
        fence(Acquire);
        self.0.load(Relaxed) & !PARKED == version.0
    }
}

#[cold]
fn wake(parking: &Parking, number: u32) {
    let (lot, released) = &parking.lots[number as usize % LOTS];
    drop(lot.lock().unwrap_or_else(PoisonError::into_inner));
    released.notify_all();
}

/// `cargo test --release -p pagetide-swap --features loom --lib latch`: every order, and every value that the
/// memory model allows a load to see.
#[cfg(all(test, feature = "loom"))]
mod model {
    use super::*;
    use atomic::AtomicU64;
    use loom::sync::Arc;
    use loom::thread;

    #[test]
    fn holders_exclude_each_other() {
        loom::model(|| {
            let shared = Arc::new((Latch::default(), Parking::default(), AtomicU64::new(0)));
            let add = |(latch, parking, word): &(Latch, Parking, AtomicU64)| {
                latch.acquire(parking, 0);
                let before = word.load(Relaxed);
                word.store(before + 1, Relaxed);
                latch.release(parking, 0);
            };
            let other = {
                let shared = shared.clone();
                thread::spawn(move || add(&shared))
            };
            add(&shared);
            other.join().unwrap();
            assert_eq!(shared.2.load(Relaxed), 2);
        });
    }

    #[test]
    fn what_a_valid_read_saw_belongs_together() {
        loom::model(|| {
            let shared =
                Arc::new((Latch::default(), Parking::default(), [AtomicU64::new(0), AtomicU64::new(0)]));
            let writer = {
                let shared = shared.clone();
                thread::spawn(move || {
                    let (latch, parking, words) = &*shared;
                    latch.acquire(parking, 0);
                    words.iter().for_each(|word| word.store(1, Relaxed));
                    latch.release(parking, 0);
                })
            };
            let (latch, _, words) = &*shared;
            if let Some(version) = latch.read() {
                let [a, b] = words.each_ref().map(|word| word.load(Relaxed));
                assert!(!latch.is_still(version) || a == b);
            }
            writer.join().unwrap();
        });
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;
    use crate::sync::atomic::AtomicU64;

    #[test]
    fn a_read_is_valid_only_if_nobody_held_it_meanwhile() {
        let (latch, parking) = (Latch::default(), Parking::default());
        let version = latch.read().unwrap();
        assert!(latch.is_still(version));
        latch.acquire(&parking, 0);
        assert!(latch.read().is_none() && !latch.is_still(version));
        latch.release(&parking, 0);
        assert!(!latch.is_still(version));
        assert!(latch.is_still(latch.read().unwrap()));
    }

    #[test]
    fn holders_exclude_each_other_and_readers_see_whole_states() {
        const ROUNDS: u64 = 20_000;
        let (latch, parking) = (Latch::default(), Parking::default());
        let words = [AtomicU64::new(0), AtomicU64::new(0)];
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for _ in 0..ROUNDS {
                        latch.acquire(&parking, 7);
                        let next = words[0].load(Relaxed) + 1;
                        words.iter().for_each(|word| word.store(next, Relaxed));
                        latch.release(&parking, 7);
                    }
                });
            }
            scope.spawn(|| {
                let mut seen = 0;
                while seen < 3 * ROUNDS {
                    let Some(version) = latch.read() else { continue };
                    let [a, b] = words.each_ref().map(|word| word.load(Relaxed));
                    if latch.is_still(version) {
                        assert_eq!(a, b);
                        assert!(a >= seen);
                        seen = a;
                    }
                }
            });
        });
        assert_eq!(words[0].load(Relaxed), 3 * ROUNDS);
    }
}
