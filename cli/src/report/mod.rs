//! The report on a run, as one HTML page: `run --report`, and `pagetide report` from the statistics of a run.

mod charts;
mod page;
mod series;
mod what_if;

use crate::failure::Failure;
use crate::out;
use pagetide_cli::options::ReportArgs;
pub(crate) use series::Series;
use std::fs;
use std::io::BufReader;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

/// Makes the page of a run from its statistics. Returns the exit status.
pub(crate) fn report(args: &ReportArgs) -> Result<u8, Failure> {
    let wrong = |why: String| Failure::new(1, format!("{}: {why}", args.file.display()));
    let file = fs::File::open(&args.file).map_err(|error| wrong(error.to_string()))?;
    let series = Series::read(BufReader::new(file)).map_err(wrong)?;
    if let Some(left_out) = series.left_out() {
        pagetide_sys::task::say(&format!("{}: {left_out}", args.file.display()));
    }
    let page = page::html(&series).map_err(wrong)?;
    if args.output.as_ref().is_some_and(|output| output.as_os_str() == "-") {
        out::print(&page)?;
        return Ok(0);
    }
    let beside = args.file.with_extension("html");
    let is_ours = || fs::read(&beside).is_ok_and(|text| text.starts_with(page::BEGINNING.as_bytes()));
    if args.output.is_none() && beside.exists() && !is_ours() {
        let name = beside.display();
        let why = format!("{name} is there and is no page of a run: name a file by --output");
        return Err(Failure::new(1, why));
    }
    write_page(args.output.as_ref().unwrap_or(&beside), &page).map_err(|why| Failure::new(1, why))?;
    Ok(0)
}

/// The page of `run --report`.
#[derive(Debug)]
pub(crate) struct ReportFile {
    path: PathBuf,
    series: Series,
}

impl ReportFile {
    /// Checks that a page can be written to `path`.
    pub(crate) fn new(path: &Path) -> Result<Self, String> {
        let cannot = |why: String| format!("--report: cannot write {}: {why}", path.display());
        let found = path.metadata().ok().map(|metadata| metadata.file_type());
        match (found, out::draft(path)) {
            // The launcher would wait for whoever reads a pipe.
            (Some(found), _) if !found.is_file() && !found.is_char_device() => {
                return Err(cannot("it is no file".to_owned()));
            }
            (Some(found), _) if found.is_char_device() => {}
            (_, Some(draft)) if path.as_os_str() != "-" => {
                // What is there from another run stays until this one has ended.
                let tried = fs::write(&draft, "").and_then(|()| fs::remove_file(&draft));
                tried.map_err(|error| cannot(error.to_string()))?;
            }
            _ => return Err(cannot("it names no file".to_owned())),
        }
        Ok(Self { path: path.to_owned(), series: Series::new() })
    }

    /// Adds what a run is at a time.
    pub(crate) fn add(&mut self, report: &serde_json::Value) {
        self.series.add(report);
    }

    /// Writes the page.
    pub(crate) fn write(&self) -> Result<(), String> {
        let page = page::html(&self.series).map_err(|why| format!("--report: {why}"))?;
        write_page(&self.path, &page).map_err(|why| format!("--report: {why}"))
    }
}

fn write_page(path: &Path, page: &str) -> Result<(), String> {
    let is_device = path.metadata().is_ok_and(|metadata| metadata.file_type().is_char_device());
    let written = if is_device { fs::write(path, page) } else { out::replace(path, page) };
    written.map_err(|error| format!("cannot write {}: {error}", path.display()))
}
