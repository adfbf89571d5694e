//! Allocators of the pool's memory, behind one trait.

mod links;
pub mod zbud;
pub mod zsmalloc;

use pagetide_page::PAGE_SIZE;
use std::ops::DerefMut;

/// Bytes of a span, the unit in which allocators take memory and return it.
pub const SPAN_BYTES: usize = 64 * 1024;
/// Pages of a span.
pub const SPAN_PAGES: usize = SPAN_BYTES / PAGE_SIZE;
/// Bytes of a span of folios, whose memory is taken and returned by the page.
pub const FOLIO_SPAN_BYTES: usize = 256 * 1024;

const _: () = assert!(SPAN_BYTES.is_multiple_of(PAGE_SIZE) && FOLIO_SPAN_BYTES.is_multiple_of(PAGE_SIZE));

pagetide_page::numbered_enum! {
    /// An allocator of the pool's memory, for pages that leave alone.
    #[derive(Default)]
    pub enum Allocator: u64 {
        /// The allocator [`zsmalloc`], with [`crate::zswap::folios`] for pages that leave together.
        #[default]
        Zsmalloc = 0,
        /// The allocator [`zbud`].
        Zbud = 1,
    }
}

/// A source of the pool's memory.
///
/// Its caller owns a span, and returns it to the source by dropping it. Freeing must not allocate.
pub trait SpanSource: Send {
    /// The memory of one span.
    type Span: SpanMemory;
    /// Takes a span of `bytes` bytes: [`SPAN_BYTES`], [`FOLIO_SPAN_BYTES`] or a page. `None` if there is no memory.
    fn take(&self, bytes: usize) -> Option<Self::Span>;
}

/// The memory of a span. It is taken from the system when it is written to.
pub trait SpanMemory: DerefMut<Target = [u8]> + Send {
    /// Gives back all pages beyond the first `used` bytes. Their contents are lost.
    fn trim(&mut self, used: usize);
}

/// A source without limit, on the heap: for tests and measurements.
#[derive(Clone, Copy, Debug, Default)]
pub struct Heap;

/// The byte that unwritten memory of a span holds, and memory that was given back.
const UNWRITTEN: u8 = 0xEE;

impl SpanSource for Heap {
    type Span = Vec<u8>;
    fn take(&self, bytes: usize) -> Option<Vec<u8>> {
        Some(vec![UNWRITTEN; bytes])
    }
}

impl SpanMemory for Vec<u8> {
    fn trim(&mut self, used: usize) {
        self[used.next_multiple_of(PAGE_SIZE)..].fill(UNWRITTEN);
    }
}

/// An allocator of the pool: it stores objects of up to a page and a little, and hands out handles for them.
///
/// Objects never move by themselves: the caller, who knows the owners of handles, empties the memory that
/// [`Zpool::compact`] has chosen, by storing anew the objects that lie there.
///
/// Frozen memory is shared with another process by fork: read and freed, never written, so that it stays shared.
pub trait Zpool: Send + Sync + std::fmt::Debug {
    /// Stores an object of `length` bytes and returns its handle; `None` if it is too large, or no memory can be had.
    /// The object begins with the two `parts`, one behind the other; the bytes behind them are not written.
    fn insert(&self, parts: [&[u8]; 2], length: usize) -> Option<u32>;

    /// Lends an object, with the bytes behind it up to which its size was rounded. Returns false if there is none.
    fn read(&self, handle: u32, lend: &mut dyn FnMut(&[u8])) -> bool;

    /// Lends an object to write to: for tests of damage.
    #[doc(hidden)]
    fn damage(&self, handle: u32, lend: &mut dyn FnMut(&mut [u8]));

    /// Frees an object, and lends it for the last time.
    ///
    /// # Panics
    /// If the handle names no object: one that is freed twice would be another page's the second time.
    fn remove(&self, handle: u32, lend: &mut dyn FnMut(&[u8]));

    /// Returns whether an object is frozen: it gives no memory when it goes.
    fn is_frozen(&self, handle: u32) -> bool;

    /// Freezes all memory, before a fork and for both processes. Objects that are stored from now on lie elsewhere.
    fn freeze(&self);

    /// Makes frozen memory ordinary: no process shares it any more, or the cost of writing to it does not matter.
    fn thaw(&self);

    /// Returns the memory that the pool takes.
    fn size(&self) -> PoolSize;

    /// Returns the number of pages that would become free if objects lay as close as they can.
    fn loose_pages(&self) -> usize;

    /// Chooses memory that is to be emptied, as much as [`Zpool::loose_pages`] says, and stores nothing there from now
    /// on. Memory that was chosen before and not emptied is ordinary again.
    fn compact(&self);

    /// Chooses all memory to be emptied: for tests, in which there is little.
    #[cfg(feature = "shuttle")]
    fn empty(&self) {}

    /// Returns whether an object lies in memory that is to be emptied.
    fn is_leaving(&self, handle: u32) -> bool;
}

/// Writes `parts` one behind the other.
fn lay(to: &mut [u8], parts: [&[u8]; 2]) {
    let (first, rest) = to.split_at_mut(parts[0].len());
    first.copy_from_slice(parts[0]);
    rest[..parts[1].len()].copy_from_slice(parts[1]);
}

/// The memory that a pool takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PoolSize {
    /// Pages of memory held.
    pub pages: usize,
    /// Pages of those that are frozen.
    pub frozen: usize,
    /// Bytes of the index that leads to the objects.
    pub index_bytes: usize,
}

#[cfg(test)]
pub(crate) mod tests {
    use super::zbud::Zbud;
    use super::zsmalloc::Zsmalloc;
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    /// Spans from the heap, at most `limit`.
    pub(crate) struct Heap(pub Arc<AtomicUsize>);
    pub(crate) struct HeapSpan(Vec<u8>, Arc<AtomicUsize>);
    impl SpanSource for Heap {
        type Span = HeapSpan;
        fn take(&self, bytes: usize) -> Option<HeapSpan> {
            self.0.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)).ok()?;
            Some(HeapSpan(vec![UNWRITTEN; bytes], self.0.clone()))
        }
    }
    impl SpanMemory for HeapSpan {
        fn trim(&mut self, used: usize) {
            self.0.trim(used);
        }
    }
    impl Drop for HeapSpan {
        fn drop(&mut self) {
            self.1.fetch_add(1, Relaxed);
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

    fn pool(zbud: bool, source: Heap) -> Box<dyn Zpool> {
        if zbud { Box::new(Zbud::new(source)) } else { Box::new(Zsmalloc::new(source)) }
    }

    fn object(length: usize, tag: u16) -> Vec<u8> {
        (0..length).map(|at| at as u8 ^ tag as u8 ^ (tag >> 8) as u8).collect()
    }

    fn read(pool: &dyn Zpool, handle: u32, length: usize) -> Option<Vec<u8>> {
        let mut found = None;
        pool.read(handle, &mut |bytes| found = bytes.get(..length).map(<[u8]>::to_vec));
        found
    }

    /// Empties what compaction chose, as the owner of all handles.
    fn empty(pool: &dyn Zpool, model: &mut BTreeMap<u32, Vec<u8>>) {
        pool.compact();
        let leaving: Vec<u32> = model.keys().copied().filter(|&handle| pool.is_leaving(handle)).collect();
        for handle in leaving {
            let Some(moved) = pool.insert([&model[&handle], &[]], model[&handle].len()) else { continue };
            let bytes = model.remove(&handle).unwrap();
            pool.remove(handle, &mut |_| {});
            assert!(model.insert(moved, bytes).is_none());
        }
    }

    proptest! {
        #[test]
        fn pools_agree_with_a_map(
            steps in proptest::collection::vec((any::<u8>(), 0usize..4120, any::<u16>()), 1..600),
            limit in 1usize..40,
            zbud in any::<bool>(),
        ) {
            let left = Arc::new(AtomicUsize::new(limit));
            let pool = pool(zbud, Heap(left.clone()));
            let mut model: BTreeMap<u32, Vec<u8>> = BTreeMap::new();
            for (kind, length, tag) in steps {
                match kind {
                    0..150 => {
                        let object = object(length, tag);
                        let parts = object.split_at(length.min(14));
                        match pool.insert([parts.0, parts.1], object.len()) {
                            Some(handle) => prop_assert!(model.insert(handle, object).is_none()),
                            None => prop_assert!(left.load(Relaxed) == 0 || (zbud && length > 4032)),
                        }
                    }
                    150..250 => {
                        let nth = usize::from(tag) % model.len().max(1);
                        if let Some(&handle) = model.keys().nth(nth) {
                            let mut last = Vec::new();
                            pool.remove(handle, &mut |bytes| last = bytes.to_vec());
                            prop_assert!(last.starts_with(&model.remove(&handle).unwrap()));
                            prop_assert_eq!(read(&*pool, handle, 0), None);
                        }
                    }
                    250..254 => empty(&*pool, &mut model),
                    254 => {
                        pool.thaw();
                        prop_assert_eq!(pool.size().frozen, 0);
                    }
                    255 => {
                        pool.freeze();
                        prop_assert_eq!(pool.size().frozen, pool.size().pages);
                    }
                }
                for (&handle, object) in &model {
                    let found = read(&*pool, handle, object.len());
                    prop_assert_eq!(found.as_ref(), Some(object));
                }
            }
            for &handle in model.keys() {
                pool.remove(handle, &mut |_| {});
            }
            prop_assert_eq!((pool.size().pages, pool.size().frozen, pool.loose_pages()), (0, 0, 0));
            prop_assert_eq!(left.load(Relaxed), limit);
        }
    }

    /// Objects that live for as long as chance has it: the pool is emptied of most, and what is left is moved together.
    #[test]
    fn compaction_gives_back_all_but_a_span_a_class() {
        let pool = Zsmalloc::new(super::Heap);
        let mut model = BTreeMap::new();
        let mut state = 1u64;
        let mut draw = |limit: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize % limit
        };
        for tag in 0..40_000 {
            let object = object(400 + draw(2000), tag as u16);
            model.insert(pool.insert([&object, &[]], object.len()).unwrap(), object);
        }
        let handles: Vec<u32> = model.keys().copied().collect();
        for handle in handles {
            if draw(4) > 0 {
                pool.remove(handle, &mut |_| {});
                model.remove(&handle);
            }
        }
        let (before, loose) = (pool.size().pages, pool.loose_pages());
        assert!(loose > before / 2, "{loose} of {before}");
        empty(&pool, &mut model);
        // What lay in a span of larger slots, when the pool was small, goes to one of its own class.
        assert!(
            pool.size().pages <= before - loose * 9 / 10,
            "{} of {before}, {loose} loose",
            pool.size().pages
        );
        assert!(pool.loose_pages() < before / 50, "{}", pool.loose_pages());
        for (&handle, object) in &model {
            assert_eq!(read(&pool, handle, object.len()).as_ref(), Some(object));
        }
    }
}
