//! `pagetide set`: shows and changes the settings of a run while it goes on.

use crate::failure::Failure;
use crate::out;
use crate::processes::runs::{Purpose, Run};
use pagetide::group::Knobs;
use pagetide_cli::options::SetArgs;
use pagetide_cli::options::choices::{PERCENT, POOL_PERCENT, Shrinker, choice, name};

/// Exit status: there is no such setting, or no such value.
const USAGE: u8 = 2;
/// Shows the settings, or changes some. Returns the exit status.
pub(crate) fn set(args: &SetArgs) -> Result<u8, Failure> {
    let purpose = if args.settings.is_empty() { Purpose::Look } else { Purpose::Change };
    let run = Run::open(args.pid, purpose, "pagetide set --pid PID")?;
    // All changes are made, or none: they are tried on a copy first.
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

fn change(knobs: &mut Knobs, setting: &str, value: &str) -> Result<(), String> {
    let switches = &mut knobs.switches;
    match setting {
        "enabled" => switches.enabled = parse_switch(value)?,
        "compressor" => switches.compression = value.parse()?,
        "max_compression_ratio" => switches.max_compression_ratio = percent(value, PERCENT)? as u8,
        "max_pool_percent" => knobs.max_pool_percent = percent(value, POOL_PERCENT)?,
        "accept_threshold_percent" => switches.accept_threshold_percent = percent(value, PERCENT)? as u8,
        "shrinker" => switches.shrinker = choice::<Shrinker>(value)?.into(),
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
        name(&Shrinker::from(switches.shrinker)),
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
