//! Memory of another process.

use pagetide_swap::table::outside::Memory;
use std::fs::File;
use std::os::unix::fs::FileExt;

/// Memory of another process, through `/proc/PID/mem`: a read of a page that is out fails there and never waits.
#[derive(Debug)]
pub(crate) struct ProcessMemory(File);

impl ProcessMemory {
    /// Returns the memory that a file `/proc/PID/mem` shows.
    pub(crate) fn new(file: File) -> Self {
        Self(file)
    }
}

impl Memory for ProcessMemory {
    fn read(&self, address: u64, into: &mut [u8]) -> Result<(), String> {
        self.0.read_exact_at(into, address).map_err(|error| format!("{address:#x} cannot be read: {error}"))
    }
}
