//! Masks: the ways in which pages leave and come back, of which some are not to be used.
//!
//! Every way has a complete fallback. Tests mask ways to run each of them alone; so does a kernel that
//! lacks one.

/// A set of ways that are masked.
///
/// ```
/// use pagetide::mask::Mask;
///
/// let mask = Mask::parse("move,ring").unwrap();
/// assert!(mask.masks(Mask::NO_MOVE) && !mask.masks(Mask::NO_POOL));
/// assert_eq!(Mask::parse("move,sideways"), Err("sideways"));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Mask(u64);

impl Mask {
    /// No cluster take-out by `mremap`: runs leave by UFFDIO_MOVE.
    pub const NO_REMAP: Self = Self(1);
    /// No UFFDIO_MOVE at all, as before Linux 6.8: in by COPY, out by `mremap`.
    pub const NO_MOVE: Self = Self(2);
    /// No COPY of single pages where MOVE can do it.
    pub const NO_COPY: Self = Self(4);
    /// No io_uring: positioned reads and writes.
    pub const NO_RING: Self = Self(8);
    /// No PAGEMAP_SCAN, as before Linux 6.7.
    pub const NO_SCAN: Self = Self(16);
    /// No pool: every page goes to the device.
    pub const NO_POOL: Self = Self(32);
    /// No keeper: shared memory stays in memory, and is counted.
    pub const NO_SHARED: Self = Self(64);
    /// No watching of what is written, as before Linux 6.7: a cluster leaves whole, hot pages and all.
    pub const NO_WATCH: Self = Self(128);
    /// No zero page: zeroes are memory of their own, as before Linux 6.7.
    pub const NO_ZERO: Self = Self(256);
    /// No pages that forked children borrow: each is charged for all that it may come to write.
    pub const NO_LEND: Self = Self(512);

    /// The names of all ways, as in the environment variable `PAGETIDE_MASK`.
    pub const NAMES: [(&'static str, Self); 10] = [
        ("remap", Self::NO_REMAP),
        ("move", Self::NO_MOVE),
        ("copy", Self::NO_COPY),
        ("ring", Self::NO_RING),
        ("scan", Self::NO_SCAN),
        ("pool", Self::NO_POOL),
        ("shared", Self::NO_SHARED),
        ("watch", Self::NO_WATCH),
        ("zero", Self::NO_ZERO),
        ("lend", Self::NO_LEND),
    ];

    /// Reads a comma-separated list of names.
    ///
    /// # Errors
    /// The first name in the list that no way has.
    pub fn parse(list: &str) -> Result<Self, &str> {
        let mut mask = Self::default();
        for name in list.split(',').filter(|name| !name.is_empty()) {
            let (_, way) = Self::NAMES.iter().find(|(known, _)| *known == name).ok_or(name)?;
            mask.0 |= way.0;
        }
        Ok(mask)
    }

    /// Returns the set as a number, for the group page.
    pub const fn bits(self) -> u64 {
        self.0
    }

    /// Returns the set from its number.
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// Returns whether all ways in `mask` are masked.
    pub const fn masks(self, mask: Self) -> bool {
        self.0 & mask.0 == mask.0
    }
}
