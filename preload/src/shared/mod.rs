//! Shared memory that the keeper of the run serves ([`pagetide_sys::keeper`]): large mappings that are shared, and
//! anonymous or of files that lie in memory ([`files`]).
//!
//! In place of the kernel's own object the program gets a mapping of a memfd of the keeper's. What the program asks for
//! is what it sees: access, forks, moves. The rules that keep a hole from being touched by somebody unserved:
//! - A mapping is made without access, attached to the keeper, and then opened.
//! - A mapping is closed, detached, and then unmapped. What is mapped over it replaces it before it is detached.
//! - No mapping is inherited by fork (MADV_DONTFORK): the child maps and attaches anew before `fork` returns there.
//!
//! A process that cannot reach the keeper gets the kernel's own memory, as without Pagetide.

mod agent;
mod fds;
mod files;
mod memfds;
mod pieces;

use crate::range::{advise, pages};
use agent::Agent;
pub(crate) use files::{
    Mapping, is_front, is_object, is_writable_front, laid_open, lay_open_sent, open_front, punch, shm_path,
    shown_flags, size,
};
pub(crate) use memfds::{note_memfd, set_aside};
use pagetide::process::{Entered, Process};
use pagetide_page::{PAGE_SIZE, PageIndex};
use pagetide_sys::engine_thread::{self, Spawner};
use pagetide_sys::{lock, task};
use pieces::{Piece, Pieces};
use std::ffi::c_int;
use std::ops::Range;
use std::sync::atomic::{
    AtomicBool, AtomicPtr, AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release,
};
use std::sync::{Mutex, OnceLock};

/// Smaller objects are left to the kernel: 1 MiB,
const OBJECT_MIN: usize = 1 << 20;
/// and where shared memory that is left to it takes much: 64 KiB.
const SMALL_OBJECT_MIN: usize = 64 << 10;
/// Much is one part in so many of the cap.
const MUCH_PART: u64 = 16;

/// Pages of objects from the one size to the other that this process has left to the kernel, about: what else of that size is
/// unmapped counts as if it were such. (The launcher counts what all have written to, each 20 ms.)
static LEFT: AtomicU64 = AtomicU64::new(0);

/// Returns the size of the smallest objects that are worth serving.
fn object_min(process: &Process) -> usize {
    // What a sandbox has to allow is known for large ones.
    if task::is_confined() {
        return OBJECT_MIN;
    }
    let group = process.group();
    let left = LEFT.load(Relaxed).max(group.shared_pages());
    if left >= group.cap_pages() / MUCH_PART { SMALL_OBJECT_MIN } else { OBJECT_MIN }
}

/// The pages of what counts as left to the kernel, of so many bytes.
fn pages_left(length: usize) -> u64 {
    if (SMALL_OBJECT_MIN..OBJECT_MIN).contains(&length) { (length / PAGE_SIZE) as u64 } else { 0 }
}

/// Counts memory that was neither managed nor served, and is not mapped any more.
pub(crate) fn unmapped(length: usize) {
    let gone = pages_left(length);
    if gone > 0 {
        let _ = LEFT.fetch_update(Relaxed, Relaxed, |pages| Some(pages.saturating_sub(gone)));
    }
}

/// What the process has of shared memory. A forked child has one of its own.
#[derive(Default)]
struct State {
    pieces: Mutex<Pieces>,
    /// Whether there are any.
    any: AtomicBool,
    agent: OnceLock<Option<Agent>>,
}

static STATE: AtomicPtr<State> = AtomicPtr::new(std::ptr::null_mut());

/// The state, if anything was ever mapped.
fn state() -> Option<&'static State> {
    // SAFETY: what was stored there is never freed.
    unsafe { STATE.load(Acquire).as_ref() }
}

/// The state, if there is shared memory.
fn active() -> Option<&'static State> {
    state().filter(|state| state.any.load(Relaxed))
}

fn state_or_new() -> &'static State {
    if let Some(state) = state() {
        return state;
    }
    let new = Box::into_raw(Box::default());
    // Of two that come at a time one is never used.
    let _ = STATE.compare_exchange(std::ptr::null_mut(), new, Release, Relaxed);
    state().expect("stored just now")
}

impl State {
    fn agent(&'static self, process: &Process) -> Option<&'static Agent> {
        self.agent_by(process, engine_thread::spawn)
    }

    fn agent_by(&'static self, process: &Process, spawn: Spawner) -> Option<&'static Agent> {
        self.agent.get_or_init(|| Agent::start(process.slot(), spawn, || self.close())).as_ref()
    }

    /// The agent, if it was started.
    fn running(&self) -> Option<&Agent> {
        self.agent.get()?.as_ref()
    }

    /// Takes all access away: nobody serves these pages any more.
    fn close(&self) {
        Self::forget_names();
        for (range, _) in lock(&self.pieces).iter() {
            let _ = agent::close(&range);
        }
    }
}

/// Whether a part of `range` is served shared memory.
pub(crate) fn touches(process: &Process, range: &Range<PageIndex>) -> bool {
    // No fork may come meanwhile: the lock would stay held in the child.
    active().is_some() && serves(&process.enter(), range)
}

/// The same, in a mapping call.
pub(crate) fn serves(_: &Entered<'_>, range: &Range<PageIndex>) -> bool {
    active().is_some_and(|state| lock(&state.pieces).parts(range).next().is_some())
}

/// Whether a mapping of this kind is to be served.
fn is_wanted(protection: c_int, flags: c_int) -> bool {
    const KIND: c_int = libc::MAP_SHARED | libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    const UNFIT: c_int = libc::MAP_HUGETLB | libc::MAP_LOCKED | libc::MAP_GROWSDOWN;
    flags & KIND == libc::MAP_SHARED | libc::MAP_ANONYMOUS
        && flags & UNFIT == 0
        // A memfd may be forbidden to be executed.
        && protection & libc::PROT_EXEC == 0
}

/// Maps shared memory that the keeper serves. `None` if the kernel is to do it.
pub(crate) fn map(process: &'static Process, mapping: Mapping) -> Option<Result<usize, c_int>> {
    map_anonymous(process, mapping).or_else(|| files::map(process, mapping))
}

/// Counts what was left to the kernel, if it has mapped it.
pub(crate) fn count_left(mapping: &Mapping, result: Result<usize, c_int>) {
    let left = pages_left(mapping.length);
    if left > 0 && result.is_ok() && !task::is_confined() && mapping.is_shared_memory() {
        LEFT.fetch_add(left, Relaxed);
    }
}

fn map_anonymous(process: &'static Process, mapping: Mapping) -> Option<Result<usize, c_int>> {
    let Mapping { address, length, protection, flags, .. } = mapping;
    let is_wanted = is_wanted(protection, flags) && length >= object_min(process);
    if !is_wanted || !process.is_current() || process.locks_new() {
        return None;
    }
    let count = length.div_ceil(PAGE_SIZE);
    let state = state_or_new();
    let mut vacated = Vacated::new(process);
    let entered = process.enter();
    let agent = state.agent(process)?;
    if let Err(error) = vacated.vacate(&entered, &mapping) {
        return Some(Err(error));
    }
    let mut list = lock(&state.pieces);
    let (start, first) = match agent.create(address, count, protection, flags)? {
        Ok(mapped) => mapped,
        Err(error) => return Some(Err(error)),
    };
    let range = PageIndex::of_address(start)..PageIndex::of_address(start).plus(count as u64);
    list.insert(
        range.clone(),
        Piece { object: first, page: first, protection, omit: false, read_only: false },
    );
    state.any.store(true, Relaxed);
    drop(list);
    drop(entered);
    if flags & libc::MAP_POPULATE != 0 {
        task::populate(range.start.address(), count * PAGE_SIZE);
    }
    Some(Ok(start))
}

/// Runs `call`, by which whatever is mapped in `range` goes. Returns its result, and the pages that need no charge any
/// more.
pub(crate) fn over(
    entered: &Entered<'_>,
    range: Range<PageIndex>,
    call: impl FnOnce() -> Result<usize, c_int>,
) -> (Result<usize, c_int>, i64) {
    let part = range.clone();
    let call = || giving_up(&part, call);
    if entered.manages(range.clone()) { entered.unmapping(range, call) } else { (call(), 0) }
}

/// What was managed where a mapping came (MAP_FIXED). It needs no charge any more when this is dropped, which is to be
/// after [`Entered`].
struct Vacated {
    process: &'static Process,
    released: i64,
}

impl Vacated {
    fn new(process: &'static Process) -> Self {
        Self { process, released: 0 }
    }

    /// Puts a mapping without access into the place of what is managed where a mapping is to come.
    fn vacate(&mut self, entered: &Entered<'_>, mapping: &Mapping) -> Result<(), c_int> {
        let fixed = mapping.flags & libc::MAP_FIXED != 0;
        let Some(range) = pages(mapping.address, mapping.length).filter(|_| fixed) else { return Ok(()) };
        let is_piece = |state: &State| lock(&state.pieces).parts(&range).next().is_some();
        if entered.manages(range.clone()) || active().is_some_and(is_piece) {
            let (result, released) =
                over(entered, range.clone(), || agent::reserve(&range, libc::MAP_FIXED).map(|()| 0));
            self.released += released;
            result?;
        }
        Ok(())
    }
}

impl Drop for Vacated {
    fn drop(&mut self) {
        self.process.uncharge(self.released);
    }
}

/// Runs `call`, which unmaps `range`.
pub(crate) fn unmapping(
    range: &Range<PageIndex>,
    call: impl FnOnce() -> Result<usize, c_int>,
) -> Result<usize, c_int> {
    let Some(state) = active() else { return call() };
    let Some(agent) = state.running() else { return call() };
    let mut list = lock(&state.pieces);
    if list.parts(range).next().is_none() {
        drop(list);
        return call();
    }
    free(agent, &mut list, range, call)
}

/// Runs `call`, after which the addresses of `range` are free.
///
/// What is shared memory of it is detached before: another thread may have private memory there at once, and the kernel
/// does not mind by which userfaultfd a page comes. Without access nobody writes to it meanwhile.
fn free(
    agent: &Agent,
    list: &mut Pieces,
    range: &Range<PageIndex>,
    call: impl FnOnce() -> Result<usize, c_int>,
) -> Result<usize, c_int> {
    let parts: Vec<_> = list.parts(range).collect();
    let result = parts.iter().try_for_each(|(part, _)| agent::close(part));
    if result.is_ok() {
        parts.iter().for_each(|(part, _)| agent.detach(part));
    }
    let result = result.and_then(|()| call());
    if result.is_ok() {
        list.remove(range);
    } else {
        parts.iter().for_each(|(part, piece)| agent.open_again(part, *piece));
    }
    result
}

/// Runs `call`, by which whatever is mapped in `range` is replaced.
pub(crate) fn giving_up(
    range: &Range<PageIndex>,
    call: impl FnOnce() -> Result<usize, c_int>,
) -> Result<usize, c_int> {
    let Some(state) = active() else { return call() };
    let mut list = lock(&state.pieces);
    if list.parts(range).next().is_none() {
        drop(list);
        return call();
    }
    let result = call()?;
    for (part, _) in list.remove(range) {
        state.running().into_iter().for_each(|agent| agent.detach(&part));
    }
    Ok(result)
}

/// Whether a part of a range can never be made writable: its file was opened for reading alone.
pub(crate) fn refuses(range: &Range<PageIndex>, protection: c_int) -> bool {
    let writes = protection & libc::PROT_WRITE != 0;
    let refuses = |state: &State| lock(&state.pieces).parts(range).any(|(_, piece)| piece.read_only);
    writes && active().is_some_and(refuses)
}

/// Notes what the program may do with a range from now on.
pub(crate) fn protected(range: &Range<PageIndex>, protection: c_int) {
    if let Some(state) = active() {
        lock(&state.pieces).change(range, |piece| piece.protection = protection);
    }
}

/// Takes advice for a range with shared memory in it. `None` if the advice is the kernel's to take.
pub(crate) fn take_advice(range: &Range<PageIndex>, advice: c_int) -> Option<Result<usize, c_int>> {
    let state = active()?;
    let mut list = lock(&state.pieces);
    let parts: Vec<_> = list.parts(range).collect();
    if parts.is_empty() {
        return None;
    }
    match advice {
        libc::MADV_DONTFORK | libc::MADV_DOFORK => {
            list.change(range, |piece| piece.omit = advice == libc::MADV_DONTFORK);
            // Of the rest the kernel keeps account.
            let mut rest = range.start;
            let mut result = Ok(0);
            for (part, _) in parts.into_iter().chain([(range.end..range.end, Piece::NONE)]) {
                if rest < part.start {
                    result = result.and(advise(&(rest..part.start), advice));
                }
                rest = part.end;
            }
            Some(result)
        }
        libc::MADV_HUGEPAGE => Some(Ok(0)),
        libc::MADV_REMOVE => {
            let agent = state.running()?;
            if !cover(&parts, range) {
                return Some(Err(libc::EINVAL));
            }
            for (part, piece) in parts {
                agent.discard(piece.page, part.end.0 - part.start.0);
            }
            Some(Ok(0))
        }
        _ => None,
    }
}

/// Whether parts of a range, none of which overlap, are all of it.
fn cover(parts: &[(Range<PageIndex>, Piece)], range: &Range<PageIndex>) -> bool {
    parts.iter().map(|(part, _)| part.end.0 - part.start.0).sum::<u64>() == range.end.0 - range.start.0
}

/// What is shared memory of `range` stays in memory from now on, if the cap leaves room for all of it. If not, a part may.
pub(crate) fn hold(range: &Range<PageIndex>) -> bool {
    let Some(state) = active() else { return true };
    let Some(agent) = state.running() else { return true };
    let pieces = lock(&state.pieces);
    pieces.parts(range).all(|(part, piece)| agent.hold(piece.page, part.end.0 - part.start.0))
}

/// Ranges of shared memory.
pub(crate) fn ranges() -> Vec<Range<PageIndex>> {
    state().map_or(Vec::new(), |state| lock(&state.pieces).iter().map(|(range, _)| range).collect())
}

/// `mremap` of shared memory. `None` if none of it is. Returns its result, and the pages that need no charge any more.
pub(crate) fn remap(
    entered: &Entered<'_>,
    old: usize,
    old_length: usize,
    new_length: usize,
    flags: c_int,
    target: usize,
) -> Option<(Result<usize, c_int>, i64)> {
    let state = active()?;
    let looked_at = pages(old, old_length.max(1))?;
    let mut list = lock(&state.pieces);
    let mut parts = list.parts(&looked_at);
    let (part, piece) = parts.next()?;
    let (old_pages, new_pages) =
        (old_length.div_ceil(PAGE_SIZE) as u64, new_length.div_ceil(PAGE_SIZE) as u64);
    if part != looked_at || parts.next().is_some() || new_pages == 0 {
        // The kernel moves what is one mapping.
        return Some((Err(if new_pages == 0 { libc::EINVAL } else { libc::EFAULT }), 0));
    }
    drop(parts);
    let agent = state.running()?;
    let fixed = flags & libc::MREMAP_FIXED != 0;
    let keeps_old = old_length == 0 || flags & agent::MREMAP_DONTUNMAP != 0;
    if fixed && (flags & libc::MREMAP_MAYMOVE == 0 || !target.is_multiple_of(PAGE_SIZE)) {
        return Some((Err(libc::EINVAL), 0));
    }
    if !fixed && !keeps_old && new_pages <= old_pages {
        let tail = part.start.plus(new_pages)..part.end;
        return Some((let_go(agent, &mut list, &tail).map(|_| old), 0));
    }
    if flags & libc::MREMAP_MAYMOVE == 0 {
        // It would have to grow in place.
        return Some((Err(libc::ENOMEM), 0));
    }
    let to = fixed.then_some(target);
    let over = to.and_then(|to| pages(to, new_length));
    if to.is_some() && over.is_none()
        || over.as_ref().is_some_and(|to| to.start < part.end && part.start < to.end)
    {
        return Some((Err(libc::EINVAL), 0));
    }
    let mut map = || {
        let mapped = agent.map_again(piece, to, new_pages);
        match (&mapped, &over) {
            (Ok(start), _) => {
                let here = PageIndex::of_address(*start);
                // What was there is attached no more: what is mapped now is.
                list.insert(here..here.plus(new_pages), piece);
            }
            // Whether the target is still there cannot be told; what the kernel refuses late is not.
            (Err(_), Some(over)) => drop(let_go(agent, &mut list, over)),
            (Err(_), None) => {}
        }
        mapped
    };
    let (result, released) = match over.clone().filter(|over| entered.manages(over.clone())) {
        Some(over) => entered.unmapping(over, map),
        None => (map(), 0),
    };
    if result.is_ok() && !keeps_old {
        let _ = let_go(agent, &mut list, &part);
    }
    Some((result, released))
}

/// `remap_file_pages` of shared memory: `range` maps its object from page `from` on. `None` if none of it is.
pub(crate) fn rearrange(
    _entered: &Entered<'_>,
    range: &Range<PageIndex>,
    from: u64,
    protection: c_int,
) -> Option<Result<usize, c_int>> {
    let state = active()?;
    let mut list = lock(&state.pieces);
    let parts: Vec<_> = list.parts(range).collect();
    let (_, first) = parts.first()?;
    let agent = state.running()?;
    if protection != 0 || !cover(&parts, range) || parts.iter().any(|(_, piece)| piece.object != first.object)
    {
        return Some(Err(libc::EINVAL));
    }
    let piece = Piece { page: first.object.plus(from), ..*first };
    let mapped = agent.map_again(piece, Some(range.start.address()), range.end.0 - range.start.0);
    if mapped.is_ok() {
        list.insert(range.clone(), piece);
    } else {
        // Beyond the object, most likely.
        let _ = let_go(agent, &mut list, range);
    }
    Some(mapped.map(|_| 0))
}

/// Unmaps a range that is shared memory, or a part of it.
fn let_go(agent: &Agent, list: &mut Pieces, range: &Range<PageIndex>) -> Result<usize, c_int> {
    let parts: Vec<_> = list.parts(range).map(|(part, _)| part).collect();
    parts.into_iter().try_fold(0, |_, part| free(agent, list, &part, || agent::unmap(&part)))
}

/// Before a fork, in the parent: what is mapped is kept for the child.
pub(crate) fn before_fork(process: &Process) {
    let Some(state) = active() else { return };
    if let (Some(agent), Some(slot)) = (state.running(), process.forking_slot()) {
        agent.fork(slot);
    }
}

/// After a fork, in the child, which has nothing where its parent maps shared memory: nothing else comes there.
pub(crate) fn reserve_in_child() {
    let Some(parent) = active() else { return };
    lock(&parent.pieces)
        .iter()
        .filter(|(_, piece)| !piece.omit)
        .for_each(|(range, _)| _ = agent::reserve(&range, libc::MAP_FIXED_NOREPLACE));
}

/// After a fork, in the child: maps what the parent has mapped, and attaches it to the keeper.
pub(crate) fn after_fork_in_child(process: &'static Process) {
    let Some(parent) = state() else { return };
    let inherited = lock(&parent.pieces).inherited();
    let state: &'static State = Box::leak(Box::default());
    STATE.store(std::ptr::from_ref(state).cast_mut(), Release);
    if inherited.is_empty() {
        return;
    }
    // Without it the memory is lost: where there may be no more threads just now it is tried again.
    let agent = state.agent_by(process, engine_thread::spawn_patiently);
    let attached = agent.is_some_and(|agent| agent.inherit(inherited.iter()));
    if !attached {
        // A child that only calls another program never misses it. Nothing else is to be mapped there.
        task::say("a forked child cannot map the shared memory of its parent: it cannot touch that");
        for (range, _) in inherited.iter() {
            let _ = agent::close(&range);
            let _ = agent::reserve(&range, libc::MAP_FIXED_NOREPLACE);
        }
        return;
    }
    *lock(&state.pieces) = inherited;
    state.any.store(true, Relaxed);
}
