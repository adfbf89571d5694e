//! The sizes that memory is counted in, and names and sets of pages: all other crates build on this one.
//!
//! | size | pages | bytes | what has it |
//! |---|---|---|---|
//! | page | 1 | 4 KiB | the memory that one page-table entry maps |
//! | folio | 16 | 64 KiB | aligned pages that are compressed together if they leave together |
//! | cluster | 512 | 2 MiB | the memory that one page-table page maps; the unit of taking pages out |

#![forbid(unsafe_code)]

mod bits;
mod index;
mod set;

pub use index::{ClusterKey, ClusterNumber, ObjectId, PageIndex};
pub use set::PageSet;

/// Bytes in a page.
pub const PAGE_SIZE: usize = 4096;
/// Pages in a folio.
pub const FOLIO_PAGES: usize = 16;
/// Pages in a cluster.
pub const CLUSTER_PAGES: usize = 512;
/// Bytes in a cluster.
pub const CLUSTER_SIZE: usize = CLUSTER_PAGES * PAGE_SIZE;
