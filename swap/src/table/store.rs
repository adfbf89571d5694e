//! Memory of finer levels, used again when it was given back.

use crate::slab::{SEGMENTS, Slab};
use crate::sync::atomic::{
    AtomicU32, AtomicU64, AtomicUsize, Ordering::AcqRel, Ordering::Acquire, Ordering::Relaxed,
};
use pagetide_page::ClusterNumber;

/// Values of a finer level, used again when they were given back. Takes no lock, and no memory but for its own.
#[derive(Debug)]
pub(super) struct Store<T, const FIRST: usize> {
    pub(super) values: Slab<T, FIRST>,
    free: [Free; LISTS],
    pub(super) used: AtomicU32,
    /// The addresses of the segments of `values`, for [`super::outside`].
    pub(super) segments: Box<[std::sync::atomic::AtomicU64]>,
}

/// Lists of what was given back: by cluster, so that threads which work on neighbours do not hand each other memory
/// that is in the other's cache.
pub(super) const LISTS: usize = 4;

/// The last that was given back, plus one, below a count of changes. Each holds the next in its first word.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(super) struct Free(AtomicU64);

pub(super) trait Block: Default {
    fn link(&self) -> &AtomicU64;
}

impl<T, const FIRST: usize> Default for Store<T, FIRST> {
    fn default() -> Self {
        Self {
            values: Slab::default(),
            free: Default::default(),
            used: AtomicU32::new(0),
            segments: (0..SEGMENTS).map(|_| std::sync::atomic::AtomicU64::new(0)).collect(),
        }
    }
}

impl<T: Block, const FIRST: usize> Store<T, FIRST> {
    #[cfg(test)]
    pub(super) fn held(&self) -> u32 {
        let mut held = self.used.load(Relaxed);
        for free in &self.free {
            let mut next = free.0.load(Relaxed) as u32;
            while let Some(spot) = next.checked_sub(1) {
                held -= 1;
                next = self.get(spot).link().load(Relaxed) as u32;
            }
        }
        held
    }

    #[inline]
    pub(super) fn get(&self, spot: u32) -> &T {
        self.values.at(spot).expect("a spot that was handed out")
    }

    /// A value for a cluster: one that was given back for the same, or for others.
    pub(super) fn take(&self, number: ClusterNumber, bytes: &AtomicUsize) -> u32 {
        if let Some(spot) = (0..LISTS).find_map(|by| self.pop(&self.free[(number.0 as usize + by) % LISTS].0))
        {
            return spot;
        }
        let id = self.used.fetch_add(1, Relaxed);
        self.reserve(id, bytes);
        Slab::<T, FIRST>::spot(id)
    }

    pub(super) fn pop(&self, list: &AtomicU64) -> Option<u32> {
        let mut free = list.load(Acquire);
        loop {
            let spot = (free as u32).checked_sub(1)?;
            // Of one that somebody else takes meanwhile this reads a word, and the count has changed.
            let next = self.get(spot).link().load(Relaxed) as u32;
            let changed = (free >> 32).wrapping_add(1) << 32 | u64::from(next);
            match list.compare_exchange_weak(free, changed, AcqRel, Acquire) {
                Ok(_) => return Some(spot),
                Err(now) => free = now,
            }
        }
    }

    pub(super) fn give(&self, number: ClusterNumber, spot: u32) {
        let link = self.get(spot).link();
        let list = &self.free[number.0 as usize % LISTS].0;
        let mut free = list.load(Relaxed);
        loop {
            link.store(u64::from(free as u32), Relaxed);
            let changed = (free >> 32).wrapping_add(1) << 32 | u64::from(spot + 1);
            match list.compare_exchange_weak(free, changed, AcqRel, Relaxed) {
                Ok(_) => return,
                Err(now) => free = now,
            }
        }
    }

    /// Makes memory for value number `id`.
    pub(super) fn reserve(&self, id: u32, bytes: &AtomicUsize) {
        if self.values.get(id).is_none() {
            bytes.fetch_add(self.values.make(id, T::default), Relaxed);
            if let Some((segment, base)) = self.values.segment(id) {
                self.segments[segment].store(base as u64, Relaxed);
            }
        }
    }
}
