//! Options of the remote tier, and of `pagetide remote`.

use super::headings::PLACES;
use super::section::help;
use super::size::{Size, parse_size, parse_time};
use clap::ValueHint;
use std::path::PathBuf;
use std::time::Duration;

/// Options of the remote tier.
#[derive(clap::Args, Clone, Debug)]
pub struct RemoteOptions {
    /// Swap to a Valkey or Redis server: redis://HOST:PORT, or rediss:// for TLS
    ///
    /// In place of a swap file; with `--swap-dir` or `--swap-size` beside one, and pages go first to what answers sooner.
    /// More than once for the seeds of a cluster. The password of redis://USER@HOST comes from
    /// `PAGETIDE_REMOTE_PASSWORD` or `--remote-password-file`. Pages are encrypted before they leave this machine. A server
    /// that evicts is refused.
    #[arg(long, value_name = "URL", value_hint = ValueHint::Url, conflicts_with_all = ["no_encrypt"], help_heading = PLACES)]
    pub remote: Vec<String>,
    /// What the run may have on the remote server [default: 4 times the cap]
    #[arg(long, value_name = "SIZE", value_parser = parse_size, requires = "remote", help_heading = PLACES)]
    pub remote_size: Option<Size>,
    /// Wait for an answer of the remote server for TIME at most
    ///
    /// A page that cannot be read for so long is lost, with a message. Pages that cannot be written stay in memory.
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = parse_time, requires = "remote", help_heading = PLACES)]
    pub remote_timeout: Duration,
    /// Have the remote server forget what nobody renews for TIME
    ///
    /// A run renews what it has there after a third of TIME. At least 60s.
    #[arg(long, value_name = "TIME", default_value = "24h", value_parser = parse_ttl, requires = "remote", help_heading = PLACES)]
    pub remote_ttl: Duration,
    /// Read the password of the remote server from FILE
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, requires = "remote", help_heading = PLACES)]
    pub remote_password_file: Option<PathBuf>,
}

/// What a `--remote-ttl` is at least: renewals take their time, also where the server is away for a while.
const TTL_MIN: Duration = Duration::from_secs(60);

fn parse_ttl(text: &str) -> Result<Duration, String> {
    let time = parse_time(text)?;
    if time < TTL_MIN { Err("it must be 60s at least".to_owned()) } else { Ok(time) }
}

/// Options of `pagetide remote`.
#[derive(clap::Args, Debug)]
#[command(override_usage = "pagetide remote gc URL...", after_help = help(super::manual::REMOTE))]
pub struct RemoteArgs {
    /// Delete what runs that are over have left there
    #[arg(value_name = "ACTION")]
    pub action: RemoteAction,
    /// The server, or seeds of a cluster
    #[arg(value_name = "URL", value_hint = ValueHint::Url, required = true)]
    pub urls: Vec<String>,
    /// Read the password from FILE
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub remote_password_file: Option<PathBuf>,
}

/// What is to be done on a remote server.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum RemoteAction {
    /// Delete what runs that are over have left.
    Gc,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_kept_for_a_minute_at_least() {
        assert_eq!(parse_ttl("60s"), Ok(Duration::from_secs(60)));
        assert!(parse_ttl("59s").is_err() && parse_ttl("soon").is_err());
    }
}
