//! `pagetide top`: watches a run on a terminal.

mod draw;
mod keys;
mod palette;
mod tide;

use crate::control::set;
use crate::failure::Failure;
use crate::out;
use crate::processes::runs::{Purpose, Run};
use crate::show::stat::report;
use crate::top::draw::View;
use crate::top::keys::{Action, Keys};
use crate::top::palette::Palette;
use crate::top::tide::Tide;
use crossterm::event::{self, Event, KeyEventKind};
use pagetide_cli::options::TopArgs;
use std::io::IsTerminal;
use std::time::{Duration, Instant};

/// Watches a run until it ends or `q` is pressed. Returns the exit status.
pub(crate) fn top(args: &TopArgs) -> Result<u8, Failure> {
    let run = Run::open(args.pid, Purpose::Look, "pagetide top PID")?;
    if !std::io::stdout().is_terminal() || !std::io::stdin().is_terminal() {
        return Err("top needs a terminal; `pagetide stat --watch 1` writes to a file or a pipe".into());
    }
    let mut terminal =
        ratatui::try_init().map_err(|error| format!("the terminal cannot be used: {error}"))?;
    let last = watch(&run, args.interval, &mut terminal);
    ratatui::restore();
    let last = last.map_err(|error| format!("the terminal cannot be used: {error}"))?;
    if let Some(lines) = last {
        out::print(&lines)?;
    }
    Ok(0)
}

/// Shows the run until it ends or the user leaves. Returns what is left to say when it has ended.
fn watch(
    run: &Run,
    interval: Duration,
    terminal: &mut ratatui::DefaultTerminal,
) -> std::io::Result<Option<String>> {
    let (mut tide, mut keys) = (Tide::new(), Keys::new());
    let palette = Palette::of_environment();
    let mut sampled = report(run);
    tide.add(&sampled);
    let mut due = Instant::now() + interval;
    loop {
        let view = View { report: &sampled, group: &run.group, tide: &tide, keys: &keys, palette };
        terminal.draw(|frame| view.draw(frame))?;
        if event::poll(due.saturating_duration_since(Instant::now()))?
            && let Event::Key(key) = event::read()?
            && key.kind == KeyEventKind::Press
        {
            match keys.press(key, &set::settings(&run.group)) {
                Action::Leave => return Ok(None),
                Action::Change(setting) => keys.tell(set::change_one(&run.group, &setting)),
                Action::Stay => {}
            }
        }
        if Instant::now() >= due {
            if !run.goes_on() {
                let told = [sampled.pages_line(), sampled.time_line()].join("\n");
                let name = sampled.command.join(" ");
                return Ok(Some(format!("run {} ({name}) has ended; at the last look:\n{told}\n", run.pid)));
            }
            sampled = report(run);
            tide.add(&sampled);
            due = Instant::now() + interval;
        }
    }
}
