//! Misses against memory, as SVG.

use crate::chart::{CAP, Chart, GREY, Line, Mark, PROGRAMS};
use std::path::Path;

const MIB: f64 = 1_048_576.0;

/// Misses in memory of several sizes.
#[derive(Debug)]
pub(super) struct Misses {
    /// MiB of memory; pages that came in, those of them from the device, and the fewest that are possible.
    points: Vec<(f64, [f64; 3])>,
}

impl Misses {
    pub(super) fn new() -> Self {
        Self { points: Vec::new() }
    }

    /// Adds what came of a replay in `bytes` of memory.
    pub(super) fn add(&mut self, bytes: u64, misses: [u64; 3]) {
        self.points.push((bytes as f64 / MIB, misses.map(|pages| pages as f64)));
    }

    /// Draws them to an SVG file. `marks` are sizes in bytes, each with its name.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(super) fn draw(&self, path: &Path, title: &str, marks: &[(u64, &str)]) -> Result<(), String> {
        let names = [
            ("all that came in", PROGRAMS, false),
            ("from the device", CAP, false),
            ("the fewest possible", GREY, true),
        ];
        let lines = names.into_iter().enumerate().map(|(nth, (name, color, dashed))| Line {
            name: name.to_owned(),
            color,
            dashed,
            points: self.points.iter().map(|(memory, misses)| (*memory, misses[nth])).collect(),
        });
        let chart = Chart {
            size: (860, 420),
            names: 170,
            title: Some(title.to_owned()),
            axes: ("memory, MiB".to_owned(), "pages".to_owned()),
            least: (1.0, 1.0),
            areas: Vec::new(),
            lines: lines.collect(),
            marks: marks
                .iter()
                .map(|&(bytes, name)| Mark { at: bytes as f64 / MIB, name: name.to_owned() })
                .collect(),
            alone: true,
        };
        let wrong = |why: &str| format!("--plot: {}: {why}", path.display());
        let svg = chart.svg().map_err(|why| wrong(&why))?;
        std::fs::write(path, svg).map_err(|error| wrong(&error.to_string()))
    }
}
