//! An array of which a part is made when it is first used: its size costs next to nothing.
//!
//! ```text
//! ┌──────────┐     ┌───────────────┐     ┌──────────┐
//! │ branches │ ──▶ │ 256 elements, │ ──▶ │ one      │
//! │          │     │ a pointer each│     │ element  │
//! └──────────┘     └───────────────┘     └──────────┘
//! ```
//!
//! With an element of 2 MiB of device a branch is 512 MiB: 16 bytes of root for that, 4 KiB once any of it is used.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

const BRANCH: usize = 256;

type Branch<T> = Box<[OnceLock<Box<T>>]>;

/// A sparse array.
#[derive(Debug)]
pub(crate) struct Sparse<T> {
    branches: Box<[OnceLock<Branch<T>>]>,
    made: AtomicUsize,
}

impl<T> Sparse<T> {
    /// One of so many elements, none of which is made.
    pub(crate) fn new(length: usize) -> Self {
        let branches = (0..length.div_ceil(BRANCH)).map(|_| OnceLock::new()).collect();
        Self { branches, made: AtomicUsize::new(0) }
    }

    /// An element, if it was made.
    pub(crate) fn get(&self, index: usize) -> Option<&T> {
        self.branches.get(index / BRANCH)?.get()?[index % BRANCH].get().map(|element| &**element)
    }

    /// Returns the number of elements that were made.
    pub(crate) fn made(&self) -> usize {
        self.made.load(Relaxed)
    }

    /// The elements that were made, by their index.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (usize, &T)> {
        let branches = self.branches.iter().enumerate();
        let made = branches.filter_map(|(nth, branch)| Some((nth * BRANCH, branch.get()?)));
        made.flat_map(|(first, branch)| {
            branch.iter().enumerate().filter_map(move |(nth, element)| Some((first + nth, &**element.get()?)))
        })
    }
}

impl<T: Default> Sparse<T> {
    /// An element, which is made if it is not there.
    ///
    /// # Panics
    /// If there is no such element.
    pub(crate) fn get_or_make(&self, index: usize) -> &T {
        let branch =
            self.branches[index / BRANCH].get_or_init(|| (0..BRANCH).map(|_| OnceLock::new()).collect());
        branch[index % BRANCH].get_or_init(|| {
            self.made.fetch_add(1, Relaxed);
            Box::default()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU64;

    #[test]
    fn what_was_made_is_found_and_nothing_else() {
        let sparse = Sparse::<AtomicU64>::new(1000);
        let made = [0, 3, 255, 256, 999];
        for index in made {
            sparse.get_or_make(index).store(index as u64, Relaxed);
            sparse.get_or_make(index);
        }
        assert!(sparse.iter().map(|(index, _)| index).eq(made));
        assert!(sparse.iter().all(|(index, element)| element.load(Relaxed) == index as u64));
        assert_eq!(sparse.made(), made.len());
        assert!((0..2000).all(|index| sparse.get(index).is_some() == made.contains(&index)));
    }
}
