//! Memory of a replayed pool.

use pagetide_swap::{SpanMemory, SpanSource};
use std::sync::{Arc, Mutex, PoisonError};

/// Memory of the pool: what is given back is used again, whatever it holds.
#[derive(Clone, Debug, Default)]
pub(super) struct Spans(Arc<Mutex<Vec<Box<[u8]>>>>);

#[derive(Debug)]
pub(super) struct Span {
    bytes: Box<[u8]>,
    home: Spans,
}

impl Spans {
    fn free(&self) -> std::sync::MutexGuard<'_, Vec<Box<[u8]>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SpanSource for Spans {
    type Span = Span;
    fn take(&self, bytes: usize) -> Option<Span> {
        let mut free = self.free();
        let old = free.iter().rposition(|span| span.len() == bytes).map(|at| free.swap_remove(at));
        Some(Span { bytes: old.unwrap_or_else(|| vec![0; bytes].into()), home: self.clone() })
    }
}

impl SpanMemory for Span {
    fn trim(&mut self, _: usize) {}
}

impl Drop for Span {
    fn drop(&mut self) {
        self.home.free().push(std::mem::take(&mut self.bytes));
    }
}

impl std::ops::Deref for Span {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

impl std::ops::DerefMut for Span {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }
}
