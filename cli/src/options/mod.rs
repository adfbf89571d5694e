//! Commands and options, told once.

mod broker;
pub mod choices;
mod doctor;
mod dump;
mod headings;
mod jupyter;
pub mod manual;
mod ps;
pub mod remote;
mod replay;
mod report;
mod rules;
mod run;
pub mod section;
pub mod set;
mod setup;
pub mod size;
mod stat;
mod swap_file;
mod top;

pub use broker::BrokerArgs;
pub use doctor::DoctorArgs;
pub use dump::DumpArgs;
pub use jupyter::{JupyterAction, JupyterArgs};
pub use ps::PsArgs;
pub use remote::{RemoteAction, RemoteArgs, RemoteOptions};
pub use replay::ReplayArgs;
pub use report::ReportArgs;
pub use rules::RuleArgs;
pub use run::RunArgs;
pub use set::SetArgs;
pub use setup::SetupArgs;
pub use stat::StatArgs;
pub use swap_file::{SwapoffArgs, SwaponArgs};
pub use top::TopArgs;

use section::help;

/// Swap in user space: run a program in less memory than it needs
///
/// `pagetide run` runs a program, and every process that it starts, under one cap on their memory. When the cap is
/// nearly used up, cold pages of large private anonymous memory leave the program for a compressed pool in RAM and
/// from there for a swap file, and come back when they are touched. The kernel's own swap is not needed.
///
/// It works by preloading a library, which replaces malloc and the calls that change mappings, and by userfaultfd.
/// Statically linked programs, programs for another kind of machine and programs that gain privileges at their
/// start are refused.
#[derive(clap::Parser, Debug)]
#[command(
    name = "pagetide",
    version,
    max_term_width = 100,
    subcommand_help_heading = "Commands",
    after_help = help(manual::EXAMPLES),
    disable_help_subcommand = true
)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// A command, with its options.
#[derive(clap::Subcommand, Debug)]
pub enum Command {
    /// Run a program in less memory than it needs
    ///
    /// Runs CMD, and every process that it starts, under one cap. The launcher stays beside CMD until that ends: it
    /// sends signals on, and says at the end whether the cap held and what swapping cost.
    Run(Box<RunArgs>),
    /// Show the runs of this machine
    ///
    /// Shows the runs that the caller may look at, a line each: his own; all of the machine, for root. `stalled` is the
    /// time that threads have waited for pages, in percent of the time since the start: two threads that do nothing else
    /// are 200 %.
    Ps(PsArgs),
    /// Watch a run on a terminal
    ///
    /// Shows what a run has in memory and on disk over time, how fast pages leave and come back, how long its threads wait,
    /// and its processes; it ends when the run does. `m` and `s` change the cap and other settings. Without PID it is the run
    /// that was started in this session, or the only one of the machine.
    Top(TopArgs),
    /// Show how a run fares
    ///
    /// Shows what the run holds, what went out and came in, how long its threads waited, and its processes. Without
    /// PID it is the run that was started in this session, or the only one of the machine.
    Stat(StatArgs),
    /// Show what a run does and waits for, also one that hangs
    ///
    /// Shows the engine's threads, parked faults, requests, locked pages and budgets of each process, the longest wait
    /// first; the last line says what is most likely stuck. No process of the run is asked for anything, so it works on
    /// one that is stopped or hangs.
    Dump(DumpArgs),
    /// Show or change the cap of a run, and how its pool works, while it goes on
    ///
    /// Takes effect in all processes of the run within some hundredths of a second. All changes of a call are made,
    /// or none. Without any, all values are shown.
    Set(SetArgs),
    /// Take the swap file of a run out of use
    ///
    /// Brings back what the run has in its swap file: into the compressed pool, and into the program where that is
    /// full or a page does not compress. Returns when nothing is left there; nothing is written to it until
    /// `pagetide swapon`. If there is no room, the process that has none is named and the file stays in use.
    Swapoff(SwapoffArgs),
    /// Use the swap file of a run again
    Swapon(SwaponArgs),
    /// Make a page that shows how a run went
    ///
    /// Reads what `pagetide run --stats FILE.jsonl` has written, and makes one HTML page of it: memory over time, faults and
    /// waiting, what left and came back, and an estimate of what more memory would have changed. The page needs nothing but
    /// itself. `pagetide run --report FILE.html` makes the same page at the end of a run.
    Report(ReportArgs),
    /// Replay a trace: what would have happened in other memory, or by other rules
    ///
    /// Runs a trace of `pagetide run --trace` through the swap subsystem, and prints what came of it. No program's
    /// memory is touched; what faults would have waited for is added up.
    ///
    /// A trace tells what the engine saw: pages that were in memory then were asked for without its knowledge. So
    /// record with less memory than you replay with.
    Replay(ReplayArgs),
    /// Run the notebooks of Jupyter under Pagetide
    ///
    /// Adds a kernel to Jupyter: each notebook for which it is chosen is a run of its own, under its own cap. In it
    /// `%load_ext pagetide` shows where the memory is after each cell, if the Python package pagetide is installed.
    Jupyter(JupyterArgs),
    /// Look after what runs have on a remote server
    ///
    /// `pagetide remote gc URL` deletes what runs that are over have left on a Valkey or Redis server: of those that were
    /// killed with all their processes at once. What they have there is forgotten by itself a day after it was written.
    Remote(RemoteArgs),
    /// Say what this machine and this user can do, and what would mend the rest
    ///
    /// Says what this machine, this user and this container give, what it costs that something is missing, and what
    /// mends it. What cannot be told is `unknown`.
    Doctor(DoctorArgs),
    /// Give users of this machine permission for userfaultfd, once
    ///
    /// Makes the group `pagetide`, a udev rule that gives it `/dev/userfaultfd`, and a broker that hands the device to its
    /// members at once, before they have logged in again. To be run by root.
    Setup(SetupArgs),
    /// Hand /dev/userfaultfd to members of a group
    ///
    /// Waits at a socket; `pagetide run` asks there if it may not open the device itself. What it gives is the device and
    /// nothing else. `pagetide setup` has systemd start it when somebody asks.
    Broker(BrokerArgs),
}
