//! Options that decide what leaves and comes in: of a run, and of its replay.

use super::choices::{Neighbours, POOL_PERCENT, Policy, Shrinker};
use super::headings::{DECISIONS, EXPERIMENTS};
use pagetide_swap::config::PAGE_CLUSTER_MAX;

/// Rules for what leaves and comes in.
#[derive(clap::Args, Debug)]
pub struct RuleArgs {
    /// Share of the cap that compressed pages may take at most, 1 to 90
    ///
    /// Below it the share follows what misses cost, unless `--fixed-share` is given.
    #[arg(long, value_name = "N", default_value_t = 80, value_parser = clap::value_parser!(u64).range(POOL_PERCENT), help_heading = DECISIONS)]
    pub max_pool_percent: u64,
    /// What of the pool is written back to the swap file under pressure
    #[arg(long, value_name = "SCHEME", default_value = "second-chance", help_heading = DECISIONS)]
    pub shrinker: Shrinker,
    /// What decides which memory leaves
    #[arg(long, value_name = "POLICY", default_value = "second-chance", help_heading = DECISIONS)]
    pub reclaim: Policy,
    /// Which neighbours of a page come in with it
    #[arg(long, value_name = "RULE", default_value = "object", help_heading = DECISIONS)]
    pub readahead: Neighbours,
    /// Read at most 2^N pages from the swap file at once, 0 to 9
    #[arg(long, value_name = "N", default_value_t = PAGE_CLUSTER_MAX, value_parser = clap::value_parser!(u32).range(0..=PAGE_CLUSTER_MAX as i64), help_heading = DECISIONS)]
    pub page_cluster: u32,
    /// Let the pool take its share whatever misses cost
    ///
    /// The pool may take `--max-pool-percent` in any case, and the shrinker is asked whenever pages leave the program,
    /// as in the kernel.
    #[arg(long, help_heading = EXPERIMENTS)]
    pub fixed_share: bool,
}
