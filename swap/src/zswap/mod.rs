//! Compressed swap caching (zswap, Jennings 2013): pages on their way out are compressed into a pool in
//! memory; the device sees only what the pool refuses or gives up.
//!
//! ```text
//! object of a page alone   0      12               14
//!                         ┌──────┬────────────────┬─────────┐
//!                         │ hash │ codec · length │ payload │
//!                         └──────┴────────────────┴─────────┘
//! ```

pub mod codec;
pub mod compression;
pub mod folios;
pub mod lzpage;
pub mod pool;
pub mod shrinker;
pub mod switches;

use crate::error::{LoadError, StoreError};
use crate::hash::{HASH_BYTES, HashKey, PageHash, to_bytes};
use crate::in_vain::InVain;
use crate::place::{Entry, Handle};
use codec::Codecs;
use compression::{Compression, Compressor};
use folios::{Folios, Piece, is_unknown, split_word};
use pagetide_page::{FOLIO_PAGES, PAGE_SIZE};
use pool::Allocator;
use pool::zbud::Zbud;
use pool::zsmalloc::Zsmalloc;
use pool::{SpanSource, Zpool};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use switches::Switches;

/// The number of bytes before the payload in the object of a page that left alone.
pub const HEADER_BYTES: usize = HASH_BYTES + 2;
/// The shift of the codec's number, which stands above the length of the payload.
const CODEC_SHIFT: u32 = 13;
const _: () = assert!(PAGE_SIZE < 1 << CODEC_SHIFT);
const _: () = assert!((Compressor::LzPage as u32) < 1 << (u16::BITS - CODEC_SHIFT), "the largest number");
/// The number of pages of a folio that may be stored as they are, so that the others stay together.
const RAW_MAX: usize = FOLIO_PAGES / 8;
/// The part of its limit from which on the pool gives entries up.
const NEARLY_FULL: (usize, usize) = (15, 16);
/// The part of its limit below which the pool has room.
const ROOM: (usize, usize) = (7, 8);

/// The memory in which one thread compresses and decompresses. It is kept, so that no page allocates.
#[derive(Debug, Default)]
pub struct Scratch {
    codecs: Codecs,
    compressed: Vec<u8>,
}

impl Scratch {
    /// Returns the codecs, and room for the compressed forms of `pages` pages.
    fn room(&mut self, pages: usize) -> (&mut Codecs, std::slice::ChunksExactMut<'_, u8>) {
        if self.compressed.len() < pages * PAGE_SIZE {
            self.compressed.resize(pages * PAGE_SIZE, 0);
        }
        (&mut self.codecs, self.compressed.chunks_exact_mut(PAGE_SIZE))
    }

    /// Returns the number of pages that were recompressed since the last call.
    pub(crate) fn take_recompressed(&mut self) -> u64 {
        self.codecs.take_recompressed()
    }
}

/// The compressed pool.
///
/// ```
/// use pagetide_swap::hash::HashKey;
/// use pagetide_swap::zswap::Zswap;
/// use pagetide_swap::zswap::pool::Heap;
/// use pagetide_swap::{Allocator, Scratch, StoreError, Switches};
///
/// let pool = Zswap::new(Heap, Allocator::default(), Switches::default());
/// let key = HashKey::new([1, 2, 3, 4]);
/// let page: Vec<u8> = (0..4096).map(|at| (at / 16) as u8).collect();
/// let mut scratch = Scratch::default();
///
/// // A pool takes no memory before it is allowed some.
/// assert_eq!(pool.store(&page, key.hash(&page), &mut scratch), Err(StoreError::PoolLimit));
/// pool.set_pages_max(100);
/// pool.reopen();
/// let handle = pool.store(&page, key.hash(&page), &mut scratch)?;
/// assert!(pool.length(handle).is_some_and(|bytes| bytes < 3072));
///
/// let mut back = [0; 4096];
/// assert_eq!(pool.load(handle, &mut back, &key, &mut scratch), Ok(key.hash(&page)));
/// assert!(back == page[..]);
/// pool.free(handle);
/// assert_eq!(pool.stored(), (0, 0));
/// # Ok::<(), StoreError>(())
/// ```
#[derive(Debug)]
pub struct Zswap<S: SpanSource> {
    pages: Box<dyn Zpool>,
    /// Pages that leave together, where the allocator is zsmalloc.
    folios: Option<Folios<S>>,
    switches: AtomicU64,
    /// The number of pages that the pool may take.
    pages_max: AtomicUsize,
    /// The number of pages below which it takes what is left to the recompressor; `usize::MAX` if that has no other place.
    recompress_max: AtomicUsize,
    /// Pages that the recompressor refused as well.
    refused_again: InVain,
    /// Whether the pool has reached its limit, and has not fallen below the threshold since.
    full: AtomicBool,
    stored: Stored,
    /// Bytes that a zero page compresses to, once a replay has asked.
    zero_bytes: OnceLock<usize>,
}

/// Counts of the entries in the pool: of all, of the bytes of their payload, and of those that are stored as they are.
#[derive(Debug, Default)]
struct Stored {
    entries: AtomicU64,
    payload: AtomicU64,
    raw: AtomicU64,
}

impl Stored {
    fn add(&self, lengths: impl Iterator<Item = usize>) {
        for length in lengths {
            self.entries.fetch_add(1, Relaxed);
            self.payload.fetch_add(length as u64, Relaxed);
            self.raw.fetch_add(u64::from(length == PAGE_SIZE), Relaxed);
        }
    }

    fn remove(&self, length: usize) {
        self.entries.fetch_sub(1, Relaxed);
        self.payload.fetch_sub(length as u64, Relaxed);
        self.raw.fetch_sub(u64::from(length == PAGE_SIZE), Relaxed);
    }
}

fn header(piece: &Piece<'_>) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    let (hash, word) = header.split_at_mut(HASH_BYTES);
    hash.copy_from_slice(&piece.hash);
    word.copy_from_slice(&piece.word());
    header
}

fn object(bytes: &[u8]) -> Option<Piece<'_>> {
    let (&hash, rest) = bytes.split_first_chunk()?;
    let (&word, payload) = rest.split_first_chunk()?;
    let (length, codec) = split_word(word);
    Some(Piece::new(hash, Compressor::from_bits(codec as u8)?, payload.get(..length)?))
}

impl<S: SpanSource + Clone + 'static> Zswap<S> {
    /// Returns an empty pool on memory from `source`. It takes none before [`Zswap::set_pages_max`] has allowed some.
    pub fn new(source: S, allocator: Allocator, switches: Switches) -> Self {
        let (pages, folios): (Box<dyn Zpool>, _) = match allocator {
            Allocator::Zsmalloc => (Box::new(Zsmalloc::new(source.clone())), Some(Folios::new(source))),
            Allocator::Zbud => (Box::new(Zbud::new(source)), None),
        };
        Self {
            pages,
            folios,
            switches: AtomicU64::new(switches.to_bits()),
            pages_max: AtomicUsize::new(0),
            recompress_max: AtomicUsize::new(0),
            refused_again: InVain::default(),
            full: AtomicBool::new(false),
            stored: Stored::default(),
            zero_bytes: OnceLock::new(),
        }
    }
}

impl<S: SpanSource> Zswap<S> {
    /// Returns the switches.
    pub fn switches(&self) -> Switches {
        Switches::from_bits(self.switches.load(Relaxed))
    }

    /// Changes the switches. Stored pages stay readable.
    pub fn switch(&self, to: Switches) {
        self.switches.store(to.to_bits(), Relaxed);
    }

    /// Returns the number of pages that the pool may take, beside what is shared by fork.
    pub fn pages_max(&self) -> usize {
        self.pages_max.load(Relaxed)
    }

    /// Sets the number of pages that the pool may take, beside what is shared by fork: that is there whatever this
    /// process does.
    pub fn set_pages_max(&self, pages: usize) {
        self.pages_max.store(pages, Relaxed);
    }

    /// Sets the number of pages below which pages that the compressor refuses are tried with the recompressor: 0 at first.
    /// `usize::MAX` is for pages that have no other place. Else only some are tried where it refuses one after the other.
    pub fn set_recompress_max(&self, pages: usize) {
        self.recompress_max.store(pages, Relaxed);
    }

    /// Compresses a page that the compressor has refused (after zram's recompression).
    fn recompress(
        &self,
        switches: Switches,
        page: &[u8],
        codecs: &mut Codecs,
        room: &mut [u8],
    ) -> Result<usize, StoreError> {
        let (first, again) = (switches.compression, switches.recompression);
        let most = self.recompress_max.load(Relaxed);
        if !again.is_stronger(first)
            || self.own_pages() >= most
            || !(most == usize::MAX || self.refused_again.may_try())
        {
            return Err(StoreError::Incompressible);
        }
        let done = codecs.recompress(first, again, page, room);
        self.refused_again.note(done.is_err());
        done
    }

    /// Checks whether pages are stored just now. After the limit has been reached they are not before the pool has
    /// fallen below the threshold.
    ///
    /// # Errors
    /// [`StoreError::Disabled`] if the pool is switched off, [`StoreError::PoolLimit`] if it has reached its limit.
    pub fn accepts(&self) -> Result<(), StoreError> {
        let switches = self.switches();
        if !switches.enabled {
            return Err(StoreError::Disabled);
        }
        let (pages, most) = (self.own_pages(), self.pages_max());
        let full = pages >= most || (self.full.load(Relaxed) && pages >= below(most, switches));
        if full != self.full.load(Relaxed) {
            self.full.store(full, Relaxed);
        }
        if full { Err(StoreError::PoolLimit) } else { Ok(()) }
    }

    /// Forgets that the limit was reached: pages are stored again below the limit, whatever the threshold.
    pub fn reopen(&self) {
        self.full.store(false, Relaxed);
    }

    /// Returns whether the pool has room to spare: for pages that could as well be elsewhere.
    pub fn has_room(&self) -> bool {
        self.switches().enabled && self.own_pages() * ROOM.1 < self.pages_max() * ROOM.0
    }

    /// Returns whether the pool is so near its limit that it should give entries up. After the limit was reached it
    /// should until it takes pages again.
    pub fn is_nearly_full(&self) -> bool {
        let (pages, most) = (self.own_pages(), self.pages_max());
        pages * NEARLY_FULL.1 >= most * NEARLY_FULL.0
            || (self.full.load(Relaxed) && pages >= below(most, self.switches()))
    }

    /// Compresses a page for the store.
    ///
    /// # Errors
    /// [`StoreError::Incompressible`] if the compressed form would exceed the largest that is stored; the codec's error
    /// otherwise.
    fn encode<'a>(
        &self,
        switches: Switches,
        page: &[u8],
        hash: PageHash,
        codecs: &mut Codecs,
        room: &'a mut [u8],
    ) -> Result<Piece<'a>, StoreError> {
        let room = &mut room[..switches.compressed_max()];
        let first = codecs.encoder(switches.compression).compress(page, room);
        let (Compression { compressor, .. }, length) = match first {
            Err(StoreError::Incompressible) => {
                (switches.recompression, self.recompress(switches, page, codecs, room)?)
            }
            first => (switches.compression, first?),
        };
        // A page that does not come back is found by its hash when it is lost already: tests find it here.
        debug_assert!(
            codecs.gives_back(compressor, &room[..length], page),
            "{compressor:?} does not give it back"
        );
        Ok(Piece::new(to_bytes(hash), compressor, &room[..length]))
    }

    /// Stores a page alone.
    ///
    /// # Errors
    /// [`StoreError::Incompressible`] or [`StoreError::Compress`] if the codec cannot make it small enough;
    /// [`StoreError::Disabled`], [`StoreError::PoolLimit`] or [`StoreError::NoMemory`] if the pool takes nothing.
    pub fn store(&self, page: &[u8], hash: PageHash, scratch: &mut Scratch) -> Result<Handle, StoreError> {
        self.accepts()?;
        let (codecs, mut rooms) = scratch.room(1);
        let room = rooms.next().expect("room for one");
        self.store_piece(&self.encode(self.switches(), page, hash, codecs, room)?)
    }

    fn store_piece(&self, piece: &Piece<'_>) -> Result<Handle, StoreError> {
        let parts = [&header(piece), piece.payload];
        let number = self.pages.insert(parts, HEADER_BYTES + piece.length).ok_or(StoreError::NoMemory)?;
        self.stored.add(std::iter::once(piece.length));
        Ok(Handle::page(number))
    }

    /// Stores the sixteen pages of a folio, `page(0)` to `page(15)`, as one entry: their handles follow each other.
    /// Where one entry cannot be had, the pages in `alone`, a bit each, are stored alone, and the others are refused.
    ///
    /// While the pool has room, up to two pages that do not compress may be among them. They are stored as they are:
    /// no other page would give more memory by going to the device.
    pub fn store_folio<'a>(
        &self,
        page: impl Fn(usize) -> &'a [u8],
        hashes: &[PageHash; FOLIO_PAGES],
        alone: u16,
        scratch: &mut Scratch,
    ) -> [Result<Handle, StoreError>; FOLIO_PAGES] {
        if let Err(error) = self.accepts() {
            return [Err(error); FOLIO_PAGES];
        }
        let switches = self.switches();
        let (codecs, mut rooms) = scratch.room(FOLIO_PAGES);
        let encoded: [Result<Piece<'_>, StoreError>; FOLIO_PAGES] = std::array::from_fn(|nth| {
            let room = rooms.next().expect("room for each");
            self.encode(switches, page(nth), hashes[nth], codecs, room)
        });
        self.insert_folio(
            &encoded,
            |nth| Piece::new(to_bytes(hashes[nth]), Compressor::None, page(nth)),
            alone,
        )
    }

    /// Stores sixteen pieces, of which a few may be `raw`, as one entry, or those in `alone` each by itself.
    fn insert_folio<'a>(
        &self,
        encoded: &[Result<Piece<'a>, StoreError>; FOLIO_PAGES],
        raw: impl Fn(usize) -> Piece<'a>,
        alone: u16,
    ) -> [Result<Handle, StoreError>; FOLIO_PAGES] {
        let poor = encoded.iter().filter(|piece| piece.is_err()).count();
        if let Some(folios) = &self.folios
            && (poor == 0 || (poor <= RAW_MAX && self.has_room()))
        {
            let pieces: [Piece<'_>; FOLIO_PAGES] =
                std::array::from_fn(|nth| encoded[nth].unwrap_or_else(|_| raw(nth)));
            if let Some(folio) = folios.insert(&pieces) {
                self.stored.add(pieces.iter().map(|piece| piece.length));
                return std::array::from_fn(|nth| Ok(Handle::piece(folio, nth)));
            }
        }
        std::array::from_fn(|nth| match alone >> nth & 1 {
            0 => Err(StoreError::Disabled),
            _ => encoded[nth].and_then(|piece| self.store_piece(&piece)),
        })
    }

    /// Stores an entry for a page of which a trace knows only the size of its compressed form, in bytes.
    ///
    /// # Errors
    /// As [`Zswap::store`] returns.
    pub fn store_sized(&self, size: usize, hash: PageHash) -> Result<Handle, StoreError> {
        self.accepts()?;
        self.store_piece(&self.sized(size, hash)?)
    }

    /// Stores a folio, as [`Zswap::store_folio`] does, of which a trace knows only the sizes of the compressed forms,
    /// in bytes.
    pub fn store_folio_sized(
        &self,
        sizes: &[usize; FOLIO_PAGES],
        hashes: &[PageHash; FOLIO_PAGES],
        alone: u16,
    ) -> [Result<Handle, StoreError>; FOLIO_PAGES] {
        if let Err(error) = self.accepts() {
            return [Err(error); FOLIO_PAGES];
        }
        let encoded = std::array::from_fn(|nth| match sizes[nth] {
            0 => self.sized(self.zero_bytes(), hashes[nth]),
            size => self.sized(size, hashes[nth]),
        });
        self.insert_folio(&encoded, |nth| Piece::unknown(to_bytes(hashes[nth]), PAGE_SIZE), alone)
    }

    /// Returns the bytes that a repeated word takes in a folio of other pages.
    fn zero_bytes(&self) -> usize {
        *self.zero_bytes.get_or_init(|| {
            let mut scratch = Scratch::default();
            let (codecs, mut rooms) = scratch.room(1);
            let room = rooms.next().expect("room for one");
            let piece = self.encode(self.switches(), &[0; PAGE_SIZE], PageHash::default(), codecs, room);
            piece.map_or(PAGE_SIZE, |piece| piece.length)
        })
    }

    fn sized(&self, size: usize, hash: PageHash) -> Result<Piece<'static>, StoreError> {
        let fits = size <= self.switches().compressed_max();
        fits.then(|| Piece::unknown(to_bytes(hash), size)).ok_or(StoreError::Incompressible)
    }

    fn folios(&self) -> &Folios<S> {
        self.folios.as_ref().expect("a handle of a folio is of one that is there")
    }

    fn read<T>(&self, handle: Handle, use_it: impl FnOnce(Piece<'_>) -> T) -> Option<T> {
        match handle.entry() {
            Entry::Piece(folio, piece) => self.folios.as_ref()?.read(folio, piece, use_it),
            Entry::Page(number) => {
                let (mut use_it, mut found) = (Some(use_it), None);
                self.pages.read(number, &mut |bytes| {
                    found = object(bytes).zip(use_it.take()).map(|(piece, use_it)| use_it(piece));
                });
                found
            }
        }
    }

    /// Reads a page back into `out` and proves by its hash, which it returns, that it is the page that was stored.
    ///
    /// # Errors
    /// [`LoadError::Decompress`] if the entry is damaged or there is none, [`LoadError::Hash`] if it holds another
    /// page.
    pub fn load(
        &self,
        handle: Handle,
        out: &mut [u8],
        key: &HashKey,
        scratch: &mut Scratch,
    ) -> Result<PageHash, LoadError> {
        let decode = |Piece { hash, codec, payload, .. }: Piece<'_>| {
            scratch.codecs.decoder(codec).decompress(payload, out).map(|()| hash)
        };
        let stored = self.read(handle, decode).ok_or(LoadError::Decompress)??;
        let hash = key.hash(out);
        if to_bytes(hash) == stored { Ok(hash) } else { Err(LoadError::Hash) }
    }

    /// Returns whether an entry is of a page with this hash.
    pub fn is_of(&self, handle: Handle, hash: PageHash) -> bool {
        self.read(handle, |piece| piece.hash == to_bytes(hash)).unwrap_or(false)
    }

    /// Returns the length of an entry's payload in bytes; `None` if there is no such entry.
    pub fn length(&self, handle: Handle) -> Option<usize> {
        self.read(handle, |piece| piece.payload.len())
    }

    /// Frees an entry.
    ///
    /// # Panics
    /// If there is no such entry: an entry freed twice would be another page's the second time.
    pub fn free(&self, handle: Handle) {
        let mut length = 0;
        match handle.entry() {
            Entry::Page(number) => self.pages.remove(number, &mut |bytes| {
                length = object(bytes).map_or(0, |piece| piece.payload.len());
            }),
            Entry::Piece(folio, piece) => length = self.folios().remove(folio, piece),
        }
        self.stored.remove(length);
    }

    /// Returns whether an entry is shared with another process by fork: it gives no memory when it goes.
    pub fn is_frozen(&self, handle: Handle) -> bool {
        // Where nothing is no lock is taken: this is asked for each page that comes in.
        self.frozen_pages() > 0
            && match handle.entry() {
                Entry::Page(number) => self.pages.is_frozen(number),
                Entry::Piece(folio, _) => self.folios().is_frozen(folio),
            }
    }

    /// Returns the number of pages that would become free if entries lay as close as they can.
    pub fn loose_pages(&self) -> usize {
        self.pages.loose_pages()
    }

    /// Chooses the memory that is to be emptied so that entries lie closer: see [`Zpool::compact`].
    pub fn compact(&self) {
        self.pages.compact();
    }

    /// Chooses all memory to be emptied: for tests, in which there is little.
    #[cfg(feature = "shuttle")]
    pub fn empty(&self) {
        self.pages.empty();
    }

    /// Copies an entry out of memory that is to be emptied, and returns the handle of the copy; `None` if the entry
    /// lies elsewhere, or no copy can be had. The caller then names the copy in the page's word, and frees the old
    /// entry by [`Zswap::vacate`].
    pub fn relocate(&self, handle: Handle) -> Option<Handle> {
        let Entry::Page(number) = handle.entry() else { return None };
        if !self.pages.is_leaving(number) {
            return None;
        }
        let mut copy = [0; HEADER_BYTES + PAGE_SIZE];
        // One that is damaged stays: whoever reads it is to be told.
        let (length, written) = self.read(handle, |piece| {
            let written = if is_unknown(piece.codec as u16, piece.length) { 0 } else { piece.length };
            let (head, payload) = copy.split_at_mut(HEADER_BYTES);
            head.copy_from_slice(&header(&piece));
            payload[..written].copy_from_slice(&piece.payload[..written]);
            (HEADER_BYTES + piece.length, HEADER_BYTES + written)
        })?;
        self.pages.insert([&copy[..written], &[]], length).map(Handle::page)
    }

    /// Frees an entry of which [`Zswap::relocate`] made a copy.
    pub fn vacate(&self, handle: Handle) {
        if let Entry::Page(number) = handle.entry() {
            self.pages.remove(number, &mut |_| {});
        }
    }

    /// Returns the number of pages of memory that the pool holds.
    pub fn pool_pages(&self) -> usize {
        self.pages.size().pages + self.folios.as_ref().map_or(0, Folios::pages)
    }

    /// Returns the number of pages of memory that the pool holds and does not share by fork.
    pub fn own_pages(&self) -> usize {
        self.pool_pages().saturating_sub(self.frozen_pages())
    }

    /// Returns the bytes of the index that leads to the entries.
    pub fn bytes(&self) -> usize {
        self.pages.size().index_bytes + self.folios.as_ref().map_or(0, Folios::bytes)
    }

    /// Returns the number of pages of memory that the pool holds and shares by fork.
    pub fn frozen_pages(&self) -> usize {
        self.pages.size().frozen + self.folios.as_ref().map_or(0, Folios::frozen_pages)
    }

    /// Makes frozen memory ordinary: see [`Zpool::thaw`].
    pub fn thaw(&self) {
        self.pages.thaw();
        self.folios.iter().for_each(Folios::thaw);
    }

    /// Freezes the pool before a fork: what it holds stays shared by parent and child.
    pub fn freeze(&self) {
        self.pages.freeze();
        self.folios.iter().for_each(Folios::freeze);
    }

    /// Returns the number of entries, and the bytes of their payload.
    pub fn stored(&self) -> (u64, u64) {
        (self.stored.entries.load(Relaxed), self.stored.payload.load(Relaxed))
    }

    /// Returns the number of entries that are stored as they are, uncompressed.
    pub fn stored_raw(&self) -> u64 {
        self.stored.raw.load(Relaxed)
    }

    /// Flips a bit of a stored entry: for tests of damage.
    #[doc(hidden)]
    pub fn damage(&self, handle: Handle) {
        match handle.entry() {
            Entry::Page(number) => self.pages.damage(number, &mut |bytes| bytes[HEADER_BYTES] ^= 0x10),
            Entry::Piece(folio, piece) => self.folios().damage(folio, piece),
        }
    }
}

/// The pages from which on a pool that was full stays closed.
fn below(most: usize, switches: Switches) -> usize {
    most * usize::from(switches.accept_threshold_percent) / 100
}

#[cfg(test)]
mod tests;
