//! The layout of the group page: where each word lies, and which values of it are possible.

use super::SLOTS;
use crate::dump::board;
use crate::latency;
use pagetide_swap::Counters;
use pagetide_swap::frontier::{Frontier, TIERS};
use pagetide_swap::held::Held;

pub(super) const HEADER_WORDS: usize = 80;
pub(super) const SLOT_HEADER_WORDS: usize = 60;
pub(super) const COUNTER_WORDS: usize = 128;
pub(super) const SLOT_WORDS: usize = 320;

/// More pages, and more bytes of them, than any machine has: what somebody who should not has written over the group
/// page counts as no more, so that no sum overflows.
pub(super) const PAGES_MAX: i64 = 1 << 40;
pub(super) const BYTES_MAX: i64 = PAGES_MAX << 12;

const _: () = assert!(Counters::CELLS <= COUNTER_WORDS);
const _: () = assert!(Header::Remote as usize + super::RemoteFigure::ALL.len() <= HEADER_WORDS);
const _: () = assert!(Field::Stuck as usize + crate::census::Reason::ALL.len() <= SLOT_HEADER_WORDS);
const _: () = assert!(SLOT_HEADER_WORDS + COUNTER_WORDS + latency::WORDS <= SLOT_WORDS);

/// A word of the header.
#[derive(Clone, Copy)]
#[repr(usize)]
pub(super) enum Header {
    Magic,
    Version,
    /// The cap, and how often it has been changed.
    CapPages,
    CapChanges,
    PoolPercent,
    Switches,
    Zpool,
    Reclaim,
    Readahead,
    PageCluster,
    LauncherPid,
    LauncherStart,
    LauncherNamespace,
    /// One more than the trace's descriptor in the launcher; 0 if there is none.
    TraceFd,
    Mask,
    Encrypt,
    Injection,
    /// The level of the run's log, and where it is written.
    Log,
    Free,
    Demand,
    /// One more than the highest slot that was ever taken.
    SlotsSeen,
    /// Pages of the group page itself, which each process maps and the cap counts once.
    OwnPages,
    /// Pages of the launcher itself.
    LauncherPages,
    /// Pages of shared memory that processes map, each once.
    SharedPages,
    /// Pages that processes without a slot hold.
    UnmanagedPages,
    /// Pages that are kept free for programs that start.
    StartReserve,
    /// The number of times that the swap file went out of use and into use: odd if it is to be used no more.
    Swapoffs,
    /// Looks of the launcher so far, at each of which it gives back the slots of the dead.
    Looks,
    /// When a process that was short last looked for others that have ended, by the kernel's clock.
    Sought,
    /// 1 while a take-out was refused last, for calls of [`super::Group::begin_crossing`] under way.
    TakingRefused,
    /// The tiers of the device, several words each: see [`TierWord`].
    Tiers,
    /// The [`Frontier`] of each tier, in several words.
    Frontiers = Self::Tiers as usize + TIERS * TierWord::COUNT,
    /// Inquiries so far, and the last that the launcher has answered: see [`inquiry`].
    Inquiries = Self::Frontiers as usize + TIERS * Frontier::WORDS,
    LauncherAnswered,
    /// 1 since a file was put on the list of those that the keeper serves.
    ServedFiles,
    /// One more than the tenant that ends for want of memory.
    Ending,
    /// The number of processes that have ended for want of memory, and the pages that were not managed when the last
    /// one did.
    EndedProcesses,
    EndedUnmanaged,
    /// The number of processes that Pagetide has ended, whatever for.
    Kills,
    /// The first of the words for what could not leave then, one a [`crate::census::Reason`].
    EndedStuck,
    /// The first of the figures of the remote tier, see [`super::RemoteFigure`].
    Remote = Self::EndedStuck as usize + crate::census::Reason::ALL.len(),
}

/// A word that says what a tier of the device is.
#[derive(Clone, Copy)]
#[repr(usize)]
pub(super) enum TierWord {
    /// Blocks; 0 if there is no such tier.
    Blocks,
    Kind,
    Fd,
    /// Device and inode of its file.
    Device,
    Inode,
}

impl TierWord {
    pub(super) const COUNT: usize = 5;

    /// Returns the place of the word of a tier in the header.
    pub(super) fn of(self, tier: usize) -> usize {
        Header::Tiers as usize + tier * Self::COUNT + self as usize
    }
}

/// [`Field::Settles`] of a process that wants to be charged for what it has borrowed, in place of its parent.
pub(crate) const WANTED: u64 = 1;
/// [`Field::Settles`] of a process that is to be charged for it: its parent is not any more.
pub(crate) const GRANTED: u64 = 2;

/// A word of a slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(usize)]
pub enum Field {
    /// 0 free, 1 taken.
    Taken,
    /// The number of processes that have had the slot so far.
    Tenancy,
    /// The process's pid, as the process sees it.
    Pid,
    /// The process's start time; 0 if it is not known yet, since a fork is under way.
    StartTime,
    /// Pages that the process may use.
    Grant,
    /// Pages that the process is asked to give back.
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
    /// Blocks of those that are on the remote server.
    OnServer,
    /// Pages stored in the pool.
    StoredPages,
    /// Bytes of the payload of the stored pages.
    StoredBytes,
    /// Pages of the stored ones that are stored as they are, uncompressed.
    StoredRaw,
    /// Pages out of the program that are one repeated word.
    SameFilled,
    /// Pages of the pool that would be free if its entries lay together.
    Loose,
    /// Anonymous and page-table pages that the launcher last saw in `/proc`.
    Observed,
    /// Faults that wait for room or for the device just now.
    Stalled,
    /// Pages on probation.
    Cached,
    /// Pool pages shared by fork that the process and its heirs hold.
    Frozen,
    /// Pool pages shared by fork that are charged to the process.
    PoolShared,
    /// Whether the process is to let go of pool pages that it shares by fork.
    Unshares,
    /// Pages that the process is granted for the frames of what it has lent to its children, beside its budget.
    Lent,
    /// Pages in the program that are borrowed from the parent, and not charged.
    Borrowed,
    /// Whether the process wants to be charged for what it has borrowed, or is to be.
    Settles,
    /// The time that its program loses to pages which come back, in millionths of all time.
    Pressure,
    /// Nanoseconds that others have lost for want of one page since its program last lost much time so.
    Rent,
    /// Pages that it has given to others since then.
    Given,
    /// Pages that the launcher has taken in the process's name, beside its grant (it was seen to hold them before its
    /// engine ran, which makes them part of the grant), less those that it has given back (they were not touched).
    Added,
    /// Whether a thread of the process waits for its bell: others may ask it for pages.
    Listens,
    /// Pages that others may ask for, as the engine counts them.
    Spare,
    /// The process's pid namespace; 0 if it is not known.
    Namespace,
    /// The pid that `getpid` tells the process: of its namespace, whichever `/proc` it sees.
    OwnPid,
    /// The pid by which the launcher knows it; 0 before it has looked.
    KnownAs,
    /// The state of the engine's swapoff, and the number of the order that it follows: see [`super::OffState`].
    Swapoff,
    /// Pages that an allocator has taken and that are not charged, for they are not expected to be touched soon. If
    /// they are, the launcher sees it at its next look. 0 once the engine runs.
    Spared,
    /// The number of times that the process was told to rest and to go on: odd while its faults, and without an engine its calls
    /// for more memory, are to wait (see [`super::ProcessSlot::set_resting`]).
    Rest,
    /// The number of times that the process was told to rest since it rests.
    RestAgain,
    /// The address where the stack of the process's program begins; see [`super::ProcessSlot::stack`].
    Stack,
    /// The number of the last inquiry that the process has answered.
    Answered,
    /// The reason for which the process does not answer: see [`super::Responsiveness`].
    Responsiveness,
    /// Pages that the program has locked.
    Locked,
    /// Whether it is the keeper of the run's shared memory: [`Self::Resident`] are pages of that, in no page table of its
    /// own.
    Keeps,
    /// Whether the kernel may hold pages of the process for I/O.
    Pins,
    /// One more than the tenant that forks, or has forked, the process; 0 if it was not forked.
    Forker,
    /// One more than the tenant that takes back what the process was granted, which has ended; 0 if none does.
    Collector,
    /// The number of its calls under way for which the kernel pins pages of any process; see [`super::Group::begin_crossing`].
    Crossing,
    /// The number of its take-outs under way that would take pinned pages along.
    Taking,
    /// The first of the words for pages that could not leave when it looked last, one a [`crate::census::Reason`].
    Stuck,
}

impl Field {
    /// What says how much memory a process has, that it counts as its own.
    pub(super) const MEMORY: [Self; 18] = [
        Self::Observed,
        Self::Armed,
        Self::Listens,
        Self::Resident,
        Self::Borrowed,
        Self::Frames,
        Self::Pool,
        Self::Metadata,
        Self::Unmanaged,
        Self::Swapped,
        Self::Cached,
        Self::StoredPages,
        Self::StoredBytes,
        Self::StoredRaw,
        Self::SameFilled,
        Self::Loose,
        Self::Stalled,
        Self::Spare,
    ];

    /// Returns `value`, or the nearest value that is possible in this word.
    pub(crate) fn bounded(self, value: u64) -> u64 {
        match self {
            Self::Taken
            | Self::Tenancy
            | Self::Pid
            | Self::OwnPid
            | Self::StartTime
            | Self::Bell
            | Self::Armed
            | Self::Listens
            | Self::Namespace
            | Self::KnownAs
            | Self::Swapoff
            | Self::Rest
            | Self::RestAgain
            | Self::Stack
            | Self::Answered
            | Self::Responsiveness
            | Self::Keeps
            | Self::Unshares
            | Self::Settles
            | Self::Pins
            | Self::Crossing
            | Self::Taking => value,
            // The highest bit stands for all.
            Self::Locked => value & 1 << 63 | (value & !(1 << 63)).min(PAGES_MAX as u64),
            // These may be less than nothing.
            Self::Grant | Self::Added => (value as i64).clamp(-PAGES_MAX, PAGES_MAX) as u64,
            Self::StoredBytes => (value as i64).clamp(0, BYTES_MAX) as u64,
            _ => (value as i64).clamp(0, PAGES_MAX) as u64,
        }
    }
}

/// Returns the bytes of a group page for a device of `blocks` blocks: a 127th of it. Parts that were never
/// used take no memory.
pub fn bytes_needed(blocks: u64) -> usize {
    served_files_at(blocks) + SERVED_FILES_MAX * SERVED_FILE_WORDS * 8
}

/// The number of files that can be objects of shared memory at one time.
pub(super) const SERVED_FILES_MAX: usize = 1024;
/// Device and inode.
pub(super) const SERVED_FILE_WORDS: usize = 2;

/// Returns the offset of the list of served files: behind the boards.
pub(super) fn served_files_at(blocks: u64) -> usize {
    (boards_at(blocks) + SLOTS * BOARD_BYTES).next_multiple_of(4096)
}

/// Bytes of a board.
pub(super) const BOARD_BYTES: usize = board::WORDS * 8;

/// Returns the offset of the boards: behind slots and the books of blocks.
pub(super) fn boards_at(blocks: u64) -> usize {
    let words = HEADER_WORDS + SLOT_WORDS * (SLOTS + 1);
    (words * 8 + counts_bytes(blocks) + SLOTS * held_words(blocks) * 8).next_multiple_of(4096)
}

pub(super) fn counts_bytes(blocks: u64) -> usize {
    (blocks as usize).next_multiple_of(4096)
}

/// Words of one slot's bitmap, in whole pages: untouched pages of the file take no memory.
pub(super) fn held_words(blocks: u64) -> usize {
    Held::words(blocks as usize).next_multiple_of(512)
}
