//! Where the memory of a run is, in parts that add up.

/// Memory at one time, in bytes.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(crate) struct Memory {
    /// Managed memory in the programs.
    pub(crate) resident: u64,
    /// What no engine manages, and what the engines take themselves.
    pub(crate) other: u64,
    /// The compressed pool.
    pub(crate) pool: u64,
    /// On disk.
    pub(crate) disk: u64,
}

impl Memory {
    /// Returns the parts of `total` bytes. Processes share pages after a fork: what is in programs and in the pool may sum up
    /// to more.
    pub(crate) fn new(total: u64, resident: u64, pool: u64, disk: u64) -> Self {
        let resident = resident.min(total.saturating_sub(pool));
        Self { resident, other: total.saturating_sub(resident + pool), pool, disk }
    }

    /// Returns what is in memory.
    pub(crate) fn in_memory(&self) -> u64 {
        self.resident + self.other + self.pool
    }

    /// Returns the larger of each part.
    pub(crate) fn max(self, other: Self) -> Self {
        Self {
            resident: self.resident.max(other.resident),
            other: self.other.max(other.other),
            pool: self.pool.max(other.pool),
            disk: self.disk.max(other.disk),
        }
    }
}
