//! `pagetide`: runs a program in less memory than it needs, and shows how it fares.

#![deny(unsafe_code)]

mod accounts;
mod control;
mod cpu_budget;
mod disk;
mod doctor;
mod failure;
mod machine;
mod out;
mod processes;
mod replay;
mod run;
mod sampler;
mod show;
#[cfg(test)]
mod testing;
mod units;
mod verbosity;

use clap::Parser;
use clap::error::ErrorKind;
use std::process::ExitCode;

/// Swap in user space
#[derive(Parser, Debug)]
#[command(name = "pagetide", version)]
struct Cli {
    #[command(subcommand)]
    command: Verb,
}

#[derive(clap::Subcommand, Debug)]
enum Verb {
    Run(run::RunArgs),
    Stat(show::stat::StatArgs),
    Set(control::set::SetArgs),
    Swapoff(control::swapoff::SwapoffArgs),
    Swapon(control::swapoff::SwaponArgs),
    Replay(replay::ReplayArgs),
    Doctor(doctor::DoctorArgs),
}

fn main() -> ExitCode {
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
        Verb::Run(args) => run::run(args),
        Verb::Stat(args) => show::stat::stat(args),
        Verb::Set(args) => control::set::set(args),
        Verb::Swapoff(args) => control::swapoff::swapoff(args),
        Verb::Swapon(args) => control::swapoff::swapon(args),
        Verb::Replay(args) => replay::replay(args),
        Verb::Doctor(args) => doctor::doctor(args),
    };
    ExitCode::from(result.unwrap_or_else(|failure| {
        pagetide_sys::task::say(&failure.to_string());
        failure.status
    }))
}
