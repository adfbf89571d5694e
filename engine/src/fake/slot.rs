//! A slot of staging of a fake memory.

use super::{Page, own};
use crate::memory::{PageSet, StagingSlot};
use pagetide_swap::{CLUSTER_PAGES, PAGE_SIZE};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};

/// A slot of staging: frames in one run of memory.
#[derive(Debug, Default)]
pub struct FakeSlot {
    pub(super) bytes: Vec<u8>,
    pub(super) populated: PageSet,
    pub(super) zero: PageSet,
    pub(super) spare: PageSet,
    pub(super) frames: Arc<AtomicI64>,
}

impl FakeSlot {
    pub(super) fn put(&mut self, frame: usize, contents: &Page) {
        if self.bytes.is_empty() {
            self.bytes = vec![0; CLUSTER_PAGES * PAGE_SIZE];
        }
        assert!(!self.populated.contains(frame), "a frame is taken over");
        self.populated.insert(frame);
        let bytes = &mut self.bytes[frame * PAGE_SIZE..][..PAGE_SIZE];
        match contents {
            Page::Zero => {
                bytes.fill(0);
                self.zero.insert(frame);
            }
            Page::Own(own) => {
                bytes.copy_from_slice(&own[..]);
                self.frames.fetch_add(i64::from(!self.spare.contains(frame)), Relaxed);
                self.spare.remove(frame);
            }
        }
    }

    pub(super) fn take(&mut self, frame: usize) -> Page {
        self.populated.remove(frame);
        if self.zero.contains(frame) {
            self.zero.remove(frame);
            return Page::Zero;
        }
        self.frames.fetch_sub(1, Relaxed);
        own(&self.bytes[frame * PAGE_SIZE..][..PAGE_SIZE])
    }
}

impl StagingSlot for FakeSlot {
    fn populated(&self) -> PageSet {
        self.populated
    }
    fn zero(&self) -> PageSet {
        self.zero
    }
    fn memory_pages(&self) -> usize {
        self.populated.len() - self.zero.len()
    }
    fn frame(&self, page: usize) -> Option<&[u8]> {
        self.populated.contains(page).then(|| &self.bytes[page * PAGE_SIZE..][..PAGE_SIZE])
    }
    fn frames_mut(&mut self, first: usize, count: usize) -> Option<&mut [u8]> {
        let run = first..first + count;
        let own = run.clone().all(|page| self.populated.contains(page) && !self.zero.contains(page));
        own.then(|| &mut self.bytes[first * PAGE_SIZE..][..count * PAGE_SIZE])
    }
    fn spare_pages(&self) -> usize {
        self.spare.len()
    }
    fn set_aside(&mut self, pages: PageSet) {
        let pages = pages.and(self.populated).minus(self.zero);
        self.populated = self.populated.minus(pages);
        self.spare = self.spare.or(pages);
    }
    fn drop_spare(&mut self) -> usize {
        let spare = std::mem::take(&mut self.spare).len();
        self.frames.fetch_sub(spare as i64, Relaxed);
        spare
    }
    fn retain(&mut self, kept: PageSet) {
        let before = self.memory_pages();
        self.populated = self.populated.and(kept);
        self.zero = self.zero.and(kept);
        self.frames.fetch_sub((before - self.memory_pages()) as i64, Relaxed);
    }
    fn abandon(&mut self) {
        self.drop_spare();
        self.retain(PageSet::default());
    }
}
