//! The start reserve: pages that a run of several processes keeps free for programs that start.
//!
//! A program that starts has pages of the loader and of the C library, 1 MiB in an interpreter, before the next sample finds
//! them and others give way. Under a cap of 16 MiB those alone were 9 % too much.

/// The most pages that are kept free, and the part of the cap, one in so many, that they are at most.
const MOST: u64 = 256;
const PART: u64 = 16;

/// Whether pages are kept free.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum StartReserve {
    /// No: the run has had one process at a time.
    #[default]
    NotYet,
    Kept,
    /// No more: a process has starved, and what is kept free may be the room that it lacks.
    GivenUp,
}

impl StartReserve {
    /// Returns the pages that are to be free under a cap of `cap_pages` now that the run has this many processes, and
    /// where `starves` one of them has found nothing that can leave.
    pub(super) fn pages(&mut self, cap_pages: u64, processes: usize, starves: bool) -> u64 {
        *self = match *self {
            _ if starves => Self::GivenUp,
            Self::NotYet if processes > 1 => Self::Kept,
            before => before,
        };
        if *self == Self::Kept { MOST.min(cap_pages / PART) } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_processes_leave_room_for_programs_that_start_until_one_starves() {
        let mut reserve = StartReserve::default();
        assert_eq!(reserve.pages(4096, 1, false), 0);
        assert_eq!(reserve.pages(4096, 2, false), 256);
        assert_eq!(reserve.pages(1600, 1, false), 100, "the next may start");
        assert_eq!(reserve.pages(1 << 20, 9, false), 256);
        assert_eq!(reserve.pages(4096, 2, true), 0);
        assert_eq!(reserve.pages(4096, 2, false), 0, "it would starve again");
    }
}
