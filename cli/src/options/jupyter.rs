//! Options of `pagetide jupyter`.

use super::section::help;
use super::size::{Size, parse_size};
use clap::ValueHint;
use std::path::PathBuf;

/// What a run takes at least, in bytes.
const MEMORY_MIN: u64 = 16 << 20;

/// Options of `pagetide jupyter`.
#[derive(clap::Args, Debug)]
#[command(override_usage = "pagetide jupyter install|remove [OPTIONS]", after_help = help(super::manual::JUPYTER))]
pub struct JupyterArgs {
    /// Add the kernel, or take it away
    #[arg(value_name = "ACTION")]
    pub action: JupyterAction,
    /// Cap on the memory of each notebook: of its kernel and of what that starts
    ///
    /// A percentage is of the memory that is there when a notebook starts.
    #[arg(short, long, value_name = "SIZE", default_value = "60%", value_parser = parse_text)]
    pub memory: String,
    /// The Python that runs the notebooks; it needs the package ipykernel
    #[arg(long, value_name = "PROGRAM", default_value = "python3", value_hint = ValueHint::ExecutablePath)]
    pub python: PathBuf,
    /// Name of the kernel's folder
    #[arg(long, value_name = "NAME", default_value = "pagetide", value_parser = parse_name)]
    pub name: String,
    /// Put the kernel below DIR/share/jupyter, for all users of it [default: where Jupyter keeps the caller's]
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub prefix: Option<PathBuf>,
}

/// What is to be done with the kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum JupyterAction {
    /// Add it.
    Install,
    /// Take it away.
    Remove,
}

/// Checks a size, and keeps it as it was written: it is read when a notebook starts.
fn parse_text(text: &str) -> Result<String, String> {
    match parse_size(text)? {
        Size::Bytes(bytes) if bytes < MEMORY_MIN => Err("it must be 16M at least".to_owned()),
        Size::Percent(percent) if percent <= 0.0 => Err("it must be more than nothing".to_owned()),
        _ => Ok(text.to_owned()),
    }
}

/// Jupyter takes no other names.
fn parse_name(text: &str) -> Result<String, String> {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    let found = !text.is_empty() && !text.starts_with('.') && text.bytes().all(allowed);
    if found { Ok(text.to_owned()) } else { Err("a name has letters, digits, `-`, `_` and `.`".to_owned()) }
}
