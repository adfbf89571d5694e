//! Every limit and switch of the swap subsystem, in one place.

use crate::entry::PAGE_SIZE;
use crate::policy::Reclaim;
use crate::streams::Readahead;

/// Bytes of a pool span, the unit in which the pool takes and returns memory.
pub const SPAN_BYTES: usize = 32 * 1024;
/// Pages of a pool span.
pub const SPAN_PAGES: usize = SPAN_BYTES / PAGE_SIZE;
/// Bytes of a span of folios: it takes and returns memory by the page.
pub const FOLIO_SPAN_BYTES: usize = 256 * 1024;
/// A page whose compressed form is larger than this is incompressible: less than a quarter saved.
pub const COMPRESSED_MAX: usize = 3 * PAGE_SIZE / 4;
/// Device blocks that one write carries at most: 128 KiB.
pub const WRITE_BATCH_PAGES: usize = 32;

/// The codec of the compressed pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(u8)]
pub enum Compressor {
    /// LZ4 block format.
    #[default]
    Lz4 = 1,
    /// Stores pages as they are.
    None = 0,
}

impl Compressor {
    pub(crate) const fn from_bits(bits: u8) -> Option<Self> {
        match bits {
            0 => Some(Self::None),
            1 => Some(Self::Lz4),
            _ => None,
        }
    }
}

/// Settings of one process's swap subsystem.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// The codec for new stores.
    pub compressor: Compressor,
    /// What decides which clusters leave.
    pub reclaim: Reclaim,
    /// Which neighbours of a page come in with it.
    pub readahead: Readahead,
    /// log2 of the pages that are read from the device at once, at most: the kernel's `page-cluster`.
    pub page_cluster: u32,
    /// Pages that the process may have, in memory and compressed.
    pub cap_pages: u64,
}

/// The largest [`Config::page_cluster`]: 2 MiB.
pub const PAGE_CLUSTER_MAX: u32 = 9;

impl Config {
    /// The defaults, for a process that may have `cap_pages`.
    pub fn for_cap(cap_pages: u64) -> Self {
        Self {
            compressor: Compressor::default(),
            reclaim: Reclaim::default(),
            readahead: Readahead::default(),
            page_cluster: PAGE_CLUSTER_MAX,
            cap_pages,
        }
    }
}

const _: () = assert!(SPAN_BYTES.is_multiple_of(PAGE_SIZE) && FOLIO_SPAN_BYTES.is_multiple_of(PAGE_SIZE));
const _: () = assert!(COMPRESSED_MAX < PAGE_SIZE);
