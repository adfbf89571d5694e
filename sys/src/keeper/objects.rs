//! The objects of a run, and the processes that map them.
//!
//! # How a page leaves
//! 1. Every mapping of it is protected against writes, through the userfaultfd of its process.
//! 2. Its bytes are read from the memfd, into a frame.
//! 3. If no process may pin memory, its hole is punched: no process has it mapped from then on.
//! 4. The protection ends. Who touches the page waits in a missing fault; who waited to write to it looks again.
//!
//! A page comes back by UFFDIO_COPY through the userfaultfd of a process that waits for it, which puts it into the memfd
//! and into that process's page table at once; all others find it in the memfd.

use super::Memfd;
use super::member::{Member, Pins};
use super::room;
use crate::lock::lock;
use crate::mapped_files::FileId;
use crate::staging::Slot;
use crate::uffd::{Fault, Partial, Uffd};
use pagetide_page::{CLUSTER_PAGES, ClusterNumber, PAGE_SIZE, PageIndex, PageSet};
use rustix::event::{EventfdFlags, epoll};
use rustix::io::Errno;
use std::collections::{BTreeMap, HashMap};
use std::mem::MaybeUninit;
use std::ops::Range;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// The first page of the first object: beyond what any mapping of the keeper itself is likely to have.
const FIRST: PageIndex = PageIndex::of_address(1 << 44);
/// The end of the numbers for objects: 16 TiB of them.
const END: PageIndex = PageIndex::of_address(1 << 45);

/// Between tries to bring a page into a file system that is full.
const FULL_WAIT: std::time::Duration = std::time::Duration::from_millis(10);
/// The bell's number among the processes'.
const BELL: u64 = u64::MAX;

/// Pages that are copied before they are given back: 64 KiB.
const PIECE_PAGES: u64 = 16;

/// All objects of a run.
#[derive(Debug)]
pub struct Objects {
    epoll: OwnedFd,
    /// Rings one of those who wait for faults: see [`Objects::ring`].
    bell: OwnedFd,
    layout: RwLock<Layout>,
    /// Who waits for which page, from reading a fault on until the page is there.
    waiting: Mutex<HashMap<PageIndex, Vec<Waiter>>>,
    /// Clusters that are being taken out, each with those who wait to write there.
    taking: Mutex<HashMap<ClusterNumber, Vec<Waiter>>>,
}

/// A thread that waits in a fault.
#[derive(Clone, Copy, Debug)]
struct Waiter {
    member: u32,
    address: usize,
}

#[derive(Debug, Default)]
struct Layout {
    /// By their first pages; each begins with a cluster of its own.
    objects: BTreeMap<PageIndex, Object>,
    members: HashMap<u32, Member>,
    joined: u32,
}

#[derive(Debug)]
struct Object {
    memfd: Memfd,
    /// The process that faulted last.
    last: AtomicU32,
    /// Whether it is the kernel's alone again.
    retired: bool,
    /// Whether it was said that pages of it wait for room in its file system.
    waits_for_room: AtomicBool,
}

impl Object {
    fn new(memfd: Memfd) -> Self {
        Self { memfd, last: AtomicU32::new(u32::MAX), retired: false, waits_for_room: AtomicBool::new(false) }
    }

    /// Says, once, that the file system has no room for a page which is to come back: nobody else tells why a program
    /// waits. Returns whether it has none.
    fn note_room(&self, error: Option<Errno>) -> bool {
        let is_full = error == Some(Errno::NOMEM) && self.memfd.room() == Some(0);
        if is_full && !self.waits_for_room.swap(true, Relaxed) {
            let what = self.memfd.shown();
            crate::task::say(&format!(
                "the file system of {what} is full: pages of that shared memory wait until it has room again"
            ));
        }
        is_full
    }
}

/// What a process may learn of an object that was a file of a program's.
#[derive(Clone, Debug)]
pub struct Adopted {
    /// Its pages.
    pub range: Range<PageIndex>,
    /// Which file it is.
    pub file: FileId,
    /// Whether it is the kernel's alone again.
    pub retired: bool,
}

impl Layout {
    /// The object that holds a page, and its first page.
    fn object(&self, page: PageIndex) -> Option<(PageIndex, &Object)> {
        let (&first, object) = self.objects.range(..=page).next_back()?;
        (page.0 - first.0 < object.memfd.pages()).then_some((first, object))
    }

    /// Whether anything is mapped of an object.
    fn is_mapped(&self, object: &Range<PageIndex>) -> bool {
        self.members.values().any(|member| member.mappings.parts(object).next().is_some())
    }

    fn wake(&self, waiter: Waiter) {
        if let Some(member) = self.members.get(&waiter.member) {
            member.uffd.wake(waiter.address, PAGE_SIZE);
        }
    }
}

impl Objects {
    /// No objects.
    ///
    /// # Errors
    /// There is no descriptor.
    pub fn new() -> Result<Self, Errno> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let bell = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        epoll::add(&epoll, &bell, epoll::EventData::new_u64(BELL), epoll::EventFlags::IN)?;
        let (layout, waiting, taking) = Default::default();
        Ok(Self { epoll, bell, layout, waiting, taking })
    }

    fn layout(&self) -> RwLockReadGuard<'_, Layout> {
        self.layout.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self) -> RwLockWriteGuard<'_, Layout> {
        self.layout.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// A process joins. Returns its number.
    ///
    /// # Errors
    /// Its userfaultfd cannot be waited for.
    pub fn join(&self, uffd: Uffd, pid: u32, pins: Pins) -> Result<u32, Errno> {
        let member = Member::new(uffd, pid, pins);
        let mut layout = self.change();
        let number = layout.joined;
        layout.joined += 1;
        let data = epoll::EventData::new_u64(number.into());
        epoll::add(&self.epoll, member.uffd.descriptor(), data, epoll::EventFlags::IN)?;
        layout.members.insert(number, member);
        Ok(number)
    }

    /// A process has closed its connection: it ends, or calls another program. Its threads may run for another instant,
    /// so its faults go on being answered until [`Objects::bury`] finds its memory gone.
    pub fn leave(&self, member: u32) {
        if let Some(member) = self.change().members.get_mut(&member) {
            member.gone = true;
        }
    }

    /// Forgets the processes that have left and whose memory is gone. Returns how many are left of those that have left.
    pub fn bury(&self) -> usize {
        let is_dead = |member: &Member| {
            let Some(start) = member.mappings.first() else { return true };
            // Ending the protection of a cluster on its way out would let a write come between its copy and its hole.
            let taking = lock(&self.taking);
            taking.is_empty() && member.uffd.write_protect(start, PAGE_SIZE, false) == Err(Errno::SRCH)
        };
        let (left, dead) = {
            let layout = self.layout();
            let left = || layout.members.iter().filter(|(_, member)| member.gone);
            let dead: Vec<u32> =
                left().filter(|(_, member)| is_dead(member)).map(|(&number, _)| number).collect();
            (left().count(), dead)
        };
        // Whoever changes the layout waits for take-outs: only where there is something to change.
        if !dead.is_empty() {
            let mut layout = self.change();
            dead.iter().for_each(|number| _ = layout.members.remove(number));
        }
        left - dead.len()
    }

    /// Makes a new object. Returns its first page.
    ///
    /// # Errors
    /// No memory, no descriptor (but for those that processes take which join), or no number is left.
    pub fn create(&self, pages: u64) -> Result<PageIndex, Errno> {
        self.place(Memfd::create(pages)?)
    }

    /// Makes an object of a file that a program had open, and has no more. Returns its pages.
    ///
    /// # Errors
    /// Those of [`Memfd::adopt`]; no number is left.
    pub fn adopt(&self, file: OwnedFd) -> Result<Range<PageIndex>, Errno> {
        let memfd = Memfd::adopt(file)?;
        let pages = memfd.pages();
        let first = self.place(memfd)?;
        Ok(first..first.plus(pages))
    }

    fn place(&self, memfd: Memfd) -> Result<PageIndex, Errno> {
        let pages = memfd.pages();
        let mut layout = self.change();
        room::check(memfd.descriptor().as_raw_fd() as u64, pages, layout.objects.len())?;
        // A cluster between two objects stays empty.
        let room = |pages: u64| pages.next_multiple_of(CLUSTER_PAGES as u64) + CLUSTER_PAGES as u64;
        let mut first = FIRST;
        for (&other, object) in &layout.objects {
            if other.0 - first.0 >= room(pages) {
                break;
            }
            first = other.plus(room(object.memfd.pages()));
        }
        if first.0 + room(pages) > END.0 {
            return Err(Errno::NOMEM);
        }
        layout.objects.insert(first, Object::new(memfd));
        Ok(first)
    }

    /// Returns a descriptor of the object that begins with that page, to be passed on.
    ///
    /// # Errors
    /// NOENT if there is no such object; no descriptor is left.
    pub fn descriptor(&self, first: PageIndex) -> Result<OwnedFd, Errno> {
        let layout = self.layout();
        let object = layout.objects.get(&first).ok_or(Errno::NOENT)?;
        rustix::io::fcntl_dupfd_cloexec(object.memfd.descriptor(), 0)
    }

    /// Registers what a process has mapped of an object, whose missing pages are faults from now on.
    ///
    /// # Errors
    /// INVAL if there is no such object or process, or it is not as long as that; what registering says.
    pub fn attach(&self, member: u32, addresses: Range<usize>, page: PageIndex) -> Result<(), Errno> {
        let mut layout = self.change();
        let layout = &mut *layout;
        let pages = addresses.end.saturating_sub(addresses.start) / PAGE_SIZE;
        let (&first, object) = layout.objects.range(..=page).next_back().ok_or(Errno::INVAL)?;
        if pages == 0 || page.0 - first.0 + pages as u64 > object.memfd.pages() {
            return Err(Errno::INVAL);
        }
        let member = layout.members.get_mut(&member).ok_or(Errno::INVAL)?;
        if !object.retired {
            // SAFETY: the descriptor is another process's, which says that it maps the object there and waits.
            unsafe { member.uffd.register_shared(addresses.start, addresses.end - addresses.start)? };
        }
        member.mappings.insert(addresses, page);
        Ok(())
    }

    /// Notes that a process has unmapped what it had there.
    pub fn detach(&self, member: u32, addresses: Range<usize>) {
        if let Some(member) = self.change().members.get_mut(&member) {
            member.mappings.remove(&addresses);
        }
    }

    /// Objects that nobody maps, by their pages.
    pub fn unmapped(&self) -> Vec<Range<PageIndex>> {
        let layout = self.layout();
        let ranges = layout.objects.iter().map(|(&first, object)| first..first.plus(object.memfd.pages()));
        ranges.filter(|range| !layout.is_mapped(range)).collect()
    }

    /// The first pages of the objects of which a process maps a part.
    pub fn mapped_by(&self, member: u32) -> Vec<PageIndex> {
        let layout = self.layout();
        let Some(member) = layout.members.get(&member) else { return Vec::new() };
        let ranges = layout.objects.iter().map(|(&first, object)| first..first.plus(object.memfd.pages()));
        ranges
            .filter(|range| member.mappings.parts(range).next().is_some())
            .map(|range| range.start)
            .collect()
    }

    /// The pages of the object that a page belongs to.
    pub fn object_of(&self, page: PageIndex) -> Option<Range<PageIndex>> {
        let layout = self.layout();
        layout.object(page).map(|(first, object)| first..first.plus(object.memfd.pages()))
    }

    /// Gives an object up that nobody maps.
    pub fn remove(&self, first: PageIndex) {
        self.change().objects.remove(&first);
    }

    /// Objects that were files of programs.
    pub fn adopted(&self) -> Vec<Adopted> {
        let layout = self.layout();
        let adopted = |(&first, object): (&PageIndex, &Object)| {
            let range = first..first.plus(object.memfd.pages());
            Some(Adopted { range, file: object.memfd.adopted()?, retired: object.retired })
        };
        layout.objects.iter().filter_map(adopted).collect()
    }

    /// Asks something about the file of an object; `None` if there is no such object.
    pub fn ask<T>(&self, first: PageIndex, question: impl FnOnce(&Memfd) -> T) -> Option<T> {
        self.layout().objects.get(&first).map(|object| question(&object.memfd))
    }

    /// Leaves an object, all of which is in memory, to the kernel: nobody's faults there come here any more, and everybody
    /// may open its file.
    pub fn retire(&self, first: PageIndex) {
        let mut layout = self.change();
        let layout = &mut *layout;
        let Some(object) = layout.objects.get_mut(&first) else { return };
        object.retired = true;
        let range = first..first.plus(object.memfd.pages());
        for member in layout.members.values() {
            for (address, length) in member.mappings.parts(&range) {
                // SAFETY: all of the object is in its file. Who maps something else there detaches the object before it
                // registers that: what is registered is the object. An error means that the process has gone.
                let _ = unsafe { member.uffd.unregister(address, length) };
            }
        }
        object.memfd.give_up();
    }

    /// Has one of those who wait for faults return without one.
    pub fn ring(&self) {
        // It is full only if it rings already.
        let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
    }

    /// Waits for a fault. Its address is that of the page in the keeper's numbers. `None` if there was none to answer.
    ///
    /// # Errors
    /// INTR: a signal came.
    pub fn wait(&self) -> Result<Option<Fault>, Errno> {
        let mut events = [MaybeUninit::<epoll::Event>::uninit(); 1];
        let (ready, _) = epoll::wait(&self.epoll, &mut events, None)?;
        let Some(number) = ready.first().map(|event| event.data.u64()) else { return Ok(None) };
        if number == BELL {
            let _ = rustix::io::read(&self.bell, &mut [0; 8]);
            return Ok(None);
        }
        let number = number as u32;
        let layout = self.layout();
        let Some(member) = layout.members.get(&number) else { return Ok(None) };
        // Another thread may have read it.
        let Ok(Some(fault)) = member.uffd.read() else { return Ok(None) };
        let Some(page) = member.mappings.page(fault.address) else {
            // It was unmapped: the thread learns that when it looks again.
            member.uffd.wake(fault.address, PAGE_SIZE);
            return Ok(None);
        };
        let waiter = Waiter { member: number, address: fault.address };
        if fault.protected {
            self.wait_to_write(&layout, page, waiter);
            return Ok(None);
        }
        lock(&self.waiting).entry(page).or_default().push(waiter);
        if let Some((_, object)) = layout.object(page) {
            object.last.store(number, Relaxed);
        }
        Ok(Some(Fault { address: page.address(), ..fault }))
    }

    /// A thread waits to write to a page that is, or was, protected.
    fn wait_to_write(&self, layout: &Layout, page: PageIndex, waiter: Waiter) {
        let mut taking = lock(&self.taking);
        if let Some(waiters) = taking.get_mut(&page.cluster()) {
            waiters.push(waiter);
        } else if let Some(member) = layout.members.get(&waiter.member) {
            // With the lock held: nothing is being taken out there, and nothing begins to be.
            let _ = member.uffd.write_protect(waiter.address, PAGE_SIZE, false);
            member.uffd.wake(waiter.address, PAGE_SIZE);
        }
    }

    /// Those who wait for pages of a range, and do not any more.
    fn take_waiters(&self, page: PageIndex, count: usize) -> Vec<Waiter> {
        let mut waiting = lock(&self.waiting);
        (0..count as u64).filter_map(|nth| waiting.remove(&page.plus(nth))).flatten().collect()
    }

    /// Makes whoever waits for these pages look again.
    pub fn wake(&self, page: PageIndex, count: usize) {
        let layout = self.layout();
        self.take_waiters(page, count).into_iter().for_each(|waiter| layout.wake(waiter));
    }

    /// Copies bytes to missing pages, and wakes.
    pub fn copy_in(&self, page: PageIndex, bytes: &[u8]) -> Partial {
        let layout = self.layout();
        let Some((first, object)) = layout.object(page) else { return (0, Some(Errno::NOENT)) };
        let (mut done, mut error) = self.copy_by_member(&layout, object, page, bytes);
        if done < bytes.len() && !matches!(error, Some(Errno::EXIST | Errno::NOMEM)) {
            // Nobody waits, or who did has ended or has unmapped it.
            let mut at = page.0 - first.0 + (done / PAGE_SIZE) as u64;
            error = bytes[done..].chunks(PAGE_SIZE).find_map(|one| {
                let there = object.memfd.present(at..at + 1).is_ok_and(|runs| !runs.is_empty());
                let written = if there { Err(Errno::EXIST) } else { object.memfd.write(at, one) };
                (at, done) = written.map_or((at, done), |()| (at + 1, done + PAGE_SIZE));
                written.err()
            });
        }
        // No room for the page: it stays where it is, and whoever waits for it goes on waiting.
        error = error
            .map(|error| if matches!(error, Errno::NOSPC | Errno::DQUOT) { Errno::NOMEM } else { error });
        let is_full = object.memfd.adopted().is_some() && object.note_room(error);
        for waiter in self.take_waiters(page, done / PAGE_SIZE) {
            layout.wake(waiter);
        }
        drop(layout);
        if is_full {
            // Whoever waits faults again at once.
            std::thread::sleep(FULL_WAIT);
        }
        (done, error)
    }

    /// Copies by the descriptor of a process that waits for one of the pages, or else waited last for one of the object.
    fn copy_by_member(&self, layout: &Layout, object: &Object, page: PageIndex, bytes: &[u8]) -> Partial {
        let count = bytes.len() / PAGE_SIZE;
        let waiter = {
            let waiting = lock(&self.waiting);
            (0..count).find_map(|nth| {
                let waiter = waiting.get(&page.plus(nth as u64))?.first()?;
                Some((waiter.member, waiter.address.wrapping_sub(nth * PAGE_SIZE)))
            })
        };
        let target = match waiter {
            Some((number, address)) => layout
                .members
                .get(&number)
                .filter(|member| {
                    let last = address.wrapping_add((count - 1) * PAGE_SIZE);
                    member.mappings.page(address) == Some(page)
                        && member.mappings.page(last) == Some(page.plus(count as u64 - 1))
                })
                .map(|member| (member, address)),
            None => layout
                .members
                .get(&object.last.load(Relaxed))
                .and_then(|member| Some((member, member.address(page, count)?))),
        };
        match target {
            // SAFETY: the memory is another process's, which has said that it maps these pages of the object there.
            Some((member, address)) => unsafe { member.uffd.copy(address, bytes) },
            None => (0, None),
        }
    }

    /// Makes a page unreadable for those who wait for it, and wakes them. Returns false if the system cannot.
    pub fn poison(&self, page: PageIndex) -> bool {
        let layout = self.layout();
        let mut done = true;
        for waiter in self.take_waiters(page, 1) {
            let Some(member) = layout.members.get(&waiter.member) else { continue };
            // SAFETY: as in `copy_by_member`.
            done &= member.gone || unsafe { member.uffd.poison(waiter.address, PAGE_SIZE) };
            member.uffd.wake(waiter.address, PAGE_SIZE);
        }
        done
    }

    /// Pages of a range, which lies in one cluster, that are there.
    ///
    /// # Errors
    /// What the kernel says of the memfd.
    pub fn present(&self, range: Range<PageIndex>) -> Result<PageSet, Errno> {
        let layout = self.layout();
        let Some((first, object)) = layout.object(range.start) else { return Ok(PageSet::default()) };
        let runs = object.memfd.present(range.start.0 - first.0..range.end.0 - first.0)?;
        let offset = |page: u64| (page + first.0 - range.start.cluster().page(0).0) as usize;
        let sets = runs.into_iter().map(|run| PageSet::range(offset(run.start)..offset(run.end)));
        Ok(sets.fold(PageSet::default(), PageSet::or))
    }

    /// Whether a process that maps objects may have pinned its memory.
    pub fn may_pin(&self) -> bool {
        self.layout().members.values().any(Member::may_pin)
    }

    /// Looks whether a process that maps objects has something open that pins its memory.
    pub fn look_for_pins(&self) {
        self.layout().members.values().for_each(Member::look_for_pins);
    }

    /// Contents of a range go: its pages are holes.
    ///
    /// # Errors
    /// What the kernel says of the memfd.
    pub fn punch(&self, range: Range<PageIndex>) -> Result<(), Errno> {
        let layout = self.layout();
        let Some((first, object)) = layout.object(range.start) else { return Err(Errno::INVAL) };
        object.memfd.punch(range.start.0 - first.0..range.end.0 - first.0)
    }

    /// Takes the pages of a range, which lies in one cluster, into the slot. After an error those that were not reached
    /// are where they were.
    ///
    /// # Errors
    /// BUSY if a process may have pinned them; NOENT if a mapping has changed and its process has not said so yet.
    pub fn take_out(
        &self,
        range: Range<PageIndex>,
        slot: &mut Slot,
        is_crossed: &dyn Fn() -> bool,
    ) -> Result<(), Errno> {
        let layout = self.layout();
        let (first, object) = layout.object(range.start).ok_or(Errno::NOENT)?;
        let cluster = range.start.cluster();
        lock(&self.taking).insert(cluster, Vec::new());
        let result = Self::take_out_protected(&layout, (first, object), &range, slot, is_crossed);
        for member in layout.members.values() {
            member.mappings.parts(&range).for_each(|(address, length)| member.unprotect(address, length));
        }
        let waiters = lock(&self.taking).remove(&cluster);
        waiters.into_iter().flatten().for_each(|waiter| layout.wake(waiter));
        result
    }

    fn take_out_protected(
        layout: &Layout,
        (first, object): (PageIndex, &Object),
        range: &Range<PageIndex>,
        slot: &mut Slot,
        is_crossed: &dyn Fn() -> bool,
    ) -> Result<(), Errno> {
        for member in layout.members.values() {
            for (address, length) in member.mappings.parts(range) {
                match member.uffd.write_protect(address, length, true) {
                    // It has ended.
                    Err(Errno::SRCH) => {}
                    other => other?,
                }
            }
        }
        // Cross-memory attach: who begins from now on faults first.
        if is_crossed() {
            return Err(Errno::BUSY);
        }
        let pages = range.start.0 - first.0..range.end.0 - first.0;
        let runs = object.memfd.present(pages.clone())?;
        let offset = |page: u64| (page + first.0 - range.start.cluster().page(0).0) as usize;
        // Piece by piece: what was copied and is not punched yet takes memory twice. Nothing comes into the range
        // meanwhile, so what lies between two runs is a hole, and one call punches several.
        let (mut copied, mut from) = (PageSet::default(), pages.start);
        let pieces = runs.iter().flat_map(|run| {
            let starts = (run.start..run.end).step_by(PIECE_PAGES as usize);
            starts.map(|start| start..(start + PIECE_PAGES).min(run.end))
        });
        let mut pieces = pieces.peekable();
        while let Some(piece) = pieces.next() {
            let (at, count) = (offset(piece.start), (piece.end - piece.start) as usize);
            let filled = slot.fill(at, count, |bytes| object.memfd.read(piece.start, bytes));
            filled.inspect_err(|_| slot.retain(slot.populated().minus(copied)))?;
            copied = copied.or(PageSet::range(at..at + count));
            let next = pieces.peek().map_or(0, |next| (next.end - next.start) as usize);
            if next > 0 && copied.len() + next <= PIECE_PAGES as usize {
                continue;
            }
            // After the protection: who pins from now on faults first, and finds the page gone.
            if layout.members.values().any(Member::may_pin) {
                slot.retain(slot.populated().minus(copied));
                return Err(Errno::BUSY);
            }
            // What cannot be punched is still there: see below.
            let _ = object.memfd.punch(from..piece.end);
            (copied, from) = (PageSet::default(), piece.end);
        }
        let left = object.memfd.present(pages)?;
        if !left.is_empty() {
            // A larger page, of which a part was overwritten with zeroes: whoever reads it would get a wrong byte.
            crate::task::say(
                "shared memory has huge pages, which cannot leave page by page: the run cannot go on",
            );
            crate::task::kill_self();
        }
        Ok(())
    }
}
