//! Options of `pagetide replay`.

use super::rules::RuleArgs;
use super::section::help;
use super::size::{Size, parse_size};
use pagetide_swap::PAGE_SIZE;
use std::path::PathBuf;

const DEVICE: &str = "The device";
const OUTPUT: &str = "Output";

/// Options of `pagetide replay`.
#[derive(clap::Args, Debug)]
#[command(override_usage = "pagetide replay FILE [OPTIONS]", after_help = help(super::manual::REPLAY))]
pub struct ReplayArgs {
    /// The trace, or a text with a line `PAGE [r|w]` for each access
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// The memory [default: as recorded; 50% for a text]
    ///
    /// A percentage is of the pages that are asked for.
    #[arg(short, long, value_name = "SIZE", value_parser = parse_size)]
    pub memory: Option<Size>,
    /// What leaves and comes in.
    #[command(flatten)]
    pub rules: RuleArgs,
    /// Bytes that a page compresses to of which the trace says nothing
    #[arg(long, value_name = "N", default_value_t = 1365, value_parser = clap::value_parser!(u16).range(0..=PAGE_SIZE as i64))]
    pub page_bytes: u16,
    /// Do without a device
    #[arg(long, help_heading = DEVICE)]
    pub no_disk: bool,
    /// Microseconds that a read from the device takes
    #[arg(long, value_name = "US", default_value_t = 100.0, value_parser = parse_micros, help_heading = DEVICE)]
    pub device_us: f64,
    /// Microseconds for each further page of a read
    #[arg(long, value_name = "US", default_value_t = 4.0, value_parser = parse_micros, help_heading = DEVICE)]
    pub device_page_us: f64,
    /// Print all counters, as JSON
    #[arg(long, help_heading = OUTPUT)]
    pub json: bool,
    /// Draw misses against memory, with the fewest that are possible, to FILE as SVG
    ///
    /// In twelve sizes up to all that is asked for; of a trace, from the memory in which it was recorded.
    #[arg(long, value_name = "FILE", help_heading = OUTPUT)]
    pub plot: Option<PathBuf>,
}

fn parse_micros(text: &str) -> Result<f64, String> {
    let found = text.parse().ok().filter(|micros: &f64| micros.is_finite() && *micros > 0.0);
    found.ok_or_else(|| format!("`{text}` is not a time in microseconds"))
}
