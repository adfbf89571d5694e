//! Objects that were files of programs: memfds, and files of tmpfs that a program of the run made.
//!
//! The keeper has the only open file description of such a file, and a lease of it; programs have O_PATH descriptors,
//! *fronts*, by which nothing can be read or written. Whoever opens the file, by its name or through `/proc`, waits until
//! all of it is in memory; from then on it is the kernel's alone (*retired*).

use super::Keeper;
use crate::processes::tree::pids;
use pagetide::group::{ENVIRONMENT, Field, Group};
use pagetide::regions::{Access, Attributes, Charging};
use pagetide_page::PageIndex;
use pagetide_sys::keeper::{Adopted, Memfd};
use pagetide_sys::mapped_files::{FileId, made};
use pagetide_sys::procfs;
use pagetide_sys::task::say;
use rustix::fs::{AtFlags, CWD, StatxFlags};
use rustix::io::Errno;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

/// Between looks for fronts of a file that nobody maps, and the looks that find none before it is forgotten.
pub(super) const LOOK_FOR_DESCRIPTORS: Duration = Duration::from_secs(1);
const LOOKS: u32 = 2;

/// Whether a file is younger than the run, whose group page is a file too.
fn is_of_the_run(file: &OwnedFd) -> bool {
    let began = || {
        let group_page = std::env::var_os(ENVIRONMENT)?;
        made(&rustix::fs::statx(CWD, &*group_page, AtFlags::empty(), StatxFlags::BTIME).ok()?)
    };
    let file = rustix::fs::statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::BTIME);
    let made = file.ok().and_then(|stat| made(&stat));
    began().is_some_and(|began| made.is_some_and(|made| made >= began))
}

/// Looks of an object that nobody maps, in which no front of it was found.
#[derive(Debug)]
pub(super) struct Idle {
    next_look: Instant,
    looks: u32,
}

/// Whether a process has a front of a file. One that is not to be seen may, if it is of the run.
fn has_front(group: Group, file: FileId) -> bool {
    let own = std::process::id();
    let is_of_the_run =
        |pid| group.live().any(|slot| [0, u64::from(pid)].contains(&slot.get(Field::KnownAs)));
    pids().any(|pid| pid != own && procfs::has_open(pid, file).unwrap_or_else(|| is_of_the_run(pid)))
}

impl Keeper {
    /// Makes an object of a program's file. Returns its first page and its pages.
    pub(super) fn adopt(&mut self, nth: usize, file: OwnedFd) -> Result<[u64; 4], Errno> {
        if !is_of_the_run(&file) {
            return Err(Errno::PERM);
        }
        self.prepare()?;
        let range = self.objects.adopt(file)?;
        let (file, ragged) = self
            .objects
            .ask(range.start, |memfd| (memfd.adopted(), memfd.is_ragged()))
            .ok_or(Errno::NOENT)?;
        // From here on its mappings are the keeper's in all accounts: what it holds already is charged just now.
        if !file.is_some_and(|file| self.group.list_served(file)) || !self.serve_pages(range.clone()) {
            file.into_iter().for_each(|file| self.group.unlist_served(file));
            self.objects.remove(range.start);
            return Err(Errno::NOMEM);
        }
        if ragged {
            // What lies behind the end of the file cannot be read from it.
            self.process.enter().keep(PageIndex(range.end.0 - 1)..range.end);
        }
        self.clients[nth].kept.push(range.start);
        Ok([range.start.0, range.end.0 - range.start.0, 0, 0])
    }

    /// Has the engine serve the pages of an object. False if it cannot.
    pub(super) fn serve_pages(&self, range: Range<PageIndex>) -> bool {
        let entered = self.process.enter();
        entered.mapped(range.clone(), Attributes::new(Access::Write, Charging::ByMapping));
        entered.manages(range)
    }

    /// Finds the object of a file, for a process that has a descriptor of it, which is its claim.
    pub(super) fn find(&mut self, nth: usize, file: &OwnedFd) -> Result<[u64; 4], Errno> {
        let file = FileId::of(&rustix::fs::fstat(file)?);
        let found = self.objects.adopted().into_iter().find(|adopted| adopted.file == file);
        let Adopted { range, retired, .. } = found.ok_or(Errno::NOENT)?;
        self.clients[nth].kept.push(range.start);
        Ok([range.start.0, range.end.0 - range.start.0, retired.into(), 0])
    }

    /// Brings all of an object into memory, and leaves it to the kernel. That may pass the cap: whoever waits to open the
    /// file must not read zeroes, and cannot be told to wait for good.
    pub(super) fn retire(&self, object: &Adopted) {
        let Some(runtime) = self.process.runtime().filter(|_| !object.retired) else { return };
        let range = object.range.clone();
        let out = self.process.enter().out(range.clone());
        let pages: u64 = out.iter().map(|run| run.end.0 - run.start.0).sum();
        if self.objects.ask(range.start, Memfd::room).flatten().is_none_or(|room| room >= pages) {
            runtime.overdrawing(pages as i64, || self.process.enter().hand_over(range));
        } else {
            // To wait for room that others have taken could take for ever, and zeroes would be false.
            say(&format!(
                "{} cannot come back into memory, for its file system is full: it is empty now",
                self.objects.ask(range.start, Memfd::shown).unwrap_or_default()
            ));
            // First the region: a page on its way in would make the file longer again, with holes in it.
            self.release(range.clone());
            self.objects.ask(range.start, Memfd::clear);
        }
        self.objects.retire(object.range.start);
        self.group.unlist_served(object.file);
    }

    /// Retires the object that begins with `first`.
    pub(super) fn retire_by_number(&mut self, first: PageIndex) {
        self.say_retired(
            "a program of it reads, writes or passes on a file of its shared memory by a descriptor",
        );
        adopted_at(&self.objects.adopted(), first).into_iter().for_each(|object| self.retire(object));
    }

    /// Retires the objects that somebody waits to open.
    pub(super) fn end_leases(&mut self) {
        self.breaks.clear();
        for object in self.objects.adopted().iter().filter(|object| !object.retired) {
            if self.objects.ask(object.range.start, Memfd::is_wanted) == Some(true) {
                self.say_retired("somebody opens a file of its shared memory");
                self.retire(object);
            }
        }
    }

    /// Says, once, why objects cannot leave any more.
    fn say_retired(&mut self, why: &str) {
        if !std::mem::replace(&mut self.said_retired, true) {
            say(&format!("{why}: all of such a file comes into memory, and stays there (docs/limits.md)"));
        }
    }

    /// Whether an object that nobody maps is to be kept: it has a name, or a process has a front of it, or had one not long
    /// ago. All processes are looked at: one that is about to begin another program may have no slot.
    pub(super) fn is_open(&mut self, object: &Adopted) -> bool {
        let first = object.range.start;
        if self.objects.ask(first, Memfd::has_name) == Some(true) {
            return true;
        }
        let now = Instant::now();
        let idle = self.idle.entry(first).or_insert(Idle { next_look: now + LOOK_FOR_DESCRIPTORS, looks: 0 });
        if now < idle.next_look {
            return true;
        }
        // What begins while all are looked at is there at the next look.
        idle.next_look = now + LOOK_FOR_DESCRIPTORS;
        idle.looks = if has_front(self.group, object.file) { 0 } else { idle.looks + 1 };
        idle.looks < LOOKS
    }

    /// Forgets an object that nobody can reach any more.
    pub(super) fn forget(&self, object: &Adopted) {
        if self.objects.ask(object.range.start, Memfd::is_wanted) == Some(true) {
            self.retire(object);
        } else if !object.retired {
            // Who has a front on its way to another process must not find zeroes by it.
            self.objects.ask(object.range.start, Memfd::clear);
            self.group.unlist_served(object.file);
        }
    }

    /// Brings back what the run leaves behind: files that have a name.
    pub(super) fn leave_behind(&self) {
        let has_name =
            |object: &&Adopted| self.objects.ask(object.range.start, Memfd::has_name) == Some(true);
        self.objects.adopted().iter().filter(has_name).for_each(|object| self.retire(object));
    }
}

/// Which of these objects begins with that page.
pub(super) fn adopted_at(objects: &[Adopted], first: PageIndex) -> Option<&Adopted> {
    objects.iter().find(|object| object.range.start == first)
}
