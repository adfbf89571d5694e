//! Memory for the pool: spans cut from one reservation.

use crate::mapping::Reservation;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, PoisonError};

/// A source of spans of `SPAN` bytes.
#[derive(Clone, Debug)]
pub struct Spans<const SPAN: usize>(Arc<Area>);

#[derive(Debug)]
struct Area {
    memory: Reservation,
    free: Mutex<Free>,
}

#[derive(Debug)]
struct Free {
    ids: Vec<u32>,
    used: u32,
    count: u32,
}

/// One span, given back when dropped.
#[derive(Debug)]
pub struct Span<const SPAN: usize> {
    area: Arc<Area>,
    id: u32,
}

impl<const SPAN: usize> Spans<SPAN> {
    /// Reserves address space for `bytes` of spans.
    pub fn new(bytes: usize) -> Result<Self, rustix::io::Errno> {
        let count = bytes / SPAN;
        let free = Free { ids: Vec::with_capacity(count), used: 0, count: count as u32 };
        Ok(Self(Arc::new(Area {
            memory: Reservation::small_pages(count * SPAN, SPAN)?.counted(),
            free: Mutex::new(free),
        })))
    }

    /// Takes a span. Its contents are zeroes or those of an earlier one.
    pub fn take(&self) -> Option<Span<SPAN>> {
        let mut free = self.0.free.lock().unwrap_or_else(PoisonError::into_inner);
        let id = match free.ids.pop() {
            Some(id) => id,
            None if free.used < free.count => {
                free.used += 1;
                free.used - 1
            }
            None => return None,
        };
        drop(free);
        Some(Span { area: Arc::clone(&self.0), id })
    }
}

impl<const SPAN: usize> Span<SPAN> {
    fn pointer(&self) -> *mut u8 {
        (self.area.memory.base() + self.id as usize * SPAN) as *mut u8
    }
}

impl<const SPAN: usize> Deref for Span<SPAN> {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: (1) the range lies in the reservation, which lives as long as `area`; (2) the id is ours
        // alone until we are dropped, so a borrow of `self` borrows the range; (3) anonymous memory is
        // initialised.
        unsafe { std::slice::from_raw_parts(self.pointer(), SPAN) }
    }
}

impl<const SPAN: usize> DerefMut for Span<SPAN> {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and `self` is borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.pointer(), SPAN) }
    }
}

impl<const SPAN: usize> Drop for Span<SPAN> {
    fn drop(&mut self) {
        // SAFETY: whoever borrowed from the span is gone.
        unsafe { self.area.memory.discard(self.id as usize * SPAN, SPAN) };
        self.area.free.lock().unwrap_or_else(PoisonError::into_inner).ids.push(self.id);
    }
}
