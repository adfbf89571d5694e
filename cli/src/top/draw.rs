//! The screen: a tide of memory over time, what it is made of, how fast pages come and go, and the processes.

use crate::accounts::memory::Memory;
use crate::accounts::pages::Pages;
use crate::processes::runs::Pids;
use crate::sampler::outside::{Program, of_several};
use crate::show::ps::show_age;
use crate::show::report::Report;
use crate::show::table;
use crate::top::keys::Keys;
use crate::top::palette::{Palette, Part};
use crate::top::tide::{Sample, Tide};
use crate::units::{PAGE, show_bytes, show_count, show_nanos};
use pagetide::group::{Group, ProcessSlot};
use pagetide::latency;
use ratatui::Frame;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;

/// The smallest screen: columns, and rows.
const SMALLEST: (u16, u16) = (60, 16);
/// Columns beside the tide, for what its rows stand for.
const AXIS: u16 = 10;
/// Rows of the figures.
const FIGURES: u16 = 5;
/// Rows of the tide at least, and the part of a high screen.
const TIDE_MIN: u16 = 6;
const TIDE_PART: u16 = 3;
/// Columns before which the rates begin.
const RATES: u16 = 36;

const HELP: &str = "\
The tide shows what the run has in memory since top began, the newest at the
right. It is made of these parts, from below:

  █ in the programs   managed memory, which may leave
  ░ not managed       stacks, programs without Pagetide, the engines' own data
  ▓ pool              pages that have left, compressed in memory
  ▚ on disk           pages in the swap file or on the server, above the cap
  ─ cap               what all of it together may take in memory

faults     pages that were touched when they were out, a second
out, back  pages that left the programs, and came back, a second
wait       threads that waited for a page, on average over the last interval

m changes the cap, s any setting of `pagetide set`, after a confirmation.";

/// What is drawn.
pub(super) struct View<'a> {
    pub(super) report: &'a Report,
    pub(super) group: &'a Group,
    pub(super) tide: &'a Tide,
    pub(super) keys: &'a Keys,
    pub(super) palette: Palette,
}

impl View<'_> {
    /// Draws all of it.
    pub(super) fn draw(&self, frame: &mut Frame<'_>) {
        let (area, buffer) = (frame.area(), frame.buffer_mut());
        if area.width < SMALLEST.0 || area.height < SMALLEST.1 {
            let said = format!("top takes {} × {} characters", SMALLEST.0, SMALLEST.1);
            buffer.set_stringn(area.x, area.y, said, area.width.into(), Style::default());
            return;
        }
        let row = |y, height| Rect { y: area.y + y, height, ..area };
        self.title(buffer, row(0, 1));
        if self.keys.is_help() {
            for (y, line) in (2..area.height - 1).zip(HELP.lines()) {
                buffer.set_stringn(area.x, area.y + y, line, area.width.into(), Style::default());
            }
        } else {
            let room = area.height - FIGURES - 4;
            let tide = (room / TIDE_PART * 2).max(TIDE_MIN);
            self.tide(buffer, row(1, tide));
            self.figures(buffer, row(tide + 2, FIGURES));
            self.processes(buffer, row(tide + FIGURES + 3, area.height - tide - FIGURES - 4));
        }
        let last = row(area.height - 1, 1);
        let style = self.palette.style(Part::Strong);
        buffer.set_stringn(last.x, last.y, self.keys.line(), last.width.into(), style);
    }

    fn style(&self, part: Part) -> Style {
        self.palette.style(part)
    }

    fn title(&self, buffer: &mut Buffer, area: Rect) {
        let Report { pid, command, elapsed, .. } = self.report;
        let age = show_age(*elapsed);
        let width = usize::from(area.width);
        let left = format!("run {pid}: {}", command.join(" ")).replace(char::is_control, " ");
        buffer.set_stringn(area.x, area.y, left, width - age.len() - 2, self.style(Part::Strong));
        buffer.set_stringn(area.x + area.width - age.len() as u16, area.y, age, width, Style::default());
    }

    fn tide(&self, buffer: &mut Buffer, area: Rect) {
        let columns = self.tide.columns((area.width - AXIS).into());
        let rows = u64::from(area.height) - 1;
        let highest = |sample: &Sample| sample.cap.max(sample.memory.in_memory()) + sample.memory.disk;
        let scale = columns.iter().map(highest).max().unwrap_or(0).max(1);
        // A little air above the highest.
        let unit = (scale + scale / 20).div_ceil(rows).max(1);
        let bottom = area.y + area.height - 2;
        for (x, sample) in columns.iter().enumerate() {
            for row in 0..rows {
                let part = part_at(sample, unit * row + unit / 2, unit);
                if let Some(part) = part {
                    let x = area.x + AXIS + (usize::from(area.width - AXIS) - columns.len() + x) as u16;
                    buffer.set_string(x, bottom - row as u16, part.filling(), self.style(part));
                }
            }
        }
        let mut label = |row: u64, text: &str, part| {
            let text = format!("{text:>width$}", width = usize::from(AXIS) - 1);
            buffer.set_string(area.x, bottom - row.min(rows - 1) as u16, text, self.style(part));
        };
        label(0, "0", Part::Faint);
        let cap = self.tide.newest().cap;
        label(rows - 1, &show_bytes(unit * rows), Part::Faint);
        label(cap / unit, &show_bytes(cap), Part::Cap);
        // Below the first column, as far as there is room for both.
        let covered = format!("{} ago", show_age(self.tide.covered()));
        let y = area.y + area.height - 1;
        let first = area.width - columns.len() as u16;
        let x = first.min(area.width - covered.len() as u16 - 5);
        buffer.set_string(area.x + x, y, covered, self.style(Part::Faint));
        buffer.set_string(area.x + area.width - 3, y, "now", self.style(Part::Faint));
    }

    fn figures(&self, buffer: &mut Buffer, area: Rect) {
        let Sample { memory, cap } = self.tide.newest();
        let rows = [
            (Part::Resident, "in the programs", memory.resident),
            (Part::Other, "not managed", memory.other),
            (Part::Pool, "pool", memory.pool),
            (
                Part::Disk,
                if self.report.now.remote.is_some() { "on the server" } else { "on disk" },
                memory.disk,
            ),
            (Part::Cap, "cap", cap),
        ];
        for (y, (part, name, bytes)) in (area.y..).zip(rows) {
            buffer.set_string(area.x, y, part.filling(), self.style(part));
            buffer.set_string(area.x + 2, y, format!("{name:<16}{:>9}", show_bytes(bytes)), Style::default());
        }
        let rates = self.tide.rates();
        let per_second = |rate: f64| show_count(rate.round() as u64);
        let latency = |quantile| show_nanos(latency::quantile_ns(&self.report.latencies, quantile));
        let max = show_nanos(self.report.latencies[latency::BUCKETS]);
        let stored = show_bytes(self.report.now.stored.0 * PAGE);
        let lines = [
            format!("faults  {:>7}/s   {:.1} threads wait", per_second(rates.faults), rates.waiting),
            format!("out     {:>7}/s   back {}/s", per_second(rates.out), per_second(rates.back)),
            match self.report.ratio {
                Some(ratio) => format!("pool holds {stored} at {ratio:.1}:1"),
                None => "pool holds nothing".to_owned(),
            },
            format!("latency p50 {}, p99 {}, max {max}", latency(0.5), latency(0.99)),
            self.report.waited(),
        ];
        for (y, line) in (area.y..).zip(lines) {
            buffer.set_stringn(area.x + RATES, y, line, (area.width - RATES).into(), Style::default());
        }
    }

    fn processes(&self, buffer: &mut Buffer, area: Rect) {
        let width = usize::from(area.width);
        let heading = format!(
            "{:>8}  {:<15}{:>9}{:>10}{:>9}{:>9}{:>9}  engine",
            "pid", "name", "memory", "programs", "pool", "swapped", "disk"
        );
        buffer.set_stringn(area.x, area.y, heading, width, self.style(Part::Strong));
        let mut slots: Vec<_> = self.group.live().collect();
        slots.sort_by_key(|&slot| std::cmp::Reverse(Pages::of(slot).total));
        let outside =
            self.report.outside.iter().map(|Program { name, pid, reason, pages, processes, .. }| {
                let (pages, of) = (show_bytes(*pages * PAGE), of_several(*processes));
                format!("{pid:>8}  {name:<15}{pages:>9}{of}  without Pagetide: {}", reason.text())
            });
        // Those that are not managed come first: they are why a cap does not hold.
        let pids = Pids::of(self.group);
        let managed = slots.into_iter().map(|slot| process(slot, &pids));
        let lines: Vec<String> = outside.chain(managed).collect();
        let room = usize::from(area.height) - 1;
        let shown = if lines.len() > room { room.saturating_sub(1) } else { lines.len() };
        let rest = lines.len() - shown;
        let more = (rest > 0 && room > 0).then(|| format!("          and {rest} more"));
        for (y, line) in (area.y + 1..).zip(lines.into_iter().take(shown).chain(more)) {
            buffer.set_stringn(area.x, y, line, width, Style::default());
        }
    }
}

/// Returns what lies at a height, in bytes, of a column; `unit` is what a row stands for.
fn part_at(sample: &Sample, height: u64, unit: u64) -> Option<Part> {
    let Sample { memory: Memory { resident, other, pool, disk }, cap } = *sample;
    let base = cap.max(sample.memory.in_memory());
    match height {
        height if height < resident => Some(Part::Resident),
        height if height < resident + other => Some(Part::Other),
        height if height < resident + other + pool => Some(Part::Pool),
        height if height >= base && height < base + disk => Some(Part::Disk),
        height if (height.saturating_sub(unit / 2)..=height.saturating_add(unit / 2)).contains(&cap) => {
            Some(Part::Cap)
        }
        _ => None,
    }
}

fn process(slot: ProcessSlot, pids: &Pids) -> String {
    let pages = Pages::of(slot);
    let engine = table::engine(slot);
    let [total, resident, pool, swapped, disk] =
        [pages.total, pages.resident, pages.pool, pages.swapped, pages.disk]
            .map(|pages| show_bytes(pages * PAGE));
    let (pid, name) = pids.named(slot);
    let name: String = name.chars().take(15).collect();
    format!("{pid:>8}  {name:<15}{total:>9}{resident:>10}{pool:>9}{swapped:>9}{disk:>9}  {engine}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::show::testing::report;
    use crate::testing::group;
    use crossterm::event::KeyCode;
    use pagetide::group::Field;
    use pagetide_swap::Counter;
    use pagetide_sys::procfs::Identity;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use std::time::Duration;

    /// A run of three processes that fills 250 MiB, and then what is on disk.
    fn screen(columns: u16, rows: u16, keys: &Keys) -> String {
        let (_fd, group) = group(64_000);
        let slots = [1, 2, 3].map(|pid| group.claim(Identity { pid, ..Identity::own() }).unwrap());
        let mut tide = Tide::new();
        let mut shown = report(&group, Pages::default());
        for step in 0..40_u64 {
            for (slot, part) in slots.into_iter().zip([5, 3, 1]) {
                slot.set(Field::Armed, 1);
                slot.set(Field::Resident, part * (600 + 90 * step.min(30)));
                slot.set(Field::Pool, part * 80 * step);
                slot.set(Field::Disk, part * 300 * step.saturating_sub(20));
                slot.set(Field::Observed, part * (650 + 90 * step.min(30) + 80 * step));
                slot.counters().add(Counter::pgmajfault, 2000);
                slot.latency().record(Duration::from_micros(11));
            }
            shown = report(&group, Pages::default());
            shown.elapsed = Duration::from_secs(step);
            tide.add(&shown);
        }
        let mut terminal = Terminal::new(TestBackend::new(columns, rows)).unwrap();
        let palette = Palette::with_colours();
        let view = View { report: &shown, group: &group, tide: &tide, keys, palette };
        terminal.draw(|frame| view.draw(frame)).unwrap();
        terminal.backend().to_string()
    }

    #[test]
    fn a_screen_of_eighty_columns_has_all_of_it() {
        let screen = screen(80, 24, &Keys::new());
        println!("{screen}");
        for words in
            ["run 7: prog", "250 MiB", "in the programs", "on disk", "6000/s", "engine", "q leave", "now"]
        {
            assert!(screen.contains(words), "{words}\n{screen}");
        }
        for part in [Part::Resident, Part::Pool, Part::Disk] {
            assert!(screen.matches(part.filling()).count() > 8, "{part:?}\n{screen}");
        }
    }

    #[test]
    fn any_size_can_be_drawn_and_one_that_is_too_small_says_so() {
        for columns in [1, 10, 59, 60, 61, 80, 133, 300] {
            for rows in [1, 5, 15, 16, 17, 24, 60, 120] {
                screen(columns, rows, &Keys::new());
            }
        }
        assert!(screen(40, 10, &Keys::new()).contains("top takes 60 × 16"));
    }

    #[test]
    fn help_explains_each_filling() {
        let mut keys = Keys::new();
        keys.press(KeyCode::Char('?').into(), "");
        let screen = screen(90, 24, &keys);
        for part in [Part::Resident, Part::Other, Part::Pool, Part::Disk, Part::Cap] {
            assert!(screen.contains(part.filling()), "{part:?}");
        }
        assert!(HELP.lines().all(|line| line.chars().count() < 80));
    }
}
