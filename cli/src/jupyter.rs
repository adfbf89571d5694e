//! `pagetide jupyter`: a kernel of Jupyter whose notebooks run under Pagetide.

use crate::failure::Failure;
use crate::out;
use pagetide_cli::options::{JupyterAction, JupyterArgs};
use serde_json::json;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const FILE: &str = "kernel.json";

/// Adds or removes the kernel. Returns the exit status.
pub(crate) fn jupyter(args: &JupyterArgs) -> Result<u8, Failure> {
    let folder = data_folder(args.prefix.as_deref())?.join("kernels").join(&args.name);
    match args.action {
        JupyterAction::Install => install(args, &folder)?,
        JupyterAction::Remove => remove(&folder)?,
    }
    Ok(0)
}

/// Where Jupyter looks for kernels (`jupyter --paths`).
fn data_folder(prefix: Option<&Path>) -> Result<PathBuf, Failure> {
    if let Some(prefix) = prefix {
        return Ok(prefix.join("share/jupyter"));
    }
    let set = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let found = set("JUPYTER_DATA_DIR")
        .or_else(|| set("XDG_DATA_HOME").map(|folder| folder.join("jupyter")))
        .or_else(|| set("HOME").map(|folder| folder.join(".local/share/jupyter")));
    let found = found.filter(|folder| folder.is_absolute());
    found.ok_or_else(|| Failure::from("HOME is not set, or no absolute path: name a folder by --prefix"))
}

fn install(args: &JupyterArgs, folder: &Path) -> Result<(), Failure> {
    if folder.join(FILE).exists() && !is_ours(folder) {
        return Err(format!("{} is somebody else's kernel: take another --name", folder.display()).into());
    }
    let python = python(&args.python)?;
    let own = std::env::current_exe().map_err(|error| format!("this program cannot be found: {error}"))?;
    let name = if args.name == "pagetide" { String::new() } else { format!(" {}", args.name) };
    let kernel = json!({
        "argv": [
            own, "run", "--quiet", "--memory", args.memory, "--",
            python, "-m", "ipykernel_launcher", "-f", "{connection_file}",
        ],
        "display_name": format!("Python 3 (Pagetide{name}, {})", args.memory),
        "language": "python",
        // A signal goes to the whole group, and from the launcher once more: the cell would be interrupted twice.
        "interrupt_mode": "message",
        "metadata": { "debugger": true },
    });
    let path = folder.join(FILE);
    let written = fs::create_dir_all(folder).and_then(|()| fs::write(&path, format!("{kernel:#}\n")));
    written.map_err(|error| format!("{}: {error}", path.display()))?;
    out::print(&format!(
        "{} is added: choose \"{}\" for a notebook\n",
        path.display(),
        kernel["display_name"].as_str().unwrap_or_default()
    ))?;
    Ok(())
}

/// Returns the path of an interpreter that can run notebooks: a notebook starts in another environment.
fn python(given: &Path) -> Result<String, Failure> {
    let shown = given.display();
    let asked = Command::new(given)
        .args(["-c", "import sys, ipykernel_launcher; print(sys.executable)"])
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("{shown}: {error} (--python)"))?;
    if !asked.status.success() {
        return Err(format!(
            "{shown} cannot run notebooks: `{shown} -m pip install ipykernel`, or name another by --python"
        )
        .into());
    }
    let found = String::from_utf8_lossy(&asked.stdout).trim_end().to_owned();
    if !Path::new(&found).is_absolute() {
        return Err(format!("{shown} is no Python: it does not say where it lies (--python)").into());
    }
    Ok(found)
}

/// Returns whether the kernel of a folder is one that runs under Pagetide.
fn is_ours(folder: &Path) -> bool {
    let text = fs::read_to_string(folder.join(FILE));
    text.is_ok_and(|text| text.contains("ipykernel_launcher") && text.contains("--memory"))
}

fn remove(folder: &Path) -> Result<(), Failure> {
    let path = folder.join(FILE);
    if !is_ours(folder) {
        return Err(format!("{} is no kernel of Pagetide", folder.display()).into());
    }
    fs::remove_file(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    // Whatever else somebody has put there stays.
    let _ = fs::remove_dir(folder);
    out::print(&format!("{} is removed\n", path.display()))?;
    Ok(())
}
