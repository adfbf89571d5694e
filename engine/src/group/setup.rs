//! The setup of a run: its settings, and the making and opening of its group page.

use super::layout::{HEADER_WORDS, Header, PAGES_MAX, TierWord, bytes_needed};
use super::{DeviceKind, Group, SLOTS, TierSpec};
use crate::injection::Plan;
use crate::mask::Mask;
use pagetide_swap::config::PAGE_CLUSTER_MAX;
use pagetide_swap::frontier::{EXTENT, TIERS};
use pagetide_swap::{Allocator, Readahead, Reclaim, Switches};
use pagetide_sys::procfs::Identity;
use pagetide_sys::shared::Shared;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::atomic::{Ordering::AcqRel, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

const MAGIC: u64 = u64::from_le_bytes(*b"pagetide");

/// The form of the group page. It rises with every change of its layout, and of the list of counters.
pub const VERSION: u64 = 32;

/// The settings that a run is told at its start.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Setup {
    /// The cap at the start of the run, in pages.
    pub cap_pages: u64,
    /// The settings that may change while the run goes on, as they are at its start.
    pub knobs: Knobs,
    /// The pool's allocator.
    pub zpool: Allocator,
    /// The rule by which clusters leave.
    pub reclaim: Reclaim,
    /// The rule by which neighbours of a page come in with it.
    pub readahead: Readahead,
    /// log2 of the pages that are read from the swap file at once at most.
    pub page_cluster: u32,
    /// The identity of the launcher.
    pub launcher: Identity,
    /// The tiers of the device, one behind the other; without any there is no device.
    pub tiers: [TierSpec; TIERS],
    /// The number of the trace's descriptor in the launcher, if the run writes a trace.
    pub trace_fd: Option<u64>,
    /// The ways of moving pages that are masked, for tests.
    pub mask: Mask,
    /// Whether the swap file is encrypted.
    pub encrypt: bool,
    /// The fault that is injected, for tests.
    pub injection: Plan,
}

impl Setup {
    /// Returns the setup of a run with this cap, without a swap file, and with the defaults of all other settings.
    pub fn new(cap_pages: u64, launcher: Identity) -> Self {
        Self {
            cap_pages,
            knobs: Knobs { switches: Switches::default(), max_pool_percent: 50 },
            zpool: Allocator::default(),
            reclaim: Reclaim::default(),
            readahead: Readahead::default(),
            page_cluster: PAGE_CLUSTER_MAX,
            launcher,
            tiers: Default::default(),
            trace_fd: None,
            mask: Mask::default(),
            encrypt: true,
            injection: Plan::default(),
        }
    }

    /// Returns the number of blocks of the device; 0 if there is none.
    pub fn blocks(&self) -> u64 {
        self.tiers.iter().map(|tier| tier.blocks).sum()
    }

    /// Returns the number of the tier of this kind, if there is one.
    pub fn tier(&self, kind: DeviceKind) -> Option<usize> {
        self.tiers.iter().position(|tier| tier.blocks > 0 && tier.device.kind == kind)
    }

    /// Returns the first block of a tier.
    pub fn first_block(&self, tier: usize) -> u64 {
        self.tiers.iter().take(tier).map(|tier| tier.blocks).sum()
    }

    /// Returns whether there may be such tiers: of a size that some machine has, and no extent in two of them.
    fn has_possible_tiers(&self) -> bool {
        let most = PAGES_MAX as u64 / TIERS as u64;
        self.tiers.iter().all(|tier| tier.blocks <= most)
            && self.tiers.windows(2).all(|pair| pair[1].blocks == 0 || pair[0].blocks.is_multiple_of(EXTENT))
    }
}

/// The settings that may change while a run goes on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Knobs {
    /// The switches of the pool.
    pub switches: Switches,
    /// The part of the cap that the pool may take at most, in percent.
    pub max_pool_percent: u64,
}

/// The reason for which the group page cannot be used.
#[derive(Debug)]
pub enum OpenError {
    /// It cannot be opened or mapped.
    System(std::io::Error),
    /// It is no group page, or that of another version of Pagetide.
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

impl Group {
    /// Creates the group page.
    ///
    /// # Errors
    /// The error of the system: there is no memory for the page, or no descriptor.
    pub fn create(setup: Setup) -> Result<(OwnedFd, Self), std::io::Error> {
        let (fd, shared) = Shared::create("pagetide-group", bytes_needed(setup.blocks()))?;
        let header = shared.words(0, HEADER_WORDS);
        let set = |word: Header, value: u64| header[word as usize].store(value, Relaxed);
        set(Header::Version, VERSION);
        set(Header::CapPages, setup.cap_pages);
        set(Header::PoolPercent, setup.knobs.max_pool_percent);
        set(Header::Switches, setup.knobs.switches.to_bits());
        set(Header::Zpool, setup.zpool.to_bits());
        set(Header::Reclaim, setup.reclaim.to_bits());
        set(Header::Readahead, setup.readahead.to_bits());
        set(Header::PageCluster, setup.page_cluster.into());
        set(Header::LauncherPid, setup.launcher.pid.into());
        set(Header::LauncherStart, setup.launcher.start_time);
        set(Header::LauncherNamespace, setup.launcher.namespace);
        set(Header::TraceFd, setup.trace_fd.map_or(0, |fd| fd + 1));
        set(Header::Mask, setup.mask.bits());
        set(Header::Encrypt, setup.encrypt.into());
        set(Header::Injection, setup.injection.bits());
        set(Header::Free, setup.cap_pages);
        let this = Self { shared, header, slots: SLOTS, setup };
        for (tier, spec) in setup.tiers.iter().enumerate() {
            spec.words().into_iter().for_each(|(word, value)| header[word.of(tier)].store(value, Relaxed));
            this.frontier(tier).allow(spec.blocks);
        }
        header[Header::Magic as usize].store(MAGIC, Release);
        Ok((fd, this))
    }

    /// Opens a run's group page.
    ///
    /// # Errors
    /// - [`OpenError::System`]: the path cannot be opened or mapped.
    /// - [`OpenError::Foreign`]: it is no group page of this version.
    pub fn open(path: &Path) -> Result<Self, OpenError> {
        Self::of(Shared::open(path).map_err(|error| OpenError::System(error.into()))?)
    }

    /// Maps the group page of which this process was handed a descriptor.
    pub(crate) fn adopt(page: &OwnedFd) -> Result<Self, OpenError> {
        Self::of(Shared::adopt(page).map_err(|error| OpenError::System(error.into()))?)
    }

    /// Replaces the setup of the page by what is known for sure.
    pub(crate) fn corrected(self, correct: impl FnOnce(Setup) -> Setup) -> Self {
        Self { setup: correct(self.setup), ..self }
    }

    fn of(shared: Shared) -> Result<Self, OpenError> {
        if shared.len() < HEADER_WORDS * 8 {
            return Err(OpenError::Foreign);
        }
        let header = shared.words(0, HEADER_WORDS);
        let get = |word: Header| header[word as usize].load(Acquire);
        if get(Header::Magic) != MAGIC || get(Header::Version) != VERSION {
            return Err(OpenError::Foreign);
        }
        let setup = Setup {
            cap_pages: get(Header::CapPages).clamp(1, PAGES_MAX as u64),
            knobs: Knobs {
                switches: Switches::from_bits(get(Header::Switches)),
                max_pool_percent: get(Header::PoolPercent).min(100),
            },
            zpool: Allocator::from_bits(get(Header::Zpool)).unwrap_or_default(),
            reclaim: Reclaim::from_bits(get(Header::Reclaim)).unwrap_or_default(),
            readahead: Readahead::from_bits(get(Header::Readahead)).unwrap_or_default(),
            page_cluster: get(Header::PageCluster).min(PAGE_CLUSTER_MAX.into()) as u32,
            launcher: Identity {
                pid: get(Header::LauncherPid) as u32,
                start_time: get(Header::LauncherStart),
                namespace: get(Header::LauncherNamespace),
            },
            tiers: std::array::from_fn(|tier| {
                TierSpec::of_words(|word: TierWord| header[word.of(tier)].load(Acquire))
            }),
            trace_fd: get(Header::TraceFd).checked_sub(1),
            mask: Mask::from_bits(get(Header::Mask)),
            encrypt: get(Header::Encrypt) != 0,
            injection: Plan::from_bits(get(Header::Injection)),
        };
        if !setup.has_possible_tiers() || shared.len() != bytes_needed(setup.blocks()) {
            return Err(OpenError::Foreign);
        }
        Ok(Self { shared, header, slots: SLOTS, setup })
    }

    /// Returns the settings that the run was told at its start.
    pub fn setup(&self) -> Setup {
        self.setup
    }

    /// Returns the cap, in pages, as it is now.
    pub fn cap_pages(&self) -> u64 {
        self.header[Header::CapPages as usize].load(Acquire).clamp(1, PAGES_MAX as u64)
    }

    /// Returns how often the cap was changed while the run went on.
    pub fn cap_changes(&self) -> u64 {
        self.header[Header::CapChanges as usize].load(Acquire)
    }

    /// Changes the cap. What is in memory above it is asked back by the launcher, at its next sample.
    pub fn change_cap(&self, pages: u64) {
        let pages = pages.clamp(1, PAGES_MAX as u64);
        let before = self.header[Header::CapPages as usize].swap(pages, AcqRel).clamp(1, PAGES_MAX as u64);
        if pages == before {
            return;
        }
        self.header[Header::CapChanges as usize].fetch_add(1, AcqRel);
        if pages > before {
            self.give((pages - before) as i64)
        } else {
            self.take_anyway((before - pages) as i64)
        }
        self.live().for_each(|slot| slot.ring());
    }

    /// Returns the settings that may change while the run goes on, as they are now.
    pub fn knobs(&self) -> Knobs {
        let get = |word: Header| self.header[word as usize].load(Acquire);
        Knobs {
            switches: Switches::from_bits(get(Header::Switches)),
            max_pool_percent: get(Header::PoolPercent).min(100),
        }
    }

    /// Changes the settings that may change. Each process follows within some hundredths of a second.
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
}
