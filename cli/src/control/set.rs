//! `pagetide set`: shows and changes the settings of a run while it goes on.

use crate::failure::Failure;
use crate::machine::limits::Limits;
use crate::out;
use crate::processes::runs::{Purpose, Run};
use crate::run::setup::MEMORY_MIN;
use crate::units::PAGE;
use pagetide::group::{Group, Knobs};
use pagetide_cli::options::SetArgs;
use pagetide_cli::options::choices::{PERCENT, POOL_PERCENT, Shrinker, choice, name};
use pagetide_cli::options::size::{Size, parse_size};

/// Exit status: there is no such setting, or no such value.
const USAGE: u8 = 2;

/// What can be set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Settings {
    /// The cap, in bytes.
    memory: u64,
    knobs: Knobs,
}

impl Settings {
    fn of(group: &Group) -> Self {
        Self { memory: group.cap_pages() * PAGE, knobs: group.knobs() }
    }
}

/// Shows the settings, or changes some. Returns the exit status.
pub(crate) fn set(args: &SetArgs) -> Result<u8, Failure> {
    let purpose = if args.settings.is_empty() { Purpose::Look } else { Purpose::Change };
    let run = Run::open(args.pid, purpose, "pagetide set --pid PID")?;
    change_all(&run.group, &args.settings).map_err(|message| Failure::new(USAGE, message))?;
    let name = run.name();
    out::print(&match purpose {
        Purpose::Look => format!("# {name}\n{}", settings(&run.group)),
        Purpose::Change => format!("{name}: {}\n", args.settings.join(" ")),
    })?;
    Ok(0)
}

/// Returns the settings of a run, a line `NAME=VALUE` each; the cap is the first.
pub(crate) fn settings(group: &Group) -> String {
    show(Settings::of(group))
}

/// Makes one change, `NAME=VALUE`. Returns what was done, or why it cannot be.
pub(crate) fn change_one(group: &Group, setting: &str) -> Result<String, String> {
    change_all(group, &[setting.to_owned()]).map(|()| format!("set {setting}"))
}

/// Makes all changes, or none: they are tried on a copy first.
fn change_all(group: &Group, changes: &[String]) -> Result<(), String> {
    let before = Settings::of(group);
    let mut settings = before;
    for setting in changes {
        apply(&mut settings, setting)?;
    }
    if changes.is_empty() {
        return Ok(());
    }
    group.change_knobs(|knobs| {
        let mut settings = Settings { knobs: *knobs, ..before };
        for setting in changes {
            apply(&mut settings, setting).expect("it could be applied above");
        }
        *knobs = settings.knobs;
    });
    if settings.memory != before.memory {
        group.change_cap(settings.memory / PAGE);
    }
    Ok(())
}

fn apply(settings: &mut Settings, setting: &str) -> Result<(), String> {
    let Some((name, value)) = setting.split_once('=') else {
        return Err(format!("`{setting}` is not NAME=VALUE"));
    };
    change(settings, name, value).map_err(|error| format!("{name}: {error}"))
}

fn change(settings: &mut Settings, setting: &str, value: &str) -> Result<(), String> {
    let Settings { memory, knobs } = settings;
    let switches = &mut knobs.switches;
    match setting {
        "memory" => *memory = parse_memory(value)?,
        "enabled" => switches.enabled = parse_switch(value)?,
        "compressor" => switches.compression = value.parse()?,
        "recompressor" => switches.recompression = value.parse()?,
        "max_compression_ratio" => switches.max_compression_ratio = percent(value, PERCENT)? as u8,
        "max_pool_percent" => knobs.max_pool_percent = percent(value, POOL_PERCENT)?,
        "accept_threshold_percent" => switches.accept_threshold_percent = percent(value, PERCENT)? as u8,
        "shrinker" => switches.shrinker = choice::<Shrinker>(value)?.into(),
        "fixed_share" => switches.fixed_share = parse_switch(value)?,
        _ => return Err("cannot be set; `pagetide set --help` tells what can".to_owned()),
    }
    Ok(())
}

fn parse_memory(text: &str) -> Result<u64, String> {
    let memory = match parse_size(text)? {
        Size::Bytes(bytes) => bytes,
        share => share.bytes(Limits::read()?.whole()),
    };
    if memory < MEMORY_MIN {
        let [given, least] = [memory, MEMORY_MIN].map(show_memory);
        return Err(format!("{given} is too little; it takes {least} at least"));
    }
    // A whole number of pages.
    Ok(memory / PAGE * PAGE)
}

/// Formats a size so that it can be set again: in the largest unit of which it is a whole number.
fn show_memory(bytes: u64) -> String {
    let unit = [(30, 'G'), (20, 'M')].into_iter().find(|&(shift, _)| bytes.is_multiple_of(1 << shift));
    let (shift, unit) = unit.unwrap_or((10, 'K'));
    format!("{}{unit}", bytes >> shift)
}

fn show(Settings { memory, knobs }: Settings) -> String {
    let switches = knobs.switches;
    format!(
        "memory={}\nenabled={}\ncompressor={}\nrecompressor={}\nmax_compression_ratio={}\nmax_pool_percent={}\n\
         accept_threshold_percent={}\nshrinker={}\nfixed_share={}\n",
        show_memory(memory),
        show_switch(switches.enabled),
        switches.compression,
        switches.recompression,
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

    fn defaults() -> Settings {
        let knobs = Knobs { switches: Switches::default(), max_pool_percent: 80 };
        Settings { memory: 512 << 20, knobs }
    }

    #[test]
    fn what_is_shown_can_be_set() {
        let mut settings = defaults();
        for setting in [
            "memory=614404K",
            "memory=600M",
            "memory=3G",
            "enabled=off",
            "compressor=zstd:-3",
            "recompressor=none",
            "max_compression_ratio=60",
            "max_pool_percent=20",
            "accept_threshold_percent=70",
            "shrinker=decay",
            "fixed_share=on",
        ] {
            apply(&mut settings, setting).unwrap();
            assert!(show(settings).lines().any(|line| line == setting), "{setting}: {}", show(settings));
        }
        let mut other = defaults();
        show(settings).lines().for_each(|line| apply(&mut other, line).unwrap());
        assert_eq!(other, settings);
    }

    #[test]
    fn what_cannot_be_is_said() {
        let mut settings = defaults();
        for (setting, says) in [
            ("enabled", "not NAME=VALUE"),
            ("enabled=maybe", "neither on nor off"),
            ("compressor=lzo", "there are lzpage, lz4"),
            ("max_pool_percent=0", "from 1 to 90"),
            ("max_pool_percent=91", "from 1 to 90"),
            ("accept_threshold_percent=x", "from 1 to 100"),
            ("shrinker=lru", "second-chance"),
            ("memory=15M", "15M is too little; it takes 16M at least"),
            ("memory=16777215", "16383K is too little"),
            ("memory=much", "512M"),
            ("zpool=zbud", "zpool: cannot be set"),
        ] {
            let error = apply(&mut settings, setting).unwrap_err();
            assert!(error.contains(says), "{setting}: {error}");
        }
        assert_eq!(settings, defaults());
    }
}
