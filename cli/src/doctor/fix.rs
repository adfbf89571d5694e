//! `pagetide doctor --fix`: mends what a command can mend, after asking.

use super::SICK;
use crate::doctor::checks::Ways;
use crate::failure::Failure;
use crate::out;
use crate::permission::remedy::Here;
use std::process::Command;

/// Proposes the shortest way to permission, runs it if the answer is yes, and looks again. Returns the exit status.
pub(super) fn fix(ways: &Ways, here: &Here, works: bool) -> Result<u8, Failure> {
    if ways.features().is_some() {
        out::print(if works { "nothing to mend\n" } else { "no command mends that\n" })?;
        return Ok(if works { 0 } else { SICK });
    }
    let Some(words) = here.remedies().into_iter().find_map(|way| way.command) else {
        out::print("no command mends that from inside\n")?;
        return Ok(SICK);
    };
    let line = words.join(" ");
    out::print(&format!("run `{line}`? [y/N] "))?;
    let mut answer = String::new();
    std::io::stdin().read_line(&mut answer).map_err(|error| format!("no answer can be read: {error}"))?;
    if !matches!(answer.trim(), "y" | "Y" | "yes") {
        out::print("nothing was changed\n")?;
        return Ok(SICK);
    }
    let status = Command::new(&words[0]).args(&words[1..]).status();
    let status =
        status.map_err(|error| format!("{}: {error}; as root: {}", words[0], words[1..].join(" ")))?;
    if !status.success() {
        return Err(format!("`{line}` ended with {status}").into());
    }
    let is_open = Ways::probe().features().is_some();
    out::print(if is_open { "mended\n" } else { "that did not give permission to this user\n" })?;
    Ok(if is_open { 0 } else { SICK })
}
