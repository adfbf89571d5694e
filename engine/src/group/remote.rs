//! Figures of the remote tier, which the process that has the connection writes into the group page.

use super::Group;
use super::layout::Header;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

pagetide_page::numbered_enum! {
    /// A figure of the remote tier.
    pub enum RemoteFigure: usize {
        /// Values that the server holds for the run.
        Values = 0,
        /// Bytes in them.
        Bytes = 1,
        /// Blocks that were read.
        Read = 2,
        /// Blocks that were written.
        Written = 3,
        /// Blocks that could not be read: their pages are lost.
        Lost = 4,
        /// Blocks that could not be written: their pages stayed in memory.
        Refused = 5,
        /// Times that something was asked for again, since the server did not answer.
        Retries = 6,
        /// The time from a request to its answer, of late, in nanoseconds.
        RoundTripNs = 7,
        /// The longest time without an answer, in nanoseconds.
        OutageNs = 8,
    }
}

impl Group {
    /// A figure of the remote tier.
    pub fn remote_figure(&self, figure: RemoteFigure) -> &'static AtomicU64 {
        &self.header[Header::Remote as usize + figure as usize]
    }

    /// Returns all figures of the remote tier, in the order of [`RemoteFigure`].
    pub fn remote_figures(&self) -> [u64; RemoteFigure::ALL.len()] {
        std::array::from_fn(|nth| self.remote_figure(RemoteFigure::ALL[nth]).load(Relaxed))
    }
}
