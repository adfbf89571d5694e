//! What was looked at, and what was found.

use serde_json::{Value, json};

/// How serious it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum State {
    /// It is there.
    Good,
    /// It is missing, and a run does without.
    Missing,
    /// It is missing, and no run is possible.
    Fatal,
    /// It cannot be told.
    Unknown,
}

impl State {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Good => "ok",
            Self::Missing => "missing",
            Self::Fatal => "FATAL",
            Self::Unknown => "unknown",
        }
    }

    pub(crate) fn good_if(good: bool) -> Self {
        if good { Self::Good } else { Self::Missing }
    }
}

/// What was looked at.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Finding {
    pub(crate) name: &'static str,
    pub(crate) state: State,
    /// What was found.
    pub(crate) found: String,
    /// What it costs that it is missing; empty if it is there.
    pub(crate) cost: &'static str,
    /// What mends it; empty if nothing does, or needs to.
    pub(crate) remedy: String,
}

impl Finding {
    pub(crate) fn new(name: &'static str, state: State, found: impl Into<String>) -> Self {
        Self { name, state, found: found.into(), cost: "", remedy: String::new() }
    }

    /// What it costs, and what mends it, if it is missing.
    pub(crate) fn or(self, cost: &'static str, remedy: impl Into<String>) -> Self {
        if self.state == State::Good { self } else { Self { cost, remedy: remedy.into(), ..self } }
    }

    pub(crate) fn json(&self) -> Value {
        json!({
            "name": self.name,
            "state": self.state.name(),
            "found": self.found,
            "cost": self.cost,
            "remedy": self.remedy,
        })
    }
}
