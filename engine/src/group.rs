//! The group page: what the processes of one run share.
//!
//! It is a memfd that the launcher creates and owns; processes open it as `/proc/LAUNCHER/fd/N`, the path
//! in the environment variable [`ENVIRONMENT`]. Everything in it is an atomic word, so that a process
//! that is killed at any instant leaves it usable.
//!
//! ```text
//! ┌────────┬────────────────┬──────────────────────────┬─────────────────┬──────────────────────────┐
//! │ header │ totals of dead │ slots, one a process     │ block counts    │ held blocks, a bitmap a  │
//! │        │ processes      │ (header counters latency)│ (a byte a block)│ slot, with a summary     │
//! └────────┴────────────────┴──────────────────────────┴─────────────────┴──────────────────────────┘
//! ```
//!
//! # Memory, as the group sees it
//! `free` + the grants of all slots = the cap. A process uses no more than its grant, but for what it
//! cannot know beforehand (its unmanaged memory): the launcher samples that, and takes from `free`, which
//! may then be negative until somebody gives back.

use crate::latency::{self, Latency};
use crate::recorder;
use pagetide_swap::held::Held;
use pagetide_swap::{Counter, Counters, Switches};
use pagetide_sys::procfs::Identity;
use pagetide_sys::shared::{Shared, futex_wait, futex_wake};
use pagetide_sys::task;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{
    AtomicU8, AtomicU64, Ordering::AcqRel, Ordering::Acquire, Ordering::Relaxed, Ordering::Release,
};
use std::time::Duration;

/// Names the group page to the processes of a run: a path.
pub const ENVIRONMENT: &str = "PAGETIDE_GROUP";
/// Pages that a process may have in memory whatever the others have.
pub const RESIDENT_MIN: i64 = 128;
/// Processes that a run may have at one time.
pub const SLOTS: usize = 250;

const MAGIC: u64 = u64::from_le_bytes(*b"pagetide");
const VERSION: u64 = 11;
const HEADER_WORDS: usize = 64;
/// Who loses less than this to pages that come back takes nothing from others: 1 %.
const PRESSURE_MIN: u64 = 10_000;
/// The part of the cap that may be handed out without a charge.
const UNCHARGED_PART: i64 = 8;
/// Memory goes from one process to another where it saves this many times as much.
const PRESSURE_RATIO: u64 = 4;
const SLOT_HEADER_WORDS: usize = 40;
const COUNTER_WORDS: usize = 64;
const SLOT_WORDS: usize = 256;
const _: () = assert!(Counters::CELLS <= COUNTER_WORDS);
const _: () = assert!(SLOT_HEADER_WORDS + COUNTER_WORDS + latency::WORDS <= SLOT_WORDS);
const _: () = assert!(Header::Last as usize <= HEADER_WORDS && Field::Last as usize <= SLOT_HEADER_WORDS);

/// A word of the header.
#[derive(Clone, Copy)]
#[repr(usize)]
enum Header {
    Magic,
    Version,
    CapPages,
    PoolPercent,
    Switches,
    Zpool,
    Reclaim,
    Readahead,
    PageCluster,
    Blocks,
    LauncherPid,
    LauncherStart,
    LauncherNamespace,
    SwapFd,
    SwapDevice,
    SwapInode,
    /// One more than the trace's descriptor in the launcher; 0 if there is none.
    TraceFd,
    Ways,
    Encrypt,
    Injection,
    Free,
    Demand,
    /// One more than the highest slot that was ever taken.
    SlotsSeen,
    /// Pages of the group page itself, which each process maps and the cap counts once.
    OwnPages,
    /// Pages of the launcher itself.
    LauncherPages,
    /// How often the swap file went out of use and into use: odd if it is to be used no more.
    Swapoffs,
    Last,
}

/// A word of a slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(usize)]
pub enum Field {
    /// 0 free, 1 taken.
    Taken,
    /// How many processes have had it.
    Tenancy,
    /// The process.
    Pid,
    /// When it started (0: not known yet, a fork is under way).
    StartTime,
    /// Pages that it may use.
    Grant,
    /// Pages that it is asked to give back.
    Asked,
    /// Counts up when there is something for its control thread to do; waited on as a futex.
    Bell,
    /// Whether its engine runs.
    Armed,
    /// Pages in the program, as the engine counts them (or handed out, before it runs).
    Resident,
    /// Pages in frames.
    Frames,
    /// Pages of the pool.
    Pool,
    /// Pages of the engine's own data.
    Metadata,
    /// Pages that are not managed, as last sampled.
    Unmanaged,
    /// Pages at a place.
    Swapped,
    /// Blocks held on the device.
    Disk,
    /// Pages stored in the pool.
    StoredPages,
    /// Bytes of their payload.
    StoredBytes,
    /// Of those pages, the ones that are stored as they are.
    StoredRaw,
    /// Pages out of the program that are one repeated word.
    SameFilled,
    /// Pages of the pool that would be free if its entries lay together.
    Loose,
    /// What the launcher last saw in `/proc`: anonymous, shared and page-table pages.
    Observed,
    /// Faults that wait for room or for the device just now.
    Stalled,
    /// Pages on probation.
    Cached,
    /// Pool pages shared by fork that the process and its heirs hold.
    Frozen,
    /// The time that its program loses to pages which come back, in millionths of all time.
    Pressure,
    /// Pages that the launcher has taken in the process's name, beside its grant (it was seen to hold them before its
    /// engine ran, which makes them part of the grant), less those that it has given back (they were not touched).
    Added,
    /// Whether a thread of the process waits for its bell: others may ask it for pages.
    Listens,
    /// Pages that others may ask for, as the engine knows.
    Spare,
    /// Its pid namespace; 0 if not known.
    Namespace,
    /// The pid by which the launcher knows it; 0 before it has looked.
    KnownAs,
    /// How far its engine is with swapoff, and with which: see [`OffState`].
    Swapoff,
    /// Pages that an allocator has taken and that are not charged, for they are not expected to be touched soon. If they
    /// are, the launcher sees it at its next look. 0 once the engine runs.
    Spared,
    /// How often the process was told to rest and to go on: odd while its faults are to wait (see [`Slot::set_resting`]).
    Rest,
    /// How often it was told so since it rests.
    RestAgain,
    /// One more than the last field.
    Last,
}

/// What a run is told at its start.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Setup {
    /// The cap, in pages.
    pub cap_pages: u64,
    /// What may change while the run goes on, at its start.
    pub knobs: Knobs,
    /// The pool's allocator, as in [`pagetide_swap::Allocator`].
    pub zpool: u64,
    /// What decides which clusters leave, as in [`pagetide_swap::Reclaim`].
    pub reclaim: u64,
    /// Which neighbours of a page come in with it, as in [`pagetide_swap::Readahead`].
    pub readahead: u64,
    /// log2 of the pages that are read from the swap file at once at most.
    pub page_cluster: u64,
    /// Blocks of the swap file; 0 for none.
    pub blocks: u64,
    /// The launcher.
    pub launcher: Identity,
    /// The swap file's descriptor in the launcher.
    pub swap_fd: u64,
    /// The device and the number of the swap file there.
    pub swap_identity: (u64, u64),
    /// The trace's descriptor in the launcher, if what happens is to be written down.
    pub trace_fd: Option<u64>,
    /// Ways that are masked, for tests: see [`crate::ways::Ways`].
    pub ways: u64,
    /// Whether the swap file is encrypted: 1 if so.
    pub encrypt: u64,
    /// What is to go wrong, for tests: see [`crate::injection::Injection`].
    pub injection: u64,
}

/// What may change while a run goes on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Knobs {
    /// Switches of the pool.
    pub switches: Switches,
    /// The most of the cap that the pool may take, in percent.
    pub max_pool_percent: u64,
}

/// How far a process is with giving up the swap file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u64)]
pub enum OffState {
    /// It has not begun.
    Used = 0,
    /// It brings back what it has there.
    Leaving = 1,
    /// It has nothing there, and writes nothing any more.
    Off = 2,
    /// What is left finds no room.
    NoRoom = 3,
}

impl OffState {
    const BITS: u32 = 2;

    const fn from_bits(bits: u64) -> Self {
        match bits & ((1 << Self::BITS) - 1) {
            1 => Self::Leaving,
            2 => Self::Off,
            3 => Self::NoRoom,
            _ => Self::Used,
        }
    }
}

/// A handle on the group page.
#[derive(Clone, Copy, Debug)]
pub struct Group {
    shared: Shared,
    header: &'static [AtomicU64],
    slots: usize,
    setup: Setup,
}

/// A handle on one process's slot.
#[derive(Clone, Copy, Debug)]
pub struct Slot {
    words: &'static [AtomicU64],
    index: usize,
}

/// Why the group page cannot be used.
#[derive(Debug)]
pub enum OpenError {
    /// The system says no.
    System(std::io::Error),
    /// It is not a group page, or one of another version of Pagetide.
    Foreign,
}

impl std::fmt::Display for OpenError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::System(error) => write!(f, "cannot open the run's group page: {error}"),
            Self::Foreign => f.write_str("the run's group page is of another version of Pagetide"),
        }
    }
}

impl std::error::Error for OpenError {}

fn bytes_needed(blocks: u64) -> usize {
    let words = HEADER_WORDS + SLOT_WORDS * (SLOTS + 1);
    words * 8 + counts_bytes(blocks) + SLOTS * held_words(blocks) * 8
}

fn counts_bytes(blocks: u64) -> usize {
    (blocks as usize).next_multiple_of(4096)
}

/// Words of one slot's bitmap, in whole pages: untouched pages of the file take no memory.
fn held_words(blocks: u64) -> usize {
    Held::words(blocks as usize).next_multiple_of(512)
}

impl Group {
    /// Creates the group page.
    pub fn create(setup: Setup) -> Result<(OwnedFd, Self), std::io::Error> {
        let (fd, shared) = Shared::create("pagetide-group", bytes_needed(setup.blocks))?;
        let header = shared.words(0, HEADER_WORDS);
        let set = |word: Header, value: u64| header[word as usize].store(value, Relaxed);
        set(Header::Version, VERSION);
        set(Header::CapPages, setup.cap_pages);
        set(Header::PoolPercent, setup.knobs.max_pool_percent);
        set(Header::Switches, setup.knobs.switches.to_bits());
        set(Header::Zpool, setup.zpool);
        set(Header::Reclaim, setup.reclaim);
        set(Header::Readahead, setup.readahead);
        set(Header::PageCluster, setup.page_cluster);
        set(Header::Blocks, setup.blocks);
        set(Header::LauncherPid, setup.launcher.pid.into());
        set(Header::LauncherStart, setup.launcher.start_time);
        set(Header::LauncherNamespace, setup.launcher.namespace);
        set(Header::SwapFd, setup.swap_fd);
        set(Header::SwapDevice, setup.swap_identity.0);
        set(Header::SwapInode, setup.swap_identity.1);
        set(Header::TraceFd, setup.trace_fd.map_or(0, |fd| fd + 1));
        set(Header::Ways, setup.ways);
        set(Header::Encrypt, setup.encrypt);
        set(Header::Injection, setup.injection);
        set(Header::Free, setup.cap_pages);
        header[Header::Magic as usize].store(MAGIC, Release);
        Ok((fd, Self { shared, header, slots: SLOTS, setup }))
    }

    /// Opens a run's group page.
    pub fn open(path: &Path) -> Result<Self, OpenError> {
        let shared = Shared::open(path).map_err(|error| OpenError::System(error.into()))?;
        if shared.len() < HEADER_WORDS * 8 {
            return Err(OpenError::Foreign);
        }
        let header = shared.words(0, HEADER_WORDS);
        let get = |word: Header| header[word as usize].load(Acquire);
        if get(Header::Magic) != MAGIC || get(Header::Version) != VERSION {
            return Err(OpenError::Foreign);
        }
        let setup = Setup {
            cap_pages: get(Header::CapPages),
            knobs: Knobs {
                switches: Switches::from_bits(get(Header::Switches)),
                max_pool_percent: get(Header::PoolPercent),
            },
            zpool: get(Header::Zpool),
            reclaim: get(Header::Reclaim),
            readahead: get(Header::Readahead),
            page_cluster: get(Header::PageCluster),
            blocks: get(Header::Blocks),
            launcher: Identity {
                pid: get(Header::LauncherPid) as u32,
                start_time: get(Header::LauncherStart),
                namespace: get(Header::LauncherNamespace),
            },
            swap_fd: get(Header::SwapFd),
            swap_identity: (get(Header::SwapDevice), get(Header::SwapInode)),
            trace_fd: get(Header::TraceFd).checked_sub(1),
            ways: get(Header::Ways),
            encrypt: get(Header::Encrypt),
            injection: get(Header::Injection),
        };
        if shared.len() != bytes_needed(setup.blocks) {
            return Err(OpenError::Foreign);
        }
        Ok(Self { shared, header, slots: SLOTS, setup })
    }

    /// What the run was told at its start.
    pub fn setup(&self) -> Setup {
        self.setup
    }

    /// What may change while the run goes on, as it is now.
    pub fn knobs(&self) -> Knobs {
        let get = |word: Header| self.header[word as usize].load(Acquire);
        Knobs {
            switches: Switches::from_bits(get(Header::Switches)),
            max_pool_percent: get(Header::PoolPercent),
        }
    }

    /// Changes that: each process sees it within some hundredths of a second.
    pub fn change_knobs(&self, mut change: impl FnMut(&mut Knobs)) {
        let Knobs { max_pool_percent, .. } = self.knobs();
        let mut percent = max_pool_percent;
        let switch = |bits: u64| {
            let mut knobs = Knobs { switches: Switches::from_bits(bits), max_pool_percent };
            change(&mut knobs);
            percent = knobs.max_pool_percent;
            Some(knobs.switches.to_bits())
        };
        _ = self.header[Header::Switches as usize].fetch_update(AcqRel, Acquire, switch);
        if percent != max_pool_percent {
            self.header[Header::PoolPercent as usize].store(percent, Release);
        }
        self.live().for_each(|slot| slot.ring());
    }

    /// Whether the swap file is to be used no more.
    pub fn is_swapped_off(&self) -> bool {
        self.swapoffs() % 2 == 1
    }

    fn swapoffs(&self) -> u64 {
        self.header[Header::Swapoffs as usize].load(Acquire)
    }

    /// Sets whether the swap file is used: each process sees it within some hundredths of a second.
    pub fn set_swapped_off(&self, off: bool) {
        let next = |count: u64| (count % 2 != u64::from(off)).then_some(count + 1);
        let _ = self.header[Header::Swapoffs as usize].fetch_update(AcqRel, Acquire, next);
        self.live().for_each(|slot| slot.ring());
    }

    /// How far a process is with what the run was told last.
    pub fn off_state(&self, slot: Slot) -> OffState {
        let word = slot.get(Field::Swapoff);
        if word >> OffState::BITS == self.swapoffs() { OffState::from_bits(word) } else { OffState::Used }
    }

    /// Has `step` take a process on, if there is more to do, by what it was told last: from a state to the next.
    pub fn follow_swapoff(&self, slot: Slot, step: impl FnOnce(bool, OffState) -> OffState) {
        let swapoffs = self.swapoffs();
        let word = slot.get(Field::Swapoff);
        let known = word >> OffState::BITS == swapoffs;
        let state = if known { OffState::from_bits(word) } else { OffState::Used };
        if !known || state == OffState::Leaving || (state == OffState::Used && swapoffs % 2 == 1) {
            slot.set(Field::Swapoff, swapoffs << OffState::BITS | step(swapoffs % 2 == 1, state) as u64);
        }
    }

    /// The path under which processes of this run open the swap file.
    pub fn swap_path(&self) -> PathBuf {
        format!("/proc/{}/fd/{}", self.setup.launcher.pid, self.setup.swap_fd).into()
    }

    /// Where the trace is found, if there is one.
    pub fn trace_path(&self) -> Option<PathBuf> {
        Some(format!("/proc/{}/fd/{}", self.setup.launcher.pid, self.setup.trace_fd?).into())
    }

    fn slot_words(&self, index: usize) -> &'static [AtomicU64] {
        // Number 0 is the totals of the dead.
        self.shared.words((HEADER_WORDS + index * SLOT_WORDS) * 8, SLOT_WORDS)
    }

    /// Counters and latencies of processes that have died.
    pub fn dead(&self) -> Slot {
        Slot { words: self.slot_words(0), index: usize::MAX }
    }

    /// A process's slot.
    pub fn slot(&self, index: usize) -> Slot {
        assert!(index < self.slots);
        Slot { words: self.slot_words(index + 1), index }
    }

    /// The slots that are taken.
    pub fn live(&self) -> impl Iterator<Item = Slot> + '_ {
        let seen = self.header[Header::SlotsSeen as usize].load(Acquire) as usize;
        (0..seen.min(self.slots)).map(|index| self.slot(index)).filter(|slot| slot.get(Field::Taken) != 0)
    }

    /// Does what a launcher does for processes that have died, if it has died itself and this process can tell.
    /// `swap` is where this process finds the swap file.
    pub fn sweep(&self, swap: Option<&PathBuf>) {
        let is_dead = |process: Identity| process.pids().is_ok_and(|pids| pids.is_empty());
        let (launcher, own) = (self.setup.launcher, Identity::own());
        // From another namespace, or through the `/proc` of one, the living may be out of sight.
        let sees = own.namespace == launcher.namespace && own.pid == std::process::id();
        if sees && own.namespace != 0 && is_dead(launcher) {
            let dead = self.live().filter(|slot| slot.get(Field::StartTime) != 0 && is_dead(slot.process()));
            self.release_when_settled(swap.map_or(Path::new(""), PathBuf::as_path), dead);
        }
    }

    /// Takes a slot for a process. `None` if the run has [`SLOTS`] processes.
    pub fn claim(&self, process: Identity) -> Option<Slot> {
        let slot = (0..self.slots).map(|index| self.slot(index)).find(|slot| {
            slot.word(Field::Taken).load(Relaxed) == 0
                && slot.word(Field::Taken).compare_exchange(0, 2, AcqRel, Relaxed).is_ok()
        })?;
        let granted = [Field::Grant as usize, Field::Added as usize];
        for (index, word) in slot.words.iter().enumerate().skip(Field::Pid as usize) {
            if !granted.contains(&index) {
                word.store(0, Relaxed);
            }
        }
        // What the launcher has taken in the name of who had the slot, just when that was released.
        self.give_granted(slot);
        slot.word(Field::Tenancy).fetch_add(1, Relaxed);
        slot.name(process);
        self.header[Header::SlotsSeen as usize].fetch_max(slot.index as u64 + 1, AcqRel);
        slot.word(Field::Taken).store(1, Release);
        Some(slot)
    }

    /// Pages of the group page itself, and of the launcher.
    pub fn own_pages(&self) -> (u64, u64) {
        let get = |word: Header| self.header[word as usize].load(Relaxed);
        (get(Header::OwnPages), get(Header::LauncherPages))
    }

    /// Charges what the group page and the launcher take by now: the launcher's to call.
    pub fn charge_own(&self, shared: u64, launcher: u64) {
        for (word, pages) in [(Header::OwnPages, shared), (Header::LauncherPages, launcher)] {
            let before = self.header[word as usize].swap(pages, Relaxed);
            self.take_anyway(pages as i64 - before as i64);
        }
    }

    /// What the cap counts of a process: the group page is counted once, not with each that maps it.
    pub fn charged(&self, memory: &pagetide_sys::procfs::Memory) -> u64 {
        memory.anonymous + memory.shared.saturating_sub(self.own_pages().0) + memory.tables
    }

    /// Gives slots back: their counters go to the dead, their grants to the free, their blocks to the device.
    pub fn release(&self, slots: impl IntoIterator<Item = Slot>) {
        let trace = self.trace_path();
        let noted = slots.into_iter().inspect(|slot| {
            if let Some(Err(error)) = trace.as_ref().map(|trace| recorder::note_end(trace, slot.tenant())) {
                task::say(&format!(
                    "cannot write the trace: {error}; replayed, an ended process lives on (--trace)"
                ));
            }
        });
        self.release_when_settled(&self.swap_path(), noted);
    }

    fn release_when_settled(&self, swap: &Path, slots: impl IntoIterator<Item = Slot>) {
        let slots: Vec<_> = slots.into_iter().collect();
        if slots.iter().any(|&slot| !self.held(slot).is_empty()) {
            // A write that is still under way must not come after one of whoever has the block next. What cannot be
            // waited for has ended by now, as a rule; and whoever reads a wrong block knows by its hash.
            let _ = pagetide_device::file::settle(swap, self.setup.swap_identity);
        }
        slots.into_iter().for_each(|slot| self.release_settled(slot));
    }

    fn release_settled(&self, slot: Slot) {
        if slot.word(Field::Taken).compare_exchange(1, 2, AcqRel, Relaxed).is_err() {
            return;
        }
        let dead = self.dead();
        for &counter in Counter::ALL {
            dead.counters().add(counter, slot.counters().get(counter));
        }
        let mut sum = [0; latency::WORDS];
        slot.latency().add_to(&mut sum);
        let to = &dead.words[SLOT_HEADER_WORDS + COUNTER_WORDS..];
        for (word, count) in to[..latency::BUCKETS].iter().zip(sum) {
            word.fetch_add(count, Relaxed);
        }
        to[latency::BUCKETS].fetch_max(sum[latency::BUCKETS], Relaxed);
        pagetide_swap::blocks::sweep(self.block_counts(), &self.held(slot));
        self.give_granted(slot);
        slot.word(Field::Taken).store(0, Release);
    }

    /// Gives back all that is taken for a slot. In one step: part of it may be a debt.
    fn give_granted(&self, slot: Slot) {
        let [grant, added] = [Field::Grant, Field::Added].map(|field| slot.word(field).swap(0, AcqRel));
        self.give(grant.wrapping_add(added) as i64);
    }

    /// Pages of the cap that nobody was granted. Negative if unmanaged memory grew past it.
    pub fn free(&self) -> i64 {
        self.header[Header::Free as usize].load(Relaxed) as i64
    }

    /// How many more pages may be handed out that nobody is charged for: what processes without an engine have taken
    /// and do not touch. An eighth of the cap, should they all touch it at once; of what they had for a while and did not
    /// touch, or seem to be charged for since, half is counted.
    pub fn uncharged_left(&self) -> i64 {
        let without = self.live().filter(|slot| slot.get(Field::Armed) == 0);
        let uncharged = |slot: Slot| {
            // What was spared may be charged by now, since it was seen to be touched. So may be what else it holds.
            let [spared, charged] = [Field::Spared, Field::Added].map(|field| slot.get(field) as i64);
            (spared - charged.max(0)).max(spared / 2) + slot.debt() / 2
        };
        let uncharged: i64 = without.map(uncharged).sum();
        self.setup.cap_pages as i64 / UNCHARGED_PART - uncharged
    }

    /// Takes `pages` if at least `reserve` remain.
    pub fn take(&self, pages: i64, reserve: i64) -> bool {
        self.header[Header::Free as usize]
            .fetch_update(AcqRel, Relaxed, |free| {
                let left = free as i64 - pages;
                (left >= reserve).then_some(left as u64)
            })
            .is_ok()
    }

    /// Takes as many of `pages` as there are.
    pub fn take_up_to(&self, pages: i64) -> i64 {
        let mut taken = 0;
        let _ = self.header[Header::Free as usize].fetch_update(AcqRel, Relaxed, |free| {
            taken = (free as i64).clamp(0, pages);
            (taken > 0).then_some((free as i64 - taken) as u64)
        });
        taken
    }

    /// Takes `pages` whatever is left: memory that is in use already.
    pub fn take_anyway(&self, pages: i64) {
        self.header[Header::Free as usize].fetch_sub(pages as u64, AcqRel);
    }

    /// Gives pages back.
    pub fn give(&self, pages: i64) {
        self.header[Header::Free as usize].fetch_add(pages as u64, AcqRel);
        if pages > 0 {
            self.header[Header::Demand as usize].fetch_add(1, AcqRel);
            futex_wake(&self.header[Header::Demand as usize]);
        }
    }

    /// The processes that can be asked for pages, but for `for_whom`.
    fn others(&self, for_whom: Slot) -> impl Iterator<Item = Slot> + '_ {
        self.live().filter(move |slot| slot.index != for_whom.index && slot.get(Field::Listens) != 0)
    }

    /// Pages that a process could give. Without an engine nobody knows which of those that were handed out are there.
    fn could_give(slot: Slot) -> u64 {
        if slot.get(Field::Armed) == 0 { slot.granted().max(0) as u64 } else { slot.get(Field::Spare) }
    }

    /// Pages that a process gives while others could do with less.
    fn would_give(slot: Slot) -> u64 {
        let in_program = || slot.get(Field::Resident) + slot.get(Field::Frames);
        let most =
            if slot.keeps_pool() { in_program().saturating_sub(RESIDENT_MIN as u64) } else { u64::MAX };
        Self::could_give(slot).min(most)
    }

    /// Asks processes that hold more than an equal share to give back `pages` in all, the largest first.
    /// `for_whom` is not asked. False if there is none.
    pub fn ask(&self, for_whom: Slot, pages: i64) -> bool {
        let share = (self.setup.cap_pages / self.live().count().max(1) as u64) as i64;
        let richest = self
            .others(for_whom)
            .filter(|slot| slot.granted() > share)
            // Who was asked for much already is passed over: it may be stopped.
            .max_by_key(|slot| slot.granted() - 2 * slot.get(Field::Asked) as i64);
        let Some(richest) = richest else { return false };
        let spare = richest.granted() - share;
        let asked = richest.get(Field::Asked) as i64;
        if asked < spare {
            richest.word(Field::Asked).fetch_add(pages.min(spare - asked) as u64, AcqRel);
            richest.ring();
        }
        true
    }

    /// Asks a process that rests for `pages`. False if there is none that has not been asked for all.
    pub fn ask_resting(&self, for_whom: Slot, pages: u64) -> bool {
        let unasked = |slot: &Slot| Self::would_give(*slot).saturating_sub(slot.get(Field::Asked));
        let resting = self.others(for_whom).filter(|slot| slot.is_resting() && slot.get(Field::Armed) != 0);
        let Some(slot) = resting.max_by_key(unasked).filter(|slot| unasked(slot) > 0) else { return false };
        slot.word(Field::Asked).fetch_add(pages.min(unasked(&slot)), AcqRel);
        slot.ring();
        true
    }

    /// Asks every process but `for_whom` that has some to give back `pages` of them, whatever its share: the last
    /// resort of one that has nothing. Shares do not tell what can leave. Nobody rests then, and keeps a pool.
    pub fn ask_all(&self, for_whom: Slot, pages: u64) {
        for slot in self.others(for_whom) {
            slot.set_resting(false);
            let spare = Self::could_give(slot);
            let missing = pages.min(spare).saturating_sub(slot.get(Field::Asked));
            if missing > 0 {
                slot.word(Field::Asked).fetch_add(missing, AcqRel);
                slot.ring();
            }
        }
    }

    /// Asks the process under the least pressure for `pages` of those that it could give, if
    /// `for_whom` is under so much more that they are worth more there. A process that idles keeps its memory for
    /// as long as nobody misses any. (By page fault frequency: Chu and Opderbeck 1972.)
    pub fn level(&self, for_whom: Slot, pages: u64) {
        let pressure = for_whom.get(Field::Pressure);
        let spare = |slot: &Slot| Self::would_give(*slot);
        // Who was asked already is passed over: it may be stopped.
        let can_give = self.others(for_whom).filter(|slot| slot.get(Field::Asked) == 0 && spare(slot) > 0);
        let Some(calmest) = can_give.min_by_key(|slot| slot.get(Field::Pressure)) else { return };
        if pressure > PRESSURE_MIN && pressure / PRESSURE_RATIO > calmest.get(Field::Pressure) {
            calmest.word(Field::Asked).fetch_add(pages.min(spare(&calmest)), AcqRel);
            calmest.ring();
        }
    }

    /// Pages that are asked of the group at a time: 1/64 of the cap, 1 MiB at most.
    pub fn step(&self) -> i64 {
        (self.setup.cap_pages as i64 / 64).min(256)
    }

    /// A number that changes whenever pages are given back.
    pub fn demand(&self) -> u32 {
        self.header[Header::Demand as usize].load(Acquire) as u32
    }

    /// Waits until pages were given back since `seen`, or `timeout` passed.
    pub fn wait_free(&self, seen: u32, timeout: Duration) {
        futex_wait(&self.header[Header::Demand as usize], seen, timeout);
    }

    /// How many processes use each block of the swap file.
    pub fn block_counts(&self) -> &'static [AtomicU8] {
        let offset = (HEADER_WORDS + SLOT_WORDS * (SLOTS + 1)) * 8;
        self.shared.bytes(offset, self.setup.blocks as usize)
    }

    /// Which blocks a process holds.
    pub fn held(&self, slot: Slot) -> Held {
        let words = held_words(self.setup.blocks);
        let offset = (HEADER_WORDS + SLOT_WORDS * (SLOTS + 1)) * 8 + counts_bytes(self.setup.blocks);
        Held::new(self.shared.words(offset + slot.index * words * 8, words), self.setup.blocks as usize)
    }
}

impl Slot {
    /// The slot's number.
    pub fn index(&self) -> usize {
        self.index
    }

    /// The process's number in a trace: a slot serves one after the other.
    pub fn tenant(&self) -> u64 {
        (self.index as u64) << 32 | self.get(Field::Tenancy)
    }

    /// A word of it.
    pub fn word(&self, field: Field) -> &'static AtomicU64 {
        &self.words[field as usize]
    }

    /// A word's value.
    pub fn get(&self, field: Field) -> u64 {
        self.word(field).load(Acquire)
    }

    /// Sets a word.
    pub fn set(&self, field: Field, value: u64) {
        self.word(field).store(value, Release);
    }

    /// Says whose it is.
    pub fn name(&self, process: Identity) {
        // The start time last: whoever sees it may go by the name.
        self.set(Field::Namespace, process.namespace);
        self.set(Field::Pid, process.pid.into());
        self.set(Field::StartTime, process.start_time);
    }

    /// Whose it is.
    pub fn process(&self) -> Identity {
        let start_time = self.get(Field::StartTime);
        Identity { pid: self.get(Field::Pid) as u32, start_time, namespace: self.get(Field::Namespace) }
    }

    /// The pid by which the launcher knows the process, once it has looked; by which the process knows itself, before.
    pub fn known_as(&self) -> u64 {
        match self.get(Field::KnownAs) {
            0 => self.get(Field::Pid),
            pid => pid,
        }
    }

    /// Says that a thread of the process waits for its bell.
    pub fn listen(&self) {
        self.set(Field::Listens, 1);
    }

    /// Pages that are taken for it.
    pub fn granted(&self) -> i64 {
        self.get(Field::Grant).wrapping_add(self.get(Field::Added)) as i64
    }

    /// Pages that the launcher has taken back of what the process was granted before it touched them.
    pub fn debt(&self) -> i64 {
        (self.get(Field::Added) as i64).min(0).saturating_neg()
    }

    /// Makes a debt smaller by up to `pages`. Returns by how many.
    pub fn pay_debt(&self, pages: i64) -> i64 {
        let mut paid = 0;
        let _ = self.word(Field::Added).fetch_update(AcqRel, Relaxed, |added| {
            paid = (added as i64).min(0).saturating_neg().min(pages);
            (paid > 0).then_some(added.wrapping_add(paid as u64))
        });
        paid
    }

    /// Whether the process is to rest.
    pub fn is_resting(&self) -> bool {
        self.get(Field::Rest) % 2 == 1
    }

    /// Ends a rest that was ordered by `order`, if it goes on.
    pub fn end_rest(&self, order: u64) {
        let _ = self.word(Field::Rest).compare_exchange(order, order + 1, AcqRel, Relaxed);
    }

    /// Whether the process has only begun to rest: what it has in its pool is small, and dear to bring back from elsewhere.
    pub fn keeps_pool(&self) -> bool {
        self.is_resting() && self.get(Field::RestAgain) == 0
    }

    /// Tells the process to rest (anew, if it does already), or to go on.
    pub fn set_resting(&self, rests: bool) {
        let next = |order: u64| match (order % 2 == 1, rests) {
            (true, true) => Some(order + 2),
            (false, false) => None,
            (true, false) | (false, true) => Some(order + 1),
        };
        if let Ok(order) = self.word(Field::Rest).fetch_update(AcqRel, Acquire, next) {
            let again = self.word(Field::RestAgain);
            if order % 2 == 1 {
                again.fetch_add(1, AcqRel)
            } else {
                again.swap(0, AcqRel)
            };
            self.ring();
        }
    }

    /// The process's counters.
    pub fn counters(&self) -> Counters {
        Counters::new(&self.words[SLOT_HEADER_WORDS..SLOT_HEADER_WORDS + COUNTER_WORDS])
    }

    /// The process's fault latencies.
    pub fn latency(&self) -> Latency {
        Latency::new(&self.words[SLOT_HEADER_WORDS + COUNTER_WORDS..])
    }

    /// Tells the process's control thread that there is something to do.
    pub fn ring(&self) {
        self.word(Field::Bell).fetch_add(1, AcqRel);
        futex_wake(self.word(Field::Bell));
    }

    /// Waits until the bell rang since it read `seen`, or `timeout` passed.
    pub fn wait_bell(&self, seen: u64, timeout: Duration) {
        futex_wait(self.word(Field::Bell), seen as u32, timeout);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    fn process(pid: u32) -> Identity {
        Identity { pid, start_time: 1, namespace: 0 }
    }

    fn setup(blocks: u64) -> Setup {
        Setup {
            cap_pages: 1000,
            knobs: Knobs { switches: Switches::default(), max_pool_percent: 50 },
            zpool: 0,
            reclaim: 0,
            readahead: 0,
            page_cluster: 9,
            blocks,
            launcher: Identity::own(),
            swap_fd: 2,
            swap_identity: (3, 4),
            trace_fd: Some(0),
            ways: 0,
            encrypt: 1,
            injection: 0,
        }
    }

    #[test]
    fn a_second_process_sees_what_the_first_set_up() {
        let (fd, group) = Group::create(setup(10_000)).unwrap();
        let other = Group::open(Path::new(&format!("/proc/self/fd/{}", fd.as_raw_fd()))).unwrap();
        assert_eq!(other.setup(), group.setup());
        other.change_knobs(|knobs| {
            knobs.switches.enabled = false;
            knobs.max_pool_percent = 30;
        });
        let knobs =
            Knobs { switches: Switches { enabled: false, ..Switches::default() }, max_pool_percent: 30 };
        assert_eq!(group.knobs(), knobs);
        assert!(other.take(900, 50) && !other.take(60, 50));
        assert_eq!(group.free(), 100);
        assert_eq!(group.take_up_to(200), 100);
        group.give(1000);
        assert_eq!(other.free(), 1000);
    }

    #[test]
    fn a_dead_process_leaves_its_counts_and_gives_back_the_rest() {
        let (_fd, group) = Group::create(setup(128)).unwrap();
        let slot = group.claim(process(7)).unwrap();
        assert!(group.take(300, 0));
        slot.set(Field::Grant, 300);
        slot.counters().add(Counter::pswpin, 5);
        slot.latency().record(Duration::from_micros(3));
        let blocks = pagetide_swap::blocks::Blocks::new(group.block_counts(), group.held(slot));
        blocks.allocate(100).unwrap();
        assert_eq!(group.live().count(), 1);
        group.release([slot]);
        group.release([slot]);
        assert_eq!((group.live().count(), group.free()), (0, 1000));
        assert_eq!(group.dead().counters().get(Counter::pswpin), 5);
        let next = group.claim(process(9)).unwrap();
        assert_eq!(next.counters().get(Counter::pswpin), 0);
        let blocks = pagetide_swap::blocks::Blocks::new(group.block_counts(), group.held(next));
        assert_eq!(blocks.allocate(200).unwrap().length, 128);
    }

    #[test]
    fn the_richest_is_asked_for_what_exceeds_its_share() {
        let (_fd, group) = Group::create(setup(0)).unwrap();
        let [rich, poor, deaf] = [1, 2, 3].map(|pid| group.claim(process(pid)).unwrap());
        [rich, poor].iter().for_each(Slot::listen);
        deaf.set(Field::Grant, 950);
        rich.set(Field::Grant, 900);
        poor.set(Field::Grant, 100);
        for _ in 0..2 {
            group.ask(poor, 1000);
            assert_eq!(
                [rich, poor, deaf].map(|slot| slot.get(Field::Asked)),
                [567, 0, 0],
                "and once for the same"
            );
        }
    }

    #[test]
    fn in_need_everybody_is_asked_who_has_something_in_memory() {
        let (_fd, group) = Group::create(setup(0)).unwrap();
        let [rich, poor, needy, asleep] = [1, 2, 3, 4].map(|pid| group.claim(process(pid)).unwrap());
        for (slot, spare) in [(rich, 20), (poor, 400), (needy, 400)] {
            slot.set(Field::Armed, 1);
            slot.set(Field::Spare, spare);
            slot.listen();
        }
        rich.set(Field::Grant, 900);
        asleep.set(Field::Grant, 150);
        asleep.listen();
        for _ in 0..2 {
            group.ask_all(needy, 200);
            assert_eq!([rich, poor, needy, asleep].map(|slot| slot.get(Field::Asked)), [20, 200, 0, 150]);
        }
    }

    #[test]
    fn memory_goes_to_those_under_pressure() {
        let (_fd, group) = Group::create(setup(0)).unwrap();
        let [calm, busy, needy, deaf, asleep] = [1, 2, 3, 4, 5].map(|pid| group.claim(process(pid)).unwrap());
        for (slot, pressure) in [(calm, 5_000), (busy, 90_000), (needy, 100_000)] {
            slot.set(Field::Armed, 1);
            slot.set(Field::Spare, 100);
            slot.set(Field::Pressure, pressure);
            slot.listen();
        }
        deaf.set(Field::Grant, 100);
        asleep.set(Field::Grant, 100);
        let asked = || [calm, busy, needy, deaf, asleep].map(|slot| slot.get(Field::Asked));
        group.level(needy, 200);
        assert_eq!(asked(), [100, 0, 0, 0, 0]);
        group.level(needy, 200);
        assert_eq!(asked(), [100, 0, 0, 0, 0], "asked once, and the next is under pressure itself");
        asleep.listen();
        group.level(needy, 200);
        assert_eq!(asked(), [100, 0, 0, 0, 100], "who has no engine yet loses nothing");
        [calm, asleep].iter().for_each(|slot| slot.set(Field::Asked, 0));
        needy.set(Field::Pressure, 9_000);
        calm.set(Field::Pressure, 0);
        group.level(needy, 200);
        assert_eq!(asked(), [0; 5], "too little is lost");
    }

    #[test]
    fn who_rests_is_asked_first_and_keeps_its_pool_for_a_while() {
        let (_fd, group) = Group::create(setup(0)).unwrap();
        let [needy, rests, works] = [1, 2, 3].map(|pid| group.claim(process(pid)).unwrap());
        for slot in [rests, works] {
            slot.set(Field::Armed, 1);
            slot.set(Field::Resident, RESIDENT_MIN as u64 + 30);
            slot.set(Field::Spare, 100);
            slot.listen();
        }
        let asked = || [rests, works].map(|slot| slot.get(Field::Asked));
        assert!(!group.ask_resting(needy, 50));
        rests.set_resting(true);
        assert!(rests.is_resting() && rests.keeps_pool());
        assert!(group.ask_resting(needy, 50) && !group.ask_resting(needy, 50));
        assert_eq!(asked(), [30, 0], "what it has in the program");
        rests.set_resting(true);
        assert!(rests.is_resting() && !rests.keeps_pool(), "it was told again");
        assert!(
            group.ask_resting(needy, 50) && group.ask_resting(needy, 50) && !group.ask_resting(needy, 50)
        );
        assert_eq!(asked(), [100, 0]);
        rests.set_resting(false);
        rests.set_resting(false);
        assert!(!rests.is_resting());
        rests.set_resting(true);
        assert!(rests.keeps_pool());
        group.ask_all(needy, 10);
        assert!(!rests.is_resting(), "where nothing is left nobody rests");
        assert_eq!(asked(), [100, 10]);
    }

    #[test]
    fn the_group_page_and_the_launcher_are_charged_once_and_as_they_change() {
        let (_fd, group) = Group::create(setup(0)).unwrap();
        group.charge_own(50, 20);
        assert_eq!(group.free(), 930);
        group.charge_own(30, 25);
        assert_eq!(group.free(), 945);
        let memory = pagetide_sys::procfs::Memory { anonymous: 100, shared: 45, tables: 5 };
        assert_eq!(group.charged(&memory), 100 + 15 + 5);
        assert_eq!(group.charged(&pagetide_sys::procfs::Memory { shared: 10, ..memory }), 105);
    }

    #[test]
    fn what_nobody_is_charged_for_is_an_eighth_of_the_cap_at_most() {
        let (_fd, group) = Group::create(setup(0)).unwrap();
        let [spared, trimmed, armed] = [1, 2, 3].map(|pid| group.claim(process(pid)).unwrap());
        assert_eq!(group.uncharged_left(), 125);
        spared.set(Field::Spared, 50);
        trimmed.set(Field::Grant, 100);
        trimmed.set(Field::Added, -40i64 as u64);
        for field in [Field::Armed, Field::Spared] {
            armed.set(field, 1);
        }
        assert_eq!(group.uncharged_left(), 125 - 50 - 40 / 2, "what long nobody touched counts half");
        assert_eq!((trimmed.debt(), trimmed.granted()), (40, 60));
        assert_eq!(trimmed.pay_debt(30), 30);
        assert_eq!(trimmed.pay_debt(30), 10, "no more than it owes");
        assert_eq!((trimmed.debt(), trimmed.pay_debt(30), trimmed.granted()), (0, 0, 100));
        trimmed.set(Field::Added, 7);
        assert_eq!(
            (trimmed.debt(), trimmed.pay_debt(30), trimmed.granted()),
            (0, 0, 107),
            "seen to hold more"
        );
        assert_eq!(group.uncharged_left(), 125 - 50);
        spared.set(Field::Added, 20);
        assert_eq!(group.uncharged_left(), 125 - 30, "touched, and charged since");
        spared.set(Field::Added, 1000);
        assert_eq!(group.uncharged_left(), 125 - 25, "of which most is something else");
    }

    #[test]
    fn what_was_taken_for_one_that_was_just_gone_comes_back() {
        let (_fd, group) = Group::create(setup(0)).unwrap();
        let slot = group.claim(process(1)).unwrap();
        group.release([slot]);
        // The launcher had looked just before.
        group.take_anyway(30);
        slot.word(Field::Added).fetch_add(30, AcqRel);
        let next = group.claim(process(2)).unwrap();
        assert_eq!((next.index(), next.granted(), group.free()), (slot.index(), 0, 1000));
        // And a debt is no gain.
        next.set(Field::Grant, 100);
        next.set(Field::Added, -60i64 as u64);
        group.take_anyway(40);
        group.release([next]);
        assert_eq!(group.free(), 1000);
    }
}
