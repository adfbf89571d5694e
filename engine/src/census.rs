//! Memory of a process that cannot leave, by reason: the figures on which the end of a run for want of memory rests.
//!
//! No time decides that. A *round* ([`crate::engine::Engine::census_step`]) tries once to get each page out that is in
//! memory. A round in which a page left proves nothing, nor does one that met a page on its way: that may make room
//! yet. A complete round leaves a [`Tally`].

/// The reason for which a page that is in memory does not leave.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(usize)]
pub enum Reason {
    /// The page could leave, but the pool takes no more and the device is full, absent or failing.
    NoPlace,
    /// The program has locked it: `mlock(2)`.
    Locked,
    /// The kernel writes to it when a thread ends, or a key of protection or a mask forbids to move it.
    Kept,
    /// The kernel holds it, for I/O: no way out but one that it refuses.
    Pinned,
    /// The kernel holds it, for I/O, and the program may not write to it.
    Guarded,
    /// The page is part of the stack of a thread that works in the engine just now.
    Used,
}

impl Reason {
    /// All reasons, in the order in which they are counted.
    pub const ALL: [Self; 6] =
        [Self::NoPlace, Self::Locked, Self::Kept, Self::Pinned, Self::Guarded, Self::Used];

    /// Returns the reason's name in statistics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::NoPlace => "no_place",
            Self::Locked => "locked",
            Self::Kept => "kept",
            Self::Pinned => "pinned",
            Self::Guarded => "guarded",
            Self::Used => "used",
        }
    }

    /// Returns the words by which messages tell of such pages.
    pub const fn text(self) -> &'static str {
        match self {
            Self::NoPlace => "have no place to go to",
            Self::Locked => "are locked (mlock)",
            Self::Kept => "are kept for the kernel",
            Self::Pinned => "are pinned for I/O",
            Self::Guarded => "are read-only and pinned",
            Self::Used => "are stacks in use",
        }
    }

    /// Returns whether it may be over in a moment, without anything of ours: one round is no proof then.
    const fn is_passing(self) -> bool {
        matches!(self, Self::Pinned | Self::Guarded | Self::Used)
    }
}

/// Pages that cannot leave, by reason.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Tally([u64; Reason::ALL.len()]);

impl Tally {
    /// Returns the tally of counts in the order of [`Reason::ALL`].
    pub const fn from_counts(counts: [u64; Reason::ALL.len()]) -> Self {
        Self(counts)
    }

    /// Counts `pages` more pages for a reason.
    pub fn add(&mut self, reason: Reason, pages: usize) {
        self.0[reason as usize] += pages as u64;
    }

    /// Adds the counts of another tally.
    pub fn add_all(&mut self, other: &Self) {
        self.iter_mut().zip(other.0).for_each(|(sum, pages)| *sum += pages);
    }

    fn iter_mut(&mut self) -> impl Iterator<Item = &mut u64> {
        self.0.iter_mut()
    }

    /// Returns the number of pages for a reason.
    pub fn get(&self, reason: Reason) -> u64 {
        self.0[reason as usize]
    }

    /// Returns the number of pages for all reasons.
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    fn is_passing(&self) -> bool {
        Reason::ALL.iter().any(|&reason| reason.is_passing() && self.get(reason) > 0)
    }
}

/// The outcome of one step of a round.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// More pages are to be tried.
    Goes,
    /// A page left, or is about to.
    Left,
    /// All pages were tried, and some are on their way: in a request, in a call of the program, in a fault.
    Moving,
    /// All pages were tried, and none left, for these reasons.
    Stuck(Tally),
}

/// The number of complete rounds, a hundredth of a second apart, after which a reason that may pass is taken for
/// lasting.
const PASSING_ROUNDS: usize = 50;

/// A count of rounds in a row in which no page left.
#[derive(Debug, Default)]
pub struct Rounds(usize);

impl Rounds {
    /// Notes how a round ended. Returns whether it is proved that no page can leave.
    pub fn note(&mut self, step: Step) -> bool {
        match step {
            Step::Stuck(tally) => {
                self.0 += 1;
                !tally.is_passing() || self.0 >= PASSING_ROUNDS
            }
            Step::Goes => false,
            Step::Left | Step::Moving => {
                self.0 = 0;
                false
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tally(reason: Reason, pages: usize) -> Tally {
        let mut tally = Tally::default();
        tally.add(reason, pages);
        tally
    }

    #[test]
    fn one_round_in_which_nothing_left_is_proof_unless_what_stays_may_be_over_in_a_moment() {
        for reason in Reason::ALL {
            let mut rounds = Rounds::default();
            assert!(!rounds.note(Step::Goes) && !rounds.note(Step::Left) && !rounds.note(Step::Moving));
            let needed = (1..).find(|_| rounds.note(Step::Stuck(tally(reason, 3)))).unwrap();
            let passes = matches!(reason, Reason::Pinned | Reason::Guarded | Reason::Used);
            assert_eq!(needed, if passes { PASSING_ROUNDS } else { 1 }, "{}", reason.name());
        }
        let mut rounds = Rounds::default();
        let pinned = Step::Stuck(tally(Reason::Pinned, 1));
        for interruption in [Step::Moving, Step::Left] {
            assert!((1..PASSING_ROUNDS).all(|_| !rounds.note(pinned)));
            assert!(!rounds.note(interruption));
        }
        assert!(!rounds.note(pinned), "what was interrupted begins anew");
    }

    #[test]
    fn tallies_add_up() {
        let mut sum = tally(Reason::Locked, 5);
        sum.add_all(&tally(Reason::Locked, 2));
        sum.add_all(&tally(Reason::NoPlace, 10));
        assert_eq!((sum.get(Reason::Locked), sum.get(Reason::Kept), sum.total()), (7, 0, 17));
    }
}
