//! Options of `pagetide broker`.

use super::section::help;
use clap::ValueHint;
use std::path::PathBuf;

/// Options of `pagetide broker`.
#[derive(clap::Args, Debug)]
#[command(
    override_usage = "pagetide broker [--socket PATH] [--group NAME | --anyone]",
    after_help = help(super::manual::BROKER)
)]
pub struct BrokerArgs {
    /// Where to listen [default: $PAGETIDE_BROKER, or /run/pagetide/broker.socket]
    ///
    /// A service manager's socket (sd_listen_fds(3)) comes before it.
    #[arg(long, value_name = "PATH", value_hint = ValueHint::FilePath)]
    pub socket: Option<PathBuf>,
    /// The group whose members get the device
    #[arg(long, value_name = "NAME", default_value = "pagetide", conflicts_with = "anyone")]
    pub group: String,
    /// Give the device to whoever reaches the socket
    ///
    /// For a socket that only those can reach who may have the device: in Kubernetes, pods that mount its folder.
    #[arg(long)]
    pub anyone: bool,
}
