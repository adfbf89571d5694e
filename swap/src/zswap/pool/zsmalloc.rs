//! The pool: objects of like size share spans (after zsmalloc, Gupta 2014).
//!
//! A span is 32 KiB from a [`SpanSource`]; it is cut into equal slots of one size class. Its number names
//! span and slot, so an entry costs no table beside its header. A span whose last entry goes is given
//! back at once: the pool shrinks with its content.
//!
//! ```text
//! number    31          10 9        0        slot   0      12               14
//!          ┌──────────────┬──────────┐             ┌───────┬────────────────┬─────────┐
//!          │ span         │ slot     │             │ hash  │ codec · length │ payload │
//!          └──────────────┴──────────┘             └───────┴────────────────┴─────────┘
//! ```

use crate::config::{Compressor, SPAN_BYTES, SPAN_PAGES};
use crate::hash::{HASH_BYTES, PageHash, from_bytes, to_bytes};
use crate::slab::Slab;
use crate::sync::{Mutex, MutexGuard, lock};
use std::ops::DerefMut;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Where the pool's memory comes from.
///
/// A span is owned, and returned to the source when it is dropped. Freeing must not allocate.
pub trait SpanSource: Send {
    /// One span's memory.
    type Span: SpanMemory;
    /// Takes a span of [`SPAN_BYTES`] or [`crate::config::FOLIO_SPAN_BYTES`]; `None` when there is no memory.
    fn take(&self, bytes: usize) -> Option<Self::Span>;
}

/// A span's memory, which is taken from the system when it is written.
pub trait SpanMemory: DerefMut<Target = [u8]> + Send {
    /// Gives back all pages beyond the first `used` bytes: what they held is lost.
    fn trim(&mut self, used: usize);
}

/// Memory from the heap, as much as is asked for: for tests and measurements.
#[derive(Clone, Copy, Debug, Default)]
pub struct Heap;

/// What a span holds that nobody has written, or that was given back.
const UNWRITTEN: u8 = 0xEE;

impl SpanSource for Heap {
    type Span = Vec<u8>;
    fn take(&self, bytes: usize) -> Option<Vec<u8>> {
        Some(vec![UNWRITTEN; bytes])
    }
}

impl SpanMemory for Vec<u8> {
    fn trim(&mut self, used: usize) {
        self[used.next_multiple_of(crate::entry::PAGE_SIZE)..].fill(UNWRITTEN);
    }
}

/// What stands before every payload.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    /// Hash of the page.
    pub hash: PageHash,
    /// Bytes of payload.
    pub length: u16,
    /// How the payload is encoded.
    pub codec: Compressor,
}

/// Bytes of an encoded [`Header`].
pub const HEADER_BYTES: usize = HASH_BYTES + 2;
/// Above the length of a payload: its codec.
pub(super) const CODEC_SHIFT: u32 = 13;
const _: () = assert!(crate::entry::PAGE_SIZE < 1 << CODEC_SHIFT);
/// Slots of the smallest class: 512.
const SLOT_BITS: u32 = 9;
const SLOTS_MAX: usize = 1 << SLOT_BITS;
/// A pool of fewer spans is small: 2 MiB.
const SMALL_POOL_SPANS: usize = 64;
/// Spans: 2^23 × 32 KiB = 256 GiB of pool.
const SPANS_MAX: usize = 1 << (32 - SLOT_BITS);
/// Spans in the first segment of their slab: 1 MiB.
const FIRST_SEGMENT: usize = 32;

impl Header {
    fn write(&self, to: &mut [u8]) {
        to[..HASH_BYTES].copy_from_slice(&to_bytes(self.hash));
        let word = self.length | (self.codec as u16) << CODEC_SHIFT;
        to[HASH_BYTES..][..2].copy_from_slice(&word.to_ne_bytes());
    }

    fn read(from: &[u8]) -> Option<Self> {
        let word = u16::from_ne_bytes([from[HASH_BYTES], from[HASH_BYTES + 1]]);
        Some(Self {
            hash: from_bytes(from),
            length: word & ((1 << CODEC_SHIFT) - 1),
            codec: Compressor::from_bits((word >> CODEC_SHIFT) as u8)?,
        })
    }
}

/// Slot sizes: steps of 32 bytes to 512, then of a sixteenth of the power of two below (at most 1/17 lost
/// to rounding), then one for pages stored as they are.
fn class_sizes() -> Vec<usize> {
    let mut sizes: Vec<usize> = (2..=16).map(|n| n * 32).collect();
    let mut base = 512;
    while base < 4096 {
        sizes.extend((1..=16).map(|n| base + n * base / 16));
        base *= 2;
    }
    // The class for whole pages replaces the last step: 7 fit into a span.
    sizes.push(SPAN_BYTES / 7 / 4 * 4);
    sizes
}

#[derive(Debug)]
struct Class {
    size: usize,
    slots: usize,
}

/// A span with its memory. Its lock is held while an entry is read, decompressed or written: nobody who waits
/// for it holds up others.
struct Span<M> {
    memory: M,
    class: u8,
    used_count: u16,
    /// Shared with another process by fork: read and freed, never written, so that it stays shared.
    frozen: bool,
    used: Used,
}

/// Which slots are used: those of most classes fit into one word.
struct Used {
    first: u64,
    more: Option<Box<[u64; SLOTS_MAX / 64 - 1]>>,
}

impl Used {
    /// None of so many. Those beyond are used for ever.
    fn none_of(slots: usize) -> Self {
        let word = |at: usize| match slots.saturating_sub(at * 64) {
            0 => u64::MAX,
            n @ 1..64 => u64::MAX << n,
            _ => 0,
        };
        Self { first: word(0), more: (slots > 64).then(|| Box::new(std::array::from_fn(|at| word(at + 1)))) }
    }

    fn word(&mut self, slot: usize) -> Option<&mut u64> {
        match slot / 64 {
            0 => Some(&mut self.first),
            at => self.more.as_mut()?.get_mut(at - 1),
        }
    }

    fn contains(&self, slot: usize) -> bool {
        let word = match slot / 64 {
            0 => self.first,
            at => self.more.as_ref().map_or(0, |more| more[at - 1]),
        };
        word >> (slot % 64) & 1 == 1
    }

    fn set(&mut self, slot: usize, on: bool) {
        let word = self.word(slot).expect("a slot of the class");
        *word = *word & !(1 << (slot % 64)) | u64::from(on) << (slot % 64);
    }

    fn first_clear(&self) -> Option<usize> {
        let words = std::iter::once(self.first).chain(self.more.iter().flat_map(|more| **more));
        let (at, word) = words.enumerate().find(|&(_, word)| word != u64::MAX)?;
        Some(at * 64 + word.trailing_ones() as usize)
    }
}

/// Which spans have room, and what there is in all.
struct Lists<S> {
    source: S,
    /// Of each class, the spans with a free slot.
    partial: Vec<Vec<u32>>,
    /// Of each span, its index in `partial` of its class, if it is there.
    partial_at: Vec<Option<u32>>,
    free_ids: Vec<u32>,
    entries: u64,
    payload_bytes: u64,
}

/// The pool.
///
/// Lock order: the lists, then a span; two spans are never locked at once.
pub struct Pool<S: SpanSource> {
    classes: Vec<Class>,
    spans: Slab<Mutex<Option<Span<S::Span>>>, FIRST_SEGMENT>,
    lists: Mutex<Lists<S>>,
    /// Pages held, and those of them that are shared by fork: read at every fault, without the lock.
    pages: AtomicUsize,
    frozen: AtomicUsize,
    /// Bytes of what leads to the entries.
    span_bytes: AtomicUsize,
    list_bytes: AtomicUsize,
}

impl<S: SpanSource> std::fmt::Debug for Pool<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Pool({} entries in {} pages)", self.stored().0, self.pages())
    }
}

fn split(handle: u32) -> (u32, usize) {
    (handle >> SLOT_BITS, handle as usize & (SLOTS_MAX - 1))
}

impl<M: SpanMemory> Span<M> {
    fn holds(&self, slot: usize) -> bool {
        self.used.contains(slot)
    }

    fn entry(&self, slot: usize, size: usize) -> Option<(Header, &[u8])> {
        let bytes = self.memory.get(slot * size..)?.get(..size)?;
        let header = Header::read(bytes)?;
        Some((header, bytes[HEADER_BYTES..].get(..usize::from(header.length))?))
    }
}

impl<S: SpanSource> Pool<S> {
    /// An empty pool.
    pub fn new(source: S) -> Self {
        let classes: Vec<Class> = class_sizes()
            .into_iter()
            .map(|size| Class { size, slots: (SPAN_BYTES / size).min(SLOTS_MAX) })
            .collect();
        let lists = Lists {
            source,
            partial: classes.iter().map(|_| Vec::new()).collect(),
            partial_at: Vec::new(),
            free_ids: Vec::new(),
            entries: 0,
            payload_bytes: 0,
        };
        Self {
            classes,
            spans: Slab::default(),
            lists: Mutex::new(lists),
            pages: AtomicUsize::new(0),
            frozen: AtomicUsize::new(0),
            span_bytes: AtomicUsize::new(0),
            list_bytes: AtomicUsize::new(0),
        }
    }

    fn span(&self, id: u32) -> Option<MutexGuard<'_, Option<Span<S::Span>>>> {
        self.spans.get(id).map(lock)
    }

    /// Runs `change` on the span of an entry that is there, with its slot and the size of slots.
    fn with<T>(&self, handle: u32, change: impl FnOnce(&mut Span<S::Span>, usize, usize) -> T) -> Option<T> {
        let (id, slot) = split(handle);
        let mut guard = self.span(id)?;
        let span = guard.as_mut().filter(|span| span.holds(slot))?;
        let size = self.classes[usize::from(span.class)].size;
        Some(change(span, slot, size))
    }

    /// Stores a payload under a header and returns its handle; `None` if no memory can be had.
    pub fn insert(&self, header: &Header, payload: &[u8]) -> Option<u32> {
        let needed = HEADER_BYTES + payload.len();
        let class = self.classes.partition_point(|class| class.size < needed);
        let mut lists = lock(&self.lists);
        let class = self.roomier(&lists, class);
        let id = match lists.partial.get(class)?.last() {
            Some(&id) => id,
            None => self.add_span(&mut lists, class)?,
        };
        let Class { size, slots } = self.classes[class];
        let mut guard = self.span(id).expect("a partial span exists");
        let span = guard.as_mut().expect("a partial span exists");
        let slot = span.used.first_clear().expect("a partial span has room");
        debug_assert!(slot < slots);
        span.used.set(slot, true);
        span.used_count += 1;
        if usize::from(span.used_count) == slots {
            lists.unlink_partial(id, class);
        }
        lists.entries += 1;
        lists.payload_bytes += payload.len() as u64;
        // The span's lock keeps others from the entry until it is whole.
        drop(lists);
        let bytes = &mut span.memory[slot * size..][..needed];
        header.write(bytes);
        bytes[HEADER_BYTES..].copy_from_slice(payload);
        Some(id << SLOT_BITS | slot as u32)
    }

    /// The class to use in place of `class`: a small pool would be all half-empty spans if each class had
    /// its own, so there an entry goes to the next larger class that has room.
    fn roomier(&self, lists: &Lists<S>, class: usize) -> usize {
        if self.pages().saturating_sub(self.frozen_pages()) >= SMALL_POOL_SPANS * SPAN_PAGES {
            return class;
        }
        let larger = lists.partial.get(class..).unwrap_or_default();
        larger.iter().position(|partial| !partial.is_empty()).map_or(class, |at| class + at)
    }

    /// Lends the header and payload behind a handle.
    pub fn read<T>(&self, handle: u32, use_it: impl FnOnce(Header, &[u8]) -> T) -> Option<T> {
        self.with(handle, |span, slot, size| {
            let (header, payload) = span.entry(slot, size)?;
            Some(use_it(header, payload))
        })?
    }

    /// Frees an entry.
    ///
    /// # Panics
    /// If the handle names none: an entry freed twice would be somebody else's the second time.
    pub fn remove(&self, handle: u32) {
        let (id, slot) = split(handle);
        let mut lists = lock(&self.lists);
        let mut guard = self.span(id).expect("a handle is freed once");
        let span = guard.as_mut().filter(|span| span.holds(slot)).expect("a handle is freed once");
        let class = usize::from(span.class);
        let payload = span.entry(slot, self.classes[class].size).map_or(0, |(_, payload)| payload.len());
        lists.payload_bytes -= payload as u64;
        lists.entries -= 1;
        span.used.set(slot, false);
        span.used_count -= 1;
        if span.used_count > 0 {
            if lists.partial_at[id as usize].is_none() && !span.frozen {
                lists.link_partial(id, class);
            }
            return;
        }
        let span = guard.take();
        drop(guard);
        if lists.partial_at[id as usize].is_some() {
            lists.unlink_partial(id, class);
        }
        // Capacity was reserved when the span was added: freeing needs no memory.
        lists.free_ids.push(id);
        // Under the lock, as a freeze and a thaw, which count anew.
        if span.as_ref().is_some_and(|span| span.frozen) {
            self.frozen.fetch_sub(SPAN_PAGES, Relaxed);
        }
        drop(lists);
        drop(span);
        // Its memory has gone back: now it counts no more.
        self.pages.fetch_sub(SPAN_PAGES, Relaxed);
    }

    /// Whether an entry is shared with another process by fork.
    pub fn is_frozen(&self, handle: u32) -> bool {
        self.with(handle, |span, _, _| span.frozen).unwrap_or(false)
    }

    fn add_span(&self, lists: &mut Lists<S>, class: usize) -> Option<u32> {
        let id = match lists.free_ids.last() {
            Some(&id) => id,
            None if lists.partial_at.len() == SPANS_MAX => return None,
            None => lists.partial_at.len() as u32,
        };
        let memory = lists.source.take(SPAN_BYTES)?;
        assert_eq!(memory.len(), SPAN_BYTES);
        if lists.free_ids.pop().is_none() {
            let made = self.spans.make(id, Mutex::default);
            lists.partial_at.push(None);
            lists.reserve();
            self.span_bytes.fetch_add(made, Relaxed);
            self.list_bytes.store(lists.bytes(), Relaxed);
        }
        let used = Used::none_of(self.classes[class].slots);
        *self.span(id).expect("made above") =
            Some(Span { memory, class: class as u8, used_count: 0, frozen: false, used });
        lists.link_partial(id, class);
        self.pages.fetch_add(SPAN_PAGES, Relaxed);
        Some(id)
    }

    /// Pages of memory held.
    pub fn pages(&self) -> usize {
        self.pages.load(Relaxed)
    }

    /// Bytes of what leads to the entries.
    pub fn bytes(&self) -> usize {
        self.span_bytes.load(Relaxed) + self.list_bytes.load(Relaxed)
    }

    /// Pages of memory that are shared by fork.
    pub fn frozen_pages(&self) -> usize {
        self.frozen.load(Relaxed)
    }

    /// Freezes every span: before a fork, in the name of both processes. What is stored from now on goes
    /// to spans of its own.
    pub fn freeze(&self) {
        let mut lists = lock(&self.lists);
        lists.partial.iter_mut().for_each(Vec::clear);
        lists.partial_at.fill(None);
        let mut frozen = 0;
        for id in 0..lists.partial_at.len() as u32 {
            if let Some(span) = self.span(id).expect("made when it was added").as_mut() {
                span.frozen = true;
                frozen += SPAN_PAGES;
            }
        }
        self.frozen.store(frozen, Relaxed);
    }

    /// Makes frozen spans ordinary ones: nobody shares them any more, or what it costs to write them is no matter.
    pub fn thaw(&self) {
        let mut lists = lock(&self.lists);
        for id in 0..lists.partial_at.len() as u32 {
            let mut guard = self.span(id).expect("made when it was added");
            let Some(span) = guard.as_mut().filter(|span| span.frozen) else { continue };
            span.frozen = false;
            let class = usize::from(span.class);
            if usize::from(span.used_count) < self.classes[class].slots {
                lists.link_partial(id, class);
            }
        }
        lists.reserve();
        self.frozen.store(0, Relaxed);
    }

    /// Entries stored, and the bytes of their payload.
    pub fn stored(&self) -> (u64, u64) {
        let lists = lock(&self.lists);
        (lists.entries, lists.payload_bytes)
    }

    #[doc(hidden)]
    pub fn damage(&self, handle: u32) {
        self.with(handle, |span, slot, size| span.memory[slot * size + HEADER_BYTES] ^= 0x10);
    }
}

impl<S> Lists<S> {
    /// Makes room for all that linking and freeing spans may push.
    fn reserve(&mut self) {
        let spans = self.partial_at.len();
        self.free_ids.reserve(spans);
        for partial in &mut self.partial {
            // A span is partial in one class only, but may be in any.
            let wanted = spans.min(partial.len() + 64);
            partial.reserve(wanted - partial.len());
        }
    }

    fn bytes(&self) -> usize {
        let partial: usize = self.partial.iter().map(Vec::capacity).sum();
        (partial + self.free_ids.capacity()) * 4 + self.partial_at.capacity() * size_of::<Option<u32>>()
    }

    fn link_partial(&mut self, id: u32, class: usize) {
        self.partial_at[id as usize] = Some(self.partial[class].len() as u32);
        self.partial[class].push(id);
    }

    fn unlink_partial(&mut self, id: u32, class: usize) {
        let at = self.partial_at[id as usize].take().expect("it was partial") as usize;
        let partial = &mut self.partial[class];
        partial.swap_remove(at);
        if let Some(&moved) = partial.get(at) {
            self.partial_at[moved as usize] = Some(at as u32);
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    /// Spans from the heap, at most `limit`.
    pub(crate) struct Heap(pub std::sync::Arc<std::sync::atomic::AtomicUsize>);
    pub(crate) struct HeapSpan(Vec<u8>, std::sync::Arc<std::sync::atomic::AtomicUsize>);
    impl SpanSource for Heap {
        type Span = HeapSpan;
        fn take(&self, bytes: usize) -> Option<HeapSpan> {
            use std::sync::atomic::Ordering::Relaxed;
            self.0.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)).ok()?;
            Some(HeapSpan(vec![0xee; bytes], self.0.clone()))
        }
    }
    impl SpanMemory for HeapSpan {
        fn trim(&mut self, used: usize) {
            self.0[used.next_multiple_of(crate::entry::PAGE_SIZE)..].fill(0xee);
        }
    }
    impl Drop for HeapSpan {
        fn drop(&mut self) {
            self.1.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        }
    }
    impl std::ops::Deref for HeapSpan {
        type Target = [u8];
        fn deref(&self) -> &[u8] {
            &self.0
        }
    }
    impl DerefMut for HeapSpan {
        fn deref_mut(&mut self) -> &mut [u8] {
            &mut self.0
        }
    }

    #[test]
    fn classes_ascend_and_hold_a_whole_page() {
        let sizes = class_sizes();
        assert!(sizes.is_sorted_by(|a, b| a < b), "{sizes:?}");
        assert!(*sizes.last().unwrap() >= HEADER_BYTES + crate::entry::PAGE_SIZE);
        assert!(sizes.len() < 256 && sizes.iter().all(|size| SPAN_BYTES / size <= SLOTS_MAX));
    }

    proptest! {
        #[test]
        fn the_pool_agrees_with_a_map(
            steps in proptest::collection::vec((any::<u8>(), 0usize..4096, any::<u16>()), 1..800),
            limit in 1usize..40,
        ) {
            let left = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(limit));
            let pool = Pool::new(Heap(left.clone()));
            let mut model: HashMap<u32, (Header, Vec<u8>)> = HashMap::new();
            for (kind, length, tag) in steps {
                if kind < 160 {
                    let payload: Vec<u8> = (0..length).map(|i| (i as u8) ^ (tag as u8)).collect();
                    let header = Header {
                        hash: [tag.into(), 1, 2],
                        length: length as u16, codec: Compressor::Lz4,
                    };
                    if let Some(handle) = pool.insert(&header, &payload) {
                        prop_assert!(model.insert(handle, (header, payload)).is_none());
                    } else {
                        prop_assert_eq!(left.load(std::sync::atomic::Ordering::Relaxed), 0);
                    }
                } else if kind == 254 {
                    pool.thaw();
                    prop_assert_eq!(pool.frozen_pages(), 0);
                } else if kind == 255 {
                    pool.freeze();
                    prop_assert_eq!(pool.frozen_pages(), pool.pages());
                } else if let Some(&handle) = model.keys().nth(usize::from(tag) % model.len().max(1)) {
                    pool.remove(handle);
                    model.remove(&handle);
                }
                for (handle, (header, payload)) in &model {
                    prop_assert_eq!(pool.read(*handle, |h, p| (h, p.to_vec())), Some((*header, payload.clone())));
                }
                let bytes: usize = model.values().map(|(_, payload)| payload.len()).sum();
                prop_assert_eq!(pool.stored(), (model.len() as u64, bytes as u64));
            }
            for (handle, _) in model {
                pool.remove(handle);
            }
            prop_assert_eq!(pool.pages(), 0);
            prop_assert_eq!(left.load(std::sync::atomic::Ordering::Relaxed), limit);
        }
    }
}
