//! Findings of the doctor.

use serde_json::{Value, json};

/// State of a checked feature.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum State {
    /// Available.
    Good,
    /// Missing; runs do without.
    Missing,
    /// Missing; no run is possible.
    Fatal,
    /// Cannot be told.
    Unknown,
}

impl State {
    /// Returns its name.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Good => "ok",
            Self::Missing => "missing",
            Self::Fatal => "FATAL",
            Self::Unknown => "unknown",
        }
    }

    /// Returns the state of a feature that runs can do without.
    pub(crate) fn good_if(good: bool) -> Self {
        if good { Self::Good } else { Self::Missing }
    }
}

/// A feature that was checked.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Finding {
    /// Name of the feature.
    pub(crate) name: &'static str,
    /// Its state.
    pub(crate) state: State,
    /// The observation.
    pub(crate) found: String,
    /// The cost of its absence; empty if it is available.
    pub(crate) cost: &'static str,
    /// The remedy; empty if there is none, or none is needed.
    pub(crate) remedy: String,
    /// The observation in figures, by name; `null` without any.
    pub(crate) figures: Value,
}

impl Finding {
    /// Returns a finding without cost or remedy.
    pub(crate) fn new(name: &'static str, state: State, found: impl Into<String>) -> Self {
        Self { name, state, found: found.into(), cost: "", remedy: String::new(), figures: Value::Null }
    }

    /// Adds cost and remedy, unless the feature is available.
    pub(crate) fn or(self, cost: &'static str, remedy: impl Into<String>) -> Self {
        if self.state == State::Good { self } else { Self { cost, remedy: remedy.into(), ..self } }
    }

    /// Adds figures to the observation.
    pub(crate) fn with(self, figures: Value) -> Self {
        Self { figures, ..self }
    }

    /// Returns it as JSON.
    pub(crate) fn json(&self) -> Value {
        let mut json = json!({
            "name": self.name,
            "state": self.state.name(),
            "found": self.found,
            "cost": self.cost,
            "remedy": self.remedy,
        });
        if !self.figures.is_null() {
            json["figures"] = self.figures.clone();
        }
        json
    }
}
