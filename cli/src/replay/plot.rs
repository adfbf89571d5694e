//! Misses against memory, as SVG.

use plotters::prelude::*;
use std::path::Path;

const SIZE: (u32, u32) = (800, 500);
const MARGIN: u32 = 16;
const LABELS: (u32, u32) = (48, 84);

/// One line of the plot.
#[derive(Debug)]
pub(super) struct Line {
    /// What it shows.
    pub(super) name: &'static str,
    /// MiB of memory, and misses.
    pub(super) points: Vec<(f64, f64)>,
}

/// Draws lines to an SVG file.
///
/// # Errors
/// The file cannot be written.
pub(super) fn draw(path: &Path, title: &str, lines: &[Line]) -> Result<(), String> {
    let most = |of: fn(&(f64, f64)) -> f64| {
        let points = lines.iter().flat_map(|line| &line.points);
        points.map(of).fold(1.0, f64::max)
    };
    let (x_max, y_max) = (most(|point| point.0), most(|point| point.1) * 1.05);
    let draw = || -> Result<(), Box<dyn std::error::Error>> {
        let area = SVGBackend::new(path, SIZE).into_drawing_area();
        area.fill(&WHITE)?;
        let mut chart = ChartBuilder::on(&area)
            .caption(title, ("sans-serif", 18))
            .margin(MARGIN)
            .x_label_area_size(LABELS.0)
            .y_label_area_size(LABELS.1)
            .build_cartesian_2d(0.0..x_max, 0.0..y_max)?;
        chart.configure_mesh().x_desc("memory, MiB").y_desc("pages").draw()?;
        for (line, color) in lines.iter().zip([BLUE, RED, BLACK]) {
            let series = chart.draw_series(LineSeries::new(line.points.iter().copied(), &color))?;
            series.label(line.name).legend(move |(x, y)| PathElement::new([(x, y), (x + 20, y)], color));
        }
        chart.configure_series_labels().background_style(WHITE).border_style(BLACK).draw()?;
        area.present()?;
        Ok(())
    };
    draw().map_err(|error| format!("--plot: {}: {error}", path.display()))
}
