//! Charts, as SVG: areas that lie on each other, lines, and marks.
//!
//! What a colour tells, a name beside the end of the line and its dashes tell too. The colours are far enough from white
//! and from near-black (a contrast of 3 and more).

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

/// A result of the library that draws.
type Drawn<T = ()> = Result<T, Box<dyn std::error::Error>>;
type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// Colours, the same everywhere.
pub(crate) const PROGRAMS: RGBColor = RGBColor(0x3b, 0x82, 0xf6);
/// The compressed pool.
pub(crate) const POOL: RGBColor = RGBColor(0x0f, 0xa5, 0x8f);
/// The disk.
pub(crate) const DISK: RGBColor = RGBColor(0x9a, 0x7b, 0xe8);
/// The cap.
pub(crate) const CAP: RGBColor = RGBColor(0xe5, 0x48, 0x4d);
/// What matters less, and axes.
pub(crate) const GREY: RGBColor = RGBColor(0x7a, 0x82, 0x8c);
const INK: RGBColor = RGBColor(0x24, 0x29, 0x2f);

const FONT: &str = "sans-serif";
const FONT_SIZE: i32 = 13;
/// Pixels from one name beside the chart to the next.
const LINE_HEIGHT: i32 = 17;
const SWATCH: i32 = 10;

/// A line, or the upper edge of an area.
#[derive(Clone, Debug)]
pub(crate) struct Line {
    /// What it shows.
    pub(crate) name: String,
    pub(crate) color: RGBColor,
    pub(crate) dashed: bool,
    /// From left to right.
    pub(crate) points: Vec<(f64, f64)>,
}

/// A place on the horizontal axis.
#[derive(Clone, Debug)]
pub(crate) struct Mark {
    pub(crate) at: f64,
    pub(crate) name: String,
}

/// A chart.
#[derive(Clone, Debug)]
pub(crate) struct Chart {
    /// Pixels.
    pub(crate) size: (u32, u32),
    /// Pixels beside the chart for names.
    pub(crate) names: u32,
    pub(crate) title: Option<String>,
    /// What the axes show, with the unit.
    pub(crate) axes: (String, String),
    /// The least that both axes show; they begin at 0.
    pub(crate) least: (f64, f64),
    /// Areas, the lowest first: each is drawn from the one before it to its own line.
    pub(crate) areas: Vec<Line>,
    pub(crate) lines: Vec<Line>,
    pub(crate) marks: Vec<Mark>,
    /// Whether it is to be read by itself, on white.
    pub(crate) alone: bool,
}

impl Chart {
    /// Draws the chart.
    ///
    /// # Errors
    /// The library that draws says why it cannot.
    pub(crate) fn svg(&self) -> Result<String, String> {
        let mut text = String::new();
        {
            let area = SVGBackend::with_string(&mut text, self.size).into_drawing_area();
            self.draw(&area).map_err(|error| error.to_string())?;
        }
        Ok(text)
    }

    fn all(&self) -> impl Iterator<Item = &Line> {
        self.areas.iter().chain(&self.lines)
    }

    fn ends(&self) -> (f64, f64) {
        let most = |least: f64, of: fn(&(f64, f64)) -> f64| {
            self.all().flat_map(|line| &line.points).map(of).fold(least, f64::max)
        };
        (most(self.least.0, |point| point.0), most(self.least.1, |point| point.1) * 1.06)
    }

    fn draw(&self, area: &Area<'_>) -> Drawn {
        if self.alone {
            area.fill(&WHITE)?;
        }
        let (right, top) = self.ends();
        let mut builder = ChartBuilder::on(area);
        if let Some(title) = &self.title {
            builder.caption(title, (FONT, 16).into_font().color(&INK));
        }
        let mut chart = builder
            .margin(8)
            .margin_right(self.names)
            .x_label_area_size(44)
            .y_label_area_size(64)
            .build_cartesian_2d(0.0..right, 0.0..top)?;
        let text = || (FONT, FONT_SIZE).into_font().color(&INK);
        chart
            .configure_mesh()
            .disable_x_mesh()
            .light_line_style(TRANSPARENT)
            .bold_line_style(GREY.mix(0.3))
            .axis_style(GREY)
            .x_labels(8)
            .y_labels(6)
            .label_style(text())
            .axis_desc_style(text())
            .x_label_formatter(&|value| number(*value))
            .y_label_formatter(&|value| number(*value))
            .x_desc(&self.axes.0)
            .y_desc(&self.axes.1)
            .draw()?;
        // The uppermost first: what lies lower covers it.
        for line in self.areas.iter().rev() {
            chart.draw_series(AreaSeries::new(line.points.iter().copied(), 0.0, line.color))?;
        }
        for line in &self.lines {
            let style = line.color.stroke_width(2);
            let points = line.points.iter().copied();
            if line.dashed {
                chart.draw_series(DashedLineSeries::new(points, 6, 4, style))?;
            } else {
                chart.draw_series(LineSeries::new(points, style))?;
            }
        }
        for mark in self.marks.iter().filter(|mark| (0.0..=right).contains(&mark.at)) {
            let ends = [(mark.at, 0.0), (mark.at, top)];
            chart.draw_series(DashedLineSeries::new(ends, 3, 3, GREY.stroke_width(1)))?;
            let (x, y) = chart.backend_coord(&ends[1]);
            // On the side where there is more room.
            let is_right = mark.at > right / 2.0;
            let (side, x) = if is_right { (HPos::Right, x - 5) } else { (HPos::Left, x + 5) };
            let style = text().pos(Pos::new(side, VPos::Top));
            area.draw(&Text::new(mark.name.clone(), (x, y), style))?;
        }
        let ends = self.names().into_iter().map(|(line, y)| (line, chart.backend_coord(&(right, y))));
        draw_names(area, ends.collect())?;
        area.present()?;
        Ok(())
    }

    /// Returns each line, and the height at which its name belongs: of areas the uppermost first.
    fn names(&self) -> Vec<(&Line, f64)> {
        // Areas are named where they are highest together.
        let top =
            |nth: usize| self.areas.last().and_then(|line| line.points.get(nth)).map_or(0.0, |point| point.1);
        let points = self.areas.last().map_or(0, |line| line.points.len());
        let at = (0..points).max_by(|&one, &other| top(one).total_cmp(&top(other))).unwrap_or(0);
        let mut below = 0.0;
        let mut named = Vec::new();
        for line in &self.areas {
            let height = line.points.get(at).map_or(0.0, |point| point.1);
            named.push((line, (below + height) / 2.0));
            below = height;
        }
        named.reverse();
        let last = |line: &Line| line.points.last().map_or(0.0, |point| point.1);
        named.extend(self.lines.iter().map(|line| (line, last(line))));
        named
    }
}

/// Writes names to the right of the chart, apart from each other.
fn draw_names(area: &Area<'_>, mut names: Vec<(&Line, (i32, i32))>) -> Drawn {
    names.sort_by_key(|(_, (_, y))| *y);
    let bottom = area.dim_in_pixel().1 as i32 - 44;
    for nth in 1..names.len() {
        names[nth].1.1 = names[nth].1.1.max(names[nth - 1].1.1 + LINE_HEIGHT);
    }
    let mut most = bottom;
    for (_, (_, y)) in names.iter_mut().rev() {
        *y = (*y).min(most);
        most = *y - LINE_HEIGHT;
    }
    let style = (FONT, FONT_SIZE).into_font().color(&INK).pos(Pos::new(HPos::Left, VPos::Center));
    for (line, (x, y)) in names {
        let swatch = [(x + 8, y - SWATCH / 2), (x + 8 + SWATCH, y + SWATCH / 2)];
        if line.dashed {
            let style = line.color.stroke_width(2);
            for from in [swatch[0].0, swatch[0].0 + 6] {
                area.draw(&PathElement::new([(from, y), (from + 4, y)], style))?;
            }
        } else {
            area.draw(&Rectangle::new(swatch, line.color.filled()))?;
        }
        area.draw(&Text::new(line.name.clone(), (x + 12 + SWATCH, y), style.clone()))?;
    }
    Ok(())
}

/// Writes a number beside an axis: no more digits than tell it from its neighbours, large ones with a unit.
fn number(value: f64) -> String {
    let (value, unit) = match value.abs() {
        size if size >= 1e9 => (value / 1e9, " G"),
        size if size >= 1e6 => (value / 1e6, " M"),
        size if size >= 1e4 => (value / 1e3, " k"),
        _ => (value, ""),
    };
    let text = format!("{value:.2}");
    let short = text.trim_end_matches('0').trim_end_matches('.');
    format!("{}{unit}", if short.is_empty() || short == "-0" { "0" } else { short })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_beside_an_axis_are_short() {
        let written = [0.0, 0.25, 7.0, 9500.0, 40_000.0, 2_500_000.0, 3e9].map(number);
        assert_eq!(written, ["0", "0.25", "7", "9500", "40 k", "2.5 M", "3 G"]);
    }

    #[test]
    fn a_chart_names_its_lines_apart_from_each_other() {
        let line = |name: &str, dashed| Line {
            name: name.to_owned(),
            color: POOL,
            dashed,
            points: vec![(0.0, 1.0), (5.0, 2.0)],
        };
        let chart = Chart {
            size: (700, 300),
            names: 120,
            title: None,
            axes: ("time, s".to_owned(), "memory, MiB".to_owned()),
            least: (1.0, 1.0),
            areas: vec![line("one & all", false)],
            lines: vec![line("two", true), line("three", false)],
            marks: vec![Mark { at: 3.0, name: "now".to_owned() }],
            alone: false,
        };
        let svg = chart.svg().unwrap();
        let heights: Vec<i32> = svg
            .split("<text")
            .skip(1)
            .filter(|text| ["one &amp; all", "two", "three"].iter().any(|name| text.contains(name)))
            .map(|text| text.split("y=\"").nth(1).unwrap().split('"').next().unwrap().parse().unwrap())
            .collect();
        assert_eq!(heights.len(), 3);
        assert!(heights.windows(2).all(|two| two[1] - two[0] >= LINE_HEIGHT), "{heights:?}");
        assert!(svg.contains("now") && svg.starts_with("<svg"));
    }
}
