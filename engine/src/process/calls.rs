//! Mapping calls: calls of the program that change its memory.

use super::charge::charge;
use super::stack::StackInPlace;
use super::{Generation, lock};
use crate::regions::{Access, AtFork, Attributes, Region, Regions};
use crate::runtime::Runtime;
use pagetide_swap::{CLUSTER_PAGES, PageIndex, State, Word};
use pagetide_sys::signals::SignalsBlocked;
use pagetide_sys::task;
use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{MutexGuard, PoisonError, RwLockWriteGuard};

/// The number of pages of a run that is listed as one.
const RUN_MAX: u64 = 64;

/// A mapping call of the program under way: signals are blocked, and its stack stays in place.
#[derive(Debug)]
pub struct Entered<'a> {
    pub(super) generation: &'a Generation,
    pub(super) runtime: Option<&'static Runtime>,
    // In this order: they are dropped when the call has ended.
    pub(super) _stack: Option<StackInPlace>,
    pub(super) _signals: SignalsBlocked,
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        match self.runtime {
            None => self.generation.phase.end_call(),
            Some(runtime) => runtime.pause.end_call(),
        }
    }
}

/// The managed ranges, locked for change.
pub(super) enum RegionsGuard<'a> {
    Early(MutexGuard<'a, Regions>),
    Armed(RwLockWriteGuard<'a, Regions>),
}

impl std::ops::Deref for RegionsGuard<'_> {
    type Target = Regions;
    fn deref(&self) -> &Regions {
        match self {
            Self::Early(regions) => regions,
            Self::Armed(regions) => regions,
        }
    }
}

impl std::ops::DerefMut for RegionsGuard<'_> {
    fn deref_mut(&mut self) -> &mut Regions {
        match self {
            Self::Early(regions) => regions,
            Self::Armed(regions) => regions,
        }
    }
}

/// Returns the words of a range, without those of clusters that are all holes. Takes no lock.
pub(super) fn words(
    runtime: &Runtime,
    range: Range<PageIndex>,
) -> impl Iterator<Item = (PageIndex, Word)> + '_ {
    let table = runtime.engine().swap().table();
    table
        .touched(range.start.cluster().0..range.end.0.div_ceil(CLUSTER_PAGES as u64))
        .flat_map(|number| (0..CLUSTER_PAGES).map(move |at| number.page(at)))
        .filter(move |page| range.contains(page))
        .map(|page| (page, table.peek(page)))
}

/// The freedom of a call that resizes a mapping.
#[derive(Clone, Copy, Debug)]
pub struct Remapping {
    /// Whether the mapping may end up elsewhere.
    pub may_move: bool,
    /// Whether the old place stays mapped, empty.
    pub keeps_old: bool,
}

impl Entered<'_> {
    pub(super) fn regions(&self) -> RegionsGuard<'_> {
        match self.runtime {
            None => RegionsGuard::Early(lock(&self.generation.early)),
            Some(runtime) => {
                RegionsGuard::Armed(runtime.engine().regions.write().unwrap_or_else(PoisonError::into_inner))
            }
        }
    }

    /// Returns whether a part of `range` is managed.
    pub fn manages(&self, range: Range<PageIndex>) -> bool {
        match self.runtime {
            Some(runtime) => {
                let regions = runtime.engine().regions.read().unwrap_or_else(PoisonError::into_inner);
                regions.pieces(range).next().is_some()
            }
            None => lock(&self.generation.early).pieces(range).next().is_some(),
        }
    }

    /// Manages a new private anonymous mapping from now on. Returns the number of pages that need no charge any more:
    /// those of a mapping that went from there by a call that we did not see.
    pub fn mapped(&self, range: Range<PageIndex>, mut attributes: Attributes) -> i64 {
        // Whoever gave up the place has done with it.
        let _layout = lock(&self.generation.layout);
        let (_, released) = self.giving_up(range.clone(), || Ok(()), |removed| self.forget(removed));
        attributes.locked |= self.holds_new();
        match self.runtime {
            None => self.regions().insert(range, attributes),
            Some(runtime) => {
                // What the kernel does not register (a mapping of another kind) is not managed.
                if runtime.register(range.clone()).is_ok() {
                    self.regions().insert(range.clone(), attributes);
                    // Populated already, by MAP_POPULATE or a lock: it counts.
                    runtime.adopt(range);
                }
            }
        }
        self.count_locked(None);
        released
    }

    /// Runs `call`, which unmaps `range` or replaces it. Returns its result, and the number of pages that were charged.
    pub fn unmapping<T>(
        &self,
        range: Range<PageIndex>,
        call: impl FnOnce() -> Result<T, i32>,
    ) -> (Result<T, i32>, i64) {
        let _layout = lock(&self.generation.layout);
        self.giving_up(range, call, |removed| self.forget(removed))
    }

    /// Runs `call`, which moves another mapping to `range`, and has the table forget the range itself. Returns its
    /// result, and the number of pages that need no charge any more.
    pub fn replacing<T>(
        &self,
        range: Range<PageIndex>,
        call: impl FnOnce() -> Result<T, i32>,
    ) -> (Result<T, i32>, i64) {
        self.giving_up(range, call, |_| {})
    }

    /// Runs `call`, after which what is managed of `range` now is not there any more, and then `forget`.
    fn giving_up<T>(
        &self,
        range: Range<PageIndex>,
        call: impl FnOnce() -> Result<T, i32>,
        forget: impl FnOnce(&[(Range<PageIndex>, Region)]),
    ) -> (Result<T, i32>, i64) {
        // No region: no fault brings anything in there any more, and nothing is taken out.
        let removed = self.regions().remove(range);
        let result = call();
        if result.is_ok() {
            forget(&removed);
            self.count_locked(None);
            return (result, removed.iter().map(|(part, region)| charge(part, &region.attributes)).sum());
        }
        // The kernel refused (too many mappings): the mapping is still there, and so is what is out of it.
        self.restore(&removed);
        (result, 0)
    }

    /// The table forgets what was in regions that are not there any more.
    pub(super) fn forget(&self, removed: &[(Range<PageIndex>, Region)]) {
        if let Some(runtime) = self.runtime {
            for (part, _) in removed {
                runtime.engine().discard(part.clone(), |_| {});
            }
        }
    }

    fn register_again(&self, range: Range<PageIndex>) {
        let Some(runtime) = self.runtime else { return };
        if let Err(error) = runtime.register(range) {
            // What is out of the program could not be brought back any more.
            task::say(&format!("cannot register a mapping that moved: {error}"));
            task::kill_self();
        }
    }

    /// Puts regions back that a call, which failed, did not take.
    fn restore(&self, removed: &[(Range<PageIndex>, Region)]) {
        for (part, region) in removed {
            self.regions().insert(part.clone(), region.attributes);
        }
    }

    /// Runs `call`, which changes the program's access to `range`, and notes the change. Returns its result, and the
    /// number of pages that need no charge any more.
    pub fn protecting<T>(
        &self,
        range: Range<PageIndex>,
        access: Access,
        call: impl FnOnce() -> Result<T, i32>,
    ) -> (Result<T, i32>, i64) {
        let mut regions = self.regions();
        // Under the lock: a take-out must not see one access and meet another.
        let result = call();
        let pieces: Vec<_> = regions.pieces(range).collect();
        let mut released = 0;
        for (part, region) in pieces {
            // What failed may have changed a part (up to a hole, ENOMEM): less is never wrong, since what leaves is
            // made writable where it lands.
            let access = if result.is_ok() { access } else { access.min(region.attributes.access) };
            let after = Attributes { access, ..region.attributes };
            released += (charge(&part, &region.attributes) - charge(&part, &after)).max(0);
            regions.insert(part, after);
        }
        drop(regions);
        self.count_locked(None);
        (result, released)
    }

    /// Has the managed pages of `range` stay in memory from now on, if `locked`, or not any more. Pages that are out
    /// come back when they are touched.
    pub fn hold(&self, range: Range<PageIndex>, locked: bool) {
        self.regions().change(range, |attributes| attributes.locked = locked);
        self.count_locked(None);
    }

    /// Has all managed pages stay in memory from now on, if `locked`, or not any more.
    pub fn hold_all(&self, locked: bool) {
        for range in self.ranges() {
            self.regions().change(range, |attributes| attributes.locked = locked);
        }
        self.count_locked(Some(locked));
    }

    /// Has no managed page of `range` leave from now on, without counting it as locked. Pages that are out come back
    /// when they are touched.
    pub fn keep(&self, range: Range<PageIndex>) {
        self.regions().change(range, |attributes| attributes.kept = true);
    }

    /// Sets whether memory that is mapped from now on stays in memory.
    pub fn hold_new(&self, locked: bool) {
        self.generation.holds_new.store(locked, Relaxed);
    }

    /// Returns whether memory that is mapped from now on stays in memory.
    pub fn holds_new(&self) -> bool {
        self.generation.holds_new.load(Relaxed)
    }

    /// Returns the runs of pages of `range` that are out of the program, of at most 64 pages each.
    pub fn out(&self, range: Range<PageIndex>) -> Vec<Range<PageIndex>> {
        let Some(runtime) = self.runtime else { return Vec::new() };
        let mut runs: Vec<Range<PageIndex>> = Vec::new();
        for (page, word) in words(runtime, range) {
            let out = matches!(word.state(), State::Swapped | State::Cached);
            match runs.last_mut() {
                _ if !out => {}
                Some(run) if run.end == page && page.0 - run.start.0 < RUN_MAX => run.end = page.plus(1),
                _ => runs.push(page..page.plus(1)),
            }
        }
        runs
    }

    /// Brings in what is out of `range`, whose pages do not leave, and waits for what is on its way.
    fn bring_in_range(&self, range: Range<PageIndex>) {
        loop {
            let out = self.out(range.clone());
            if out.is_empty() {
                return;
            }
            for run in out {
                task::populate(run.start.address(), run.end.address() - run.start.address());
            }
            std::thread::yield_now();
        }
    }

    /// Returns all managed ranges, ascending.
    pub fn ranges(&self) -> Vec<Range<PageIndex>> {
        self.regions().iter().map(|(start, region)| start..region.end).collect()
    }

    /// Returns whether a part of `range` must stay in memory.
    pub fn holds(&self, range: Range<PageIndex>) -> bool {
        self.regions().pieces(range).any(|(_, region)| region.attributes.locked)
    }

    /// Changes the contents of `range` that a forked child is to find.
    pub fn at_fork(&self, range: Range<PageIndex>, change: fn(&mut AtFork)) {
        self.regions().change(range, |attributes| change(&mut attributes.at_fork));
    }

    /// Drops the contents of `range`, which reads as zeroes afterwards. `call` makes the system call for each part of
    /// the range, in order.
    pub fn dropping(&self, range: Range<PageIndex>, mut call: impl FnMut(Range<PageIndex>)) {
        match self.runtime {
            None => call(range),
            Some(runtime) => runtime.engine().discard(range, call),
        }
    }

    /// Moves a mapping, or changes its size, to `new_pages` pages. `call` makes the system call and returns the first
    /// page of the new place. Returns that page, and the number of pages by which the charge is more than before.
    ///
    /// # Errors
    /// The errno with which `call` failed. Then nothing has changed.
    pub fn remapping(
        &self,
        old: Range<PageIndex>,
        new_pages: u64,
        way: Remapping,
        call: impl FnOnce() -> Result<PageIndex, i32>,
    ) -> Result<(PageIndex, i64), i32> {
        let Remapping { may_move, keeps_old } = way;
        let _layout = lock(&self.generation.layout);
        let moved_pages = new_pages.min(old.end.0 - old.start.0);
        let from = old.start..old.start.plus(moved_pages);
        // What a locked mapping grows by is filled by the call itself, which would wait for itself if those faults were
        // ours. The rest is there, and stays: whoever touches it meanwhile finds it.
        let is_filled = |Attributes { locked, access, .. }: Attributes| locked && access != Access::None;
        let fills = new_pages > moved_pages
            && self.regions().pieces(old.clone()).all(|(_, region)| is_filled(region.attributes));
        if fills {
            self.bring_in_range(old.clone());
        }
        // What it shrinks by goes in any case.
        let tail = self.regions().remove(from.end..old.end);
        let removed = self.regions().remove(from.clone());
        let released = self.runtime.filter(|_| may_move || fills);
        let _moving = released.map(|runtime| runtime.engine().begin_move(moved_pages));
        if let Some(runtime) = released {
            // Quiet now: no region, so no faults are served and nothing is taken out. What is on probation
            // sits at its offset in a cluster, which the move may change: it goes back first.
            // An error means that a part is not registered: it was unmapped behind our back.
            let _ = runtime.release(from);
        }
        let to = match call() {
            Ok(to) => to,
            Err(error) => {
                if released.is_some() {
                    removed.iter().for_each(|(part, _)| self.register_again(part.clone()));
                }
                self.restore(&removed);
                self.restore(&tail);
                return Err(error);
            }
        };
        self.forget(&tail);
        let mut more = -tail.iter().map(|(part, region)| charge(part, &region.attributes)).sum::<i64>();
        if let Some(runtime) = self.runtime
            && to != old.start
        {
            runtime.engine().discard(to..to.plus(new_pages), |_| {});
            runtime.engine().rename(old.start, to, moved_pages);
        }
        for (nth, (part, region)) in removed.iter().enumerate() {
            let at = |page: PageIndex| to.plus(page.0 - old.start.0);
            let last = nth + 1 == removed.len() && new_pages > moved_pages;
            let end = if last { to.plus(new_pages) } else { at(part.end) };
            self.register_again(at(part.start)..end);
            let mut regions = self.regions();
            regions.insert(at(part.start)..at(part.end), region.attributes);
            if last {
                // What it grows by is like the end of it, though nothing is written there that it is kept for.
                let grown = Attributes { kept: false, ..region.attributes };
                more += charge(&(at(part.end)..end), &grown);
                regions.insert(at(part.end)..end, grown);
            }
        }
        if keeps_old {
            more += removed.iter().map(|(part, region)| charge(part, &region.attributes)).sum::<i64>();
            removed.iter().for_each(|(part, _)| self.register_again(part.clone()));
            self.restore(&removed);
        }
        self.count_locked(None);
        Ok((to, more))
    }
}
