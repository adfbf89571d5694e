//! Colours and fillings. What colours tell, fillings and words tell too.

use ratatui::style::{Color, Modifier, Style};

/// What is drawn in a colour of its own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Part {
    /// Managed memory in the programs.
    Resident,
    /// What no engine manages.
    Other,
    /// The compressed pool.
    Pool,
    /// The disk.
    Disk,
    /// The cap.
    Cap,
    /// Words that matter less.
    Faint,
    /// Words that matter more.
    Strong,
}

impl Part {
    /// Returns the character that fills it.
    pub(super) fn filling(self) -> &'static str {
        match self {
            Self::Resident => "█",
            Self::Other => "░",
            Self::Pool => "▓",
            Self::Disk => "▚",
            Self::Cap => "─",
            Self::Faint | Self::Strong => " ",
        }
    }
}

/// Colours, or none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Palette {
    has_colours: bool,
}

impl Palette {
    /// Returns colours, unless `NO_COLOR` (<https://no-color.org>) is set or the terminal has none.
    pub(super) fn of_environment() -> Self {
        let is_set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        let is_plain = std::env::var_os("TERM").is_none_or(|name| name == "dumb" || name == "vt100");
        Self { has_colours: !is_set("NO_COLOR") && !is_plain }
    }

    /// Returns the style of a part. The colours are of the 256 that terminals share, near those of Okabe and Ito, which
    /// people see apart who do not see red or green.
    pub(super) fn style(self, part: Part) -> Style {
        let style = Style::default();
        let colour = match part {
            Part::Resident => Some(Color::Indexed(32)),
            Part::Other => Some(Color::Indexed(247)),
            Part::Pool => Some(Color::Indexed(214)),
            Part::Disk => Some(Color::Indexed(175)),
            Part::Cap => Some(Color::Indexed(166)),
            Part::Faint | Part::Strong => None,
        };
        let style = match part {
            Part::Faint => style.add_modifier(Modifier::DIM),
            Part::Strong => style.add_modifier(Modifier::BOLD),
            _ => style,
        };
        colour.filter(|_| self.has_colours).map_or(style, |colour| style.fg(colour))
    }

    /// Returns colours, whatever the environment says.
    #[cfg(test)]
    pub(super) fn with_colours() -> Self {
        Self { has_colours: true }
    }
}
