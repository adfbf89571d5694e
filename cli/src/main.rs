//! `pagetide`: runs a program in less memory than it needs, and shows how it fares.

#![deny(unsafe_code)]

mod command;
mod container;
mod cpu_budget;
mod descriptor_server;
mod doctor;
mod dump;
mod exact;
mod failure;
mod growth;
mod killed;
mod launch;
mod library;
mod limits;
mod load;
#[allow(unsafe_code, reason = "the only file that may")]
mod os;
mod out;
mod outside;
mod replay;
mod report;
mod responsiveness;
mod runs;
mod sampler;
mod set;
mod shmem;
mod size;
mod stall;
mod stat;
mod statfile;
mod strict;
mod summary;
mod swapfile;
mod swapoff;
mod tree;
mod unmanaged;
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
    Run(launch::RunArgs),
    Stat(stat::StatArgs),
    Dump(dump::DumpArgs),
    Set(set::SetArgs),
    Swapoff(swapoff::SwapoffArgs),
    Swapon(swapoff::SwaponArgs),
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
        Verb::Run(args) => launch::run(args),
        Verb::Stat(args) => stat::stat(args),
        Verb::Dump(args) => dump::dump(args),
        Verb::Set(args) => set::set(args),
        Verb::Swapoff(args) => swapoff::swapoff(args),
        Verb::Swapon(args) => swapoff::swapon(args),
        Verb::Replay(args) => replay::replay(args),
        Verb::Doctor(args) => doctor::doctor(args),
    };
    ExitCode::from(result.unwrap_or_else(|failure| {
        pagetide_sys::task::say(&failure.to_string());
        failure.status
    }))
}
