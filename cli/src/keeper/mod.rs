//! The keeper of a run's shared memory: a process beside the program, with an engine whose memory is the objects that
//! processes of the run share ([`pagetide_sys::keeper`]).
//!
//! The launcher starts it when the first process makes an object. It ends when the launcher and all processes that map
//! objects have gone.

mod files;
pub(crate) mod link;

use crate::beside;
use crate::failure::Failure;
use pagetide::group::{Field, Group, SLOTS};
use pagetide::process::Process;
use pagetide::runtime::MemorySource;
use pagetide_page::PageIndex;
use pagetide_sys::engine_thread;
use pagetide_sys::keeper::wire::{self, Ask, Message};
use pagetide_sys::keeper::{Breaks, Objects, are_pages_small};
use pagetide_sys::task::say;
use pagetide_sys::uffd::Uffd;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

/// Nanoseconds between looks at processes that have closed their connection and may still run.
const LOOK: i64 = 10_000_000;

/// A process that is connected.
struct Client {
    socket: OwnedFd,
    pid: u32,
    /// Its number among the objects' members, once it has joined.
    member: Option<u32>,
    /// Objects that are kept for it until it has attached them.
    kept: Vec<PageIndex>,
}

/// Objects that are kept for a forked child, by the number and tenancy of its slot.
type Heirs = HashMap<(usize, u64), Inheritance>;

/// What a child may open, and the user whose process its parent is: nobody else's has a claim to it.
struct Inheritance {
    objects: Vec<PageIndex>,
    owner: Option<u32>,
}

/// The user to whom the kernel says that a process belongs.
fn owner(pid: u32) -> Option<u32> {
    std::fs::metadata(format!("/proc/{pid}")).ok().map(|found| found.uid())
}

struct Keeper {
    process: &'static Process,
    group: Group,
    objects: Arc<Objects>,
    clients: Vec<Client>,
    heirs: Heirs,
    /// Whether objects may be made: their pages must be able to leave one by one.
    makes: bool,
    /// Where it is told that somebody opens a file that is an object.
    breaks: Breaks,
    /// Whether there is a file that nobody maps, and who still has it is to be looked for.
    looks: bool,
    /// Files that nobody maps.
    idle: HashMap<PageIndex, files::Idle>,
    /// Whether it was said that a file is the kernel's alone again.
    said_retired: bool,
}

/// Keeps the shared memory of the run that the environment names, for the processes that the launcher sends over
/// standard input. Returns the exit status.
pub(crate) fn keep() -> Result<u8, Failure> {
    let failed = |text: &str| beside::failure(link::COMMAND, text);
    let group = beside::join(link::COMMAND)?;
    let _ = rustix::thread::set_name(c"pagetide-keeper");
    have_all_descriptors();
    let breaks = Breaks::watch().map_err(|error| failed(&error.to_string()))?;
    engine_thread::make_by(|name, run| std::thread::Builder::new().name(name.into()).spawn(run).map(drop));
    group.join_log();
    pagetide_sys::log!(Info, "the keeper of shared memory begins");
    let objects = Arc::new(Objects::new().map_err(|error| failed(&error.to_string()))?);
    let source = MemorySource::Objects(Arc::clone(&objects));
    let process = Process::join(group, source).ok_or_else(|| failed("the run has too many processes"))?;
    let process: &'static Process = Box::leak(Box::new(process));
    process.slot().set(Field::Keeps, 1);
    let makes = are_pages_small();
    if !makes {
        pagetide_sys::log!(Info, "shared memory has huge pages here: it stays in memory");
    }
    let (clients, heirs, looks) = (Vec::new(), HashMap::new(), false);
    let keeper = Keeper {
        process,
        group,
        objects,
        clients,
        heirs,
        makes,
        breaks,
        looks,
        idle: HashMap::new(),
        said_retired: false,
    };
    keeper.serve(std::io::stdin().as_fd());
    Ok(0)
}

/// Allows this process as many descriptors as it may allow itself: each object takes one, each process that maps some two, and
/// the limit that the run was started with (1024 as a rule) is for programs.
fn have_all_descriptors() {
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}

impl Keeper {
    fn serve(mut self, control: BorrowedFd<'_>) {
        let mut has_launcher = true;
        let mut leaving = 0;
        loop {
            let ready: Vec<bool> = {
                let sockets = self.clients.iter().map(|client| client.socket.as_fd());
                let control = has_launcher.then_some(control);
                let mut polled: Vec<_> = [self.breaks.as_fd()]
                    .into_iter()
                    .chain(control)
                    .chain(sockets)
                    .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
                    .collect();
                let soon = Timespec { tv_sec: 0, tv_nsec: LOOK };
                let later = Timespec { tv_sec: files::LOOK_FOR_DESCRIPTORS.as_secs() as i64, tv_nsec: 0 };
                let waits = match (leaving > 0 || !self.heirs.is_empty(), self.looks) {
                    (true, _) => Some(&soon),
                    (false, true) => Some(&later),
                    (false, false) => None,
                };
                if poll(&mut polled, waits).is_err() {
                    continue;
                }
                polled.iter().map(|polled| !polled.revents().is_empty()).collect()
            };
            if ready[0] {
                self.end_leases();
            }
            let (called, spoke) = ready[1..].split_at(usize::from(has_launcher));
            let mut left = Vec::new();
            for nth in (0..spoke.len()).filter(|&nth| spoke[nth]) {
                if !self.hears(nth) {
                    left.push(nth);
                }
            }
            for nth in left.into_iter().rev() {
                let client = self.clients.remove(nth);
                client.member.into_iter().for_each(|member| self.objects.leave(member));
            }
            if called.first() == Some(&true) {
                has_launcher = self.admits(control);
            }
            leaving = self.objects.bury();
            self.sweep();
            if !has_launcher && self.clients.is_empty() && leaving == 0 {
                self.leave_behind();
                return;
            }
        }
    }

    /// Takes the connection of a process from the launcher. Returns whether the launcher is still there.
    fn admits(&mut self, control: BorrowedFd<'_>) -> bool {
        match wire::receive(control) {
            Ok((message, Some(socket))) if Ask::from_bits(message.word) == Some(Ask::Admit) => {
                let pid = message.numbers[0] as u32;
                self.clients.push(Client { socket, pid, member: None, kept: Vec::new() });
                true
            }
            Err(Errno::CONNRESET) => false,
            _ => true,
        }
    }

    /// Answers a request of a process. Returns whether it is still there.
    fn hears(&mut self, nth: usize) -> bool {
        let (message, descriptor) = match wire::receive(&self.clients[nth].socket) {
            Ok(received) => received,
            Err(Errno::AGAIN | Errno::INTR) => return true,
            Err(_) => return false,
        };
        let mut given = None;
        let result = match Ask::from_bits(message.word) {
            Some(ask) => self.answer(nth, ask, message.numbers, descriptor, &mut given),
            None => Err(Errno::BADMSG),
        };
        let given = given.as_ref().map(AsFd::as_fd);
        wire::send(&self.clients[nth].socket, &Message::answer(result), given).is_ok()
    }

    fn answer(
        &mut self,
        nth: usize,
        ask: Ask,
        numbers: [u64; 4],
        descriptor: Option<OwnedFd>,
        given: &mut Option<OwnedFd>,
    ) -> Result<[u64; 4], Errno> {
        let [a, b, c, _] = numbers;
        if ask == Ask::Join {
            self.join(nth, a, (b, c), descriptor.ok_or(Errno::BADMSG)?)?;
            return Ok([0; 4]);
        }
        let member = self.clients[nth].member.ok_or(Errno::PERM)?;
        match ask {
            Ask::Create => {
                let (first, memfd) = self.create(a)?;
                self.clients[nth].kept.push(first);
                *given = Some(memfd);
                return Ok([first.0, 0, 0, 0]);
            }
            Ask::Open => {
                let first = self.claimed(nth, member, a, 1)?.start;
                *given = Some(self.objects.descriptor(first)?);
            }
            Ask::Attach => {
                let end = a.checked_add(b).ok_or(Errno::INVAL)?;
                let page = self.claimed(nth, member, c, 1)?.start;
                self.objects.attach(member, a as usize..end as usize, page)?;
            }
            Ask::Detach => self.objects.detach(member, a as usize..a.saturating_add(b) as usize),
            Ask::Discard => self.discard(self.claimed(nth, member, a, b)?),
            Ask::Lock => {
                let (range, entered) = (self.claimed(nth, member, a, b)?, self.process.enter());
                if !self.process.lock_more(entered.unlocked(range.clone())) {
                    // It could never leave again.
                    return Err(Errno::NOMEM);
                }
                entered.hold(range, true);
            }
            Ask::Fork => {
                let index = usize::try_from(a).ok().filter(|&index| index < SLOTS).ok_or(Errno::INVAL)?;
                let mapped = self.objects.mapped_by(member);
                // A child that inherits nothing never comes for it.
                if !mapped.is_empty() {
                    let owner = owner(self.clients[nth].pid);
                    self.heirs.insert((index, b), Inheritance { objects: mapped, owner });
                }
            }
            Ask::Settle => self.clients[nth].kept.clear(),
            Ask::Adopt => return self.adopt(nth, descriptor.ok_or(Errno::BADMSG)?),
            Ask::Find => return self.find(nth, &descriptor.ok_or(Errno::BADMSG)?),
            Ask::Retire => self.retire_by_number(self.claimed(nth, member, a, 1)?.start),
            Ask::Join | Ask::Admit => return Err(Errno::BADMSG),
        }
        Ok([0; 4])
    }

    /// Pages of an object of which the process maps a part, or that is kept for it. Processes of a run may be different
    /// users', and a number of a page is no secret.
    fn claimed(&self, nth: usize, member: u32, page: u64, count: u64) -> Result<Range<PageIndex>, Errno> {
        let object = self.objects.object_of(PageIndex(page)).ok_or(Errno::NOENT)?;
        let end =
            page.checked_add(count).filter(|&end| count > 0 && end <= object.end.0).ok_or(Errno::INVAL)?;
        let is_kept = self.clients[nth].kept.contains(&object.start);
        let is_claimed = is_kept || self.objects.mapped_by(member).contains(&object.start);
        if is_claimed { Ok(PageIndex(page)..PageIndex(end)) } else { Err(Errno::PERM) }
    }

    fn join(&mut self, nth: usize, features: u64, slot: (u64, u64), uffd: OwnedFd) -> Result<(), Errno> {
        let client = &mut self.clients[nth];
        if client.member.is_some() {
            return Err(Errno::EXIST);
        }
        let (number, tenancy) = slot;
        let slot = self.group.live().find(|slot| slot.index() as u64 + 1 == number);
        let group = self.group;
        // A process without a slot has no place to say so.
        let pins = move || {
            slot.is_none_or(|slot| {
                let slot = group.slot(slot.index());
                slot.get(Field::Tenancy) != tenancy || slot.get(Field::Pins) != 0
            })
        };
        let member = self.objects.join(Uffd::received(uffd, features), client.pid, Box::new(pins))?;
        client.member = Some(member);
        if let Some(index) = number.checked_sub(1)
            && let Entry::Occupied(heir) = self.heirs.entry((index as usize, tenancy))
            && heir.get().owner == owner(client.pid)
        {
            client.kept.extend(heir.remove().objects);
        }
        Ok(())
    }

    /// Starts the engine, before the first object is made.
    fn prepare(&self) -> Result<(), Errno> {
        if !self.makes {
            return Err(Errno::NOSYS);
        }
        self.process.arm();
        self.process.runtime().map(drop).ok_or(Errno::NOMEM)
    }

    /// Makes an object, which the engine serves from its first page on.
    fn create(&self, pages: u64) -> Result<(PageIndex, OwnedFd), Errno> {
        self.prepare()?;
        let first = self.objects.create(pages)?;
        let memfd = self.objects.descriptor(first)?;
        if !self.serve_pages(first..first.plus(pages)) {
            self.objects.remove(first);
            return Err(Errno::NOMEM);
        }
        Ok((first, memfd))
    }

    fn discard(&self, range: Range<PageIndex>) {
        let punch = |part: Range<PageIndex>| {
            if let Err(error) = self.objects.punch(part) {
                say(&format!("cannot give shared memory back: {}", std::io::Error::from(error)));
            }
        };
        self.process.enter().dropping(range, punch);
    }

    /// Has the engine forget the pages of an object.
    fn release(&self, range: Range<PageIndex>) {
        let (_, released) = self.process.enter().unmapping(range, || Ok(()));
        self.process.uncharge(released);
    }

    /// Gives up objects that nobody maps and that are kept for nobody.
    fn sweep(&mut self) {
        let group = self.group;
        self.heirs.retain(|&(index, tenancy), _| {
            let slot = group.slot(index);
            slot.get(Field::Taken) != 0 && slot.get(Field::Tenancy) == tenancy
        });
        let kept = |first: PageIndex| {
            self.clients.iter().any(|client| client.kept.contains(&first))
                || self.heirs.values().any(|heir| heir.objects.contains(&first))
        };
        let adopted = self.objects.adopted();
        self.looks = false;
        let unmapped = self.objects.unmapped();
        self.idle.retain(|first, _| unmapped.iter().any(|range| range.start == *first) && !kept(*first));
        let unkept: Vec<_> = unmapped.into_iter().filter(|range| !kept(range.start)).collect();
        for range in unkept {
            if let Some(file) = files::adopted_at(&adopted, range.start) {
                if self.is_open(file) {
                    self.looks = true;
                    continue;
                }
                self.forget(file);
            }
            self.release(range.clone());
            self.objects.remove(range.start);
            self.idle.remove(&range.start);
        }
    }
}
