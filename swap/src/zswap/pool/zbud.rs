//! The zbud allocator: two objects a page, one from its start and one up to its end (after zbud, Jennings 2013).
//!
//! An object that goes gives its page back if it was alone there: how much memory comes back is known beforehand. No
//! page holds more than two, so at best half of the memory is saved.
//!
//! ```text
//! handle    31            1   0          page   ┌──────────────┬┄┄┄┄┄┄┄┄┄┬───────────┐
//!          ┌──────────────┬──────┐              │ first        │ free    │      last │
//!          │ page         │ last?│              └──────────────┴┄┄┄┄┄┄┄┄┄┴───────────┘
//!          └──────────────┴──────┘               chunks of 64 bytes
//! ```

use super::links::Links;
use super::{PoolSize, SpanSource, Zpool};
use crate::slab::Slab;
use crate::sync::{Mutex, MutexGuard, lock};
use pagetide_page::PAGE_SIZE;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

const CHUNK: usize = 64;
const CHUNKS: usize = PAGE_SIZE / CHUNK;
/// The largest object: a page of which nothing is saved is none of ours.
const OBJECT_MAX: usize = PAGE_SIZE - CHUNK;
const FRAMES_MAX: u32 = 1 << 31;
/// Frames in the first segment of their slab: 1 MiB.
const FIRST_SEGMENT: usize = 256;
/// The list of numbers whose frames are no more; those before are of frames with one buddy, by the chunks that are
/// free.
const UNUSED: usize = CHUNKS;

/// A page with its buddies.
struct Frame<M> {
    memory: M,
    /// Chunks of the first buddy and the last; 0 for none.
    chunks: [u8; 2],
    frozen: bool,
}

impl<M> Frame<M> {
    fn place(&self, buddy: usize) -> Option<Range<usize>> {
        let size = usize::from(self.chunks[buddy]) * CHUNK;
        (size > 0).then(|| if buddy == 0 { 0..size } else { PAGE_SIZE - size..PAGE_SIZE })
    }

    fn free(&self) -> usize {
        CHUNKS - usize::from(self.chunks[0]) - usize::from(self.chunks[1])
    }
}

struct Lists<S> {
    source: S,
    frames: Links,
}

/// A zbud pool.
///
/// Lock order: the lists, then a frame; two frames are never locked at once.
pub struct Zbud<S: SpanSource> {
    frames: Slab<Mutex<Option<Frame<S::Span>>>, FIRST_SEGMENT>,
    lists: Mutex<Lists<S>>,
    pages: AtomicUsize,
    frozen: AtomicUsize,
    frame_bytes: AtomicUsize,
    list_bytes: AtomicUsize,
}

impl<S: SpanSource> std::fmt::Debug for Zbud<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Zbud({:?})", self.size())
    }
}

const fn split(handle: u32) -> (u32, usize) {
    (handle >> 1, handle as usize & 1)
}

impl<S: SpanSource> Zbud<S> {
    /// Returns an empty pool on memory from `source`.
    pub fn new(source: S) -> Self {
        Self {
            frames: Slab::default(),
            lists: Mutex::new(Lists { source, frames: Links::new(UNUSED + 1) }),
            pages: AtomicUsize::new(0),
            frozen: AtomicUsize::new(0),
            frame_bytes: AtomicUsize::new(0),
            list_bytes: AtomicUsize::new(0),
        }
    }

    fn frame(&self, id: u32) -> Option<MutexGuard<'_, Option<Frame<S::Span>>>> {
        self.frames.get(id).map(lock)
    }

    fn with<T>(&self, handle: u32, look: impl FnOnce(&mut Frame<S::Span>, Range<usize>) -> T) -> Option<T> {
        let (id, buddy) = split(handle);
        let mut guard = self.frame(id)?;
        let frame = guard.as_mut()?;
        let place = frame.place(buddy)?;
        Some(look(frame, place))
    }

    fn add_frame(&self, lists: &mut Lists<S>) -> Option<u32> {
        let old = lists.frames.first(UNUSED);
        if old.is_none() && lists.frames.len() == FRAMES_MAX {
            return None;
        }
        let memory = lists.source.take(PAGE_SIZE)?;
        assert_eq!(memory.len(), PAGE_SIZE);
        let id = old.unwrap_or_else(|| {
            let id = lists.frames.add();
            let made = self.frames.make(id, Mutex::default);
            self.frame_bytes.fetch_add(made, Relaxed);
            self.list_bytes.store(lists.frames.bytes(), Relaxed);
            id
        });
        *self.frame(id).expect("made above") = Some(Frame { memory, chunks: [0; 2], frozen: false });
        lists.frames.unlink(id);
        self.pages.fetch_add(1, Relaxed);
        Some(id)
    }

    fn set_frozen(&self, on: bool) {
        let mut lists = lock(&self.lists);
        (0..UNUSED).for_each(|list| lists.frames.clear(list));
        let mut frozen = 0;
        for id in 0..lists.frames.len() {
            let mut guard = self.frame(id).expect("made when it was added");
            let Some(frame) = guard.as_mut() else { continue };
            frame.frozen = on;
            frozen += usize::from(on);
            lists.list(id, frame);
        }
        self.frozen.store(frozen, Relaxed);
    }
}

impl<S> Lists<S> {
    /// Lists a frame by its room, if it takes objects.
    fn list<M>(&mut self, id: u32, frame: &Frame<M>) {
        if !frame.frozen && frame.chunks.contains(&0) {
            self.frames.link(frame.free(), id);
        }
    }
}

impl<S: SpanSource> Zpool for Zbud<S> {
    fn insert(&self, parts: [&[u8]; 2], length: usize) -> Option<u32> {
        if length > OBJECT_MAX {
            return None;
        }
        let chunks = length.div_ceil(CHUNK).max(1);
        let mut lists = lock(&self.lists);
        let roomy = (chunks..UNUSED).find_map(|free| lists.frames.first(free));
        let id = match roomy {
            Some(id) => id,
            None => self.add_frame(&mut lists)?,
        };
        lists.frames.unlink(id);
        let mut guard = self.frame(id).expect("a listed frame exists");
        let frame = guard.as_mut().expect("a listed frame exists");
        let buddy = usize::from(frame.chunks[0] > 0);
        frame.chunks[buddy] = chunks as u8;
        lists.list(id, frame);
        // The frame's lock keeps others from the object until it is whole.
        drop(lists);
        let place = frame.place(buddy).expect("it has chunks");
        super::lay(&mut frame.memory[place], parts);
        Some(id << 1 | buddy as u32)
    }

    fn read(&self, handle: u32, lend: &mut dyn FnMut(&[u8])) -> bool {
        self.with(handle, |frame, place| lend(&frame.memory[place])).is_some()
    }

    fn damage(&self, handle: u32, lend: &mut dyn FnMut(&mut [u8])) {
        self.with(handle, |frame, place| lend(&mut frame.memory[place]));
    }

    fn remove(&self, handle: u32, lend: &mut dyn FnMut(&[u8])) {
        let (id, buddy) = split(handle);
        let mut lists = lock(&self.lists);
        let mut guard = self.frame(id).expect("a handle is freed once");
        let frame = guard.as_mut().expect("a handle is freed once");
        lend(&frame.memory[frame.place(buddy).expect("a handle is freed once")]);
        frame.chunks[buddy] = 0;
        lists.frames.unlink(id);
        if frame.chunks != [0; 2] {
            lists.list(id, frame);
            return;
        }
        let frame = guard.take().expect("it is there");
        drop(guard);
        lists.frames.link(UNUSED, id);
        if frame.frozen {
            self.frozen.fetch_sub(1, Relaxed);
        }
        drop(lists);
        drop(frame);
        self.pages.fetch_sub(1, Relaxed);
    }

    fn is_frozen(&self, handle: u32) -> bool {
        self.with(handle, |frame, _| frame.frozen).unwrap_or(false)
    }

    fn freeze(&self) {
        self.set_frozen(true);
    }

    fn thaw(&self) {
        self.set_frozen(false);
    }

    fn size(&self) -> PoolSize {
        PoolSize {
            pages: self.pages.load(Relaxed),
            frozen: self.frozen.load(Relaxed),
            index_bytes: self.frame_bytes.load(Relaxed) + self.list_bytes.load(Relaxed),
        }
    }

    fn loose_pages(&self) -> usize {
        0
    }

    fn compact(&self) {}

    fn is_leaving(&self, _: u32) -> bool {
        false
    }
}
