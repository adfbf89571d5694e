//! The history of a cluster: what reclaim remembers of it.

/// The history of a cluster: what reclaim remembers of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct History {
    /// Whether the cluster stands in the reclaim queue.
    pub queued: bool,
    /// Whether pages of it belong to the working set.
    pub workingset: bool,
    /// Whether the cluster stands in the queue for writeback.
    pub pooled: bool,
    /// Whether the cluster is watched: it is known which of its pages were written since.
    pub watched: bool,
    /// The number of pages that came back since the last take-out, less those that the policy has forgotten; at most
    /// 8191.
    pub heat: u16,
    /// The number of pages that the last take-out took.
    pub taken: u16,
}

impl History {
    /// Returns the history of a cluster in which every page is a hole now: only the queues that it stands in.
    pub fn emptied(self) -> Self {
        Self { queued: self.queued, pooled: self.pooled, ..Self::default() }
    }

    const FLAGS: u32 = 4;
    const BITS: u32 = 13;
    const MASK: u32 = (1 << Self::BITS) - 1;

    pub(super) fn to_bits(self) -> u32 {
        let number = |value: u16| u32::from(value).min(Self::MASK);
        u32::from(self.queued)
            | u32::from(self.workingset) << 1
            | u32::from(self.pooled) << 2
            | u32::from(self.watched) << 3
            | number(self.heat) << Self::FLAGS
            | number(self.taken) << (Self::FLAGS + Self::BITS)
    }

    pub(super) fn from_bits(bits: u32) -> Self {
        let number = |shift: u32| (bits >> shift & Self::MASK) as u16;
        Self {
            queued: bits & 1 != 0,
            workingset: bits & 2 != 0,
            pooled: bits & 4 != 0,
            watched: bits & 8 != 0,
            heat: number(Self::FLAGS),
            taken: number(Self::FLAGS + Self::BITS),
        }
    }
}
