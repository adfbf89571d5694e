//! The charts of a report.

use super::series::{Look, Series};
use super::what_if::WhatIf;
use crate::accounts::memory::Memory;
use crate::chart::{CAP, Chart, DISK, GREY, Line, Mark, POOL, PROGRAMS};

const MIB: f64 = 1_048_576.0;
/// Bytes from which on an axis is in GiB.
const LARGE: f64 = 4096.0 * MIB;
const WIDTH: u32 = 860;
const NAMES: u32 = 150;

/// Bytes in a unit, and its name.
fn unit(most: f64) -> (f64, &'static str) {
    if most >= LARGE { (1024.0 * MIB, "GiB") } else { (MIB, "MiB") }
}

fn over_time(looks: &[Look], of: impl Fn(&Look) -> f64) -> Vec<(f64, f64)> {
    looks.iter().map(|look| (look.at, of(look))).collect()
}

fn line(name: &str, color: plotters::style::RGBColor, points: Vec<(f64, f64)>) -> Line {
    Line { name: name.to_owned(), color, dashed: false, points }
}

fn chart(height: u32, axes: (&str, String)) -> Chart {
    Chart {
        size: (WIDTH, height),
        names: NAMES,
        title: None,
        axes: (axes.0.to_owned(), axes.1),
        least: (0.1, 1e-3),
        areas: Vec::new(),
        lines: Vec::new(),
        marks: Vec::new(),
        alone: false,
    }
}

/// Where the run's memory was, over time.
pub(super) fn memory(series: &Series) -> Result<String, String> {
    let looks = series.looks();
    let most = looks.iter().map(|look| ((look.memory.in_memory() + look.memory.disk) as f64).max(look.cap));
    let (scale, name) = unit(most.fold(0.0, f64::max));
    let stacked = |of: fn(&Memory) -> u64| over_time(looks, |look| of(&look.memory) as f64 / scale);
    Chart {
        areas: vec![
            line("in the programs", PROGRAMS, stacked(|memory| memory.resident)),
            line("not managed", GREY, stacked(|memory| memory.resident + memory.other)),
            line("compressed pool", POOL, stacked(Memory::in_memory)),
            line("on disk", DISK, stacked(|memory| memory.in_memory() + memory.disk)),
        ],
        lines: vec![Line { dashed: true, ..line("the cap", CAP, over_time(looks, |look| look.cap / scale)) }],
        ..chart(320, ("time, s", name.to_owned()))
    }
    .svg()
}

/// What an amount grew by from look to look, a second.
fn rates(looks: &[Look], of: fn(&Look) -> f64) -> Vec<(f64, f64)> {
    let rate = |two: &[Look]| {
        let seconds = two[1].at - two[0].at;
        (two[1].at, if seconds > 0.0 { (of(&two[1]) - of(&two[0])).max(0.0) / seconds } else { 0.0 })
    };
    looks.windows(2).map(rate).collect()
}

/// Faults for pages that were out, over time.
pub(super) fn faults(series: &Series) -> Result<String, String> {
    let faults = line("faults", PROGRAMS, rates(series.looks(), |look| look.faults));
    Chart { lines: vec![faults], ..chart(190, ("time, s", "faults a second".to_owned())) }.svg()
}

/// Threads that waited for pages, over time.
pub(super) fn waits(series: &Series) -> Result<String, String> {
    let waits = line("waiting", CAP, rates(series.looks(), |look| look.waited));
    Chart { areas: vec![waits], ..chart(190, ("time, s", "threads waiting".to_owned())) }.svg()
}

/// What threads would have waited under other caps.
pub(super) fn what_if(what_if: &WhatIf) -> Result<String, String> {
    let (first, last) = (what_if.points[0], what_if.points[what_if.points.len() - 1]);
    let (scale, name) = unit(last.cap);
    let points = what_if.points.iter().map(|point| (point.cap / scale, point.waited)).collect();
    let mark = |cap: f64, name: &str| Mark { at: cap / scale, name: name.to_owned() };
    Chart {
        lines: vec![line("estimate", PROGRAMS, points)],
        marks: vec![mark(first.cap, "this run"), mark(last.cap, "all that it needed")],
        ..chart(240, (&format!("the cap, {name}"), "seconds waited".to_owned()))
    }
    .svg()
}
