//! Staging: where pages are when they have left the program and are not yet stored.
//!
//! Staging is address space cut into slots of one cluster each. A page sits in a slot at the offset that
//! it has in its own cluster. A populated page of a slot is a *frame*.

use crate::mapping::{self, Reservation, remap};
use crate::pagemap::{PageSet, Pagemap};
use crate::uffd::Uffd;
use crate::{CLUSTER, PAGE};
use rustix::io::Errno;
use std::sync::Arc;

/// Address space for slots.
#[derive(Debug)]
pub struct Staging;

/// One slot, owned: who holds it may read and write its frames.
#[derive(Debug)]
pub struct Slot {
    area: Arc<Reservation>,
    index: u16,
    populated: PageSet,
    zero: PageSet,
    /// Whether the slot's memory is registered, as a MOVE into it requires.
    registered: bool,
}

/// How pages leave the program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TakeOutWay {
    /// `mremap(DONTUNMAP)`: the page table moves as one, whatever it holds, pinned pages too.
    Remap,
    /// `UFFDIO_MOVE`, run by run: refuses pages that are pinned or shared by fork.
    Move,
}

impl Staging {
    /// Reserves address space for `count` slots.
    pub fn slots(count: u16) -> Result<Vec<Slot>, Errno> {
        let area = Arc::new(Reservation::small_pages(usize::from(count) * CLUSTER, CLUSTER)?);
        Ok((0..count)
            .map(|index| Slot {
                area: Arc::clone(&area),
                index,
                populated: PageSet::default(),
                zero: PageSet::default(),
                registered: false,
            })
            .collect())
    }
}

impl Slot {
    /// The slot's number.
    pub fn index(&self) -> u16 {
        self.index
    }

    fn base(&self) -> usize {
        self.area.base() + usize::from(self.index) * CLUSTER
    }

    /// The frames: pages of the slot that are there.
    pub fn populated(&self) -> PageSet {
        self.populated
    }

    /// Frames that are memory of their own: not the kernel's zero page.
    pub fn memory_pages(&self) -> usize {
        self.populated.len() - self.zero.len()
    }

    /// Whether the page is the kernel's zero page.
    pub fn is_zero(&self, page: usize) -> bool {
        self.zero.contains(page)
    }

    /// A frame's bytes.
    pub fn frame(&self, page: usize) -> Option<&[u8]> {
        // SAFETY: (1) the page lies in our part of the reservation; (2) it is populated, so reading it
        // never faults on a page that we would have to answer ourselves; (3) the slot is ours alone and
        // borrowed; (4) memory that the program mapped is initialised.
        self.populated
            .contains(page)
            .then(|| unsafe { std::slice::from_raw_parts((self.base() + page * PAGE) as *const u8, PAGE) })
    }

    /// The bytes of a run of frames, to be overwritten. `None` unless all are memory of their own.
    pub fn frames_mut(&mut self, first: usize, count: usize) -> Option<&mut [u8]> {
        (first..first + count).all(|page| self.populated.contains(page) && !self.zero.contains(page)).then(
            // SAFETY: as for `frame`, and `self` is borrowed mutably; the frames are exclusive memory.
            || unsafe {
                std::slice::from_raw_parts_mut((self.base() + first * PAGE) as *mut u8, count * PAGE)
            },
        )
    }

    /// Takes the program's pages in `[start, start + length)`, which lies in one cluster, into the slot.
    ///
    /// Returns the error that stopped it, if any; pages before it are taken all the same.
    ///
    /// # Safety
    /// The range must be registered program memory whose faults this engine answers.
    pub unsafe fn take_out(
        &mut self,
        start: usize,
        length: usize,
        writable: bool,
        way: TakeOutWay,
        uffd: &Uffd,
        pagemap: &Pagemap,
    ) -> Result<(), Errno> {
        debug_assert_eq!(start / CLUSTER, (start + length - 1) / CLUSTER);
        let to = self.base() + start % CLUSTER;
        match way {
            TakeOutWay::Remap => {
                const DONTUNMAP: i32 = 4;
                let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED | DONTUNMAP;
                // SAFETY: the source is the program's and stays mapped; the target is ours, and what it
                // held was dropped by whoever emptied the slot.
                unsafe { remap(start, length, length, flags, to)? };
                self.registered = false;
                if !writable {
                    // SAFETY: our own range.
                    if let Err(error) = unsafe { mapping::make_writable(to, length) } {
                        crate::task::say(&format!("cannot make staging writable: {error}"));
                        crate::task::kill_self();
                    }
                }
                // The pages are here now: not to know which would lose them.
                let found = pagemap.presence(to, length).unwrap_or_else(|error| {
                    crate::task::say(&format!("cannot see which pages are in memory: {error}"));
                    crate::task::kill_self();
                });
                found.present.iter().for_each(|page| self.populated.insert(page));
                found.zero.iter().for_each(|page| self.zero.insert(page));
                Ok(())
            }
            TakeOutWay::Move => {
                if !self.registered {
                    debug_assert!(self.populated.is_empty());
                    // SAFETY: the slot is empty and ours; nobody but `self` touches it, and `self` only
                    // where it is populated.
                    unsafe {
                        mapping::replace(self.base(), CLUSTER)?;
                        let _ = rustix::mm::madvise(
                            self.base() as *mut _,
                            CLUSTER,
                            rustix::mm::Advice::LinuxNoHugepage,
                        );
                        uffd.register(self.base(), CLUSTER)?;
                    }
                    self.registered = true;
                }
                let found = pagemap.presence(start, length)?;
                let mut stopped = Ok(());
                let mut pages = found.present.iter().peekable();
                while let Some(first) = pages.next() {
                    let mut last = first;
                    while pages.peek() == Some(&(last + 1)) {
                        last = pages.next().expect("peeked");
                    }
                    stopped = stopped.and(self.move_run(
                        start / CLUSTER * CLUSTER,
                        first,
                        last + 1,
                        uffd,
                        &found.zero,
                    ));
                }
                stopped
            }
        }
    }

    /// Moves pages `[first, end)` of the cluster at `cluster`, stepping over those that refuse.
    fn move_run(
        &mut self,
        cluster: usize,
        mut first: usize,
        end: usize,
        uffd: &Uffd,
        zero: &PageSet,
    ) -> Result<(), Errno> {
        let mut refused = Ok(());
        while first < end {
            let (from, to) = (cluster + first * PAGE, self.base() + first * PAGE);
            // SAFETY: the source is registered program memory, the target an empty part of our slot.
            let (done, error) = unsafe { uffd.move_pages(to, from, (end - first) * PAGE, true) };
            for page in first..first + done / PAGE {
                self.populated.insert(page);
                if zero.contains(page) {
                    self.zero.insert(page);
                }
            }
            first += done / PAGE;
            if let Some(error) = error {
                // Pinned, shared by fork, or gone meanwhile: it stays with the program.
                refused = Err(error);
                first += 1;
            }
        }
        refused
    }

    /// Copies a frame to the missing page at `dst`.
    ///
    /// # Safety
    /// As for [`Uffd::copy`].
    pub unsafe fn copy_in(
        &self,
        page: usize,
        count: usize,
        dst: usize,
        uffd: &Uffd,
    ) -> (usize, Option<Errno>) {
        assert!((page..page + count).all(|page| self.populated.contains(page)));
        // SAFETY: as for `frame`: all pages are populated and ours.
        let bytes =
            unsafe { std::slice::from_raw_parts((self.base() + page * PAGE) as *const u8, count * PAGE) };
        // SAFETY: the caller's contract.
        unsafe { uffd.copy(dst, bytes) }
    }

    /// Moves a run of frames to missing pages at `dst`; what is moved is no frame any more.
    ///
    /// # Safety
    /// As for [`Uffd::move_pages`].
    pub unsafe fn move_in(
        &mut self,
        page: usize,
        count: usize,
        dst: usize,
        uffd: &Uffd,
    ) -> (usize, Option<Errno>) {
        assert!((page..page + count).all(|page| self.populated.contains(page)));
        // SAFETY: the frames are ours and `self` is borrowed mutably, so nothing refers to them.
        let (done, error) = unsafe { uffd.move_pages(dst, self.base() + page * PAGE, count * PAGE, false) };
        for page in page..page + done / PAGE {
            self.populated.remove(page);
            self.zero.remove(page);
        }
        (done, error)
    }

    /// Gives all frames back to the kernel.
    pub fn clear(&mut self) {
        if !self.populated.is_empty() {
            // SAFETY: the slot is ours and borrowed mutably: nothing refers to its frames.
            unsafe { self.area.discard(usize::from(self.index) * CLUSTER, CLUSTER) };
            self.populated = PageSet::default();
            self.zero = PageSet::default();
        }
    }
}
