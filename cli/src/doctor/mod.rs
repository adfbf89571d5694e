//! `pagetide doctor`: checks what this machine, this user and this container offer.

mod checks;
mod finding;
mod fix;
mod remote;
mod told;

use crate::doctor::checks::{Ways, kernel, library, memory, permission, proc_is_mounted, storage};
use crate::doctor::finding::{Finding, State};
use crate::doctor::told::Told;
use crate::failure::Failure;
use crate::out;
use crate::permission::remedy::Here;
use pagetide_cli::options::DoctorArgs;
use serde_json::{Value, json};

/// Exit status: no run is possible here.
const SICK: u8 = 1;

fn text(findings: &[Finding]) -> String {
    use std::fmt::Write as _;
    let mut text = String::new();
    for Finding { name, state, found, cost, remedy, .. } in findings {
        let _ = writeln!(text, "{:8} {name:26} {found}", state.name());
        for (what, why) in [("cost", *cost), ("mend", remedy)] {
            if !why.is_empty() {
                let _ = writeln!(text, "{:8} {what:>26} {why}", "");
            }
        }
    }
    text
}

/// Checks everything and prints the findings. Returns the exit status.
pub(crate) fn doctor(args: &DoctorArgs) -> Result<u8, Failure> {
    let ways = Ways::probe();
    let features = ways.features();
    let here = Here::look();
    let told = Told::read();
    let mut findings = vec![proc_is_mounted(), library()];
    findings.extend(permission(&ways, &here, &told));
    findings.extend(kernel(features, &told));
    findings.extend(storage(args.swap_dir.as_deref(), &told));
    findings.push(memory());
    findings.extend(remote::remote(&args.remote, args.remote_password_file.as_deref())?);
    let works = findings.iter().all(|finding| finding.state != State::Fatal);
    let said = if args.json {
        let list: Vec<Value> = findings.iter().map(Finding::json).collect();
        format!("{:#}\n", json!({ "works": works, "findings": list }))
    } else {
        let verdict = if works { "`pagetide run` works here" } else { "`pagetide run` does not work here" };
        format!("{}{verdict}\n", text(&findings))
    };
    out::print(&said)?;
    if args.fix {
        return fix::fix(&ways, &here, works);
    }
    Ok(if works { 0 } else { SICK })
}
