//! Growth of the swap file, which the launcher watches.
//!
//! The file is as large as its frontier ([`pagetide_swap::frontier`]) has come. Where no size was given the frontier
//! moves on only while both hold:
//! - A twentieth of the disk stays free, whoever fills it. Else the file keeps its size, and grows again when there
//!   is room.
//! - The file is smaller than 4 × the cap, or half of its blocks are in use. Else free blocks below the frontier are
//!   taken again, one by one if need be.

use crate::units::show_bytes;
use pagetide_device::file::Room;
use pagetide_swap::frontier::{EXTENT, Frontier};
use std::path::Path;
use std::time::{Duration, Instant};

const BLOCK: u64 = pagetide_device::BLOCK as u64;
/// One part in this many of a disk stays free: 5 %.
const FREE_PART: u64 = 20;
/// Bytes for the metadata that the file system writes beside the data.
const BOOKS: u64 = 1 << 20;
/// Blocks by which the file may grow between two looks at least. No disk writes 1 GiB in a quarter of a second.
const STEP: u64 = (1 << 30) / BLOCK;
const INTERVAL: Duration = Duration::from_millis(250);

/// State of the growth of a swap file.
#[derive(Debug)]
pub(crate) struct Growth {
    /// The most blocks that the file may have.
    most: u64,
    /// 4 × the cap, in blocks; `None` if a size was given, which is then the only limit.
    pledge: Option<u64>,
    next: Instant,
    /// Where pages are for which the file has no room.
    otherwise: &'static str,
    passed: Said,
    full: Said,
}

/// Whether a message that is said once was said.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Said {
    No,
    Yes,
}

impl Said {
    fn once(&mut self, so: bool) -> bool {
        so && std::mem::replace(self, Self::Yes) == Self::No
    }
}

/// The state of the disk and the file at a look.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Seen {
    /// Size and free space of the disk.
    pub(crate) room: Room,
    /// Bytes of the disk that the file takes.
    pub(crate) taken: u64,
    /// Blocks below the frontier.
    pub(crate) open: u64,
    /// Blocks that processes hold.
    pub(crate) held: u64,
}

/// A message for the user.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum News {
    /// The file is larger than 4 × the cap.
    Passed(String),
    /// The disk has no room for the file.
    Full(String),
}

impl Growth {
    /// Returns the state for a file of at most `most` bytes, of which `pledge` do not depend on use. Without a
    /// pledge all of them are allowed at once.
    pub(crate) fn new(most: u64, pledge: Option<u64>) -> Self {
        let [most, pledge] = [Some(most), pledge].map(|bytes| bytes.map(|bytes| bytes / BLOCK));
        Self {
            most: most.expect("given"),
            pledge,
            next: Instant::now(),
            otherwise: "stay in memory",
            passed: Said::No,
            full: Said::No,
        }
    }

    /// Has the file grow to so many bytes at most; behind it is a remote tier.
    pub(crate) fn end_before_remote(&mut self, most: u64) {
        self.most = most / BLOCK;
        self.otherwise = "go to the remote server";
    }

    /// Returns whether a look is due: its time has come, or the file is about to reach the size it may grow to.
    pub(crate) fn is_due(&self, frontier: Frontier) -> bool {
        let allowed = frontier.allowed();
        let near = frontier.open() + STEP / 2 > allowed && allowed < self.most;
        near || Instant::now() >= self.next
    }

    /// Notes that a look is taken now.
    pub(crate) fn note_look(&mut self) {
        self.next = Instant::now() + INTERVAL;
    }

    /// Lets the file grow as far as `seen` allows. Returns messages about the file in `directory`; `bound` says
    /// where its largest size comes from.
    pub(crate) fn follow(
        &mut self,
        frontier: Frontier,
        seen: &Seen,
        refused: u64,
        directory: &Path,
        bound: &str,
    ) -> Vec<News> {
        frontier.allow(self.allowed(seen));
        let mut news = Vec::new();
        let directory = directory.display();
        if let Some(pledge) = self.pledge
            && self.passed.once(seen.open > pledge)
        {
            let [pledge, most] = [pledge, self.most].map(|blocks| show_bytes(blocks * BLOCK));
            news.push(News::Passed(format!(
                "the swap file has passed 4 × the cap ({pledge}); it may grow to {most}, {bound} (--swap-size)"
            )));
        }
        if self.full.once(self.is_stopped(seen)) {
            news.push(News::Full(format!(
                "{directory} is 95 % full: the swap file grows again when there is room, and pages {} until then \
                 (--swap-dir)",
                self.otherwise
            )));
        }
        if self.full.once(refused > 0) {
            news.push(News::Full(format!(
                "{directory} is full: pages {} until there is room for the swap file (--swap-dir)",
                self.otherwise
            )));
        }
        news
    }

    /// Returns the blocks that the file may have now.
    fn allowed(&self, seen: &Seen) -> u64 {
        let Some(pledge) = self.pledge else { return self.most };
        self.most.min(Self::room(seen)).min(Self::need(pledge, seen))
    }

    /// Returns the blocks for which the disk has room, with those that the file has already.
    fn room(seen: &Seen) -> u64 {
        let kept = seen.room.total / FREE_PART + BOOKS;
        (seen.taken + seen.room.free.saturating_sub(kept)) / BLOCK
    }

    /// Returns the blocks that the run may need before the next look.
    fn need(pledge: u64, seen: &Seen) -> u64 {
        let crowded = seen.held * 2 >= seen.open;
        if crowded { seen.open.saturating_add(STEP).max(pledge) } else { seen.open.max(pledge) }
    }

    /// Returns whether the run has filled its file and the disk has no room for more.
    fn is_stopped(&self, seen: &Seen) -> bool {
        let next = (seen.open + EXTENT).min(self.most);
        // Less than a tenth of the file is free again.
        let filled = seen.open > 0 && seen.open < self.most && seen.held * 10 >= seen.open * 9;
        self.pledge.is_some() && filled && Self::room(seen) < next
    }
}

/// How the run uses its file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Use {
    /// Blocks that processes hold.
    pub(crate) held: u64,
    /// Writes that failed for want of room on the disk.
    pub(crate) refused: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A disk on which a run and somebody else write, looked at every now and then.
    #[test]
    fn a_twentieth_of_the_disk_stays_free_and_the_file_is_no_larger_than_it_need_be() {
        let mut random = 7u64;
        let mut next = |below: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (random >> 33) % below
        };
        for _ in 0..200 {
            let total = (64 + next(100_000)) << 20;
            let (most, pledge) = (next(total / BLOCK) + 1, next(20_000) + 1);
            let growth = Growth::new(most * BLOCK, Some(pledge * BLOCK));
            // In blocks. All that is open is written sooner or later.
            let (mut others, mut open, mut taken, mut held) = (next(total / BLOCK), 0, 0, 0u64);
            for _ in 0..300 {
                let free = total / BLOCK - others - taken;
                let seen =
                    Seen { room: Room { total, free: free * BLOCK }, taken: taken * BLOCK, open, held };
                let allowed = growth.allowed(&seen);
                assert!(allowed <= most && allowed <= open.max(pledge) + STEP);
                let grown = open.max(allowed.min(open + next(5_000)));
                if grown > open {
                    let left = total / BLOCK - others - grown;
                    assert!(left >= total / BLOCK / FREE_PART, "{left} of {} blocks left", total / BLOCK);
                    assert!(open < pledge || held * 2 >= open, "{held} held, {open} open, {pledge} pledged");
                }
                open = grown;
                taken += next(open - taken + 1);
                held = next(open + 1);
                let free = total / BLOCK - others - taken;
                // Others go as far as they like, but for what the file has begun.
                others = match next(3) {
                    0 => others - next(others + 1),
                    1 => others + next((free + taken).saturating_sub(open) + 1),
                    _ => others,
                };
            }
        }
    }

    #[test]
    fn a_size_that_was_given_is_all_that_counts() {
        let growth = Growth::new(100 * BLOCK, None);
        let room = Room { total: 1 << 30, free: 0 };
        let seen = Seen { room, taken: 0, open: 0, held: 0 };
        assert_eq!((growth.allowed(&seen), growth.is_stopped(&seen)), (100, false));
    }

    #[test]
    fn a_run_is_stopped_when_it_has_filled_what_the_disk_has_room_for() {
        let growth = Growth::new(10_000 * BLOCK, Some(1000 * BLOCK));
        let room = Room { total: 100 << 30, free: 5 << 30 };
        let seen = |open, held| Seen { room, taken: open * BLOCK, open, held };
        assert!(!growth.is_stopped(&seen(0, 0)) && !growth.is_stopped(&seen(5120, 2000)));
        assert!(growth.is_stopped(&seen(5120, 5000)) && growth.allowed(&seen(5120, 5000)) == 5120);
        assert!(!growth.is_stopped(&seen(10_000, 10_000)), "it has all that it may have");
        let room = Room { free: 6 << 30, ..room };
        assert!(!growth.is_stopped(&Seen { room, ..seen(5120, 5000) }));
    }
}
