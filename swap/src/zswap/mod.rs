//! Compressed swap caching (zswap, Jennings 2013): pages on their way out are compressed into a pool in
//! memory; the device sees only what the pool refuses or gives up.

pub mod codec;
pub mod pool;

use crate::config::{COMPRESSED_MAX, Compressor};
use crate::entry::{PAGE_SIZE, PageIndex};
use crate::error::{LoadError, StoreError};
use crate::hash::{HashKey, PageHash};
use codec::Codec;
use pool::{Header, Pool, SpanSource};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Memory that one thread needs to compress and decompress: kept, so that no page allocates.
#[derive(Debug)]
pub struct Scratch {
    compressed: Box<[u8]>,
}

impl Default for Scratch {
    fn default() -> Self {
        Self { compressed: vec![0; Codec::output_max(PAGE_SIZE).max(PAGE_SIZE)].into_boxed_slice() }
    }
}

/// The compressed store. Its lock is held for a copy of at most a page, never while a codec runs.
#[derive(Debug)]
pub struct Zswap<S: SpanSource> {
    pool: Mutex<Pool<S>>,
    /// The pool's pages, and those of them that are shared by fork: read at every fault, without the lock.
    pages: AtomicUsize,
    frozen: AtomicUsize,
}

impl<S: SpanSource> Zswap<S> {
    /// An empty store on memory from `source`.
    pub fn new(source: S) -> Self {
        Self { pool: Mutex::new(Pool::new(source)), pages: AtomicUsize::new(0), frozen: AtomicUsize::new(0) }
    }

    /// Changes the pool.
    fn change<T>(&self, change: impl FnOnce(&mut Pool<S>) -> T) -> T {
        let mut pool = crate::table::lock(&self.pool);
        let result = change(&mut pool);
        self.pages.store(pool.pages(), Relaxed);
        self.frozen.store(pool.frozen_pages(), Relaxed);
        result
    }

    /// Compresses and stores a page. `hash` is the hash of `page`.
    pub fn store(
        &self,
        owner: PageIndex,
        page: &[u8],
        hash: PageHash,
        compressor: Compressor,
        scratch: &mut Scratch,
    ) -> Result<u32, StoreError> {
        let payload = match compressor {
            Compressor::None => page,
            Compressor::Lz4 => {
                let length = Codec::compress(page, &mut scratch.compressed);
                if length > COMPRESSED_MAX {
                    return Err(StoreError::Incompressible);
                }
                &scratch.compressed[..length]
            }
        };
        let header = Header { hash, owner, length: payload.len() as u16, codec: compressor };
        self.change(|pool| pool.insert(&header, payload)).ok_or(StoreError::NoMemory)
    }

    /// Reads a page back and proves it: what comes out is what was stored, or an error.
    pub fn load(
        &self,
        handle: u32,
        out: &mut [u8],
        key: &HashKey,
        scratch: &mut Scratch,
    ) -> Result<PageHash, LoadError> {
        let header = {
            let pool = crate::table::lock(&self.pool);
            let (header, payload) = pool.get(handle).ok_or(LoadError::Decompress)?;
            let into = if header.codec == Compressor::None { &mut *out } else { &mut scratch.compressed };
            into.get_mut(..payload.len()).ok_or(LoadError::Decompress)?.copy_from_slice(payload);
            header
        };
        let length = usize::from(header.length);
        match header.codec {
            Compressor::None if length == out.len() => {}
            Compressor::None => return Err(LoadError::Decompress),
            Compressor::Lz4 => Codec::decompress(&scratch.compressed[..length], out)?,
        }
        if key.hash(out) != header.hash {
            return Err(LoadError::Hash);
        }
        Ok(header.hash)
    }

    /// The hash under which an entry was stored.
    pub fn hash(&self, handle: u32) -> Option<PageHash> {
        Some(crate::table::lock(&self.pool).get(handle)?.0.hash)
    }

    /// Frees an entry.
    pub fn free(&self, handle: u32) {
        self.change(|pool| pool.remove(handle));
    }

    /// Tells an entry that its page has another index now.
    pub fn set_owner(&self, handle: u32, owner: PageIndex) {
        crate::table::lock(&self.pool).set_owner(handle, owner);
    }

    /// Pages of memory that the pool holds.
    pub fn pool_pages(&self) -> usize {
        self.pages.load(Relaxed)
    }

    /// Pages that the pool holds and shares by fork.
    pub fn frozen_pages(&self) -> usize {
        self.frozen.load(Relaxed)
    }

    /// Freezes the pool before a fork: what it holds stays shared by parent and child.
    pub fn freeze(&self) {
        self.change(Pool::freeze);
    }

    /// Stored entries, and the bytes of their payload.
    pub fn stored(&self) -> (u64, u64) {
        let pool = crate::table::lock(&self.pool);
        (pool.entries(), pool.payload_bytes())
    }

    /// The next entries under the clock hand: (handle, owner), at most `count`, and at most one turn.
    pub fn clock(&self, count: usize, into: &mut Vec<(u32, PageIndex)>) {
        crate::table::lock(&self.pool).clock(count, into);
    }

    /// Flips a bit of a stored entry: for tests of damage.
    #[doc(hidden)]
    pub fn damage(&self, handle: u32) {
        crate::table::lock(&self.pool).damage(handle);
    }
}
