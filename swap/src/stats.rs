//! Counters, under the names that the kernel gives them in `/proc/vmstat` and zswap's debugfs.
//!
//! They live in memory that the launcher shares, so that a run can be watched from outside and a killed
//! process loses none of them. All are monotonic; each has one writer process and any number of readers.
//!
//! A new one is a line here, and a call of [`Counters::add`]. Reports, `pagetide stat` and the table in docs/run.md have
//! it from this list. It moves those behind it, so the group page has another form: its `VERSION` in
//! `engine/src/group/setup.rs` rises.

use crate::distances::Distances;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

macro_rules! counters {
    ($($(#[doc = $doc:literal])+ $name:ident),+ $(,)?) => {
        /// One counter of [`Counters`].
        #[allow(non_camel_case_types, reason = "the kernel's names")]
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        #[repr(usize)]
        pub enum Counter { $($(#[doc = $doc])+ $name),+ }

        impl Counter {
            /// All counters, in the order of their cells.
            pub const ALL: &'static [Self] = &[$(Self::$name),+];

            /// Returns the counter's name.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$name => stringify!($name)),+ }
            }

            /// Returns what the counter counts, in Markdown: the table in docs/run.md is made of it.
            pub const fn meaning(self) -> &'static str {
                match self { $(Self::$name => concat!($($doc),+).trim_ascii()),+ }
            }
        }
    };
}

counters! {
    /// Pages read from the device.
    pswpin,
    /// Nanoseconds that faults waited for reads from the device.
    pswpin_ns,
    /// Pages written to the device.
    pswpout,
    /// Pages loaded from the pool; repeated words other than zero count too.
    zswpin,
    /// Pages stored in the pool.
    zswpout,
    /// Pages of these that the compressor had refused, and the recompressor made smaller.
    recompress,
    /// Pages moved from the pool to the device.
    zswpwb,
    /// Zero pages brought in.
    swpin_zero,
    /// Same-filled (mostly zero) pages that needed no copy on the way out.
    swpout_zero,
    /// Faults that had to bring contents back, from the pool, the device or a pattern.
    pgmajfault,
    /// Faults answered from a frame (hits on probation) or with a new page.
    pgminfault,
    /// Writes to pages that a fork shares which waited until the page was charged.
    wp_fault,
    /// Pages handed out for the first time through the engine.
    pgalloc,
    /// Pages taken out of the program.
    pgsteal,
    /// Pages that stayed for another round though their turn to leave had come: their cluster got its second chance. Each
    /// round counts.
    pgactivate,
    /// Evictions that needed neither compression nor write: the kept copy was proved current.
    swap_reuse,
    /// Pages that came in with the faulting one.
    swap_ra,
    /// Those of them that a scan went past (it asked for the page at their end), or that a call had announced.
    swap_ra_hit,
    /// Pages that came back from probation.
    swap_cache_hit,
    /// Stores that the pool refused because the page does not compress.
    reject_compress_poor,
    /// Stores whose codec failed.
    reject_compress_fail,
    /// Stores that the pool refused because it was at its limit, or had been and was not below its threshold yet.
    pool_limit_hit,
    /// Those of them for which nothing could be written back to make room.
    reject_reclaim_fail,
    /// Stores that found no memory for the pool.
    reject_alloc_fail,
    /// Copies, of the pool or of the device, whose bytes were not what had been stored.
    decompress_fail,
    /// Kept copies dropped to make room.
    swap_copy_dropped,
    /// Pages that came back from a pattern, the pool or the device.
    workingset_refault_anon,
    /// Those of them that came back before as many pages had left as are in memory.
    workingset_activate_anon,
    /// Those of these that had belonged to the working set when they left.
    workingset_restore_anon,
    /// Clusters of which nothing could be taken out: pinned, locked, shared by a fork, or a stack in use.
    pgsteal_fail,
    /// Pages that threads which answer faults stored, or sent to the device, for faults that waited for room.
    pgsteal_direct,
    /// Device reads that failed.
    read_error,
    /// Device writes that failed; the page was kept.
    write_error,
    /// Device writes for which the disk had no room; they are tried again.
    write_full,
    /// Pages reported lost with SIGBUS.
    poisoned,
    /// Faults that were parked: for room, for a fork, for a place in the device's queue.
    allocstall,
    /// Nanoseconds that threads of the program waited for pages, from when their faults were read, summed over threads.
    stalled_ns,
    /// Nanoseconds of those in which faults waited for room or for the device.
    parked_ns,
    /// Threads that waited for pages. A thread that has not waited for long may be counted again, where hundreds do.
    stalled_threads,
    /// Threads that waited in a tenth of a second, summed over those.
    stalled_ticks,
    /// Nanoseconds that faults, or calls for more memory, waited since their process was to rest while others get on, summed
    /// over threads.
    rested_ns,
    /// Forks of processes whose engine runs.
    forks,
    /// Runs of pages that would not move and were copied.
    move_refused,
}

/// The counters of one process since it started, and its refault distances: a view of shared memory.
#[derive(Clone, Copy, Debug)]
pub struct Counters {
    cells: &'static [AtomicU64],
}

impl Counters {
    /// The number of cells that a set of counters takes.
    pub const CELLS: usize = Counter::ALL.len() + Distances::WORDS;

    /// Returns counters that stand in `cells`.
    ///
    /// # Panics
    /// If there are fewer than [`Self::CELLS`] cells.
    pub fn new(cells: &'static [AtomicU64]) -> Self {
        Self { cells: &cells[..Self::CELLS] }
    }

    /// Returns counters in memory that no other process sees.
    pub fn private() -> Self {
        Self::new(Vec::leak((0..Self::CELLS).map(|_| AtomicU64::new(0)).collect()))
    }

    /// Returns the distances after which pages came back.
    pub fn distances(self) -> Distances {
        Distances::new(&self.cells[Counter::ALL.len()..])
    }

    /// Adds `count` to a counter.
    pub fn add(self, counter: Counter, count: u64) {
        // Several threads write: a relaxed read-modify-write loses nothing.
        self.cells[counter as usize].fetch_add(count, Relaxed);
    }

    /// Returns a counter's value, at most 2⁵⁵: other processes can write there, and sums must not overflow.
    pub fn get(self, counter: Counter) -> u64 {
        const MOST: u64 = 1 << 55;
        self.cells[counter as usize].load(Relaxed).min(MOST)
    }
}
