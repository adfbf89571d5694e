//! Folios in the pool: sixteen pages that left together are one object.
//!
//! One handle stands for the sixteen, so the table needs one word for them ([`crate::Word::nth`]). Each is read and
//! freed alone. Folios lie one after the other in spans of 256 KiB. When an eighth of a span is dead, the rest slides
//! down, and the pages at its end go back to the source: handles stay, since they name the folio, not its bytes.
//!
//! A folio that slides keeps in its head only those pieces that are there.
//!
//! ```text
//! span    ┌────────┬──────────────┬─────────┬┄┄┄┄┄┄┄┄     folio  ┌──────────┬────────┬──────────┬─┄─┬──────────┐
//!         │ folio  │ dead         │ folio   │ no memory          │ 16 hashes│ 16 len │ payload 0│   │payload 15│
//!         └────────┴──────────────┴─────────┴┄┄┄┄┄┄┄┄            └──────────┴────────┴──────────┴─┄─┴──────────┘
//! ```

use super::CODEC_SHIFT;
use super::compression::Compressor;
use super::pool::FOLIO_SPAN_BYTES;
use super::pool::{SpanMemory, SpanSource};
use crate::hash::{HASH_BYTES, HashBytes};
use crate::slab::Slab;
use crate::sync::{Mutex, MutexGuard, lock};
use pagetide_page::{FOLIO_PAGES, PAGE_SIZE};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// The number of folios in a span at most.
const FOLIOS_MAX: usize = 1 << FOLIO_BITS;
const FOLIO_BITS: u32 = 9;
const SPANS_MAX: usize = 1 << (32 - FOLIO_BITS);
/// Spans in the first segment of their slab.
const FIRST_SEGMENT: usize = 8;
/// Bytes in a folio's head for each piece: its hash, and behind all hashes its length.
const HEAD_EACH: usize = HASH_BYTES + 2;
/// Bytes of the largest folio.
const FOLIO_MAX: usize = FOLIO_PAGES * (HEAD_EACH + PAGE_SIZE);
/// A span is closed up when at least this many bytes of it are dead, and this part of it.
const DEAD_MIN: usize = PAGE_SIZE;
const DEAD_PART: usize = 8;
const _: () = assert!(FOLIO_MAX <= FOLIO_SPAN_BYTES);

/// A piece of a folio: one page, encoded.
#[derive(Clone, Copy, Debug)]
pub struct Piece<'a> {
    /// The page's hash.
    pub hash: HashBytes,
    /// The codec of the payload.
    pub codec: Compressor,
    /// Bytes of the payload.
    pub length: usize,
    /// The encoded page; empty if a trace knows only its length.
    pub payload: &'a [u8],
}

impl<'a> Piece<'a> {
    /// Returns the piece of a page with its payload.
    pub fn new(hash: HashBytes, codec: Compressor, payload: &'a [u8]) -> Self {
        Self { hash, codec, length: payload.len(), payload }
    }

    /// Returns the piece of a page of which a trace knows only the length. Room is taken for its payload, and nothing
    /// is written there.
    pub fn unknown(hash: HashBytes, length: usize) -> Self {
        Self { hash, codec: Compressor::None, length, payload: &[] }
    }

    /// Returns length and codec as one word, as they are stored.
    pub fn word(&self) -> [u8; 2] {
        (self.length as u16 | (self.codec as u16) << CODEC_SHIFT).to_ne_bytes()
    }
}

/// Returns length and codec number from their word.
pub fn split_word(word: [u8; 2]) -> (usize, u16) {
    let word = u16::from_ne_bytes(word);
    (usize::from(word & ((1 << CODEC_SHIFT) - 1)), word >> CODEC_SHIFT)
}

/// Returns whether nothing is written in the room for a payload: see [`Piece::unknown`]. A page that is stored as it is
/// has a payload of a whole page.
pub fn is_unknown(codec: u16, length: usize) -> bool {
    codec == Compressor::None as u16 && length < PAGE_SIZE
}

#[derive(Clone, Copy, Default)]
struct Folio {
    start: u32,
    /// The pieces that are there, a bit each. Without any the folio's number is free.
    pieces: u16,
    /// The pieces that the folio's head has, and for which there is room behind it: they were there when it was laid.
    laid: u16,
}

impl Folio {
    /// Returns how many pieces the head has.
    fn count(self) -> usize {
        self.laid.count_ones() as usize
    }

    /// Returns how many of the head's pieces lie before a piece.
    fn before(self, piece: usize) -> usize {
        (self.laid & ((1 << piece) - 1)).count_ones() as usize
    }
}

/// A span with its memory. Its lock is held while a piece is read, decompressed or moved.
struct FolioSpan<M> {
    memory: M,
    folios: Vec<Folio>,
    /// Bytes from the start that hold folios, dead ones too. Beyond them there is no memory.
    end: usize,
    dead: usize,
    /// Shared with another process by fork: read and freed, never written, so that it stays shared.
    frozen: bool,
    /// Whether it is open or listed as roomy.
    listed: bool,
}

struct Lists<S> {
    source: S,
    spans: u32,
    /// The span that the next folio goes to, while it fits.
    open: Option<u32>,
    /// Spans with room for any folio.
    roomy: Vec<u32>,
}

/// The folios of a pool.
///
/// Lock order: the lists, then a span; two spans are never locked at once.
pub struct Folios<S: SpanSource> {
    spans: Slab<Mutex<Option<FolioSpan<S::Span>>>, FIRST_SEGMENT>,
    lists: Mutex<Lists<S>>,
    pages: AtomicUsize,
    frozen: AtomicUsize,
    bytes: AtomicUsize,
}

impl<S: SpanSource> std::fmt::Debug for Folios<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Folios({} pages)", self.pages())
    }
}

fn split(folio: u32) -> (u32, usize) {
    (folio >> FOLIO_BITS, folio as usize & (FOLIOS_MAX - 1))
}

/// Length and codec of each piece, in the part of a head that is behind the hashes.
fn lengths(words: &[u8]) -> impl Iterator<Item = (usize, u16)> {
    words.as_chunks::<2>().0.iter().map(|&word| split_word(word))
}

impl<M: SpanMemory> FolioSpan<M> {
    fn holds(&self, folio: usize, piece: usize) -> bool {
        self.folios.get(folio).is_some_and(|folio| folio.pieces >> piece & 1 == 1)
    }

    /// The hashes of a folio that is laid, and the words of its lengths.
    fn head(&self, folio: Folio) -> (&[u8], &[u8]) {
        self.memory[folio.start as usize..][..folio.count() * HEAD_EACH].split_at(folio.count() * HASH_BYTES)
    }

    /// Returns the bytes of a piece's payload in the span, and the number of its codec.
    fn find(&self, folio: usize, piece: usize) -> (std::ops::Range<usize>, u16) {
        let folio = self.folios[folio];
        let mut start = folio.start as usize + folio.count() * HEAD_EACH;
        let mut lengths = lengths(self.head(folio).1);
        start += lengths.by_ref().take(folio.before(piece)).map(|(length, _)| length).sum::<usize>();
        let (length, codec) = lengths.next().expect("a piece that is there is laid");
        (start..start + length, codec)
    }

    fn piece(&self, folio: usize, piece: usize) -> Option<Piece<'_>> {
        let (payload, codec) = self.find(folio, piece);
        let folio = self.folios[folio];
        let hash = self.head(folio).0.as_chunks().0[folio.before(piece)];
        Some(Piece::new(hash, Compressor::from_bits(codec as u8)?, self.memory.get(payload)?))
    }

    fn append(&mut self, pieces: &[Piece<'_>; FOLIO_PAGES]) -> usize {
        let free = self.folios.iter().position(|folio| folio.pieces == 0);
        let number = free.unwrap_or_else(|| {
            self.folios.push(Folio::default());
            self.folios.len() - 1
        });
        self.folios[number] = Folio { start: self.end as u32, pieces: u16::MAX, laid: u16::MAX };
        let (hashes, lengths) = self.memory[self.end..].split_at_mut(FOLIO_PAGES * HASH_BYTES);
        let (lengths, mut to) = lengths.split_at_mut(FOLIO_PAGES * 2);
        let heads = hashes.as_chunks_mut().0.iter_mut().zip(lengths.as_chunks_mut::<2>().0);
        for (piece, (hash, length)) in pieces.iter().zip(heads) {
            *hash = piece.hash;
            *length = piece.word();
            let payload;
            (payload, to) = to.split_at_mut(piece.length);
            payload[..piece.payload.len()].copy_from_slice(piece.payload);
        }
        self.end += length_of(pieces);
        number
    }

    /// Closes up what is dead.
    fn slide(&mut self) {
        // By where they lie. No allocation: this is how memory is freed.
        let mut order = [0u16; FOLIOS_MAX];
        let mut count = 0;
        for (number, _) in self.folios.iter().enumerate().filter(|(_, folio)| folio.pieces != 0) {
            order[count] = number as u16;
            count += 1;
        }
        let folios = &mut self.folios;
        order[..count].sort_unstable_by_key(|&number| folios[usize::from(number)].start);
        let mut to = 0;
        for &number in &order[..count] {
            let folio = &mut folios[usize::from(number)];
            let old = *folio;
            (folio.start, folio.laid) = (to as u32, folio.pieces);
            // What the head is made of is read before anything is written over it.
            let mut head = [0; FOLIO_PAGES * HEAD_EACH];
            let head = &mut head[..old.count() * HEAD_EACH];
            let mut from = old.start as usize;
            head.copy_from_slice(&self.memory[from..][..head.len()]);
            from += head.len();
            let (hashes, words) = head.split_at(old.count() * HASH_BYTES);
            let laid = (0..FOLIO_PAGES).filter(|piece| old.laid >> piece & 1 == 1);
            let stays = |piece: usize| old.pieces >> piece & 1 == 1;
            let (mut hash_to, mut word_to) = (to, to + folio.count() * HASH_BYTES);
            to += folio.count() * HEAD_EACH;
            let entries = hashes.chunks_exact(HASH_BYTES).zip(words.as_chunks::<2>().0).zip(lengths(words));
            for (piece, ((hash, word), (length, codec))) in laid.zip(entries) {
                if stays(piece) {
                    self.memory[hash_to..][..HASH_BYTES].copy_from_slice(hash);
                    self.memory[word_to..][..2].copy_from_slice(word);
                    (hash_to, word_to) = (hash_to + HASH_BYTES, word_to + 2);
                    if !is_unknown(codec, length) {
                        self.memory.copy_within(from..from + length, to);
                    }
                    to += length;
                }
                from += length;
            }
        }
        self.end = to;
        self.dead = 0;
        self.memory.trim(to);
    }

    fn pages(&self) -> usize {
        self.end.div_ceil(PAGE_SIZE)
    }

    fn is_roomy(&self) -> bool {
        FOLIO_SPAN_BYTES - self.end >= FOLIO_MAX && self.folios.len() < FOLIOS_MAX
    }
}

fn length_of(pieces: &[Piece<'_>; FOLIO_PAGES]) -> usize {
    pieces.iter().map(|piece| HEAD_EACH + piece.length).sum()
}

impl<S: SpanSource> Folios<S> {
    /// Returns an empty store of folios on memory from `source`.
    pub fn new(source: S) -> Self {
        let lists = Lists { source, spans: 0, open: None, roomy: Vec::new() };
        Self {
            spans: Slab::default(),
            lists: Mutex::new(lists),
            pages: AtomicUsize::new(0),
            frozen: AtomicUsize::new(0),
            bytes: AtomicUsize::new(0),
        }
    }

    fn span(&self, id: u32) -> MutexGuard<'_, Option<FolioSpan<S::Span>>> {
        lock(self.spans.get(id).expect("an id that was handed out"))
    }

    /// Stores sixteen pages and returns the folio's number; `None` if no memory can be had.
    pub fn insert(&self, pieces: &[Piece<'_>; FOLIO_PAGES]) -> Option<u32> {
        let length = length_of(pieces);
        let mut lists = lock(&self.lists);
        let (id, mut guard) = loop {
            if let Some(id) = lists.open {
                let mut guard = self.span(id);
                let span = guard.as_mut().expect("an open span exists");
                if span.end + length <= FOLIO_SPAN_BYTES && span.folios.len() < FOLIOS_MAX {
                    break (id, guard);
                }
                span.listed = false;
                lists.open = None;
            }
            lists.open = match lists.roomy.pop() {
                Some(id) => Some(id),
                None => Some(self.add_span(&mut lists)?),
            };
        };
        let span = guard.as_mut().expect("an open span exists");
        // The span's lock keeps others from the folio until it is whole.
        drop(lists);
        let (pages, capacity) = (span.pages(), span.folios.capacity());
        let number = span.append(pieces);
        self.pages.fetch_add(span.pages() - pages, Relaxed);
        self.bytes.fetch_add((span.folios.capacity() - capacity) * size_of::<Folio>(), Relaxed);
        Some(id << FOLIO_BITS | number as u32)
    }

    fn add_span(&self, lists: &mut Lists<S>) -> Option<u32> {
        let id = lists.spans;
        if id as usize == SPANS_MAX {
            return None;
        }
        let memory = lists.source.take(FOLIO_SPAN_BYTES)?;
        assert_eq!(memory.len(), FOLIO_SPAN_BYTES);
        lists.spans += 1;
        // Room for all that freeing may push.
        let missing = (lists.spans as usize).saturating_sub(lists.roomy.len());
        lists.roomy.reserve(missing);
        let bytes = self.spans.make(id, Mutex::default);
        self.bytes.fetch_add(bytes, Relaxed);
        let folios = Vec::new();
        *self.span(id) = Some(FolioSpan { memory, folios, end: 0, dead: 0, frozen: false, listed: true });
        Some(id)
    }

    /// Lends a piece to `use_it`; `None` if there is no such piece.
    pub fn read<T>(&self, folio: u32, piece: usize, use_it: impl FnOnce(Piece<'_>) -> T) -> Option<T> {
        let (id, number) = split(folio);
        let guard = lock(self.spans.get(id)?);
        let span = guard.as_ref().filter(|span| span.holds(number, piece))?;
        Some(use_it(span.piece(number, piece)?))
    }

    /// Returns whether the folio is shared with another process by fork.
    pub fn is_frozen(&self, folio: u32) -> bool {
        self.span(split(folio).0).as_ref().is_some_and(|span| span.frozen)
    }

    /// Frees a piece, and returns the bytes of its payload.
    ///
    /// # Panics
    /// If it is not there: a piece that is freed twice would be another page's the second time.
    pub fn remove(&self, folio: u32, piece: usize) -> usize {
        let (id, number) = split(folio);
        let mut lists = lock(&self.lists);
        let mut guard = self.span(id);
        let span = guard.as_mut().filter(|span| span.holds(number, piece)).expect("a piece is freed once");
        let length = span.find(number, piece).0.len();
        span.dead += HEAD_EACH + length;
        span.folios[number].pieces &= !(1 << piece);
        let before = span.pages();
        if span.dead == span.end {
            span.memory.trim(0);
            (span.end, span.dead) = (0, 0);
            if std::mem::take(&mut span.frozen) {
                // Under the lists' lock, as a freeze and a thaw, which count anew.
                self.frozen.fetch_sub(before, Relaxed);
            }
        } else if !span.frozen && span.dead >= DEAD_MIN && span.dead * DEAD_PART >= span.end {
            span.slide();
        } else {
            return length;
        }
        // Their memory has gone back: now they count no more.
        self.pages.fetch_sub(before - span.pages(), Relaxed);
        if !span.listed && span.is_roomy() {
            span.listed = true;
            lists.roomy.push(id);
        }
        length
    }

    /// Returns the number of pages of memory that are held.
    pub fn pages(&self) -> usize {
        self.pages.load(Relaxed)
    }

    /// Returns the number of pages of memory that are shared by fork.
    pub fn frozen_pages(&self) -> usize {
        self.frozen.load(Relaxed)
    }

    /// Returns the bytes of the index that leads to the folios.
    pub fn bytes(&self) -> usize {
        self.bytes.load(Relaxed)
    }

    /// Freezes every span: see [`super::pool::Zpool::freeze`].
    pub fn freeze(&self) {
        self.set_frozen(true);
    }

    /// Makes frozen spans ordinary ones.
    pub fn thaw(&self) {
        self.set_frozen(false);
    }

    fn set_frozen(&self, on: bool) {
        let mut lists = lock(&self.lists);
        lists.open = None;
        lists.roomy.clear();
        let mut frozen = 0;
        for id in 0..lists.spans {
            let mut guard = self.span(id);
            let span = guard.as_mut().expect("made when it was added");
            span.frozen = on && span.end > 0;
            if span.frozen {
                frozen += span.pages();
            }
            span.listed = !span.frozen && span.is_roomy();
            if span.listed {
                lists.roomy.push(id);
            }
        }
        self.frozen.store(frozen, Relaxed);
    }

    #[doc(hidden)]
    pub fn damage(&self, folio: u32, piece: usize) {
        let (id, number) = split(folio);
        let mut guard = self.span(id);
        let span = guard.as_mut().expect("a folio's span exists");
        let (payload, _) = span.find(number, piece);
        span.memory[payload.start] ^= 0x10;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::zswap::pool::tests::Heap;
    use proptest::prelude::*;
    use std::collections::HashMap;
    use std::sync::Arc;

    type Payloads = [Vec<u8>; FOLIO_PAGES];

    fn payloads(seed: u64, length_max: usize) -> Payloads {
        std::array::from_fn(|piece| {
            let draw = (seed ^ piece as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            vec![draw as u8; (draw >> 32) as usize % (length_max + 1)]
        })
    }

    fn hash_bytes(piece: usize) -> HashBytes {
        std::array::from_fn(|nth| if nth == 0 { piece as u8 } else { u8::MAX - nth as u8 })
    }

    fn insert(folios: &Folios<Heap>, payloads: &Payloads) -> Option<u32> {
        let pieces = std::array::from_fn(|nth| Piece::new(hash_bytes(nth), Compressor::Lz4, &payloads[nth]));
        folios.insert(&pieces)
    }

    fn check(folios: &Folios<Heap>, model: &HashMap<(u32, usize), Vec<u8>>) -> Result<(), TestCaseError> {
        for (&(folio, piece), payload) in model {
            let found = folios.read(folio, piece, |found| (found.hash, found.codec, found.payload.to_vec()));
            prop_assert_eq!(found, Some((hash_bytes(piece), Compressor::Lz4, payload.clone())));
        }
        Ok(())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(100))]
        #[test]
        fn folios_agree_with_a_map(
            steps in proptest::collection::vec((any::<u8>(), any::<u64>()), 1..300),
            length_max in prop_oneof![Just(20usize), Just(1500), Just(4095)],
            limit in 1usize..12,
        ) {
            let left = Arc::new(AtomicUsize::new(limit));
            let folios = Folios::new(Heap(left.clone()));
            let mut model: HashMap<(u32, usize), Vec<u8>> = HashMap::new();
            for (kind, seed) in steps {
                match kind {
                    0..100 => {
                        let payloads = payloads(seed, length_max);
                        match insert(&folios, &payloads) {
                            None => prop_assert_eq!(left.load(Relaxed), 0),
                            Some(folio) => for (piece, payload) in payloads.into_iter().enumerate() {
                                prop_assert!(model.insert((folio, piece), payload).is_none());
                            },
                        }
                    }
                    // All of a folio, or one piece.
                    100..254 => {
                        let mut keys: Vec<_> = model.keys().copied().collect();
                        keys.sort_unstable();
                        if let Some(&(folio, piece)) = keys.get(seed as usize % keys.len().max(1)) {
                            for (folio, piece) in keys.into_iter().filter(|&(other, each)| {
                                other == folio && (each == piece || kind % 2 == 0)
                            }) {
                                let payload = model.remove(&(folio, piece)).unwrap();
                                prop_assert_eq!(folios.remove(folio, piece), payload.len());
                            }
                        }
                    }
                    254 => {
                        folios.thaw();
                        prop_assert_eq!(folios.frozen_pages(), 0);
                    }
                    255 => {
                        folios.freeze();
                        prop_assert_eq!(folios.frozen_pages(), folios.pages());
                    }
                }
                check(&folios, &model)?;
            }
            for &(folio, piece) in model.keys() {
                folios.remove(folio, piece);
            }
            prop_assert_eq!((folios.pages(), folios.frozen_pages()), (0, 0));
        }
    }

    /// Folios that live for as long as chance has it, half of them in pieces: what is dead stays a small part.
    #[test]
    fn what_is_dead_is_a_small_part() {
        let folios = Folios::new(Heap(Arc::new(AtomicUsize::new(1000))));
        let mut live: Vec<(u32, usize)> = Vec::new();
        let mut bytes = 0;
        let mut state = 1u64;
        let mut draw = |limit: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize % limit
        };
        let mut worst: f64 = 0.0;
        for round in 0..6000 {
            let payloads = payloads(round, 3000);
            let folio = insert(&folios, &payloads).unwrap();
            bytes += payloads.iter().map(Vec::len).sum::<usize>();
            live.extend((0..FOLIO_PAGES).map(|piece| (folio, piece)));
            while live.len() > 16_000 {
                let (folio, piece) = live.swap_remove(draw(live.len()));
                bytes -= folios.remove(folio, piece);
            }
            if round > 2000 {
                worst = worst.max((folios.pages() * PAGE_SIZE) as f64 / bytes as f64);
            }
        }
        // An eighth, heads, and the end of the span that is filled.
        assert!(worst < 1.18, "{worst}");
    }
}
