//! Compressed swap caching (zswap, Jennings 2013): pages on their way out are compressed into a pool in
//! memory; the device sees only what the pool refuses or gives up.

pub mod codec;
pub mod pool;

use crate::config::{COMPRESSED_MAX, Compressor};
use crate::entry::{PAGE_SIZE, PageIndex};
use crate::error::{LoadError, StoreError};
use crate::hash::{HashKey, PageHash};
use codec::Codec;
use pool::{Header, Of, Pool, SpanSource};

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

/// The compressed store.
#[derive(Debug)]
pub struct Zswap<S: SpanSource> {
    pool: Pool<S>,
}

impl<S: SpanSource> Zswap<S> {
    /// An empty store on memory from `source`.
    pub fn new(source: S) -> Self {
        Self { pool: Pool::new(source) }
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
        self.pool.insert(&header, payload).ok_or(StoreError::NoMemory)
    }

    /// Reads a page back and proves it: what comes out is what was stored, or an error.
    pub fn load(&self, handle: u32, out: &mut [u8], key: &HashKey) -> Result<PageHash, LoadError> {
        let decode = |header: Header, payload: &[u8]| {
            match header.codec {
                Compressor::None if payload.len() == out.len() => out.copy_from_slice(payload),
                Compressor::None => return Err(LoadError::Decompress),
                Compressor::Lz4 => Codec::decompress(payload, out)?,
            }
            Ok(header.hash)
        };
        let hash = self.pool.read(handle, decode).ok_or(LoadError::Decompress)??;
        if key.hash(out) == hash { Ok(hash) } else { Err(LoadError::Hash) }
    }

    /// The hash under which an entry was stored.
    pub fn hash(&self, handle: u32) -> Option<PageHash> {
        self.pool.read(handle, |header, _| header.hash)
    }

    /// Frees an entry.
    pub fn free(&self, handle: u32) {
        self.pool.remove(handle);
    }

    /// Tells an entry that its page has another index now.
    pub fn set_owner(&self, handle: u32, owner: PageIndex) {
        self.pool.set_owner(handle, owner);
    }

    /// Pages of memory that the pool holds.
    pub fn pool_pages(&self) -> usize {
        self.pool.pages()
    }

    /// Pages that the pool holds and shares by fork.
    pub fn frozen_pages(&self) -> usize {
        self.pool.frozen_pages()
    }

    /// Ends the freeze: see [`Pool::thaw`].
    pub fn thaw(&self) {
        self.pool.thaw();
    }

    /// Freezes the pool before a fork: what it holds stays shared by parent and child.
    pub fn freeze(&self) {
        self.pool.freeze();
    }

    /// Stored entries, and the bytes of their payload.
    pub fn stored(&self) -> (u64, u64) {
        self.pool.stored()
    }

    /// The next entries under the clock hand, in spans that are meant: (handle, owner), at least `count` if there are
    /// so many, and at most one turn.
    pub fn clock(&self, count: usize, of: Of, into: &mut Vec<(u32, PageIndex)>) {
        self.pool.clock(count, of, into);
    }

    /// Flips a bit of a stored entry: for tests of damage.
    #[doc(hidden)]
    pub fn damage(&self, handle: u32) {
        self.pool.damage(handle);
    }
}
