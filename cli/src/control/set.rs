//! `pagetide set`: shows what may change while a run goes on, and changes it.

use crate::failure::Failure;
use crate::out;
use crate::processes::runs::{Purpose, Run};
use pagetide::group::Knobs;
use pagetide_swap::zswap::shrinker::Shrinker;

/// No such knob, or no such value.
const USAGE: u8 = 2;
/// Percentages that a pool may take of the cap.
pub const POOL_PERCENT: std::ops::RangeInclusive<u64> = 1..=90;
/// Percentages of a page that a compressed form may have, and of the limit below which a pool takes pages again.
pub const PERCENT: std::ops::RangeInclusive<u64> = 1..=100;

/// Show or change how the pool of a run works, while it goes on
#[derive(clap::Args, Debug)]
#[command(after_help = "\
NAME=VALUE is one of
  enabled=on|off                     whether pages are stored in the pool; what is there stays readable
  compressor=lz4|zstd[:LEVEL]|none   how pages are compressed from now on; levels are -7 to 19
  max_compression_ratio=N            a page that compresses to more than N percent does not go to the pool
  max_pool_percent=N                 the most of the cap that the pool may take
  accept_threshold_percent=N         a pool that was full takes pages again below N percent of its limit
  shrinker=second-chance|decay|none  what of the pool is written back under pressure
  fixed_share=on|off                 the pool may take its most whatever misses cost
Without any, all are shown.")]
pub struct SetArgs {
    /// The launcher of the run, if there are several; to change something, if it is not the only one of this user and
    /// session
    #[arg(long)]
    pid: Option<u32>,
    /// What to change
    #[arg(value_name = "NAME=VALUE")]
    settings: Vec<String>,
}

/// Shows the knobs, or changes some. Returns the exit status.
pub fn set(args: &SetArgs) -> Result<u8, Failure> {
    let purpose = if args.settings.is_empty() { Purpose::Look } else { Purpose::Change };
    let run = Run::open(args.pid, purpose)?;
    // All or none.
    let mut knobs = run.group.knobs();
    for setting in &args.settings {
        apply(&mut knobs, setting).map_err(|message| Failure::new(USAGE, message))?;
    }
    run.group.change_knobs(|knobs| {
        for setting in &args.settings {
            apply(knobs, setting).expect("it could be applied above");
        }
    });
    let name = run.name();
    out::print(&match purpose {
        Purpose::Look => format!("# {name}\n{}", show(knobs)),
        Purpose::Change => format!("{name}: {}\n", args.settings.join(" ")),
    })?;
    Ok(0)
}

fn apply(knobs: &mut Knobs, setting: &str) -> Result<(), String> {
    let Some((name, value)) = setting.split_once('=') else {
        return Err(format!("`{setting}` is not NAME=VALUE"));
    };
    change(knobs, name, value).map_err(|error| format!("{name}: {error}"))
}

fn change(knobs: &mut Knobs, name: &str, value: &str) -> Result<(), String> {
    let switches = &mut knobs.switches;
    match name {
        "enabled" => switches.enabled = parse_switch(value)?,
        "compressor" => switches.compression = value.parse()?,
        "max_compression_ratio" => switches.max_compression_ratio = percent(value, PERCENT)? as u8,
        "max_pool_percent" => knobs.max_pool_percent = percent(value, POOL_PERCENT)?,
        "accept_threshold_percent" => switches.accept_threshold_percent = percent(value, PERCENT)? as u8,
        "shrinker" => switches.shrinker = parse_shrinker(value)?,
        "fixed_share" => switches.fixed_share = parse_switch(value)?,
        _ => return Err("cannot be set; `pagetide set --help` tells what can".to_owned()),
    }
    Ok(())
}

fn show(knobs: Knobs) -> String {
    let switches = knobs.switches;
    format!(
        "enabled={}\ncompressor={}\nmax_compression_ratio={}\nmax_pool_percent={}\n\
         accept_threshold_percent={}\nshrinker={}\nfixed_share={}\n",
        show_switch(switches.enabled),
        switches.compression,
        switches.max_compression_ratio,
        knobs.max_pool_percent,
        switches.accept_threshold_percent,
        show_shrinker(switches.shrinker),
        show_switch(switches.fixed_share),
    )
}

fn percent(text: &str, range: std::ops::RangeInclusive<u64>) -> Result<u64, String> {
    let found = text.parse().ok().filter(|percent| range.contains(percent));
    found.ok_or_else(|| format!("`{text}` is not a number from {} to {}", range.start(), range.end()))
}

fn parse_switch(text: &str) -> Result<bool, String> {
    match text {
        "on" | "1" | "Y" | "y" => Ok(true),
        "off" | "0" | "N" | "n" => Ok(false),
        _ => Err(format!("`{text}` is neither on nor off")),
    }
}

fn show_switch(on: bool) -> &'static str {
    if on { "on" } else { "off" }
}

/// The shrinker of that name.
pub fn parse_shrinker(text: &str) -> Result<Shrinker, String> {
    let found = Shrinker::NAMES.iter().find(|(name, _)| *name == text);
    found.map(|&(_, shrinker)| shrinker).ok_or_else(|| {
        let names: Vec<_> = Shrinker::NAMES.iter().map(|(name, _)| *name).collect();
        format!("`{text}`: there are {}", names.join(", "))
    })
}

fn show_shrinker(shrinker: Shrinker) -> &'static str {
    let found = Shrinker::NAMES.iter().find(|(_, other)| *other == shrinker);
    found.map_or("", |(name, _)| name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagetide_swap::Switches;

    #[test]
    fn what_is_shown_can_be_set() {
        let mut knobs = Knobs { switches: Switches::default(), max_pool_percent: 80 };
        for setting in [
            "enabled=off",
            "compressor=zstd:-3",
            "max_compression_ratio=60",
            "max_pool_percent=20",
            "accept_threshold_percent=70",
            "shrinker=decay",
            "fixed_share=on",
        ] {
            apply(&mut knobs, setting).unwrap();
            assert!(show(knobs).lines().any(|line| line == setting), "{setting}: {}", show(knobs));
        }
        let mut other = Knobs { switches: Switches::default(), max_pool_percent: 80 };
        show(knobs).lines().for_each(|line| apply(&mut other, line).unwrap());
        assert_eq!(other, knobs);
    }

    #[test]
    fn what_cannot_be_is_said() {
        let mut knobs = Knobs { switches: Switches::default(), max_pool_percent: 80 };
        for (setting, says) in [
            ("enabled", "not NAME=VALUE"),
            ("enabled=maybe", "neither on nor off"),
            ("compressor=lzo", "there are lz4"),
            ("max_pool_percent=0", "from 1 to 90"),
            ("max_pool_percent=91", "from 1 to 90"),
            ("accept_threshold_percent=x", "from 1 to 100"),
            ("shrinker=lru", "second-chance"),
            ("zpool=zbud", "zpool: cannot be set"),
        ] {
            let error = apply(&mut knobs, setting).unwrap_err();
            assert!(error.contains(says), "{setting}: {error}");
        }
        assert_eq!(knobs, Knobs { switches: Switches::default(), max_pool_percent: 80 });
    }
}
