//! Options of `pagetide run`.

use super::choices::{Compressors, Zpool};
use super::headings::{DECISIONS, EXPERIMENTS, NEEDED, PLACES};
use super::remote::RemoteOptions;
use super::rules::RuleArgs;
use super::section::help;
use super::size::{Size, parse_interval, parse_size, parse_time};
use clap::ValueHint;
use pagetide_swap::{Compression, Switches};
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

/// Options of `pagetide run`.
#[derive(clap::Args, Debug)]
#[command(
    group = clap::ArgGroup::new("looks").multiple(true),
    override_usage = "pagetide run [OPTIONS] -- CMD [ARG]...",
    after_help = "`pagetide run --help` says more, with examples.",
    after_long_help = help(super::manual::RUN)
)]
pub struct RunArgs {
    /// Cap on the memory of all processes of the run [default: 80%]
    ///
    /// At least 16M. The default is told on standard error.
    #[arg(short, long, value_name = "SIZE", value_parser = parse_size, help_heading = NEEDED)]
    pub memory: Option<Size>,
    /// Write statistics to FILE as JSON
    ///
    /// They are written at the start, every second (`--stats-interval`) and at the end. FILE is replaced as a whole. A
    /// pipe or a device gets the last report only, and so does standard output, which `-` names. A FILE.jsonl keeps all
    /// reports, a line each; a FILE.prom has Prometheus text, for node_exporter.
    #[arg(long, value_name = "FILE", group = "looks", help_heading = NEEDED)]
    pub stats: Option<PathBuf>,
    /// Make a page of the run at its end, FILE as HTML
    ///
    /// Memory over time, faults and waiting, what left and came back, and what more memory would have changed, with a
    /// sentence of advice. The page needs nothing but itself. It takes a look every second (`--stats-interval`).
    #[arg(long, value_name = "FILE", group = "looks", value_hint = ValueHint::FilePath, help_heading = NEEDED)]
    pub report: Option<PathBuf>,
    /// Write the statistics every TIME
    ///
    /// At least 20ms, for the run is sampled no more often. With a TIME that is longer than the run they are written at
    /// the start and at the end.
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = parse_interval, requires = "looks", help_heading = NEEDED)]
    pub stats_interval: Duration,
    /// End the run when it did little but wait for its pages for TIME
    ///
    /// The run gets SIGTERM, and SIGKILL two seconds later, when each thread that waited for pages did so for more than
    /// 90 % of the last TIME, and nearly all the time there was one.
    #[arg(long, value_name = "TIME", value_parser = parse_time, help_heading = NEEDED)]
    pub max_stall: Option<Duration>,
    /// End the run when it passes its cap and cannot give that back
    ///
    /// The run ends with status 137 when it holds 3 % more than its cap at two looks, between which every process was
    /// asked for all that can leave. Pages that processes share count once. The process that holds most is named.
    #[arg(long, help_heading = NEEDED)]
    pub strict: bool,
    /// Say nothing but errors and warnings
    #[arg(short, long, conflicts_with = "verbose", help_heading = NEEDED)]
    pub quiet: bool,
    /// Tell the setup too: cap, pool, swap file, library
    #[arg(short, long, help_heading = NEEDED)]
    pub verbose: bool,

    /// Directory of the swap file [default: $TMPDIR, or /var/tmp]
    ///
    /// A tmpfs is refused, for it is memory. Where neither default will do, the run goes on without a swap file, and a
    /// warning says so.
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath, conflicts_with = "no_disk", help_heading = PLACES)]
    pub swap_dir: Option<PathBuf>,
    /// What the swap file may grow to [default: half of what is free there; in a container at most 4 times the cap]
    ///
    /// Disk space is taken as pages are written.
    #[arg(long, value_name = "SIZE", value_parser = parse_size, conflicts_with = "no_disk", help_heading = PLACES)]
    pub swap_size: Option<Size>,
    /// Swap into compressed memory only
    #[arg(long, help_heading = PLACES)]
    pub no_disk: bool,
    /// Write pages to the swap file as they are
    ///
    /// Else they are encrypted under a random key that is never written.
    #[arg(long, conflicts_with = "no_disk", help_heading = PLACES)]
    pub no_encrypt: bool,
    /// The remote tier.
    #[command(flatten)]
    pub remote: RemoteOptions,
    /// Write down what happens to FILE, for `pagetide replay`
    #[arg(long, value_name = "FILE", help_heading = PLACES)]
    pub trace: Option<PathBuf>,

    /// What leaves and comes in.
    #[command(flatten)]
    pub rules: RuleArgs,
    /// How pages are compressed
    #[arg(long, value_name = "NAME", default_value_t, value_parser = Compressors { none: "Pages are kept as they are" }, help_heading = DECISIONS)]
    pub compressor: Compression,
    /// How pages are compressed that the compressor refuses, while the pool is small or they can go nowhere else
    ///
    /// Zstandard makes digits and the like smaller only at levels from 1 on.
    #[arg(long, value_name = "NAME", default_value_t = Switches::default().recompression, value_parser = Compressors { none: "Not at all" }, help_heading = DECISIONS)]
    pub recompressor: Compression,
    /// Keep pages that compress to more than N percent of themselves out of the pool
    #[arg(long, value_name = "N", default_value_t = Switches::default().max_compression_ratio, value_parser = clap::value_parser!(u8).range(1..=100), help_heading = DECISIONS)]
    pub max_compression_ratio: u8,
    /// Have a pool that reached its limit take pages again below N percent of it
    #[arg(long, value_name = "N", default_value_t = Switches::default().accept_threshold_percent, value_parser = clap::value_parser!(u8).range(1..=100), help_heading = DECISIONS)]
    pub accept_threshold_percent: u8,
    /// Have all processes run at once, however little memory there is for each
    ///
    /// Else some of them rest, by turns of a second, while more processes are at work than there are processors, memory
    /// is short and pages come back fast, or, for ten seconds after that, young processes are expected to make it short.
    #[arg(long, help_heading = DECISIONS)]
    pub no_load_control: bool,

    /// Allocator of the pool's memory
    #[arg(long, value_name = "NAME", default_value = "zsmalloc", help_heading = EXPERIMENTS)]
    pub zpool: Zpool,
    /// Store no pages in the compressed pool
    #[arg(long, conflicts_with = "no_disk", help_heading = EXPERIMENTS)]
    pub no_pool: bool,

    /// The program, and its arguments
    #[arg(value_name = "CMD", value_hint = ValueHint::CommandWithArguments, required = true, trailing_var_arg = true)]
    pub command: Vec<OsString>,
}

impl RunArgs {
    /// Returns CMD and its arguments.
    pub fn command(&self) -> Vec<String> {
        self.command.iter().map(|word| word.to_string_lossy().into_owned()).collect()
    }
}
