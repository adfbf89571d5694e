//! Counters, under the names that the kernel gives them in `/proc/vmstat` and zswap's debugfs.
//!
//! They live in memory that the launcher shares, so that a run can be watched from outside and a killed
//! process loses none of them. All are monotonic; each has one writer process and any number of readers.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident),+ $(,)?) => {
        /// One counter of [`Counters`].
        #[allow(non_camel_case_types, reason = "the kernel's names")]
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        #[repr(usize)]
        pub enum Counter { $($(#[$doc])* $name),+ }

        impl Counter {
            /// All counters, in the order of their cells.
            pub const ALL: &'static [Self] = &[$(Self::$name),+];

            /// Returns the counter's name.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$name => stringify!($name)),+ }
            }
        }
    };
}

counters! {
    /// Pages read from the device.
    pswpin,
    /// Pages written to the device.
    pswpout,
    /// Pages loaded from the compressed pool.
    zswpin,
    /// Pages stored in the compressed pool.
    zswpout,
    /// Pages moved from the compressed pool to the device.
    zswpwb,
    /// Same-filled (mostly zero) pages brought in.
    swpin_zero,
    /// Same-filled (mostly zero) pages that needed no copy on the way out.
    swpout_zero,
    /// Faults that had to bring contents back (pool, device or pattern).
    pgmajfault,
    /// Faults answered from a frame: hits on probation.
    pgminfault,
    /// Pages handed out for the first time through the engine.
    pgalloc,
    /// Pages taken out of the program.
    pgsteal,
    /// Pages that stayed for another round though their turn to leave had come: their cluster got its second chance.
    pgactivate,
    /// Evictions that needed neither compression nor write: the kept copy was proved current.
    swap_reuse,
    /// Pages read ahead of the faulting one.
    swap_ra,
    /// Pages of `swap_ra` that proved to be of use: the next fault came at their end.
    swap_ra_hit,
    /// Faults that found their page on probation and brought it back.
    swap_cache_hit,
    /// Stores that the pool refused because the page does not compress.
    reject_compress_poor,
    /// Stores whose codec failed.
    reject_compress_fail,
    /// Stores that the pool refused because it was at its limit, or had been and was not below its threshold yet.
    pool_limit_hit,
    /// Stores of `pool_limit_hit` for which no entry could be written back to make room.
    reject_reclaim_fail,
    /// Stores that found no memory for the pool.
    reject_alloc_fail,
    /// Copies that did not hold the bytes that had been stored.
    decompress_fail,
    /// Kept copies dropped to make room.
    swap_copy_dropped,
    /// Refaults of pages that carried a shadow.
    workingset_refault_anon,
    /// Refaults of pages that came back before as many others had left as are in memory.
    workingset_activate_anon,
    /// Pages of `workingset_activate_anon` that had belonged to the working set when they left.
    workingset_restore_anon,
    /// Pages that could not be taken out (pinned, shared by fork, gone meanwhile).
    pgsteal_fail,
    /// Device reads that failed.
    read_error,
    /// Device writes that failed; the page was kept.
    write_error,
    /// Device writes for which the disk had no room; the page was kept.
    write_full,
    /// Pages reported lost with SIGBUS.
    poisoned,
    /// Faults that had to wait for room.
    allocstall,
    /// Nanoseconds that threads of the program waited for pages, from when their faults were read, summed over threads.
    stalled_ns,
    /// Nanoseconds of `stalled_ns` that faults waited for room or for the device.
    parked_ns,
    /// Threads that waited for pages. A thread that has not waited for long may be counted again, where hundreds do.
    stalled_threads,
    /// Threads that waited in a tenth of a second, summed over all tenths.
    stalled_ticks,
    /// Nanoseconds that faults waited because their process had to rest while others get on, summed over threads.
    rested_ns,
    /// Forks that handed swapped memory on.
    forks,
    /// Pages that would not move and were copied instead.
    move_refused,
}

/// The counters of one process since it started: a view of shared memory.
#[derive(Clone, Copy, Debug)]
pub struct Counters {
    cells: &'static [AtomicU64],
}

impl Counters {
    /// The number of cells that a set of counters takes.
    pub const CELLS: usize = Counter::ALL.len();

    /// Returns counters that stand in `cells`.
    ///
    /// # Panics
    /// If there are fewer cells than counters.
    pub fn new(cells: &'static [AtomicU64]) -> Self {
        Self { cells: &cells[..Self::CELLS] }
    }

    /// Returns counters in memory that no other process sees.
    pub fn private() -> Self {
        Self::new(Vec::leak((0..Self::CELLS).map(|_| AtomicU64::new(0)).collect()))
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
