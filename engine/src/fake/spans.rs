//! Memory for the pool of an engine on a fake memory.

use pagetide_swap::zswap::pool::SPAN_PAGES;
use pagetide_swap::{PAGE_SIZE, SpanMemory, SpanSource};
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// A source of memory for the pool, from the heap and with a limit.
#[derive(Clone, Debug)]
pub struct HeapSpans(Arc<AtomicUsize>);

/// A span of [`HeapSpans`], which is given back when it is dropped.
#[derive(Debug)]
pub struct HeapSpan {
    bytes: Box<[u8]>,
    left: Arc<AtomicUsize>,
}

impl HeapSpans {
    /// Returns a source that has as many spans as make `pages` pages.
    pub fn new(pages: usize) -> Self {
        Self(Arc::new(AtomicUsize::new(pages / SPAN_PAGES)))
    }
}

impl SpanSource for HeapSpans {
    type Span = HeapSpan;
    fn take(&self, bytes: usize) -> Option<HeapSpan> {
        self.0.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)).ok()?;
        Some(HeapSpan { bytes: vec![0xEE; bytes].into(), left: Arc::clone(&self.0) })
    }
}

impl SpanMemory for HeapSpan {
    fn trim(&mut self, used: usize) {
        self.bytes[used.next_multiple_of(PAGE_SIZE)..].fill(0xEE);
    }
}

impl Deref for HeapSpan {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

impl DerefMut for HeapSpan {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }
}

impl Drop for HeapSpan {
    fn drop(&mut self) {
        self.left.fetch_add(1, Relaxed);
    }
}
