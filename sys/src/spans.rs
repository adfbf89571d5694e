//! Memory for the pool: spans cut from one reservation.

use crate::lock::lock;
use crate::mapping::Reservation;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex};

/// Sources of spans, one for each size.
#[derive(Clone, Debug)]
pub struct Spans(Arc<Areas>);

/// Behind one pointer: there are many spans.
#[derive(Debug)]
struct Areas(Box<[Area]>);

#[derive(Debug)]
struct Area {
    memory: Reservation,
    span: usize,
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
pub struct Span {
    areas: Arc<Areas>,
    area: u32,
    id: u32,
}

impl Spans {
    /// Reserves address space for `bytes` of spans of each size. A size is some pages. The first `expected` bytes that are
    /// given back take no memory for the list of what is free.
    ///
    /// # Errors
    /// NOMEM if there is not so much address space.
    pub fn new(bytes: usize, expected: usize, sizes: &[usize]) -> Result<Self, rustix::io::Errno> {
        let area = |&span: &usize| {
            let count = bytes / span;
            let memory = Reservation::small_pages(count * span, span)?.counted();
            let free =
                Free { ids: Vec::with_capacity(count.min(expected / span)), used: 0, count: count as u32 };
            Ok(Area { memory, span, free: Mutex::new(free) })
        };
        let areas = sizes.iter().map(area).collect::<Result<_, rustix::io::Errno>>()?;
        Ok(Self(Arc::new(Areas(areas))))
    }

    /// Takes a span of `bytes`, which is one of the sizes. Its contents are zeroes or those of an earlier one.
    pub fn take(&self, bytes: usize) -> Option<Span> {
        let area = self.0.0.iter().position(|area| area.span == bytes)?;
        let mut free = lock(&self.0.0[area].free);
        let id = match free.ids.pop() {
            Some(id) => id,
            None if free.used < free.count => {
                free.used += 1;
                free.used - 1
            }
            None => return None,
        };
        drop(free);
        Some(Span { areas: Arc::clone(&self.0), area: area as u32, id })
    }
}

impl Span {
    fn area(&self) -> &Area {
        &self.areas.0[self.area as usize]
    }

    /// Returns the offset in the reservation at which it begins.
    fn offset(&self) -> usize {
        self.id as usize * self.area().span
    }

    fn pointer(&self) -> *mut u8 {
        (self.area().memory.base() + self.offset()) as *mut u8
    }

    /// Gives back all pages beyond the first `used` bytes: they read as zeroes.
    pub fn trim(&mut self, used: usize) {
        let kept = used.next_multiple_of(pagetide_page::PAGE_SIZE);
        if kept < self.area().span {
            // SAFETY: the range is ours alone, and `self` is borrowed mutably: nobody borrows from it.
            unsafe { self.area().memory.discard(self.offset() + kept, self.area().span - kept) };
        }
    }
}

impl Deref for Span {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: (1) the range lies in the reservation, which lives as long as `areas`; (2) the id is ours
        // alone until we are dropped, so a borrow of `self` borrows the range; (3) anonymous memory is
        // initialised.
        unsafe { std::slice::from_raw_parts(self.pointer(), self.area().span) }
    }
}

impl DerefMut for Span {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and `self` is borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.pointer(), self.area().span) }
    }
}

impl Drop for Span {
    fn drop(&mut self) {
        self.trim(0);
        lock(&self.area().free).ids.push(self.id);
    }
}
