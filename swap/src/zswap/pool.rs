//! The pool: objects of like size share spans (after zsmalloc, Gupta 2014).
//!
//! A span is 32 KiB from a [`SpanSource`]; it is cut into equal slots of one size class. A handle names
//! span and slot, so an entry costs no table beside its header. A span whose last entry goes is given
//! back at once: the pool shrinks with its content.
//!
//! ```text
//! handle    31          10 9        0        slot   0      16      24   26  27
//!          ┌──────────────┬──────────┐             ┌───────┬───────┬────┬───┬─┬─────────┐
//!          │ span         │ slot     │             │ hash  │ owner │ len│cod│ │ payload │
//!          └──────────────┴──────────┘             └───────┴───────┴────┴───┴─┴─────────┘
//! ```

use crate::config::{Compressor, SPAN_BYTES, SPAN_PAGES};
use crate::entry::PageIndex;
use crate::hash::PageHash;
use std::ops::DerefMut;

/// Where the pool's memory comes from.
///
/// A span is [`SPAN_BYTES`] long, owned, and returned to the source when it is dropped. Freeing must not
/// allocate.
pub trait SpanSource: Send {
    /// One span's memory.
    type Span: DerefMut<Target = [u8]> + Send;
    /// Takes a span; `None` when there is no memory.
    fn take(&self) -> Option<Self::Span>;
}

/// What stands before every payload.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    /// Hash of the page.
    pub hash: PageHash,
    /// Whose page it is.
    pub owner: PageIndex,
    /// Bytes of payload.
    pub length: u16,
    /// How the payload is encoded.
    pub codec: Compressor,
}

/// Bytes of an encoded [`Header`].
pub const HEADER_BYTES: usize = 28;
const SLOT_BITS: u32 = 10;
const SLOTS_MAX: usize = 1 << SLOT_BITS;
/// A pool of fewer spans is small: 2 MiB.
const SMALL_POOL_SPANS: usize = 64;
/// Spans: 2^22 × 32 KiB = 128 GiB of pool.
const SPANS_MAX: usize = 1 << 22;

impl Header {
    fn write(&self, to: &mut [u8]) {
        to[0..8].copy_from_slice(&self.hash[0].to_ne_bytes());
        to[8..16].copy_from_slice(&self.hash[1].to_ne_bytes());
        to[16..24].copy_from_slice(&self.owner.0.to_ne_bytes());
        to[24..26].copy_from_slice(&self.length.to_ne_bytes());
        to[26] = self.codec as u8;
        to[27] = 0;
    }

    fn read(from: &[u8]) -> Option<Self> {
        let word = |at: usize| u64::from_ne_bytes(from[at..at + 8].try_into().expect("8 bytes"));
        Some(Self {
            hash: [word(0), word(8)],
            owner: PageIndex(word(16)),
            length: u16::from_ne_bytes([from[24], from[25]]),
            codec: match from[26] {
                0 => Compressor::None,
                1 => Compressor::Lz4,
                _ => return None,
            },
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
    /// Spans of this class with a free slot.
    partial: Vec<u32>,
}

struct SpanEntry<M> {
    memory: M,
    class: u8,
    used_count: u16,
    /// Index in the class's `partial`, if the span is there.
    partial: Option<u32>,
    /// Shared with another process by fork: read and freed, never written, so that it stays shared.
    frozen: bool,
    used: [u64; SLOTS_MAX / 64],
}

/// The pool.
pub struct Pool<S: SpanSource> {
    source: S,
    classes: Vec<Class>,
    spans: Vec<Option<Box<SpanEntry<S::Span>>>>,
    free_ids: Vec<u32>,
    span_count: usize,
    frozen_count: usize,
    entries: u64,
    payload_bytes: u64,
    hand: u32,
}

impl<S: SpanSource> std::fmt::Debug for Pool<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Pool({} entries in {} spans)", self.entries, self.span_count)
    }
}

impl<S: SpanSource> Pool<S> {
    /// An empty pool.
    pub fn new(source: S) -> Self {
        let classes = class_sizes()
            .into_iter()
            .map(|size| Class { size, slots: (SPAN_BYTES / size).min(SLOTS_MAX), partial: Vec::new() })
            .collect();
        Self {
            source,
            classes,
            spans: Vec::new(),
            free_ids: Vec::new(),
            span_count: 0,
            frozen_count: 0,
            entries: 0,
            payload_bytes: 0,
            hand: 0,
        }
    }

    /// Stores a payload under a header and returns its handle; `None` if no memory can be had.
    pub fn insert(&mut self, header: &Header, payload: &[u8]) -> Option<u32> {
        let needed = HEADER_BYTES + payload.len();
        let class = self.classes.partition_point(|class| class.size < needed);
        let class = self.roomier(class);
        let span = match self.classes.get(class)?.partial.last() {
            Some(&span) => span,
            None => self.add_span(class)?,
        };
        let Class { size, slots, .. } = self.classes[class];
        let entry = self.spans[span as usize].as_mut().expect("a partial span exists");
        let slot = first_clear(&entry.used).expect("a partial span has room");
        debug_assert!(slot < slots);
        entry.used[slot / 64] |= 1 << (slot % 64);
        entry.used_count += 1;
        let bytes = &mut entry.memory[slot * size..][..needed];
        header.write(bytes);
        bytes[HEADER_BYTES..].copy_from_slice(payload);
        if usize::from(entry.used_count) == slots {
            self.unlink_partial(span);
        }
        self.entries += 1;
        self.payload_bytes += payload.len() as u64;
        Some(span << SLOT_BITS | slot as u32)
    }

    /// The class to use in place of `class`: a small pool would be all half-empty spans if each class had
    /// its own, so there an entry goes to the next larger class that has room.
    fn roomier(&self, class: usize) -> usize {
        if self.span_count - self.frozen_count >= SMALL_POOL_SPANS {
            return class;
        }
        let has_room = |class: &Class| !class.partial.is_empty();
        let larger = self.classes.get(class..).unwrap_or_default();
        larger.iter().position(has_room).map_or(class, |at| class + at)
    }

    fn locate(&self, handle: u32) -> Option<(&SpanEntry<S::Span>, usize)> {
        let slot = handle as usize & (SLOTS_MAX - 1);
        let entry = self.spans.get((handle >> SLOT_BITS) as usize)?.as_ref()?;
        (entry.used[slot / 64] >> (slot % 64) & 1 == 1).then_some((entry, slot))
    }

    /// The header and payload behind a handle.
    pub fn get(&self, handle: u32) -> Option<(Header, &[u8])> {
        let (entry, slot) = self.locate(handle)?;
        let size = self.classes[usize::from(entry.class)].size;
        let bytes = &entry.memory[slot * size..][..size];
        let header = Header::read(bytes)?;
        Some((header, bytes[HEADER_BYTES..].get(..usize::from(header.length))?))
    }

    /// Frees an entry.
    ///
    /// # Panics
    /// If the handle names none: an entry freed twice would be somebody else's the second time.
    pub fn remove(&mut self, handle: u32) {
        let (_, payload) = self.get(handle).expect("a handle is freed once");
        self.payload_bytes -= payload.len() as u64;
        self.entries -= 1;
        let (span, slot) = (handle >> SLOT_BITS, handle as usize & (SLOTS_MAX - 1));
        let entry = self.spans[span as usize].as_mut().expect("located above");
        entry.used[slot / 64] &= !(1 << (slot % 64));
        entry.used_count -= 1;
        let class = usize::from(entry.class);
        if entry.used_count == 0 {
            let frozen = entry.frozen;
            if entry.partial.is_some() {
                self.unlink_partial(span);
            }
            self.frozen_count -= usize::from(frozen);
            self.spans[span as usize] = None;
            // Capacity was reserved when the span was added: freeing needs no memory.
            self.free_ids.push(span);
            self.span_count -= 1;
        } else if entry.partial.is_none() && !entry.frozen {
            entry.partial = Some(self.classes[class].partial.len() as u32);
            self.classes[class].partial.push(span);
        }
    }

    /// Changes an entry's owner.
    pub fn set_owner(&mut self, handle: u32, owner: PageIndex) {
        if let Some((mut header, _)) = self.get(handle) {
            header.owner = owner;
            let (span, slot) = (handle >> SLOT_BITS, handle as usize & (SLOTS_MAX - 1));
            let entry = self.spans[span as usize].as_mut().expect("located above");
            let size = self.classes[usize::from(entry.class)].size;
            header.write(&mut entry.memory[slot * size..][..HEADER_BYTES]);
        }
    }

    fn add_span(&mut self, class: usize) -> Option<u32> {
        let id = match self.free_ids.last() {
            Some(&id) => id,
            None if self.spans.len() == SPANS_MAX => return None,
            None => self.spans.len() as u32,
        };
        let memory = self.source.take()?;
        assert_eq!(memory.len(), SPAN_BYTES);
        if self.free_ids.pop().is_none() {
            self.spans.push(None);
            let spans = self.spans.len();
            self.free_ids.reserve(spans);
            for class in &mut self.classes {
                // A span is partial in one class only, but may be in any.
                let wanted = spans.min(class.partial.len() + 64);
                class.partial.reserve(wanted - class.partial.len());
            }
        }
        let partial = &mut self.classes[class].partial;
        self.spans[id as usize] = Some(Box::new(SpanEntry {
            memory,
            class: class as u8,
            used_count: 0,
            partial: Some(partial.len() as u32),
            frozen: false,
            // Slots beyond the class's number are marked used for ever.
            used: used_beyond(self.classes[class].slots),
        }));
        self.classes[class].partial.push(id);
        self.span_count += 1;
        Some(id)
    }

    fn unlink_partial(&mut self, span: u32) {
        let entry = self.spans[span as usize].as_mut().expect("a linked span exists");
        let at = entry.partial.take().expect("it was partial") as usize;
        let partial = &mut self.classes[usize::from(entry.class)].partial;
        partial.swap_remove(at);
        if let Some(&moved) = partial.get(at) {
            self.spans[moved as usize].as_mut().expect("a linked span exists").partial = Some(at as u32);
        }
    }

    /// Pages of memory held.
    pub fn pages(&self) -> usize {
        self.span_count * SPAN_PAGES
    }

    /// Pages of memory that are shared by fork.
    pub fn frozen_pages(&self) -> usize {
        self.frozen_count * SPAN_PAGES
    }

    /// Freezes every span: before a fork, in the name of both processes. What is stored from now on goes
    /// to spans of its own.
    pub fn freeze(&mut self) {
        for class in &mut self.classes {
            class.partial.clear();
        }
        for entry in self.spans.iter_mut().flatten() {
            entry.partial = None;
            entry.frozen = true;
        }
        self.frozen_count = self.span_count;
    }

    /// Entries stored.
    pub fn entries(&self) -> u64 {
        self.entries
    }

    /// Bytes of their payload.
    pub fn payload_bytes(&self) -> u64 {
        self.payload_bytes
    }

    /// Advances the clock hand over up to `count` entries. Spans are visited in the order of their ids,
    /// which is roughly the order in which they were filled.
    pub fn clock(&mut self, count: usize, into: &mut Vec<(u32, PageIndex)>) {
        let spans = self.spans.len() as u32;
        for _ in 0..spans {
            if into.len() >= count {
                return;
            }
            let span = self.hand % spans;
            self.hand = span + 1;
            let Some(entry) = &self.spans[span as usize] else { continue };
            let slots = self.classes[usize::from(entry.class)].slots;
            for slot in 0..slots {
                if entry.used[slot / 64] >> (slot % 64) & 1 == 1 {
                    let handle = span << SLOT_BITS | slot as u32;
                    if let Some((header, _)) = self.get(handle) {
                        into.push((handle, header.owner));
                    }
                }
            }
        }
    }

    #[doc(hidden)]
    pub fn damage(&mut self, handle: u32) {
        let (span, slot) = (handle >> SLOT_BITS, handle as usize & (SLOTS_MAX - 1));
        let entry = self.spans[span as usize].as_mut().expect("a handle");
        let size = self.classes[usize::from(entry.class)].size;
        entry.memory[slot * size + HEADER_BYTES] ^= 0x10;
    }
}

fn first_clear(bits: &[u64]) -> Option<usize> {
    let word = bits.iter().position(|&word| word != u64::MAX)?;
    Some(word * 64 + bits[word].trailing_ones() as usize)
}

fn used_beyond(slots: usize) -> [u64; SLOTS_MAX / 64] {
    std::array::from_fn(|word| match slots.saturating_sub(word * 64) {
        0 => u64::MAX,
        n @ 1..64 => u64::MAX << n,
        _ => 0,
    })
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
        fn take(&self) -> Option<HeapSpan> {
            use std::sync::atomic::Ordering::Relaxed;
            self.0.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)).ok()?;
            Some(HeapSpan(vec![0xee; SPAN_BYTES], self.0.clone()))
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
            let mut pool = Pool::new(Heap(left.clone()));
            let mut model: HashMap<u32, (Header, Vec<u8>)> = HashMap::new();
            for (kind, length, tag) in steps {
                if kind < 160 {
                    let payload: Vec<u8> = (0..length).map(|i| (i as u8) ^ (tag as u8)).collect();
                    let header = Header {
                        hash: [tag.into(), 1], owner: PageIndex(tag.into()),
                        length: length as u16, codec: Compressor::Lz4,
                    };
                    if let Some(handle) = pool.insert(&header, &payload) {
                        prop_assert!(model.insert(handle, (header, payload)).is_none());
                    } else {
                        prop_assert_eq!(left.load(std::sync::atomic::Ordering::Relaxed), 0);
                    }
                } else if kind == 255 {
                    pool.freeze();
                    prop_assert_eq!(pool.frozen_pages(), pool.pages());
                } else if let Some(&handle) = model.keys().nth(usize::from(tag) % model.len().max(1)) {
                    pool.remove(handle);
                    model.remove(&handle);
                }
                for (handle, (header, payload)) in &model {
                    prop_assert_eq!(pool.get(*handle), Some((*header, &payload[..])));
                }
                prop_assert_eq!(pool.entries(), model.len() as u64);
                let mut seen = Vec::new();
                pool.clock(usize::MAX, &mut seen);
                prop_assert_eq!(seen.len(), model.len());
            }
            for (handle, _) in model {
                pool.remove(handle);
            }
            prop_assert_eq!(pool.pages(), 0);
            prop_assert_eq!(left.load(std::sync::atomic::Ordering::Relaxed), limit);
        }
    }
}
