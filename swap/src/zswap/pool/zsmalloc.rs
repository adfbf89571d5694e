//! The zsmalloc allocator: objects of like size share spans (after zsmalloc, Gupta 2014).
//!
//! A span is 64 KiB from a [`SpanSource`]; it is cut into equal slots of one size class. A handle names span and slot,
//! so an object costs no table. Slots are taken from the start of a span, and its pages from the system as they are
//! reached: each class may have a span that is hardly begun. What is behind the last object goes back, and the span
//! with its last object: the pool shrinks with its content.
//!
//! ```text
//! handle    31        10 9          0
//!          ┌────────────┬────────────┐
//!          │ span       │ slot       │
//!          └────────────┴────────────┘
//! ```
//!
//! Where objects go that came together, spans are left with little in them. Compaction chooses the emptiest of each
//! class, as many as there is room for in the others. The kernel's zsmalloc then moves objects behind the backs of
//! their owners, and keeps a word and a back-reference an object for that; here the owner's word in the table is
//! changed ([`crate::Swap::compact`]), so that an object costs neither.

use super::links::Links;
use super::{PoolSize, SpanMemory, SpanSource, Zpool};
use super::{SPAN_BYTES, SPAN_PAGES};
use crate::slab::Slab;
use crate::sync::{Mutex, MutexGuard, lock};
use pagetide_page::PAGE_SIZE;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Slots of the smallest class: 1024.
const SLOT_BITS: u32 = 10;
const SLOTS_MAX: usize = 1 << SLOT_BITS;
/// Fewer pages at the end of a span are not worth a call.
const TRIM_PAGES: usize = 2;
/// Spans: 2²² × 64 KiB = 256 GiB of pool.
const SPANS_MAX: u32 = 1 << (32 - SLOT_BITS);
/// Spans in the first segment of their slab: 1 MiB.
const FIRST_SEGMENT: usize = 16;

/// Slot sizes, each a part of a span, so that next to nothing is left at its end: from 15 slots, for pages stored as
/// they are, to 32 by one, to 64 by two, then by an eighth of the power of two below. More classes would leave more
/// spans half-empty than they would save by rounding.
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
struct Zspage<M> {
    memory: M,
    class: u8,
    used_count: u16,
    /// Pages that were taken from the system, from the start on.
    pages: u16,
    frozen: bool,
    /// Compaction has chosen it.
    leaving: bool,
    used: Used,
}

impl<M: SpanMemory> Zspage<M> {
    /// Gives back the pages behind the last object, if that was at `slot`, which is free now, and if they are worth it.
    /// Returns how many.
    fn trim(&mut self, slot: usize, size: usize, slots: usize) -> usize {
        let end = self.used.end(slots);
        let less = usize::from(self.pages) - (end * size).div_ceil(PAGE_SIZE);
        if end > slot || less < TRIM_PAGES {
            return 0;
        }
        self.memory.trim(end * size);
        self.pages -= less as u16;
        less
    }
}

/// The set of slots that are used: those of most classes fit into one word.
struct Used {
    first: u64,
    more: Option<Box<[u64; SLOTS_MAX / 64 - 1]>>,
}

impl Used {
    /// None of so many. Those beyond are used for ever.
    fn none_of(slots: usize) -> Self {
        let more = (slots > 64).then(|| Box::new(std::array::from_fn(|at| Self::beyond(slots, at + 1))));
        Self { first: Self::beyond(slots, 0), more }
    }

    /// Of a word, the bits that stand for no slot.
    fn beyond(slots: usize, at: usize) -> u64 {
        match slots.saturating_sub(at * 64) {
            0 => u64::MAX,
            n @ 1..64 => u64::MAX << n,
            _ => 0,
        }
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

    fn words(&self) -> impl DoubleEndedIterator<Item = (usize, u64)> {
        let more = self.more.iter().flat_map(|more| more.iter().enumerate());
        std::iter::once((0, self.first)).chain(more.map(|(at, &word)| (at + 1, word)))
    }

    /// One more than the last of `slots` that is used.
    fn end(&self, slots: usize) -> usize {
        let used = self.words().rev().map(|(at, word)| (at, word & !Self::beyond(slots, at)));
        used.filter(|&(_, word)| word != 0)
            .map(|(at, word)| at * 64 + word.ilog2() as usize + 1)
            .next()
            .unwrap_or(0)
    }

    fn first_clear(&self) -> Option<usize> {
        let (at, word) = self.words().find(|&(_, word)| word != u64::MAX)?;
        Some(at * 64 + word.trailing_ones() as usize)
    }
}

/// The lists of spans that have room.
struct Lists<S> {
    source: S,
    /// Of each class, the spans with a free slot that take objects; and numbers of spans that are no more.
    spans: Links,
    /// Of each class, what those spans have.
    listed: Vec<Listed>,
}

#[derive(Clone, Copy, Default)]
struct Listed {
    spans: usize,
    free_slots: usize,
    pages: usize,
}

/// A zsmalloc pool.
///
/// Lock order: the lists, then a span; two spans are never locked at once.
pub struct Zsmalloc<S: SpanSource> {
    classes: Vec<Class>,
    spans: Slab<Mutex<Option<Zspage<S::Span>>>, FIRST_SEGMENT>,
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
    /// Returns an empty pool on memory from `source`.
    pub fn new(source: S) -> Self {
        let classes: Vec<Class> = class_sizes()
            .into_iter()
            .map(|size| Class { size, slots: (SPAN_BYTES / size).min(SLOTS_MAX) })
            .collect();
        let spans = Links::new(classes.len() + 1);
        let lists = Lists { source, spans, listed: vec![Listed::default(); classes.len()] };
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

    fn span(&self, id: u32) -> Option<MutexGuard<'_, Option<Zspage<S::Span>>>> {
        self.spans.get(id).map(lock)
    }

    /// Runs `look` on the span of an object that is there, with the place of its slot.
    fn with<T>(
        &self,
        handle: u32,
        look: impl FnOnce(&mut Zspage<S::Span>, std::ops::Range<usize>) -> T,
    ) -> Option<T> {
        let (id, slot) = split(handle);
        let mut guard = self.span(id)?;
        let span = guard.as_mut()?;
        let Class { size, slots } = self.classes[usize::from(span.class)];
        // Whoever writes an entry back looks without the owner's lock: by now the span may be another class's, of which
        // slots that are not there are in use for ever.
        if slot >= slots || !span.used.contains(slot) {
            return None;
        }
        Some(look(span, slot * size..(slot + 1) * size))
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
        *self.span(id).expect("made above") = Some(Zspage {
            memory,
            class: class as u8,
            used_count: 0,
            pages: 0,
            frozen: false,
            leaving: false,
            used,
        });
        lists.spans.unlink(id);
        lists.link(id, class, slots, 0);
        Some(id)
    }

    /// Lists a span anew, if it takes objects and has room.
    fn list(&self, lists: &mut Lists<S>, id: u32, span: &Zspage<S::Span>) {
        let class = usize::from(span.class);
        let free = self.classes[class].slots - usize::from(span.used_count);
        if free > 0 && !span.frozen && !span.leaving {
            lists.link(id, class, free, usize::from(span.pages));
        }
    }

    /// Changes all spans, and lists them anew.
    fn change_all(&self, mut change: impl FnMut(u32, &mut Zspage<S::Span>)) {
        let mut lists = lock(&self.lists);
        (0..self.classes.len()).for_each(|class| lists.spans.clear(class));
        lists.listed.fill(Listed::default());
        let mut frozen = 0;
        for id in 0..lists.spans.len() {
            let mut guard = self.span(id).expect("made when it was added");
            let Some(span) = guard.as_mut() else { continue };
            change(id, span);
            frozen += if span.frozen { usize::from(span.pages) } else { 0 };
            self.list(&mut lists, id, span);
        }
        self.frozen.store(frozen, Relaxed);
    }
}

impl<S: SpanSource> Zpool for Zsmalloc<S> {
    fn insert(&self, parts: [&[u8]; 2], length: usize) -> Option<u32> {
        let class = self.classes.partition_point(|class| class.size < length);
        if class == self.classes.len() {
            return None;
        }
        let mut lists = lock(&self.lists);
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
        let reached = ((slot + 1) * size).div_ceil(PAGE_SIZE);
        let more = reached.saturating_sub(usize::from(span.pages));
        span.pages += more as u16;
        // They count before they are written.
        self.pages.fetch_add(more, Relaxed);
        let listed = &mut lists.listed[class];
        listed.free_slots -= 1;
        listed.pages += more;
        if usize::from(span.used_count) == slots {
            lists.unlink(id, class, 0, usize::from(span.pages));
        }
        // The span's lock keeps others from the object until it is whole.
        drop(lists);
        super::lay(&mut span.memory[slot * size..][..length], parts);
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
            let less = if span.frozen { 0 } else { span.trim(slot, size, slots) };
            if lists.spans.is_linked(id) {
                lists.listed[class].free_slots += 1;
                lists.listed[class].pages -= less;
            } else {
                self.list(&mut lists, id, span);
            }
            self.pages.fetch_sub(less, Relaxed);
            return;
        }
        let span = guard.take().expect("it is there");
        drop(guard);
        let pages = usize::from(span.pages);
        if lists.spans.is_linked(id) {
            lists.unlink(id, class, slots - 1, pages);
        }
        lists.spans.link(self.unused(), id);
        // Under the lock, as whoever counts anew.
        if span.frozen {
            self.frozen.fetch_sub(pages, Relaxed);
        }
        drop(lists);
        drop(span);
        // Its memory has gone back: now it counts no more.
        self.pages.fetch_sub(pages, Relaxed);
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
        let loose = |(listed, class): (&Listed, &Class)| match listed.free_slots / class.slots {
            // What is loose in the span that is left is soon used, or is no more than that.
            0 => 0,
            _ => {
                let used = listed.spans * class.slots - listed.free_slots;
                let (spans, rest) = (used / class.slots, used % class.slots);
                listed.pages
                    - (spans * SPAN_PAGES + (rest * class.size).div_ceil(PAGE_SIZE)).min(listed.pages)
            }
        };
        lists.listed.iter().zip(&self.classes).map(loose).sum()
    }

    fn compact(&self) {
        self.change_all(|_, span| span.leaving = false);
        for (class, &Class { slots, .. }) in self.classes.iter().enumerate() {
            let mut lists = lock(&self.lists);
            let spans = lists.listed[class].free_slots / slots;
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
                lists.unlink(id, class, slots - usize::from(span.used_count), usize::from(span.pages));
            }
        }
    }

    #[cfg(feature = "shuttle")]
    fn empty(&self) {
        self.change_all(|_, span| span.leaving = !span.frozen);
    }

    fn is_leaving(&self, handle: u32) -> bool {
        self.with(handle, |span, _| span.leaving).unwrap_or(false)
    }
}

impl<S> Lists<S> {
    /// Lists a span that has free slots, and holds pages.
    fn link(&mut self, id: u32, class: usize, free: usize, pages: usize) {
        self.spans.link(class, id);
        let listed = &mut self.listed[class];
        listed.spans += 1;
        listed.free_slots += free;
        listed.pages += pages;
    }

    /// Takes a span with so much off its list.
    fn unlink(&mut self, id: u32, class: usize, free: usize, pages: usize) {
        self.spans.unlink(id);
        let listed = &mut self.listed[class];
        listed.spans -= 1;
        listed.free_slots -= free;
        listed.pages -= pages;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_ascend_and_hold_a_whole_page_and_a_header() {
        let sizes = class_sizes();
        assert!(sizes.is_sorted_by(|a, b| a < b), "{sizes:?}");
        assert!(*sizes.last().unwrap() >= pagetide_page::PAGE_SIZE + 64);
        assert!(sizes.len() < 256 && sizes.iter().all(|size| SPAN_BYTES / size <= SLOTS_MAX));
    }

    #[test]
    fn pages_count_as_they_are_reached_and_go_with_the_last_object_in_them() {
        let pool = Zsmalloc::new(super::super::Heap);
        let stored: Vec<u32> = (0..20).map(|_| pool.insert([&[7; 1000], &[]], 1000).unwrap()).collect();
        // 1008 bytes a slot, after rounding to a class.
        assert_eq!((pool.size().pages, pool.loose_pages()), (5, 0));
        let small = pool.insert([&[7; 30], &[]], 30).unwrap();
        assert_eq!(pool.size().pages, 6);
        // One in the middle is used again, and one page at the end is not worth a call.
        pool.remove(stored[3], &mut |_| {});
        assert_eq!(pool.insert([&[8; 1000], &[]], 1000), Some(stored[3]));
        stored[16..].iter().for_each(|&handle| pool.remove(handle, &mut |_| {}));
        assert_eq!(pool.size().pages, 6);
        stored[8..16].iter().for_each(|&handle| pool.remove(handle, &mut |_| {}));
        assert_eq!(pool.size().pages, 3);
        let mut found = Vec::new();
        assert!(pool.read(stored[3], &mut |bytes| found = bytes[..1000].to_vec()));
        assert_eq!(found, [8; 1000]);
        // What another process may read is not touched.
        pool.freeze();
        stored[4..8].iter().for_each(|&handle| pool.remove(handle, &mut |_| {}));
        assert_eq!((pool.size().pages, pool.size().frozen), (3, 3));
        stored[..4].iter().for_each(|&handle| pool.remove(handle, &mut |_| {}));
        pool.remove(small, &mut |_| {});
        assert_eq!(pool.size(), PoolSize { index_bytes: pool.size().index_bytes, ..PoolSize::default() });
    }

    #[test]
    fn a_handle_of_an_object_that_was_freed_finds_nothing_in_a_span_of_fewer_slots() {
        let pool = Zsmalloc::new(super::super::Heap);
        let old: Vec<u32> = (0..SLOTS_MAX).map(|_| pool.insert([&[7; 30], &[]], 30).unwrap()).collect();
        old.iter().for_each(|&handle| pool.remove(handle, &mut |_| {}));
        let new = pool.insert([&[8; 4000], &[]], 4000).unwrap();
        assert_eq!(split(new).0, split(old[0]).0, "the same span");
        let found = |&&handle: &&u32| pool.read(handle, &mut |bytes| assert_eq!(bytes[0], 8));
        assert_eq!(old.iter().filter(found).count(), 1, "the one that has the new one's slot");
        assert!(old.iter().all(|&handle| !pool.is_frozen(handle) && !pool.is_leaving(handle)));
    }

    #[test]
    fn the_last_slot_in_use_is_found() {
        for slots in [15, 63, 64, 65, 200, SLOTS_MAX] {
            let mut used = Used::none_of(slots);
            assert_eq!((used.end(slots), used.first_clear()), (0, Some(0)));
            for slot in [0, slots / 2, slots - 1] {
                used.set(slot, true);
                assert_eq!(used.end(slots), slot + 1);
            }
            used.set(slots - 1, false);
            assert_eq!(used.end(slots), slots / 2 + 1);
        }
    }
}
