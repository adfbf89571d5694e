//! Objects of like size share spans (after zsmalloc, Gupta 2014).
//!
//! A span is 64 KiB from a [`SpanSource`]; it is cut into equal slots of one size class. A handle names span and slot, so
//! an object costs no table. A span whose last object goes is given back at once: the pool shrinks with its content.
//!
//! ```text
//! handle    31        10 9          0
//!          ┌────────────┬────────────┐
//!          │ span       │ slot       │
//!          └────────────┴────────────┘
//! ```
//!
//! Where objects go that came together, spans are left with little in them. Compaction chooses the emptiest of each
//! class, as many as there is room for in the others. The kernel's zsmalloc then moves objects behind the backs of their
//! owners, and keeps a word and a back-reference an object for that; here the owner's word in the table is changed
//! ([`crate::Swap::compact`]), so that an object costs neither.

use super::links::Links;
use super::{PoolSize, SpanSource, Zpool};
use crate::config::{SPAN_BYTES, SPAN_PAGES};
use crate::slab::Slab;
use crate::sync::{Mutex, MutexGuard, lock};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Slots of the smallest class: 1024.
const SLOT_BITS: u32 = 10;
const SLOTS_MAX: usize = 1 << SLOT_BITS;
/// A pool of fewer spans is small: 4 MiB.
const SMALL_POOL_SPANS: usize = 64;
/// Spans: 2²² × 64 KiB = 256 GiB of pool.
const SPANS_MAX: u32 = 1 << (32 - SLOT_BITS);
/// Spans in the first segment of their slab: 1 MiB.
const FIRST_SEGMENT: usize = 16;

/// Slot sizes, each a part of a span, so that next to nothing is left at its end: from 15 slots, for pages stored as they
/// are, to 32 by one, to 64 by two, then by an eighth of the power of two below. More classes would leave more spans
/// half-empty than they would save by rounding.
fn class_sizes() -> Vec<usize> {
    let mut counts: Vec<usize> = (15..32).chain((32..64).step_by(2)).collect();
    let mut base = 64;
    while base < SLOTS_MAX {
        counts.extend((0..8).map(|n| base + n * base / 8));
        base *= 2;
    }
    counts.push(SLOTS_MAX);
    counts.iter().rev().map(|count| SPAN_BYTES / count / 4 * 4).collect()
}

#[derive(Debug)]
struct Class {
    size: usize,
    slots: usize,
}

/// A span with its memory. Its lock is held while an object is read, decompressed or written: nobody who waits
/// for it holds up others.
struct Span<M> {
    memory: M,
    class: u8,
    used_count: u16,
    frozen: bool,
    /// Compaction has chosen it.
    leaving: bool,
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

/// Which spans have room.
struct Lists<S> {
    source: S,
    /// Of each class, the spans with a free slot that take objects; and numbers of spans that are no more.
    spans: Links,
    /// Of each class, the free slots of those spans.
    free_slots: Vec<usize>,
}

/// The pool.
///
/// Lock order: the lists, then a span; two spans are never locked at once.
pub struct Zsmalloc<S: SpanSource> {
    classes: Vec<Class>,
    spans: Slab<Mutex<Option<Span<S::Span>>>, FIRST_SEGMENT>,
    lists: Mutex<Lists<S>>,
    /// Pages held, and those of them that are frozen: read at every fault, without the lock.
    pages: AtomicUsize,
    frozen: AtomicUsize,
    /// Bytes of what leads to the objects.
    span_bytes: AtomicUsize,
    list_bytes: AtomicUsize,
}

impl<S: SpanSource> std::fmt::Debug for Zsmalloc<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Zsmalloc({:?})", self.size())
    }
}

fn split(handle: u32) -> (u32, usize) {
    (handle >> SLOT_BITS, handle as usize & (SLOTS_MAX - 1))
}

impl<S: SpanSource> Zsmalloc<S> {
    /// An empty pool.
    pub fn new(source: S) -> Self {
        let classes: Vec<Class> = class_sizes()
            .into_iter()
            .map(|size| Class { size, slots: (SPAN_BYTES / size).min(SLOTS_MAX) })
            .collect();
        let spans = Links::new(classes.len() + 1);
        let lists = Lists { source, spans, free_slots: vec![0; classes.len()] };
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

    /// The list of numbers whose spans are no more.
    fn unused(&self) -> usize {
        self.classes.len()
    }

    fn span(&self, id: u32) -> Option<MutexGuard<'_, Option<Span<S::Span>>>> {
        self.spans.get(id).map(lock)
    }

    /// Runs `look` on the span of an object that is there, with the place of its slot.
    fn with<T>(
        &self,
        handle: u32,
        look: impl FnOnce(&mut Span<S::Span>, std::ops::Range<usize>) -> T,
    ) -> Option<T> {
        let (id, slot) = split(handle);
        let mut guard = self.span(id)?;
        let span = guard.as_mut().filter(|span| span.used.contains(slot))?;
        let size = self.classes[usize::from(span.class)].size;
        Some(look(span, slot * size..(slot + 1) * size))
    }

    /// The class to use in place of `class`: a small pool would be all half-empty spans if each class had
    /// its own, so there an object goes to the next larger class that has room.
    fn roomier(&self, lists: &Lists<S>, class: usize) -> usize {
        let PoolSize { pages, frozen, .. } = self.size();
        if pages.saturating_sub(frozen) >= SMALL_POOL_SPANS * SPAN_PAGES {
            return class;
        }
        (class..self.classes.len()).find(|&class| lists.free_slots[class] > 0).unwrap_or(class)
    }

    fn add_span(&self, lists: &mut Lists<S>, class: usize) -> Option<u32> {
        let old = lists.spans.first(self.unused());
        if old.is_none() && lists.spans.len() == SPANS_MAX {
            return None;
        }
        let memory = lists.source.take(SPAN_BYTES)?;
        assert_eq!(memory.len(), SPAN_BYTES);
        let id = old.unwrap_or_else(|| {
            let id = lists.spans.add();
            let made = self.spans.make(id, Mutex::default);
            self.span_bytes.fetch_add(made, Relaxed);
            self.list_bytes.store(lists.spans.bytes(), Relaxed);
            id
        });
        let slots = self.classes[class].slots;
        let used = Used::none_of(slots);
        *self.span(id).expect("made above") =
            Some(Span { memory, class: class as u8, used_count: 0, frozen: false, leaving: false, used });
        lists.spans.unlink(id);
        lists.link(id, class, slots);
        self.pages.fetch_add(SPAN_PAGES, Relaxed);
        Some(id)
    }

    /// Lists a span anew, if it takes objects and has room.
    fn list(&self, lists: &mut Lists<S>, id: u32, span: &Span<S::Span>) {
        let class = usize::from(span.class);
        let free = self.classes[class].slots - usize::from(span.used_count);
        if free > 0 && !span.frozen && !span.leaving {
            lists.link(id, class, free);
        }
    }

    /// Changes all spans, and lists them anew.
    fn change_all(&self, mut change: impl FnMut(u32, &mut Span<S::Span>)) {
        let mut lists = lock(&self.lists);
        (0..self.classes.len()).for_each(|class| lists.spans.clear(class));
        lists.free_slots.fill(0);
        let mut frozen = 0;
        for id in 0..lists.spans.len() {
            let mut guard = self.span(id).expect("made when it was added");
            let Some(span) = guard.as_mut() else { continue };
            change(id, span);
            frozen += if span.frozen { SPAN_PAGES } else { 0 };
            self.list(&mut lists, id, span);
        }
        self.frozen.store(frozen, Relaxed);
    }
}

impl<S: SpanSource> Zpool for Zsmalloc<S> {
    fn insert(&self, parts: [&[u8]; 2]) -> Option<u32> {
        let needed = parts[0].len() + parts[1].len();
        let class = self.classes.partition_point(|class| class.size < needed);
        if class == self.classes.len() {
            return None;
        }
        let mut lists = lock(&self.lists);
        let class = self.roomier(&lists, class);
        let id = match lists.spans.first(class) {
            Some(id) => id,
            None => self.add_span(&mut lists, class)?,
        };
        let Class { size, slots } = self.classes[class];
        let mut guard = self.span(id).expect("a listed span exists");
        let span = guard.as_mut().expect("a listed span exists");
        let slot = span.used.first_clear().expect("a listed span has room");
        debug_assert!(slot < slots);
        span.used.set(slot, true);
        span.used_count += 1;
        lists.free_slots[class] -= 1;
        if usize::from(span.used_count) == slots {
            lists.spans.unlink(id);
        }
        // The span's lock keeps others from the object until it is whole.
        drop(lists);
        let (first, second) = span.memory[slot * size..][..needed].split_at_mut(parts[0].len());
        first.copy_from_slice(parts[0]);
        second.copy_from_slice(parts[1]);
        Some(id << SLOT_BITS | slot as u32)
    }

    fn read(&self, handle: u32, lend: &mut dyn FnMut(&[u8])) -> bool {
        self.with(handle, |span, place| lend(&span.memory[place])).is_some()
    }

    fn damage(&self, handle: u32, lend: &mut dyn FnMut(&mut [u8])) {
        self.with(handle, |span, place| lend(&mut span.memory[place]));
    }

    fn remove(&self, handle: u32, lend: &mut dyn FnMut(&[u8])) {
        let (id, slot) = split(handle);
        let mut lists = lock(&self.lists);
        let mut guard = self.span(id).expect("a handle is freed once");
        let span = guard.as_mut().filter(|span| span.used.contains(slot)).expect("a handle is freed once");
        let class = usize::from(span.class);
        let Class { size, slots } = self.classes[class];
        lend(&span.memory[slot * size..][..size]);
        span.used.set(slot, false);
        span.used_count -= 1;
        let left = usize::from(span.used_count);
        if left > 0 {
            if lists.spans.is_linked(id) {
                lists.free_slots[class] += 1;
            } else {
                self.list(&mut lists, id, span);
            }
            return;
        }
        let span = guard.take().expect("it is there");
        drop(guard);
        if lists.spans.is_linked(id) {
            lists.spans.unlink(id);
            lists.free_slots[class] -= slots - 1;
        }
        lists.spans.link(self.unused(), id);
        // Under the lock, as whoever counts anew.
        if span.frozen {
            self.frozen.fetch_sub(SPAN_PAGES, Relaxed);
        }
        drop(lists);
        drop(span);
        // Its memory has gone back: now it counts no more.
        self.pages.fetch_sub(SPAN_PAGES, Relaxed);
    }

    fn is_frozen(&self, handle: u32) -> bool {
        self.with(handle, |span, _| span.frozen).unwrap_or(false)
    }

    fn freeze(&self) {
        self.change_all(|_, span| (span.frozen, span.leaving) = (true, false));
    }

    fn thaw(&self) {
        self.change_all(|_, span| span.frozen = false);
    }

    fn size(&self) -> PoolSize {
        PoolSize {
            pages: self.pages.load(Relaxed),
            frozen: self.frozen.load(Relaxed),
            index_bytes: self.span_bytes.load(Relaxed) + self.list_bytes.load(Relaxed),
        }
    }

    fn loose_pages(&self) -> usize {
        let lists = lock(&self.lists);
        let spans = lists.free_slots.iter().zip(&self.classes).map(|(free, class)| free / class.slots);
        spans.sum::<usize>() * SPAN_PAGES
    }

    fn compact(&self) {
        self.change_all(|_, span| span.leaving = false);
        for (class, &Class { slots, .. }) in self.classes.iter().enumerate() {
            let mut lists = lock(&self.lists);
            let spans = lists.free_slots[class] / slots;
            if spans == 0 {
                continue;
            }
            // The emptiest: what is in them fits into the others.
            let used = |id| self.span(id).and_then(|span| Some(span.as_ref()?.used_count)).unwrap_or(0);
            let mut listed: Vec<(u16, u32)> = lists.spans.iter(class).map(|id| (used(id), id)).collect();
            listed.sort_unstable();
            for &(_, id) in &listed[..spans] {
                let mut guard = self.span(id).expect("a listed span exists");
                let span = guard.as_mut().expect("a listed span exists");
                span.leaving = true;
                lists.spans.unlink(id);
                lists.free_slots[class] -= slots - usize::from(span.used_count);
            }
        }
    }

    fn is_leaving(&self, handle: u32) -> bool {
        self.with(handle, |span, _| span.leaving).unwrap_or(false)
    }
}

impl<S> Lists<S> {
    fn link(&mut self, id: u32, class: usize, free: usize) {
        self.spans.link(class, id);
        self.free_slots[class] += free;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_ascend_and_hold_a_whole_page_and_a_header() {
        let sizes = class_sizes();
        assert!(sizes.is_sorted_by(|a, b| a < b), "{sizes:?}");
        assert!(*sizes.last().unwrap() >= crate::entry::PAGE_SIZE + 64);
        assert!(sizes.len() < 256 && sizes.iter().all(|size| SPAN_BYTES / size <= SLOTS_MAX));
    }
}
