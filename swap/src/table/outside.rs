//! The table of another process, read from outside while that process goes on, hangs or is stopped.
//!
//! The reader takes no latch and trusts nothing that it reads: every loop is bounded, and an address is only handed to
//! [`Memory`], which refuses what lies elsewhere than it should. A cluster that changes while it is read is read again
//! a few times, then told as it was seen last.
//!
//! ```text
//! head ──▶ leaf ──▶ leaf ──▶ …       each with its number and 256 clusters; leaves are never given back
//! segments of units, pages, flats    an array of addresses for each store; 0 where nothing was made
//! ```

use super::history::History;
use super::levels::{FLAT, Flat, Pages, Units, finer};
use super::{
    BRANCH_LEAVES, BRANCHES, CLUSTERS_MAX, Cluster, LEAF_CLUSTERS, Leaf, Table, UNIT_PAGES, UNITS,
    place_in_leaf,
};
use crate::latch;
use crate::slab::{SEGMENTS, SPOT_BITS, segment_len};
use crate::word::Word;
use pagetide_page::{CLUSTER_PAGES, ClusterNumber};
use std::collections::HashMap;
use std::mem::offset_of;
use std::sync::atomic::AtomicU64;

/// Leaves that a table can have.
const LEAVES_MAX: usize = BRANCHES * BRANCH_LEAVES;
/// The number of looks at a cluster that changes.
const LOOKS: usize = 8;

/// The memory of another process.
pub trait Memory {
    /// Reads all of `into` from an address on.
    ///
    /// # Errors
    /// A text for people that says why not: the memory cannot be read, or lies outside of what may be read.
    fn read(&self, address: u64, into: &mut [u8]) -> Result<(), String>;

    /// Reads `N` words.
    ///
    /// # Errors
    /// As for [`Memory::read`].
    fn words<const N: usize>(&self, address: u64) -> Result<[u64; N], String> {
        let mut bytes = vec![0; N * 8];
        self.read(address, &mut bytes)?;
        let (words, _) = bytes.as_chunks::<8>();
        Ok(std::array::from_fn(|at| u64::from_ne_bytes(words[at])))
    }
}

/// The addresses by which a table is found in the memory of its process.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Anatomy {
    /// The address of the word that holds the address of the leaf that was made last.
    pub leaves: u64,
    /// The addresses of the lists of segments: of units, of pages, of flat clusters.
    pub segments: [u64; 3],
}

impl Table {
    /// Returns the addresses by which the table is found. They do not change.
    pub fn anatomy(&self) -> Anatomy {
        let address = |word: &AtomicU64| std::ptr::from_ref(word).addr() as u64;
        Anatomy {
            leaves: address(&self.leaves),
            segments: [&self.units.segments[0], &self.pages.segments[0], &self.flats.segments[0]]
                .map(address),
        }
    }
}

/// A cluster, as it was seen.
#[derive(Clone, Debug)]
pub struct Seen {
    /// The cluster's number.
    pub number: ClusterNumber,
    /// The words of its pages.
    pub words: Vec<Word>,
    /// The cluster's history: what reclaim remembers of it.
    pub history: History,
    /// Whether a thread holds the cluster's latch.
    pub held: bool,
    /// Whether a thread waits for the cluster's latch.
    pub parked: bool,
    /// Whether the cluster changed at each look, so that its words may not belong together.
    pub torn: bool,
}

/// A table in another process, whose leaves have been found.
#[derive(Debug)]
pub struct Outside<'a, M> {
    memory: &'a M,
    anatomy: Anatomy,
    /// The address of each leaf, by its number.
    leaves: HashMap<u64, u64>,
}

impl<'a, M: Memory> Outside<'a, M> {
    /// Finds the leaves of a table.
    ///
    /// # Errors
    /// A text for people: the memory cannot be read, or there is no table.
    pub fn open(memory: &'a M, anatomy: Anatomy) -> Result<Self, String> {
        let mut leaves = HashMap::new();
        let [mut next] = memory.words(anatomy.leaves)?;
        while next != 0 {
            let [number, after] = memory.words(address(next, offset_of!(Leaf, number))?)?;
            if number as usize >= LEAVES_MAX || leaves.insert(number, next).is_some() {
                return Err(format!("the leaf of the table at {next:#x} is none"));
            }
            next = after;
        }
        Ok(Self { memory, anatomy, leaves })
    }

    /// Reads a cluster; `None` if no page near it was ever touched.
    ///
    /// # Errors
    /// A text for people: the memory cannot be read, holds no table, or changes at each look.
    pub fn cluster(&self, number: ClusterNumber) -> Result<Option<Seen>, String> {
        if number.0 >= CLUSTERS_MAX {
            return Err(format!("cluster {} lies beyond 47 bits of addresses", number.0));
        }
        let Some(&leaf) = self.leaves.get(&(number.0 / LEAF_CLUSTERS as u64)) else { return Ok(None) };
        let head = address(leaf, place_in_leaf(number.0 as usize) * size_of::<Cluster>())?;
        let mut seen = None;
        let mut trouble = String::new();
        for _ in 0..LOOKS {
            let before: [u64; 3] = self.memory.words(head)?;
            match self.look(number, before) {
                Ok(found) => seen = Some(found),
                // What was read may be of a cut that is given back: then the head has changed, too.
                Err(error) => trouble = error,
            }
            let after: [u64; 3] = self.memory.words(head)?;
            let held = latch::is_held(before[0] as u32);
            if before == after && trouble.is_empty() {
                // A holder that does not go on leaves it as it is.
                return Ok(seen);
            }
            if before == after && !held {
                return Err(trouble);
            }
            if !trouble.is_empty() {
                seen = None;
                trouble.clear();
            }
        }
        match seen {
            Some(seen) => Ok(Some(Seen { torn: true, ..seen })),
            None => Err(format!("cluster {} changes all the time", number.0)),
        }
    }

    fn look(&self, number: ClusterNumber, [first, root, _]: [u64; 3]) -> Result<Seen, String> {
        let (latch, history) = (first as u32, (first >> 32) as u32);
        let words = match finer(root) {
            None => (0..CLUSTER_PAGES)
                .map(|nth| checked(Word(root)).map(|word| word.nth(nth)))
                .collect::<Result<_, _>>()?,
            Some(spot) if root & FLAT != 0 => {
                let words: [u64; CLUSTER_PAGES] = self.at::<Flat, 1, _>(self.anatomy.segments[2], spot)?;
                words.into_iter().map(|word| checked(Word(word))).collect::<Result<_, _>>()?
            }
            Some(spot) => {
                let units: [u64; UNITS] = self.at::<Units, 8, _>(self.anatomy.segments[0], spot)?;
                let mut words = Vec::with_capacity(CLUSTER_PAGES);
                for unit in units {
                    match finer(unit) {
                        None => {
                            let word = checked(Word(unit))?;
                            words.extend((0..UNIT_PAGES).map(|nth| word.nth(nth)));
                        }
                        Some(spot) => {
                            let pages: [u64; UNIT_PAGES] =
                                self.at::<Pages, 32, _>(self.anatomy.segments[1], spot)?;
                            for page in pages {
                                words.push(checked(Word(page))?);
                            }
                        }
                    }
                }
                words
            }
        };
        Ok(Seen {
            number,
            words,
            history: History::from_bits(history),
            held: latch::is_held(latch),
            parked: latch::is_parked(latch),
            torn: false,
        })
    }

    /// Reads the words at a spot of a store of `T`, whose first segment holds `FIRST` values.
    fn at<T, const FIRST: usize, const N: usize>(
        &self,
        segments: u64,
        spot: u32,
    ) -> Result<[u64; N], String> {
        const { assert!(size_of::<T>() == N * 8) };
        let (segment, at) = ((spot >> SPOT_BITS) as usize, spot as usize & ((1 << SPOT_BITS) - 1));
        if segment >= SEGMENTS || at >= segment_len(FIRST, segment) {
            return Err(format!("the table names a spot {spot:#x} that cannot be"));
        }
        let [base] = self.memory.words(address(segments, segment * 8)?)?;
        if base == 0 {
            return Err(format!("the table names a spot {spot:#x} that was never made"));
        }
        self.memory.words(address(base, at * size_of::<T>())?)
    }

    /// Returns the clusters, ascending, in which pages may be on the move or whose latch is held. It leaves out only
    /// clusters of one word that says otherwise. It reads one leaf at a time.
    ///
    /// # Errors
    /// A text for people: the memory cannot be read.
    pub fn busy(&self) -> Result<Vec<ClusterNumber>, String> {
        let mut found = Vec::new();
        let mut leaves: Vec<_> = self.leaves.iter().collect();
        leaves.sort_unstable();
        for (&number, &leaf) in leaves {
            let heads: [u64; LEAF_CLUSTERS * 3] = self.memory.words(leaf)?;
            for nth in 0..LEAF_CLUSTERS {
                let root = heads[place_in_leaf(nth) * 3 + 1];
                let whole = finer(root).is_none();
                let moves = Word(root).is_locked() || Word(root).is_writeback();
                let held = latch::is_held(heads[place_in_leaf(nth) * 3] as u32);
                if !whole || moves || held {
                    found.push(ClusterNumber(number * LEAF_CLUSTERS as u64 + nth as u64));
                }
            }
        }
        Ok(found)
    }
}

/// Returns the word if it is possible: `Word::nth` counts on that.
fn checked(word: Word) -> Result<Word, String> {
    if word.is_possible() { Ok(word) } else { Err(format!("{:#x} is no word of a page", word.0)) }
}

fn address(base: u64, offset: usize) -> Result<u64, String> {
    base.checked_add(offset as u64).ok_or_else(|| format!("{base:#x} is no address"))
}

#[cfg(all(test, not(feature = "shuttle"), not(feature = "loom")))]
mod tests {
    use super::*;
    use crate::place::Place;
    use crate::workingset::Shadow;
    use pagetide_page::PageIndex;
    use std::cell::Cell;
    use std::fs::File;
    use std::os::unix::fs::FileExt;

    /// The memory of this process, read as that of another is.
    struct Own(File);

    impl Memory for Own {
        fn read(&self, address: u64, into: &mut [u8]) -> Result<(), String> {
            self.0.read_exact_at(into, address).map_err(|error| error.to_string())
        }
    }

    /// Bytes drawn at random, of which many look like words of a table.
    struct Hostile {
        state: Cell<u64>,
        reads: Cell<u64>,
    }

    impl Hostile {
        fn draw(&self) -> u64 {
            let next = self
                .state
                .get()
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            self.state.set(next);
            match next >> 61 {
                0 => 0,
                1 => 7 | (next >> 20 & 0xff) << 8,
                2 => 15 | (next >> 20 & 0xffff_ffff) << 8,
                3 => 0x7f00_0000_0000 | next >> 24 & 0xffff_ff00,
                4 => next >> 33 & 0xff,
                _ => next.rotate_left(17),
            }
        }
    }

    impl Memory for Hostile {
        fn read(&self, address: u64, into: &mut [u8]) -> Result<(), String> {
            self.reads.set(self.reads.get() + 1);
            if address.is_multiple_of(97) {
                return Err("not there".to_owned());
            }
            for word in into.chunks_mut(8) {
                word.copy_from_slice(&self.draw().to_ne_bytes()[..word.len()]);
            }
            Ok(())
        }
    }

    #[test]
    fn the_words_of_a_table_are_those_that_a_peek_finds() {
        let table = Table::default();
        let mut pages = Vec::new();
        for (number, count) in [(3, 512), (4, 16), (5, 1), (900, 100), (70_000, 40)] {
            let mut cluster = table.lock_or_create(ClusterNumber(number));
            for nth in 0..count {
                let at = nth * 5 % 512;
                let word = match nth % 5 {
                    0 => Word::present(None),
                    1 => Word::swapped(Place::Device(nth as u64 * 3), Shadow(9)),
                    2 => Word::swapped(Place::ZERO, Shadow(1)).locked(),
                    3 => Word::cached(7, None).locked().wanted(),
                    _ => Word::POISONED,
                };
                cluster.set(at, word);
                pages.push(ClusterNumber(number).page(at));
            }
            cluster.set_history(History { heat: 3, queued: true, ..History::default() });
        }
        let mut whole = table.lock_or_create(ClusterNumber(6));
        whole.set_run(0..512, Word::swapped(Place::Device(4096), Shadow(2)));
        drop(whole);
        pages.extend((0..512).map(|at| ClusterNumber(6).page(at)));
        let memory = Own(File::open("/proc/self/mem").unwrap());
        let outside = Outside::open(&memory, table.anatomy()).unwrap();
        for page in pages {
            let seen = outside.cluster(page.cluster()).unwrap().unwrap();
            assert_eq!(seen.words[page.offset()], table.peek(page), "{page:?}");
            assert!(!seen.held && !seen.torn && seen.words.len() == 512);
        }
        let seen = outside.cluster(ClusterNumber(900)).unwrap().unwrap();
        assert_eq!((seen.history.heat, seen.history.queued), (3, true));
        assert!(outside.cluster(PageIndex(1 << 33).cluster()).unwrap().is_none());
        assert!(outside.cluster(ClusterNumber(u64::MAX)).is_err());
        let busy = outside.busy().unwrap();
        assert!([3, 4, 5, 900, 70_000].iter().all(|&number| busy.contains(&ClusterNumber(number))));
        // Who holds a cluster is no obstacle.
        let held = table.lock(ClusterNumber(3)).unwrap();
        assert!(outside.cluster(ClusterNumber(3)).unwrap().unwrap().held);
        assert!(outside.busy().unwrap().contains(&ClusterNumber(3)));
        drop(held);
    }

    #[test]
    fn memory_that_is_no_table_is_an_error_and_no_panic() {
        let (mut opened, mut errors) = (0, 0);
        for seed in 0..1000 {
            let memory = Hostile { state: Cell::new(seed), reads: Cell::new(0) };
            let segments = [memory.draw(), memory.draw(), memory.draw()];
            let anatomy = Anatomy { leaves: memory.draw(), segments };
            // Any leaf will do to come further.
            let Ok(mut outside) = Outside::open(&memory, anatomy) else {
                errors += 1;
                let leaves = (0..4).map(|number| (number, memory.draw())).collect();
                let outside = Outside { memory: &memory, anatomy, leaves };
                for number in 0..32 {
                    errors += usize::from(outside.cluster(ClusterNumber(number)).is_err());
                }
                let _ = outside.busy();
                continue;
            };
            opened += 1;
            outside.leaves.insert(0, memory.draw());
            let _ = (outside.cluster(ClusterNumber(5)), outside.busy());
        }
        assert!(opened > 0 && errors > 1000, "{opened} {errors}");
    }
}
