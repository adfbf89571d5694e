//! The program's calls, as the engine hears of them.

use crate::common::{borrow, manage, page, pages};
use crate::world::World;
use pagetide::regions::{Access, Attributes};
use pagetide_swap::State;
use std::ops::Range;

impl World {
    pub(crate) fn discard(&mut self, range: Range<u64>) {
        self.drain_requests();
        let memory = self.engine.memory();
        let mut at = page(range.start);
        self.engine.discard(pages(range.clone()), |part| {
            assert_eq!(part.start, at, "the parts of a discard are in order, and leave nothing out");
            at = part.end;
            memory.drop_pages(part);
        });
        assert_eq!(at.0, range.end);
        range.for_each(|number| _ = self.model.remove(&number));
    }

    /// From now on this is a forked child, which has borrowed what was in memory.
    pub(crate) fn borrow(&mut self) {
        if self.engine.can_lend() {
            borrow(&self.engine);
        }
    }

    pub(crate) fn unmap(&mut self, range: Range<u64>) {
        self.engine.regions.write().unwrap().remove(pages(range.clone()));
        self.drain_requests();
        self.engine.discard(pages(range.clone()), |_| {});
        self.memory().unmap(pages(range.clone()));
        range.for_each(|number| _ = self.model.remove(&number));
    }

    pub(crate) fn map(&mut self, range: Range<u64>) {
        self.unmap(range.clone());
        self.memory().map(pages(range.clone()));
        manage(&self.engine, range, Access::Write);
    }

    pub(crate) fn protect(&mut self, range: Range<u64>, access: Access) {
        let mut regions = self.engine.regions.write().unwrap();
        let pieces: Vec<_> = regions.pieces(pages(range)).collect();
        for (part, region) in pieces {
            self.engine.memory().protect(part.clone(), access == Access::Write);
            regions.insert(part, Attributes { access, ..region.attributes });
        }
    }

    /// What `Entered::remapping` does. The ranges do not overlap, and all of `from` is mapped.
    pub(crate) fn remap(&mut self, from: u64, to: u64, length: u64, keeps_old: bool) {
        let old = pages(from..from + length);
        let new = pages(to..to + length);
        let removed = self.engine.regions.write().unwrap().remove(old.clone());
        self.drain_requests();
        self.engine.recall(old.clone());
        self.engine.regions.write().unwrap().remove(new.clone());
        self.drain_requests();
        for number in from..from + length {
            let word = self.word(page(number));
            assert!(word.state() != State::Cached && !word.is_locked(), "recalled, and not back: {word:?}");
        }
        self.memory().remap(old.start, new.start, length);
        self.engine.discard(new.clone(), |_| {});
        self.engine.rename(old.start, new.start, length);
        let mut regions = self.engine.regions.write().unwrap();
        for (part, region) in removed {
            let moved = page(part.start.0 - from + to)..page(part.end.0 - from + to);
            regions.insert(moved, region.attributes);
            if keeps_old {
                regions.insert(part, region.attributes);
            }
        }
        drop(regions);
        if !keeps_old {
            self.memory().unmap(old);
        }
        for nth in 0..length {
            match self.model.remove(&(from + nth)) {
                Some(bytes) => drop(self.model.insert(to + nth, bytes)),
                None => drop(self.model.remove(&(to + nth))),
            }
        }
    }
}
