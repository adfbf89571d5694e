//! The options of `pagetide run`.

use crate::control::set::{POOL_PERCENT, parse_shrinker};
use crate::units::{Size, parse_size, parse_time};
use crate::verbosity::Verbosity;
use pagetide::group::Knobs;
use pagetide_swap::config::PAGE_CLUSTER_MAX;
use pagetide_swap::zswap::shrinker::Shrinker;
use pagetide_swap::{Compression, Readahead, Reclaim, Switches};
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

/// Run a program in less memory than it needs
#[derive(clap::Args, Debug)]
#[command(after_help = "\
SIZE is a number with K, M, G or T (binary), or a percentage of the memory that this process may have: the \
smallest limit on its cgroup path, or the machine's memory. TIME is a number with ms, s, m or h.

The exit status is that of CMD, 128 + N if signal N ended it, 125 if Pagetide failed, 126 if CMD cannot be \
executed, 127 if it was not found.")]
pub struct RunArgs {
    /// The cap on the memory of all processes of the run [default: 80%]
    #[arg(short, long, value_name = "SIZE", value_parser = parse_size)]
    pub memory: Option<Size>,
    /// Where the swap file lies [default: $TMPDIR, or /var/tmp]
    #[arg(long, value_name = "DIR", conflicts_with = "no_disk")]
    pub swap_dir: Option<PathBuf>,
    /// The size of the swap file [default: it grows to half of what is free; in a container to 4 times the cap]
    #[arg(long, value_name = "SIZE", value_parser = parse_size, conflicts_with = "no_disk")]
    pub swap_size: Option<Size>,
    /// Swap into compressed memory only
    #[arg(long)]
    pub no_disk: bool,
    /// Write pages to the swap file as they are, not encrypted
    #[arg(long, conflicts_with = "no_disk")]
    pub no_encrypt: bool,
    /// The share of the cap that compressed pages may take
    #[arg(long, value_name = "N", default_value_t = 80, value_parser = clap::value_parser!(u64).range(POOL_PERCENT))]
    pub max_pool_percent: u64,
    /// How pages are compressed: lz4, zstd, zstd:LEVEL (-7 to 19) or none
    #[arg(long, value_name = "NAME", default_value_t)]
    pub compressor: Compression,
    /// Pages that compress to more than N percent do not go to the pool
    #[arg(long, value_name = "N", default_value_t = Switches::default().max_compression_ratio, value_parser = clap::value_parser!(u8).range(1..=100))]
    pub max_compression_ratio: u8,
    /// A pool that was full takes pages again below N percent of its limit
    #[arg(long, value_name = "N", default_value_t = Switches::default().accept_threshold_percent, value_parser = clap::value_parser!(u8).range(1..=100))]
    pub accept_threshold_percent: u8,
    /// What of the pool is written back under pressure: second-chance, decay or none
    #[arg(long, value_name = "SCHEME", default_value = "second-chance", value_parser = parse_shrinker)]
    pub shrinker: Shrinker,
    /// The pool may take that share whatever misses cost, and the shrinker is asked whenever pages leave
    #[arg(long)]
    pub fixed_share: bool,
    /// The allocator of the pool
    #[arg(long, value_name = "NAME", default_value = "zsmalloc")]
    pub zpool: Zpool,
    /// Store no pages in the compressed pool
    #[arg(long, conflicts_with = "no_disk")]
    pub no_pool: bool,
    /// What decides which memory leaves
    #[arg(long, value_name = "POLICY", default_value = "second-chance")]
    pub reclaim: Policy,
    /// Have all processes run at once, however little there is for each
    #[arg(long)]
    pub no_load_control: bool,
    /// Which neighbours of a page come in with it
    #[arg(long, value_name = "RULE", default_value = "object")]
    pub readahead: Neighbours,
    /// log2 of the pages that are read from the swap file at once, at most
    #[arg(long, value_name = "N", default_value_t = PAGE_CLUSTER_MAX, value_parser = clap::value_parser!(u32).range(0..=PAGE_CLUSTER_MAX as i64))]
    pub page_cluster: u32,
    /// Write statistics to FILE as JSON, every second and at the end (-: standard output, at the end)
    #[arg(long, value_name = "FILE")]
    pub stats: Option<PathBuf>,
    /// Write down what happens to FILE, for `pagetide replay`
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
    /// End the run when it did little but wait for its pages for TIME
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    pub max_stall: Option<Duration>,
    /// End the run when it passes the cap and stays above it, after all that can leave was asked for
    #[arg(long)]
    pub strict: bool,
    /// Say nothing but errors and warnings
    #[arg(short, long, conflicts_with = "verbose")]
    pub quiet: bool,
    /// Tell the setup too
    #[arg(short, long)]
    pub verbose: bool,
    /// The program, and its arguments
    #[arg(value_name = "CMD", required = true, trailing_var_arg = true)]
    pub command: Vec<OsString>,
}

#[derive(clap::ValueEnum, Clone, Copy, Debug)]
pub enum Zpool {
    Zsmalloc,
    Zbud,
}

/// What decides which memory leaves.
#[derive(clap::ValueEnum, Clone, Copy, Debug)]
pub enum Policy {
    /// What came back goes round once more
    SecondChance,
    /// What came first leaves first
    Fifo,
}

impl From<Policy> for Reclaim {
    fn from(policy: Policy) -> Self {
        match policy {
            Policy::SecondChance => Self::SecondChance,
            Policy::Fifo => Self::Fifo,
        }
    }
}

/// Which neighbours of a page come in with it.
#[derive(clap::ValueEnum, Clone, Copy, Debug)]
pub enum Neighbours {
    /// As scans show
    Object,
    /// The aligned block around it
    Cluster,
    /// None from the device
    None,
}

impl From<Neighbours> for Readahead {
    fn from(neighbours: Neighbours) -> Self {
        match neighbours {
            Neighbours::Object => Self::Object,
            Neighbours::Cluster => Self::Cluster,
            Neighbours::None => Self::None,
        }
    }
}

impl RunArgs {
    /// CMD and its arguments.
    pub fn command(&self) -> Vec<String> {
        self.command.iter().map(|word| word.to_string_lossy().into_owned()).collect()
    }

    pub fn knobs(&self) -> Knobs {
        let switches = Switches {
            enabled: !self.no_pool,
            compression: self.compressor,
            max_compression_ratio: self.max_compression_ratio,
            accept_threshold_percent: self.accept_threshold_percent,
            shrinker: self.shrinker,
            fixed_share: self.fixed_share,
        };
        Knobs { switches, max_pool_percent: self.max_pool_percent }
    }

    pub fn verbosity(&self) -> Verbosity {
        match (self.quiet, self.verbose) {
            (true, _) => Verbosity::Quiet,
            (_, true) => Verbosity::Verbose,
            _ => Verbosity::Normal,
        }
    }
}
