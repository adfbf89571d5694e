//! Values of options: those that have names, and ranges of those that are numbers.

use clap::ValueEnum;
use clap::builder::{PossibleValue, StringValueParser, TypedValueParser};
use pagetide_swap::Compression;
use std::ffi::OsStr;
use std::ops::RangeInclusive;

/// Percentages that a pool may take of the cap.
pub const POOL_PERCENT: RangeInclusive<u64> = 1..=90;
/// Percentages of a page that a compressed form may have, and of the limit below which a pool takes pages again.
pub const PERCENT: RangeInclusive<u64> = 1..=100;

/// Defines the named values of an option. Each stands for the one of the same name in the swap subsystem; its
/// documentation is its help.
macro_rules! choices {
    ($($(#[$meta:meta])* $name:ident for $target:ty { $($(#[$value_meta:meta])* $value:ident),+ $(,)? })+) => {
        $(
            $(#[$meta])*
            #[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
            pub enum $name { $($(#[$value_meta])* $value),+ }

            impl From<$name> for $target {
                fn from(value: $name) -> Self {
                    match value { $($name::$value => Self::$value),+ }
                }
            }

            impl From<$target> for $name {
                fn from(value: $target) -> Self {
                    match value { $(<$target>::$value => Self::$value),+ }
                }
            }
        )+
    };
}

choices! {
    /// Allocator of the pool's memory.
    Zpool for pagetide_swap::Allocator {
        /// Size classes, with compaction
        Zsmalloc,
        /// Two pages in one
        Zbud,
    }

    /// Rule for what leaves the program.
    Policy for pagetide_swap::Reclaim {
        /// What comes back from probation stays longer
        SecondChance,
        /// What came first leaves first
        Fifo,
    }

    /// Rule for the neighbours that come in with a page.
    Neighbours for pagetide_swap::Readahead {
        /// Neighbours by address, as far as scans show
        Object,
        /// The aligned block around the page
        Cluster,
        /// From the swap file the page alone
        None,
    }

    /// Rule for what of the pool is written back.
    Shrinker for pagetide_swap::zswap::shrinker::Shrinker {
        /// What is stored is passed over once, as in Linux 6.12; what has come back before, more often
        SecondChance,
        /// As many entries are spared as were stored and read of late, as in Linux 6.8
        Decay,
        /// Nothing before the pool is nearly full
        None,
    }
}

/// Reads the value of that name.
///
/// # Errors
/// There is none; the message names those that there are.
pub fn choice<T: ValueEnum>(text: &str) -> Result<T, String> {
    T::from_str(text, false).map_err(|_| {
        let names: Vec<String> = T::value_variants().iter().map(name).collect();
        format!("`{text}`: there are {}", names.join(", "))
    })
}

/// Returns the name of a value.
pub fn name<T: ValueEnum>(value: &T) -> String {
    value.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
}

/// Reads `lzpage`, `lz4`, `zstd`, `zstd:LEVEL` or `none`.
#[derive(Clone, Copy, Debug)]
pub struct Compressors {
    /// What `none` means.
    pub none: &'static str,
}

impl TypedValueParser for Compressors {
    type Value = Compression;

    fn parse_ref(
        &self,
        command: &clap::Command,
        argument: Option<&clap::Arg>,
        value: &OsStr,
    ) -> Result<Compression, clap::Error> {
        StringValueParser::new()
            .try_map(|text| text.parse::<Compression>())
            .parse_ref(command, argument, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        let value = |name, help| PossibleValue::new(name).help(help);
        let values = [
            value("lzpage", "Made for pages: nearly as fast as `lz4`, and smaller"),
            value("lz4", "Fastest"),
            value("zstd", "Smaller; `zstd:LEVEL` takes level -7 (fastest) to 19 (smallest) in place of 1"),
            value("none", self.none),
        ];
        Some(Box::new(values.into_iter()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_choice_is_read_by_its_name_and_shown_by_it() {
        for shrinker in Shrinker::value_variants() {
            assert_eq!(choice(&name(shrinker)), Ok(*shrinker));
            assert_eq!(Shrinker::from(pagetide_swap::zswap::shrinker::Shrinker::from(*shrinker)), *shrinker);
        }
        assert_eq!(choice::<Shrinker>("lru"), Err("`lru`: there are second-chance, decay, none".to_owned()));
    }
}
