//! Errors of storing a page and of loading one.

use std::fmt;

/// The reason for which a page was not stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StoreError {
    /// The page does not compress well enough to be worth pool memory.
    Incompressible,
    /// The codec failed.
    Compress,
    /// The pool has reached `--max-pool-percent`.
    PoolLimit,
    /// The pool is switched off (`pagetide set enabled=off`), or the page may be stored only with its neighbours.
    Disabled,
    /// The pool could not get memory.
    NoMemory,
}

/// The reason for which a stored page could not be read back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LoadError {
    /// The compressed form is damaged.
    Decompress,
    /// The bytes are not the bytes that were stored: the hash differs.
    Hash,
    /// The device reported this error (an errno value).
    Io(i32),
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Decompress => f.write_str("the compressed copy is damaged"),
            Self::Hash => f.write_str("the stored bytes are not those that were written (hash mismatch)"),
            Self::Io(errno) => write!(f, "read error: {}", std::io::Error::from_raw_os_error(*errno)),
        }
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Incompressible => "the page does not compress",
            Self::Compress => "the codec failed",
            Self::Disabled => "the pool is switched off (pagetide set enabled=on)",
            Self::PoolLimit => "the pool is at its limit (--max-pool-percent)",
            Self::NoMemory => "no memory for the pool",
        })
    }
}

impl std::error::Error for LoadError {}
impl std::error::Error for StoreError {}
