//! `pagetide replay`: what the swap subsystem would do with a trace, in other memory or by other rules.

#[cfg(test)]
mod agreement;
mod belady;
mod events;
mod machine;
mod moving;
mod plot;
mod setting;
mod spans;

use crate::failure::Failure;
use crate::out;
use crate::units::{PAGE, show_bytes, show_count};
use events::Steps;
use machine::replay as run;
use pagetide_cli::options::ReplayArgs;
use pagetide_swap::{Config, Counter, Switches};
use serde_json::{Value, json};
use setting::{Outcome, Setting};
use std::fmt::Write;
use std::path::Path;
use std::time::{Duration, Instant};

/// The trace cannot be read.
const NO_TRACE: u8 = 1;
/// Pages of the least memory.
const MEMORY_MIN: u64 = 256;
/// Points of the plot.
const POINTS: u64 = 12;

/// Replays a trace and prints what came of it. Returns the exit status.
pub(crate) fn replay(args: &ReplayArgs) -> Result<u8, Failure> {
    let fail = |message: String| Failure::new(NO_TRACE, format!("{}: {message}", args.file.display()));
    let bytes = std::fs::read(&args.file).map_err(|error| fail(error.to_string()))?;
    let mut steps = Steps::read(&bytes).map_err(fail)?;
    drop(bytes);
    if let Some(damage) = &steps.damage {
        let count = show_count(steps.steps.len() as u64);
        pagetide_sys::task::say(&format!("{}: {damage}; going on with {count} events", args.file.display()));
    }
    if steps.footprint == 0 {
        return Err(fail("no page is asked for in it".to_owned()));
    }
    steps.assume_bytes(args.page_bytes);
    let setting = setting(args, &steps).map_err(|message| Failure::new(NO_TRACE, message))?;
    let start = Instant::now();
    let outcome = run(&steps, setting);
    let took = start.elapsed();
    out::print(&if args.json {
        format!("{:#}\n", to_json(&steps, setting, &outcome, took))
    } else {
        table(&steps, setting, &outcome, took)
    })?;
    if let Some(path) = &args.plot {
        draw(path, args, &steps, setting).map_err(|message| Failure::new(NO_TRACE, message))?;
    }
    Ok(0)
}

fn setting(args: &ReplayArgs, steps: &Steps) -> Result<Setting, String> {
    let footprint = steps.footprint as u64 * PAGE;
    let bytes = match (args.memory, steps.recorded_cap) {
        (Some(size), _) => size.bytes(footprint),
        (None, Some(cap)) => cap,
        (None, None) => footprint / 2,
    };
    let memory = bytes / PAGE;
    if memory < MEMORY_MIN {
        let (given, least) = (show_bytes(bytes), show_bytes(MEMORY_MIN * PAGE));
        return Err(format!("the memory is {given}; it takes {least} at least (--memory)"));
    }
    let config = Config {
        switches: Switches {
            shrinker: args.rules.shrinker.into(),
            fixed_share: args.rules.fixed_share,
            ..Switches::default()
        },
        reclaim: args.rules.reclaim.into(),
        readahead: args.rules.readahead.into(),
        page_cluster: args.rules.page_cluster,
        ..Config::for_cap(memory)
    };
    Ok(Setting {
        memory,
        config,
        pool_max: args.rules.max_pool_percent as f64 / 100.0,
        device_ns: if args.no_disk { 0.0 } else { args.device_us * 1e3 },
        device_page_ns: args.device_page_us * 1e3,
    })
}

fn to_json(steps: &Steps, setting: Setting, outcome: &Outcome, took: Duration) -> Value {
    let counters: serde_json::Map<_, _> =
        outcome.counters.iter().map(|&(name, count)| (name.to_owned(), count.into())).collect();
    json!({
        "events": steps.steps.len(),
        "events_per_second": steps.steps.len() as f64 / took.as_secs_f64(),
        "memory_bytes": setting.memory * PAGE,
        "footprint_bytes": steps.footprint as u64 * PAGE,
        "recorded_cap_bytes": steps.recorded_cap,
        "accesses": outcome.accesses,
        "resident_hits": outcome.resident,
        "swapins": outcome.swapins(),
        "device_reads": outcome.device_reads,
        "counters": counters,
        "compression_ratio": outcome.ratio,
        "pool_peak_bytes": outcome.pool_peak as u64 * PAGE,
        "stalled_s": outcome.stalled_ns / 1e9,
        "overcommitted_bytes": outcome.overcommitted * PAGE,
    })
}

fn table(steps: &Steps, setting: Setting, outcome: &Outcome, took: Duration) -> String {
    let mut out = String::new();
    let events = steps.steps.len();
    let rate = show_count((events as f64 / took.as_secs_f64()) as u64);
    let _ = writeln!(
        out,
        "{} events in {:.2} s ({rate}/s); {} asked for, in {}\n",
        show_count(events as u64),
        took.as_secs_f64(),
        show_bytes(steps.footprint as u64 * PAGE),
        show_bytes(setting.memory * PAGE),
    );
    let get = |counter| outcome.get(counter);
    for (name, count) in [
        ("accesses", outcome.accesses),
        ("  in memory", outcome.resident),
        ("  new", get(Counter::pgalloc)),
        ("  on probation", get(Counter::swap_cache_hit)),
        ("swapins", outcome.swapins()),
        ("  repeated words", get(Counter::swpin_zero)),
        ("  from the pool", get(Counter::zswpin)),
        ("  from the device", get(Counter::pswpin)),
        ("  reads for that", outcome.device_reads),
        ("stored in the pool", get(Counter::zswpout)),
        ("unchanged", get(Counter::swap_reuse)),
        ("written back", get(Counter::zswpwb)),
        ("written in all", get(Counter::pswpout)),
    ] {
        let _ = writeln!(out, "{name:<20}{count:>14}");
    }
    let ratio = outcome.ratio.map_or_else(|| "–".to_owned(), |ratio| format!("{ratio:.2}"));
    let _ = writeln!(out, "{:<20}{ratio:>14}", "compression ratio");
    let _ = writeln!(out, "{:<20}{:>14}", "pool at most", show_bytes(outcome.pool_peak as u64 * PAGE));
    let _ = writeln!(out, "{:<20}{:>12.3} s", "estimated stall", outcome.stalled_ns / 1e9);
    if outcome.overcommitted > 0 {
        let short = show_bytes(outcome.overcommitted * PAGE);
        let _ = writeln!(out, "\nthere was no room: up to {short} more than the memory were in use");
    }
    out
}

/// Replays in memory of several sizes, up to all that is asked for, and draws what comes of it. A trace speaks of no less
/// memory than it was recorded in: it does not have what was found in memory then.
fn draw(path: &Path, args: &ReplayArgs, steps: &Steps, setting: Setting) -> Result<(), String> {
    let most = steps.footprint as u64;
    let recorded = steps.recorded_cap.map(|bytes| bytes / PAGE);
    let least = recorded.unwrap_or(most / POINTS).max(MEMORY_MIN);
    if least >= most {
        let (asked, least) = (show_bytes(most * PAGE), show_bytes(least * PAGE));
        return Err(format!("--plot: {asked} are asked for: there is nothing to draw from {least} on"));
    }
    let mut misses = plot::Misses::new();
    for nth in 0..POINTS {
        let memory = least + (most - least) * nth / (POINTS - 1);
        let config = Config { cap_pages: memory, ..setting.config };
        let outcome = run(steps, Setting { memory, config, ..setting });
        let fewest = belady::misses(steps, memory as usize);
        misses.add(memory * PAGE, [outcome.swapins(), outcome.get(Counter::pswpin), fewest]);
    }
    let name = args.file.file_name().unwrap_or_default().to_string_lossy();
    let marks = [recorded.map(|memory| (memory * PAGE, "recorded")), Some((most * PAGE, "all of it"))];
    let marks: Vec<_> = marks.into_iter().flatten().collect();
    misses.draw(path, &format!("Misses of {name}"), &marks)
}
