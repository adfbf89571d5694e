//! What a run needs before CMD starts: its cap, its swap file, its trace.

use crate::disk::swapfile::SwapFile;
use crate::machine::limits::Limits;
use crate::units::show_bytes;
use crate::verbosity::Verbosity;
use pagetide::group::Knobs;
use pagetide_cli::options::RunArgs;
use pagetide_cli::options::size::Size;
use pagetide_swap::{Switches, trace};
use rustix::io::Errno;
use std::fs::File;
use std::io::Write;
use std::path::Path;

/// With less, an engine has no room to work in.
const MEMORY_MIN: u64 = 16 << 20;
/// The cap, in percent of what this process may have, when none is given.
const MEMORY_DEFAULT: f64 = 80.0;

/// Creates a trace: what processes see is added to it.
pub(crate) fn create_trace(path: &Path, memory: u64, args: &RunArgs) -> Result<File, String> {
    let about = serde_json::json!({ "cap_bytes": memory, "command": args.command() });
    let create = || {
        let mut file = File::create(path)?;
        file.write_all(trace::HEADER)?;
        writeln!(file, "{about}")?;
        Ok(file)
    };
    create().map_err(|error: std::io::Error| format!("--trace: {}: {error}", path.display()))
}

/// What went wrong, and the knob.
pub(crate) fn hinted(error: &std::io::Error) -> String {
    match Errno::from_io_error(error) {
        Some(Errno::FBIG) => format!("{error}: raise the limit on the size of files (ulimit -f)"),
        _ => error.to_string(),
    }
}

pub(crate) fn memory(args: &RunArgs, verbosity: Verbosity) -> Result<u64, String> {
    let limits = Limits::read()?;
    let memory = args.memory.unwrap_or(Size::Percent(MEMORY_DEFAULT)).bytes(limits.whole());
    if args.memory.is_none() {
        verbosity.tell(&format!(
            "--memory is {}: {MEMORY_DEFAULT} % of what this process may have",
            show_bytes(memory)
        ));
    }
    if memory < MEMORY_MIN {
        let (given, least) = (show_bytes(memory), show_bytes(MEMORY_MIN));
        return Err(format!("--memory is {given}; it takes {least} at least"));
    }
    if memory > limits.whole() {
        let what = if limits.cgroup.is_some() { "this cgroup may have" } else { "this machine has" };
        verbosity.warn(&format!(
            "--memory is {}, and {what} {}: the kernel may kill the run before it is swapped",
            show_bytes(memory),
            show_bytes(limits.whole())
        ));
    }
    Ok(memory)
}

pub(crate) fn swap_file(
    args: &RunArgs,
    memory: u64,
    verbosity: Verbosity,
) -> Result<Option<SwapFile>, String> {
    if args.no_disk {
        return Ok(None);
    }
    let size = match args.swap_size {
        None => None,
        Some(size) => Some(size.bytes(Limits::read()?.whole())),
    };
    SwapFile::create(args.swap_dir.as_deref(), size, memory, verbosity)
}

/// What may change while the run goes on, at its start.
pub(crate) fn knobs(args: &RunArgs) -> Knobs {
    let switches = Switches {
        enabled: !args.no_pool,
        compression: args.compressor,
        max_compression_ratio: args.max_compression_ratio,
        accept_threshold_percent: args.accept_threshold_percent,
        shrinker: args.rules.shrinker.into(),
        fixed_share: args.rules.fixed_share,
    };
    Knobs { switches, max_pool_percent: args.rules.max_pool_percent }
}
