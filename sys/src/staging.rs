//! Staging: where pages are when they have left the program and are not yet stored.
//!
//! Staging is address space cut into slots of one cluster each. A page sits in a slot at the offset that
//! it has in its own cluster. A populated page of a slot is a *frame*; one that holds nothing and stays for the next
//! page there is *spare*.

use crate::mapping::{self, Reservation, Restored, remap};
use crate::maps::Maps;
use crate::pagemap::Pagemap;
use crate::sieve::Sieve;
use crate::uffd::Uffd;
use pagetide_page::{CLUSTER_SIZE, PAGE_SIZE, PageSet};
use rustix::io::Errno;
use std::ops::Range;
use std::sync::Arc;

/// Address space for slots.
#[derive(Debug)]
pub struct Staging;

/// One slot, owned: who holds it may read and write its frames.
#[derive(Debug)]
pub struct Slot {
    area: Arc<Reservation>,
    sieve: Arc<Sieve>,
    index: u16,
    populated: PageSet,
    zero: PageSet,
    /// Pages that are populated, and hold nothing.
    spare: PageSet,
    /// Pages whose memory is registered, as a MOVE into it requires.
    registered: PageSet,
    /// Pages that are not the slot's any more: a failed `mremap` unmapped them, and another thread was
    /// quicker to map there than we.
    lost: PageSet,
}

/// A way by which pages leave the program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TakeOutWay {
    /// `mremap(DONTUNMAP)`: the page table moves as one, whatever it holds, pinned pages too.
    Remap,
    /// `UFFDIO_MOVE`, run by run: refuses pages that are pinned or shared by fork, and all of a mapping that may not be
    /// written.
    Move,
    /// `mremap` into the [sieve](crate::sieve), and on by `UFFDIO_MOVE`: refuses pages that are pinned, whatever may
    /// be done with them.
    Sift,
}

/// The descriptors by which a take-out asks the kernel.
#[derive(Clone, Copy, Debug)]
pub struct Views<'a> {
    /// The descriptor that serves the program's memory.
    pub uffd: &'a Uffd,
    /// Tells which pages are there.
    pub pagemap: &'a Pagemap,
    /// Tells which access the program has to them.
    pub maps: &'a Maps,
}

impl Staging {
    /// Reserves address space for `count` slots.
    ///
    /// # Errors
    /// NOMEM if there is not so much address space.
    pub fn slots(count: u16) -> Result<Vec<Slot>, Errno> {
        // A cluster at either end stays empty. A mapping that is moved next to one that the same userfaultfd
        // serves becomes one with it, and takes its registration away: evicted pages of a mapping of the
        // program that ends where a slot begins would read as zeroes. So does one beside the sieve.
        let length = (usize::from(count) + 4) * CLUSTER_SIZE;
        let area = Arc::new(Reservation::small_pages(length, CLUSTER_SIZE)?.counted());
        let base = area.base() + length - 2 * CLUSTER_SIZE;
        let sieve = Arc::new(Sieve::new(Arc::clone(&area), base));
        Ok((0..count)
            .map(|index| Slot {
                area: Arc::clone(&area),
                sieve: Arc::clone(&sieve),
                index,
                populated: PageSet::default(),
                zero: PageSet::default(),
                spare: PageSet::default(),
                registered: PageSet::default(),
                lost: PageSet::default(),
            })
            .collect())
    }
}

impl Slot {
    /// The slot's number.
    pub fn index(&self) -> u16 {
        self.index
    }

    /// Lets go of the staging area, which is unmapped when its last slot has: in a forked child, whose engine has
    /// its own. The slot holds nothing from then on, and nothing can be taken out into it.
    pub fn abandon(&mut self) {
        if !self.lost.is_empty() || !self.sieve.is_whole() {
            // What lies there is another mapping: the area stays as it is.
            std::mem::forget(Arc::clone(&self.area));
        }
        let lost = PageSet::range(0..CLUSTER_SIZE / PAGE_SIZE);
        let (populated, zero, spare, registered) = Default::default();
        *self = Self {
            area: Arc::new(Reservation::none()),
            sieve: Arc::new(Sieve::none()),
            index: self.index,
            populated,
            zero,
            spare,
            registered,
            lost,
        };
    }

    /// Returns the offset of the slot in the reservation.
    fn offset(&self) -> usize {
        (usize::from(self.index) + 1) * CLUSTER_SIZE
    }

    fn base(&self) -> usize {
        self.area.base() + self.offset()
    }

    /// The frames: pages of the slot that are there.
    pub fn populated(&self) -> PageSet {
        self.populated
    }

    /// Frames that are memory of their own: not the kernel's zero page.
    pub fn memory_pages(&self) -> usize {
        self.populated.len() - self.zero.len()
    }

    /// Frames that hold nothing.
    pub fn spare_pages(&self) -> usize {
        self.spare.len()
    }

    /// Returns the frames that are the kernel's zero page.
    pub fn zero(&self) -> PageSet {
        self.zero
    }

    /// A frame's bytes.
    pub fn frame(&self, page: usize) -> Option<&[u8]> {
        // SAFETY: (1) the page lies in our part of the reservation; (2) it is populated, so reading it
        // never faults on a page that we would have to answer ourselves; (3) the slot is ours alone and
        // borrowed; (4) memory that the program mapped is initialised.
        self.populated.contains(page).then(|| unsafe {
            std::slice::from_raw_parts((self.base() + page * PAGE_SIZE) as *const u8, PAGE_SIZE)
        })
    }

    /// The bytes of a run of frames.
    ///
    /// # Panics
    /// If one of them is not there.
    pub fn frames(&self, first: usize, count: usize) -> &[u8] {
        assert!((first..first + count).all(|page| self.populated.contains(page)));
        // SAFETY: as for `frame`: all pages are populated and ours.
        unsafe {
            std::slice::from_raw_parts((self.base() + first * PAGE_SIZE) as *const u8, count * PAGE_SIZE)
        }
    }

    /// The bytes of a run of frames, to be overwritten. `None` unless all are memory of their own.
    pub fn frames_mut(&mut self, first: usize, count: usize) -> Option<&mut [u8]> {
        (first..first + count).all(|page| self.populated.contains(page) && !self.zero.contains(page)).then(
            // SAFETY: as for `frame`, and `self` is borrowed mutably; the frames are exclusive memory.
            || unsafe {
                std::slice::from_raw_parts_mut(
                    (self.base() + first * PAGE_SIZE) as *mut u8,
                    count * PAGE_SIZE,
                )
            },
        )
    }

    /// Takes the program's pages in `[start, start + length)`, which lies in one cluster, into the slot.
    ///
    /// Returns the error that stopped it, if any; pages before it are taken all the same.
    ///
    /// # Errors
    /// - NOMEM: a part of the slot is lost, or there are as many mappings as there may be.
    /// - BUSY: pages are pinned.
    /// - What the kernel says of a range that is not as it should be.
    ///
    /// # Safety
    /// The range must be registered program memory whose faults this engine answers.
    pub unsafe fn take_out(
        &mut self,
        start: usize,
        length: usize,
        writable: bool,
        way: TakeOutWay,
        views: Views<'_>,
    ) -> Result<(), Errno> {
        let Views { uffd, pagemap, .. } = views;
        debug_assert_eq!(start / CLUSTER_SIZE, (start + length - 1) / CLUSTER_SIZE);
        if !PageSet::of(start, length).and(self.lost).is_empty() {
            return Err(Errno::NOMEM);
        }
        match way {
            // SAFETY: the caller's contract.
            TakeOutWay::Remap => unsafe { self.remap(start, length, writable, pagemap) },
            TakeOutWay::Move => {
                self.make_target(start, length, uffd)?;
                let found = pagemap.presence(start, length)?;
                let cluster = start / CLUSTER_SIZE * CLUSTER_SIZE;
                let mut stopped = Ok(());
                for run in found.present.runs() {
                    stopped = stopped.and(self.move_run(cluster, run, uffd, pagemap));
                }
                if !found.zero.is_empty() {
                    // The program may have written to such a page before it moved: only here does it stay what it is.
                    let here = pagemap.presence(self.base() + start % CLUSTER_SIZE, length);
                    self.zero = self.zero.or(here.unwrap_or_default().zero.and(self.populated));
                }
                stopped
            }
            // SAFETY: the caller's contract.
            TakeOutWay::Sift => unsafe { self.sift(start, length, views) },
        }
    }

    /// Takes pages through the sieve; what is pinned goes back.
    ///
    /// # Safety
    /// As for [`Slot::take_out`].
    unsafe fn sift(&mut self, start: usize, length: usize, views: Views<'_>) -> Result<(), Errno> {
        let Views { uffd, pagemap, maps } = views;
        self.make_target(start, length, uffd)?;
        let sieve = Arc::clone(&self.sieve);
        let mut sieve = sieve.hold()?;
        let (base, here) = (sieve.base(), sieve.base() + start % CLUSTER_SIZE);
        // SAFETY: the caller's contract.
        let mut result = unsafe { sieve.bring(start, length, pagemap) };
        // Not to know which pages are here would lose them.
        let mut found = pagemap.presence(here, length).unwrap_or_else(|error| {
            crate::task::say(&format!("cannot see which pages are in memory: {error}"));
            crate::task::kill_self();
        });
        found.present = found.present.and(sieve.brought());
        let left = |slot: &Self| found.present.minus(slot.populated);
        for run in sieve.brought().runs() {
            // SAFETY: our own range. After an error MOVE refuses what it did not reach.
            result = result
                .and(unsafe { mapping::make_writable(base + run.start * PAGE_SIZE, run.len() * PAGE_SIZE) });
        }
        for run in found.present.runs() {
            let _ = self.move_run(base, run, uffd, pagemap);
        }
        // What is shared since a fork becomes the program's own here, by a copy; what is pinned is that already.
        for run in left(self).minus(found.zero).runs() {
            crate::task::populate(base + run.start * PAGE_SIZE, run.len() * PAGE_SIZE);
            let _ = self.move_run(base, run, uffd, pagemap);
        }
        // Nobody but us writes here: what was the zero page is.
        self.zero = self.zero.or(found.zero.and(self.populated));
        let pinned = left(self);
        if !pinned.is_empty() {
            // SAFETY: they came from there, and are still here.
            unsafe { sieve.put_back(start / CLUSTER_SIZE * CLUSTER_SIZE, pinned, uffd, maps) };
            result = result.and(Err(Errno::BUSY));
        }
        result
    }

    /// Takes pages by `mremap`, mapping by mapping if there are several.
    ///
    /// # Safety
    /// As for [`Slot::take_out`].
    unsafe fn remap(
        &mut self,
        start: usize,
        length: usize,
        writable: bool,
        pagemap: &Pagemap,
    ) -> Result<(), Errno> {
        const DONTUNMAP: i32 = 4;
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED | DONTUNMAP;
        let to = self.base() + start % CLUSTER_SIZE;
        // SAFETY: the source is the program's and stays mapped; the target is ours, and nothing refers to
        // it: its pages are not populated.
        let result = unsafe { remap(start, length, length, flags, to) };
        let pages = PageSet::of(start, length);
        if let Err(error) = result {
            // SAFETY: the target was ours, and nothing refers to it.
            match unsafe { mapping::restore_target(to, length, error) } {
                Restored::Untouched => {}
                Restored::Anew => self.registered = self.registered.minus(pages),
                Restored::Lost => {
                    self.registered = self.registered.minus(pages);
                    self.lost = self.lost.or(pages);
                    return Err(error);
                }
            }
            // EFAULT: the range is not one mapping.
            if error != Errno::FAULT
                || length == PAGE_SIZE
                || pagemap.presence(start, length)?.present.is_empty()
            {
                return Err(error);
            }
            let half = (length / 2).next_multiple_of(PAGE_SIZE);
            // SAFETY: the caller's contract holds for parts of the range.
            return unsafe {
                self.remap(start, half, writable, pagemap).and(self.remap(
                    start + half,
                    length - half,
                    writable,
                    pagemap,
                ))
            };
        }
        self.registered = self.registered.minus(pages);
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
        self.populated = self.populated.or(found.present);
        self.zero = self.zero.or(found.zero);
        Ok(())
    }

    /// Makes the slot's part for `[start, start + length)` registered memory, as a MOVE into it requires.
    /// What is populated stays as it is.
    fn make_target(&mut self, start: usize, length: usize, uffd: &Uffd) -> Result<(), Errno> {
        let missing = PageSet::of(start, length).minus(self.registered).minus(self.populated);
        for run in missing.runs() {
            // SAFETY: these pages are ours and not populated, so nothing refers to them.
            match unsafe { mapping::replace(self.base() + run.start * PAGE_SIZE, run.len() * PAGE_SIZE) } {
                // A limit on address space that is exceeded already: what is there may do, if it registers.
                Ok(()) | Err(Errno::NOMEM) => {}
                Err(error) => return Err(error),
            }
            self.registered = self.registered.or(PageSet::range(run));
        }
        // All of it, also what was registered: a mapping that was moved next to it may have undone that.
        // SAFETY: `self` touches a page only where it is populated, so nobody waits for a fault there.
        unsafe { uffd.register(self.base() + start % CLUSTER_SIZE, length) }
    }

    /// Moves a run of pages of the cluster at `cluster`, stepping over those that refuse.
    fn move_run(
        &mut self,
        cluster: usize,
        run: Range<usize>,
        uffd: &Uffd,
        pagemap: &Pagemap,
    ) -> Result<(), Errno> {
        let mut refused = Ok(());
        let mut first = run.start;
        while first < run.end {
            let (from, to) = (cluster + first * PAGE_SIZE, self.base() + first * PAGE_SIZE);
            let left = run.end - first;
            // SAFETY: the source is registered program memory, the target an empty part of our slot.
            let (done, error) = unsafe { uffd.move_pages(to, from, left * PAGE_SIZE, true) };
            let mut moved = done / PAGE_SIZE;
            if error == Some(Errno::EXIST) {
                // Nobody else puts pages here: see `uncounted`.
                moved +=
                    self.uncounted(first + moved..run.end, pagemap, |present, page| present.contains(page));
            }
            self.populated = self.populated.or(PageSet::range(first..first + moved));
            first += moved;
            match error {
                None => {}
                Some(Errno::EXIST) if moved > done / PAGE_SIZE => {}
                // It may be several mappings, of which MOVE takes one at a time.
                Some(Errno::INVAL) if done == 0 && left > 1 => {
                    let middle = first + left / 2;
                    return refused
                        .and(self.move_run(cluster, first..middle, uffd, pagemap))
                        .and(self.move_run(cluster, middle..run.end, uffd, pagemap));
                }
                // Pinned, shared by fork, or gone meanwhile: it stays with the program.
                Some(error) => {
                    refused = Err(error);
                    first += 1;
                }
            }
        }
        refused
    }

    /// Pages at the beginning of `run` that MOVE has moved and did not count, by what is here of them now.
    ///
    /// Linux 6.18 moves pages in batches. Where it had to wait for a page (EAGAIN, which it does by itself) it forgets to
    /// count the batch that follows, tries it once more, and finds the target populated (EEXIST).
    fn uncounted(
        &self,
        run: Range<usize>,
        pagemap: &Pagemap,
        is_moved: impl Fn(PageSet, usize) -> bool,
    ) -> usize {
        if run.is_empty() {
            return 0;
        }
        let found = pagemap.presence(self.base() + run.start * PAGE_SIZE, run.len() * PAGE_SIZE);
        let found = found.unwrap_or_else(|error| {
            crate::task::say(&format!("cannot see which pages are in memory: {error}"));
            crate::task::kill_self();
        });
        run.take_while(|&page| is_moved(found.present, page)).count()
    }

    /// Moves a run of frames to missing pages at `dst`. Frames that were moved are none any more.
    ///
    /// # Panics
    /// If a page of the run is not in a frame.
    ///
    /// # Safety
    /// As for [`Uffd::move_pages`].
    pub unsafe fn move_from(
        &mut self,
        page: usize,
        count: usize,
        dst: usize,
        uffd: &Uffd,
        pagemap: &Pagemap,
    ) -> (usize, Option<Errno>) {
        assert!((page..page + count).all(|page| self.populated.contains(page)));
        let mut done = 0;
        loop {
            let (to, from) = (dst + done * PAGE_SIZE, self.base() + (page + done) * PAGE_SIZE);
            // SAFETY: the frames are ours and `self` is borrowed mutably, so nothing refers to them.
            let (bytes, error) = unsafe { uffd.move_pages(to, from, (count - done) * PAGE_SIZE, false) };
            let first = page + done + bytes / PAGE_SIZE;
            let uncounted = match error {
                Some(Errno::EXIST) => {
                    self.uncounted(first..page + count, pagemap, |present, page| !present.contains(page))
                }
                _ => 0,
            };
            if uncounted > 0 {
                // Nobody was woken for them.
                uffd.wake(dst + (first - page) * PAGE_SIZE, uncounted * PAGE_SIZE);
            }
            for moved in page + done..first + uncounted {
                self.populated.remove(moved);
                self.zero.remove(moved);
            }
            done = first + uncounted - page;
            if uncounted == 0 || done == count {
                return (done * PAGE_SIZE, error.filter(|_| done < count));
            }
        }
    }

    /// Fills frames with contents from elsewhere, which `read` writes to them.
    ///
    /// # Errors
    /// NOMEM if a part of the slot is lost; what `read` says: the run holds no frames then.
    ///
    /// # Panics
    /// If one of them is a frame already.
    pub fn fill(
        &mut self,
        first: usize,
        count: usize,
        read: impl FnOnce(&mut [u8]) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        let run = PageSet::range(first..first + count);
        assert!(self.populated.and(run).is_empty() && self.registered.and(run).is_empty());
        if !self.lost.and(run).is_empty() {
            return Err(Errno::NOMEM);
        }
        // SAFETY: (1) the pages lie in our part of the reservation, which is mapped to be read and written; (2) they
        // are not registered, so the kernel fills them with zeroes and nobody waits; (3) the slot is ours and borrowed
        // mutably.
        let bytes = unsafe {
            std::slice::from_raw_parts_mut((self.base() + first * PAGE_SIZE) as *mut u8, count * PAGE_SIZE)
        };
        // One call for a run in place of a fault for each page: files that are read in order take 4 % less time.
        for fresh in run.minus(self.spare).runs() {
            crate::task::populate(self.base() + fresh.start * PAGE_SIZE, fresh.len() * PAGE_SIZE);
        }
        let result = read(bytes);
        self.spare = self.spare.minus(run);
        self.populated = self.populated.or(run);
        if result.is_err() {
            self.retain(self.populated.minus(run));
        }
        result
    }

    /// Frames of these pages hold nothing from now on, and stay as spare ones: for [`Slot::fill`], the only way in that
    /// takes them.
    pub fn set_aside(&mut self, pages: PageSet) {
        let pages = pages.and(self.populated).minus(self.zero);
        self.populated = self.populated.minus(pages);
        self.spare = self.spare.or(pages);
    }

    /// Gives the spare frames back to the kernel. Returns how many there were.
    pub fn drop_spare(&mut self) -> usize {
        let spare = std::mem::take(&mut self.spare);
        self.populated = self.populated.or(spare);
        self.retain(self.populated.minus(spare));
        spare.len()
    }

    /// Gives all frames back to the kernel but those of `kept` and the spare ones.
    pub fn retain(&mut self, kept: PageSet) {
        let dropped = self.populated.minus(kept);
        if dropped.is_empty() {
            return;
        }
        let base = self.offset();
        // Where there is no frame there is nothing to lose: as few and as long runs as can be.
        let stays = kept.and(self.populated).or(self.spare).or(self.lost);
        let free = PageSet::range(0..CLUSTER_SIZE / PAGE_SIZE).minus(stays);
        let runs = free.runs().filter(|run| !dropped.and(PageSet::range(run.clone())).is_empty());
        let parts = runs.map(|run| (base + run.start * PAGE_SIZE, run.len() * PAGE_SIZE));
        // SAFETY: the slot is ours and borrowed mutably: nothing refers to its frames.
        unsafe { self.area.discard_all(parts) };
        self.populated = self.populated.minus(dropped);
        self.zero = self.zero.minus(dropped);
    }
}

#[cfg(test)]
mod tests;
