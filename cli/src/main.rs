//! `pagetide`: runs a program in less memory than it needs, and shows how it fares.

#![deny(unsafe_code)]
#![warn(unreachable_pub)]

mod accounts;
mod beside;
mod chart;
mod control;
mod cpu_budget;
mod disk;
mod doctor;
mod dump;
mod failure;
mod handout_server;
mod jupyter;
mod keeper;
mod machine;
mod out;
mod permission;
mod processes;
mod remote;
mod replay;
mod report;
mod run;
mod sampler;
mod show;
#[cfg(test)]
mod testing;
mod thinned;
mod top;
mod units;
mod verbosity;

use clap::Parser;
use clap::error::ErrorKind;
use pagetide_cli::options::{Cli, Command};
use std::process::ExitCode;

fn main() -> ExitCode {
    if std::env::args_os().nth(1).is_some_and(|word| word == keeper::link::COMMAND) {
        return status(keeper::keep());
    }
    if std::env::args_os().nth(1).is_some_and(|word| word == remote::link::COMMAND) {
        return status(remote::server::serve());
    }
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            let asked_for = matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion);
            let told = match error.print() {
                Ok(()) => true,
                // Whoever reads it has seen enough.
                Err(error) => error.kind() == std::io::ErrorKind::BrokenPipe,
            };
            return ExitCode::from(if asked_for && told { 0 } else { failure::OURS });
        }
    };
    let result = match &cli.command {
        Command::Run(args) => run::run(args),
        Command::Ps(args) => show::ps::ps(args),
        Command::Top(args) => top::top(args),
        Command::Stat(args) => show::stat::stat(args),
        Command::Dump(args) => dump::dump(args),
        Command::Set(args) => control::set::set(args),
        Command::Swapoff(args) => control::swapoff::swapoff(args),
        Command::Swapon(args) => control::swapoff::swapon(args),
        Command::Report(args) => report::report(args),
        Command::Replay(args) => replay::replay(args),
        Command::Jupyter(args) => jupyter::jupyter(args),
        Command::Remote(args) => remote::gc::remote(args),
        Command::Doctor(args) => doctor::doctor(args),
        Command::Setup(args) => permission::setup::setup(args),
        Command::Broker(args) => permission::broker::broker(args),
    };
    status(result)
}

/// The exit status of a command; says why it failed.
fn status(result: Result<u8, failure::Failure>) -> ExitCode {
    ExitCode::from(result.unwrap_or_else(|failure| {
        pagetide_sys::task::say(&failure.to_string());
        failure.status
    }))
}
