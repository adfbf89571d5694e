//! Compressed swap caching (zswap, Jennings 2013): pages on their way out are compressed into a pool in
//! memory; the device sees only what the pool refuses or gives up.

pub mod codec;
pub mod folios;
pub mod pool;

use crate::config::{COMPRESSED_MAX, Compressor};
use crate::entry::PAGE_SIZE;
use crate::error::{LoadError, StoreError};
use crate::hash::{HashKey, PageHash};
use crate::place::{Entry, Handle};
use codec::Codec;
use folios::{FOLIO_PAGES, Folios, Piece};
use pool::{Header, Pool, SpanSource};

/// Memory that one thread needs to compress: kept, so that no page allocates.
#[derive(Debug, Default)]
pub struct Scratch {
    compressed: Vec<u8>,
}

impl Scratch {
    /// Room for the compressed forms of `pages` pages.
    pub fn room(&mut self, pages: usize) -> impl Iterator<Item = &mut [u8]> {
        let each = Codec::output_max(PAGE_SIZE);
        if self.compressed.len() < pages * each {
            self.compressed.resize(pages * each, 0);
        }
        self.compressed.chunks_exact_mut(each).take(pages)
    }
}

/// The compressed store.
#[derive(Debug)]
pub struct Zswap<S: SpanSource> {
    pages: Pool<S>,
    folios: Folios<S>,
}

/// Encodes a page for the store, in `room`.
///
/// # Errors
/// It would take nearly as much as the page itself.
pub fn encode<'a>(
    page: &'a [u8],
    hash: PageHash,
    codec: Compressor,
    room: &'a mut [u8],
) -> Result<Piece<'a>, StoreError> {
    let payload = match codec {
        Compressor::None => page,
        Compressor::Lz4 => {
            let length = Codec::compress(page, room);
            if length > COMPRESSED_MAX {
                return Err(StoreError::Incompressible);
            }
            &room[..length]
        }
    };
    Ok(Piece { hash, codec, payload })
}

impl<S: SpanSource + Clone> Zswap<S> {
    /// An empty store on memory from `source`.
    pub fn new(source: S) -> Self {
        Self { pages: Pool::new(source.clone()), folios: Folios::new(source) }
    }
}

impl<S: SpanSource> Zswap<S> {
    /// Stores a page alone.
    ///
    /// # Errors
    /// There is no memory.
    pub fn store(&self, page: &Piece<'_>) -> Result<Handle, StoreError> {
        let header = Header { hash: page.hash, length: page.payload.len() as u16, codec: page.codec };
        self.pages.insert(&header, page.payload).map(Handle::page).ok_or(StoreError::NoMemory)
    }

    /// Stores pages that lie one behind the other, and returns the handle of the first; the others' follow.
    ///
    /// # Errors
    /// There is no memory.
    pub fn store_folio(&self, pages: &[Piece<'_>; FOLIO_PAGES]) -> Result<Handle, StoreError> {
        self.folios.insert(pages).map(|folio| Handle::piece(folio, 0)).ok_or(StoreError::NoMemory)
    }

    fn read<T>(&self, handle: Handle, use_it: impl FnOnce(Piece<'_>) -> T) -> Option<T> {
        match handle.entry() {
            Entry::Piece(folio, piece) => self.folios.read(folio, piece, use_it),
            Entry::Page(number) => self
                .pages
                .read(number, |Header { hash, codec, .. }, payload| use_it(Piece { hash, codec, payload })),
        }
    }

    /// Reads a page back and proves it: what comes out is what was stored, or an error.
    pub fn load(&self, handle: Handle, out: &mut [u8], key: &HashKey) -> Result<PageHash, LoadError> {
        let decode = |Piece { hash, codec, payload }: Piece<'_>| {
            match codec {
                Compressor::None if payload.len() == out.len() => out.copy_from_slice(payload),
                Compressor::None => return Err(LoadError::Decompress),
                Compressor::Lz4 => Codec::decompress(payload, out)?,
            }
            Ok(hash)
        };
        let hash = self.read(handle, decode).ok_or(LoadError::Decompress)??;
        if key.hash(out) == hash { Ok(hash) } else { Err(LoadError::Hash) }
    }

    /// The hash under which an entry was stored.
    pub fn hash(&self, handle: Handle) -> Option<PageHash> {
        self.read(handle, |piece| piece.hash)
    }

    /// Frees an entry.
    pub fn free(&self, handle: Handle) {
        match handle.entry() {
            Entry::Page(number) => self.pages.remove(number),
            Entry::Piece(folio, piece) => self.folios.remove(folio, piece),
        }
    }

    /// Whether an entry is shared with another process by fork: it gives no memory when it goes.
    pub fn is_frozen(&self, handle: Handle) -> bool {
        match handle.entry() {
            Entry::Page(number) => self.pages.is_frozen(number),
            Entry::Piece(folio, _) => self.folios.is_frozen(folio),
        }
    }

    /// Pages of memory that the pool holds.
    pub fn pool_pages(&self) -> usize {
        self.pages.pages() + self.folios.pages()
    }

    /// Bytes of what leads to the entries.
    pub fn bytes(&self) -> usize {
        self.pages.bytes() + self.folios.bytes()
    }

    /// Pages that the pool holds and shares by fork.
    pub fn frozen_pages(&self) -> usize {
        self.pages.frozen_pages() + self.folios.frozen_pages()
    }

    /// Ends the freeze: see [`Pool::thaw`].
    pub fn thaw(&self) {
        self.pages.thaw();
        self.folios.thaw();
    }

    /// Freezes the pool before a fork: what it holds stays shared by parent and child.
    pub fn freeze(&self) {
        self.pages.freeze();
        self.folios.freeze();
    }

    /// Stored entries, and the bytes of their payload.
    pub fn stored(&self) -> (u64, u64) {
        let (pages, pieces) = (self.pages.stored(), self.folios.stored());
        (pages.0 + pieces.0, pages.1 + pieces.1)
    }

    /// Flips a bit of a stored entry: for tests of damage.
    #[doc(hidden)]
    pub fn damage(&self, handle: Handle) {
        match handle.entry() {
            Entry::Page(number) => self.pages.damage(number),
            Entry::Piece(folio, piece) => self.folios.damage(folio, piece),
        }
    }
}
