//! The documents say what is so: links lead somewhere, options, counters, masks, variables and files that are named
//! exist, figures are those that were stored, and shell blocks that are to be run do run.
//!
//! `PAGETIDE_BLESS=1 cargo test -p pagetide-cli --test house docs::` writes what is made from the code:
//! docs/internals/files.md, the counters in docs/run.md, and docs/measured.md; and it follows files that have moved.

use pagetide::{injection, mask::Mask};
use pagetide_swap::Counter;
use pulldown_cmark::{CodeBlockKind, Event, Options, Parser, Tag, TagEnd};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::{Component, Path, PathBuf};
use std::process::Command;

const PAGETIDE: &str = env!("CARGO_BIN_EXE_pagetide");
/// Lines that a document may have.
const LIMITS: [(&str, usize); 2] = [("README.md", 130), ("ARCHITECTURE.md", 200)];
/// Options of other programs that documents name.
const OTHERS: [(&str, &[&str]); 10] = [
    (
        "cargo",
        &["--all", "--all-targets", "--example", "--features", "--locked", "--path", "--release", "--test"],
    ),
    ("cargo and rustc", &["--workspace"]),
    ("docker", &["--cap-add", "--device", "--group-add", "--security-opt"]),
    ("git", &["--aggressive", "--tags"]),
    ("pkg-config", &["--cflags", "--libs"]),
    ("setpriv", &["--inh-caps", "--ambient-caps"]),
    ("chromium", &["--no-sandbox", "--no-zygote"]),
    ("zstd", &["--long"]),
    ("valkey-server", &["--appendonly", "--maxmemory", "--maxmemory-policy", "--save"]),
    ("every program", &["--help"]),
];

fn house() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("cli/ lies in the house").to_owned()
}

/// The rooms, as the workspace lists them.
fn rooms() -> Vec<String> {
    let manifest = read(&house().join("Cargo.toml"));
    let members =
        manifest.lines().find(|line| line.starts_with("members")).expect("the workspace has members");
    let rooms: Vec<_> = members.split('"').skip(1).step_by(2).map(str::to_owned).collect();
    rooms.into_iter().filter(|room| house().join(room).join("src").exists()).collect()
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// A path as it is called from the top of the repository.
fn name(path: &Path) -> String {
    path.strip_prefix(house()).unwrap_or(path).display().to_string()
}

fn bless() -> bool {
    std::env::var_os("PAGETIDE_BLESS").is_some()
}

/// Writes a file whole or not at all: other tests read it meanwhile.
fn replace(path: &Path, text: &str) {
    let partial = path.with_extension("partial");
    fs::write(&partial, text).unwrap();
    fs::rename(partial, path).unwrap();
}

/// Every file below `folder` whose name ends so, builds apart, in order.
fn files(folder: &Path, ends: &[&str]) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
            let (path, file) = (entry.path(), entry.file_name().to_string_lossy().into_owned());
            if path.is_dir() {
                if !["target", ".git", "__pycache__"].contains(&file.as_str()) {
                    folders.push(path);
                }
            } else if ends.iter().any(|end| file.ends_with(end)) {
                found.push(path);
            }
        }
    }
    // The files of a folder stand together.
    found.sort_by_key(|path| (path.parent().map(Path::to_owned), path.file_name().map(ToOwned::to_owned)));
    found
}

/// One Markdown file, taken apart.
struct Document {
    path: PathBuf,
    text: String,
    links: Vec<String>,
    anchors: BTreeSet<String>,
    /// What stands in backticks.
    codes: Vec<String>,
    /// Blocks of code: their info string, and what is in them.
    blocks: Vec<(String, String)>,
    /// Rows of tables, and the heading that they stand below: the codes of the first cell.
    rows: Vec<(String, Vec<String>)>,
}

impl Document {
    fn open(path: PathBuf) -> Self {
        let text = read(&path);
        let mut document = Self {
            path,
            links: Vec::new(),
            anchors: BTreeSet::new(),
            codes: Vec::new(),
            blocks: Vec::new(),
            rows: Vec::new(),
            text: text.clone(),
        };
        let (mut heading, mut section) = (None::<String>, String::new());
        let mut row = Vec::new();
        let mut cell = 0;
        let mut block = None;
        for event in Parser::new_ext(&text, Options::ENABLE_TABLES) {
            match event {
                Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
                    document.links.push(dest_url.into_string());
                }
                Event::Start(Tag::Heading { .. }) => heading = Some(String::new()),
                Event::End(TagEnd::Heading(_)) => {
                    section = heading.take().unwrap_or_default();
                    document.add_anchor(&section);
                }
                Event::Start(Tag::CodeBlock(kind)) => {
                    let info = match kind {
                        CodeBlockKind::Fenced(info) => info.into_string(),
                        CodeBlockKind::Indented => String::new(),
                    };
                    block = Some((info, String::new()));
                }
                Event::End(TagEnd::CodeBlock) => document.blocks.extend(block.take()),
                Event::Start(Tag::TableRow) => (row, cell) = (Vec::new(), 0),
                Event::End(TagEnd::TableCell) => cell += 1,
                Event::End(TagEnd::TableRow) => {
                    document.rows.push((section.clone(), std::mem::take(&mut row)))
                }
                Event::Code(code) => {
                    if cell == 0 {
                        row.push(code.to_string());
                    }
                    if let Some(heading) = &mut heading {
                        heading.push_str(&code);
                    }
                    document.codes.push(code.into_string());
                }
                Event::Text(words) => {
                    if let Some(text) = heading.as_mut().or(block.as_mut().map(|(_, text)| text)) {
                        text.push_str(&words);
                    }
                }
                _ => {}
            }
        }
        document
    }

    /// The anchor that GitHub gives a heading.
    fn add_anchor(&mut self, heading: &str) {
        let slug: String = heading
            .to_lowercase()
            .chars()
            .filter(|c| c.is_alphanumeric() || [' ', '-', '_'].contains(c))
            .map(|c| if c == ' ' { '-' } else { c })
            .collect();
        let free = |slug: &String| !self.anchors.contains(slug);
        let numbered = (1..).map(|number| format!("{slug}-{number}"));
        let slug = std::iter::once(slug.clone()).chain(numbered).find(free);
        self.anchors.extend(slug);
    }

    fn name(&self) -> String {
        name(&self.path)
    }

    /// The codes of first cells in tables below a heading.
    fn table(&self, section: &str) -> BTreeSet<&str> {
        let rows = self.rows.iter().filter(|(heading, _)| heading == section);
        rows.flat_map(|(_, codes)| codes.iter().map(String::as_str)).collect()
    }
}

fn documents() -> Vec<Document> {
    files(&house(), &[".md"]).into_iter().map(Document::open).collect()
}

fn document(path: &str) -> Document {
    Document::open(house().join(path))
}

/// Fails with all that is wrong at once.
fn none(wrong: &[String]) {
    assert!(wrong.is_empty(), "\n{}\n", wrong.join("\n"));
}

/// What begins with `start` and goes on with letters, digits and `more`.
fn words(text: &str, start: &str, more: &[char]) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for (at, _) in text.match_indices(start) {
        let before = text[..at].chars().next_back();
        let rest = &text[at + start.len()..];
        let inside = |c: char| c.is_ascii_alphanumeric() || more.contains(&c);
        let length = rest.find(|c| !inside(c)).unwrap_or(rest.len());
        if length > 0 && !before.is_some_and(inside) {
            found.insert(format!("{start}{}", rest[..length].trim_end_matches(more)));
        }
    }
    found
}

/// Folded, so that `a/../b` is `b`.
fn folded(path: &Path) -> PathBuf {
    let mut out = PathBuf::new();
    for part in path.components() {
        if part == Component::ParentDir {
            out.pop();
        } else {
            out.push(part);
        }
    }
    out
}

#[test]
fn links_lead_to_files_and_headings_that_exist() {
    let documents: BTreeMap<_, _> =
        documents().into_iter().map(|document| (document.path.clone(), document)).collect();
    let mut wrong = Vec::new();
    for document in documents.values() {
        for link in &document.links {
            if link.contains("://") || link.starts_with("mailto:") {
                continue;
            }
            let (file, anchor) = link.split_once('#').map_or((link.as_str(), None), |(f, a)| (f, Some(a)));
            let folder = document.path.parent().expect("a file lies in a folder");
            let target = if file.is_empty() { document.path.clone() } else { folded(&folder.join(file)) };
            if !target.exists() {
                wrong.push(format!("{}: there is no {link}", document.name()));
            } else if let (Some(anchor), Some(there)) = (anchor, documents.get(&target))
                && !there.anchors.contains(anchor)
            {
                wrong.push(format!("{}: {} has no heading #{anchor}", document.name(), there.name()));
            }
        }
    }
    none(&wrong);
}

/// The commands of ours.
fn commands() -> Vec<String> {
    let output = Command::new(PAGETIDE).arg("--help").output().unwrap();
    let help = String::from_utf8(output.stdout).unwrap();
    let named =
        help.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    let names: Vec<_> = named.filter_map(|line| line.split_whitespace().next()).map(str::to_owned).collect();
    assert!(names.iter().any(|name| name == "run"), "pagetide --help lists no commands: {help}");
    names.into_iter().filter(|name| name != "help").collect()
}

/// The options of a command of ours.
fn options(command: &str) -> BTreeSet<String> {
    let output = Command::new(PAGETIDE).args([command, "--help"]).output().unwrap();
    let help = String::from_utf8(output.stdout).unwrap();
    let named = help.lines().map(str::trim_start).filter(|line| line.starts_with('-'));
    let options: BTreeSet<_> =
        named.flat_map(|line| words(line.split("  ").next().unwrap_or_default(), "--", &['-'])).collect();
    assert!(options.contains("--help"), "{command} --help says nothing");
    options
}

#[test]
fn options_that_are_named_exist() {
    let mut known: BTreeSet<String> = commands().iter().flat_map(|command| options(command)).collect();
    known.extend(OTHERS.iter().flat_map(|(_, options)| options.iter().map(|&option| option.to_owned())));
    for folder in ["bench", "tests", "examples"] {
        for file in files(&house().join(folder), &[".py", ".c", ".sh"]) {
            known.extend(words(&read(&file), "--", &['-']));
        }
    }
    let wrong: Vec<_> = documents()
        .iter()
        .flat_map(|document| {
            let unknown: Vec<_> = words(&document.text, "--", &['-']).difference(&known).cloned().collect();
            unknown.into_iter().map(|option| format!("{}: nothing has {option}", document.name()))
        })
        .collect();
    none(&wrong);
    let named: BTreeSet<_> =
        documents().iter().flat_map(|document| words(&document.text, "--", &['-'])).collect();
    let unused: Vec<_> =
        OTHERS.iter().flat_map(|(_, options)| *options).filter(|option| !named.contains(**option)).collect();
    assert!(unused.is_empty(), "no document names these options of other programs: {unused:?}");
}

#[test]
fn tables_of_options_are_those_of_the_commands() {
    let long = |codes: BTreeSet<&str>| codes.into_iter().flat_map(|code| words(code, "--", &['-'])).collect();
    let helped = |command: &str| -> BTreeSet<_> {
        options(command).into_iter().filter(|option| option != "--help").collect()
    };
    let told: BTreeSet<String> = long(document("docs/run.md").table("Options"));
    assert_eq!(told, helped("run"), "docs/run.md, and `pagetide run --help`");
    let told: BTreeSet<String> = long(document("docs/replay.md").table("Replay"));
    assert_eq!(told, helped("replay"), "docs/replay.md, and `pagetide replay --help`");
    let readme: BTreeSet<String> = document("README.md").rows.iter().flat_map(|(_, codes)| codes).fold(
        BTreeSet::new(),
        |mut all, code| {
            all.extend(words(code, "--", &['-']));
            all
        },
    );
    let run = options("run");
    assert!(readme.is_subset(&run), "README.md has options that run has not: {:?}", readme.difference(&run));
}

#[test]
fn the_table_of_counters_is_what_their_definitions_make() {
    const BEGIN: &str = "<!-- counters: begin -->";
    const END: &str = "<!-- counters: end -->";
    let mut made = String::from("\n\n| counter | counts |\n|---|---|\n");
    for counter in Counter::ALL {
        let _ = writeln!(made, "| `{}` | {} |", counter.name(), counter.meaning().trim_end_matches('.'));
    }
    made.push('\n');
    let path = house().join("docs/run.md");
    let text = read(&path);
    let (before, rest) = text.split_once(BEGIN).expect("docs/run.md says where its counters begin");
    let (found, after) = rest.split_once(END).expect("docs/run.md says where its counters end");
    if bless() {
        replace(&path, &format!("{before}{BEGIN}{made}{END}{after}"));
    } else {
        assert_eq!(
            found, made,
            "the table in docs/run.md, and swap/src/stats.rs: PAGETIDE_BLESS=1 writes it"
        );
    }
}

#[test]
fn fields_of_the_statistics_are_those_that_are_written() {
    let output = Command::new(PAGETIDE)
        .args(["run", "--quiet", "--memory", "64M", "--no-disk", "--stats", "-", "--", "true"])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let report: serde_json::Value =
        serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {said}"));
    let written: BTreeSet<_> = report.as_object().expect("an object").keys().map(String::as_str).collect();
    let run = document("docs/run.md");
    let counters: BTreeSet<_> = Counter::ALL.iter().map(|counter| counter.name()).collect();
    // `.p99` goes on with what stands before it.
    let told: BTreeSet<_> = run
        .table("Statistics")
        .into_iter()
        .filter(|field| !field.starts_with('.') && !counters.contains(field))
        .map(|field| field.split('.').next().unwrap_or_default())
        .collect();
    assert_eq!(
        told,
        written.iter().copied().filter(|field| !counters.contains(field)).collect(),
        "docs/run.md, and --stats"
    );
    let inside = ["/bytes/now", "/zswap", "/swap_file", "/fault_latency_us"]
        .into_iter()
        .filter_map(|part| report.pointer(part)?.as_object());
    let unnamed: Vec<_> = inside
        .flat_map(|object| object.keys())
        .filter(|&key| {
            !run.codes
                .iter()
                .any(|code| code.trim_start_matches("fault_latency_us").trim_start_matches('.') == key)
        })
        .filter(|key| !counters.contains(key.as_str()))
        .collect();
    assert!(unnamed.is_empty(), "docs/run.md does not name these fields: {unnamed:?}");
}

#[test]
fn what_may_be_set_is_told() {
    let output = Command::new(PAGETIDE).args(["set", "--help"]).output().unwrap();
    let help = String::from_utf8(output.stdout).unwrap();
    let names: Vec<_> = help
        .lines()
        .filter_map(|line| line.strip_prefix("  ")?.split_once('='))
        .map(|(name, _)| name)
        .filter(|name| name.chars().all(|c| c.is_ascii_lowercase() || c == '_'))
        .collect();
    assert!(names.contains(&"compressor"), "set --help lists nothing: {help}");
    let run = document("docs/run.md");
    let untold: Vec<_> = names.iter().filter(|name| !run.codes.iter().any(|code| code == *name)).collect();
    assert!(untold.is_empty(), "docs/run.md does not name these: {untold:?}");
}

#[test]
fn masks_and_injected_faults_are_those_that_the_program_has() {
    let testing = document("docs/testing.md");
    let masks: BTreeSet<_> = Mask::NAMES.iter().map(|(name, _)| *name).collect();
    assert_eq!(testing.table("Masks: PAGETIDE_MASK"), masks, "docs/testing.md, and the names of masks");
    let faults: BTreeSet<_> = injection::NAMES.iter().map(|(name, _)| *name).collect();
    assert_eq!(testing.table("Faults: PAGETIDE_FAIL"), faults, "docs/testing.md, and the names of faults");
}

#[test]
fn variables_are_named_in_documents_and_in_code_alike() {
    let house = house();
    let mut code = BTreeSet::new();
    for file in files(&house, &[".rs", ".py", ".c", ".h", ".sh", "test", ".toml"]) {
        code.extend(words(&read(&file), "PAGETIDE_", &['_']));
    }
    let told: BTreeSet<_> =
        documents().iter().flat_map(|document| words(&document.text, "PAGETIDE_", &['_'])).collect();
    assert_eq!(told.difference(&code).collect::<Vec<_>>(), Vec::<&String>::new(), "no code has these");
    assert_eq!(code.difference(&told).collect::<Vec<_>>(), Vec::<&String>::new(), "no document has these");
    // Those of the product stand in one table; tests of a file may have their own.
    let mut product = BTreeSet::new();
    for room in rooms() {
        for file in files(&house.join(room).join("src"), &[".rs"]) {
            product.extend(words(&read(&file), "PAGETIDE_", &['_']));
        }
    }
    product.retain(|variable| !variable.contains("_TEST_") && variable != "PAGETIDE_BLESS");
    let run = document("docs/run.md");
    let table = run.table("Environment");
    let missing: Vec<_> = product.iter().filter(|variable| !table.contains(variable.as_str())).collect();
    assert_eq!(missing, Vec::<&String>::new(), "the table in docs/run.md lacks these");
}

#[test]
fn documents_are_no_longer_than_they_should_be() {
    for (path, lines) in LIMITS {
        let found = read(&house().join(path)).lines().count();
        assert!(found <= lines, "{path} has {found} lines, {lines} are allowed");
    }
}

#[test]
fn figures_are_those_that_were_stored() {
    let script = house().join("bench/measured.py");
    let check = if bless() { &[][..] } else { &["--check"] };
    let output = Command::new("python3").arg(script).args(check).output().expect("python3 is installed");
    assert!(output.status.success(), "\n{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn tables_are_made_of_stored_rows() {
    let output = Command::new("python3")
        .arg(house().join("bench/test_measured.py"))
        .output()
        .expect("python3 is installed");
    assert!(output.status.success(), "\n{}", String::from_utf8_lossy(&output.stderr));
}

/// Blocks that begin with "```sh run" are run by a shell that stops at the first failure, in a directory of their own
/// and with `pagetide` in its path.
#[test]
fn shell_blocks_that_are_to_be_run_do_run() {
    let folder = Path::new(PAGETIDE).parent().expect("a binary lies in a folder");
    let library = folder.join("libpagetide_preload.so");
    assert!(library.exists(), "{} is missing: run cargo build --workspace first", library.display());
    let path = format!("{}:{}", folder.display(), std::env::var("PATH").unwrap_or_default());
    let mut count = 0;
    for document in documents() {
        for (info, block) in &document.blocks {
            if info != "sh run" {
                continue;
            }
            count += 1;
            let scratch =
                Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("docs-{}-{count}", std::process::id()));
            fs::create_dir_all(&scratch).unwrap();
            let mut shell = Command::new("bash");
            shell.args(["-euo", "pipefail", "-c", block]).current_dir(&scratch).env("PATH", &path);
            let output = shell.env("TMPDIR", "/var/tmp").output().unwrap();
            fs::remove_dir_all(&scratch).unwrap();
            let said = [output.stdout, output.stderr].concat();
            assert!(
                output.status.success(),
                "{}: this block ended with {}\n{block}\n{}",
                document.name(),
                output.status,
                String::from_utf8_lossy(&said)
            );
        }
    }
    assert!(count > 0, "no document has a block of `sh run`");
}

/// Where a file that is gone may lie now: under the same name elsewhere in its room, or as the folder of its name.
fn moved(gone: &str, sources: &[String]) -> Vec<String> {
    let room = gone.split('/').next().unwrap_or_default();
    let file = gone.rsplit('/').next().unwrap_or_default();
    let folder = gone.strip_suffix(".rs").map(|stem| format!("{stem}/mod.rs"));
    let of_this_name = |path: &&String| {
        path.starts_with(&format!("{room}/")) && path.ends_with(&format!("/{file}"))
            || Some(*path) == folder.as_ref()
    };
    sources.iter().filter(of_this_name).cloned().collect()
}

/// What is named in backticks and looks like a file of this repository. `PAGETIDE_BLESS=1` follows files that moved, where
/// there is one place that it can be.
#[test]
fn files_that_are_named_exist() {
    let house = house();
    let sources: Vec<_> = files(&house, &[".rs", ".py", ".c", ".md"]).iter().map(|path| name(path)).collect();
    let rooms = rooms();
    let mut wrong = Vec::new();
    for document in documents() {
        let mut text = document.text.clone();
        let blocks = document.blocks.iter().map(|(_, text)| text);
        for code in document.codes.iter().chain(blocks) {
            for word in code.split(|c: char| c.is_whitespace() || ",;:()'\"=`|".contains(c)) {
                let word = word.strip_prefix("./").unwrap_or(word).trim_end_matches('.');
                let Some((first, rest)) = word.split_once('/') else {
                    if word.ends_with(".rs")
                        && !sources.iter().any(|path| path.ends_with(&format!("/{word}")))
                    {
                        wrong.push(format!("{}: no file is called {word}", document.name()));
                    }
                    continue;
                };
                // Patterns and placeholders (DATE-MACHINE, NAME) name no file.
                let mut parts = rest.split(|c: char| !c.is_alphanumeric());
                let placeholder = parts
                    .any(|part| part.len() >= 4 && part != "README" && part.chars().all(char::is_uppercase));
                let ours = !["", "..", "target"].contains(&first) && house.join(first).is_dir();
                if !ours || rest.contains(['*', '…', '<', '{', '[']) || placeholder {
                    continue;
                }
                let in_a_room = rooms.iter().any(|room| house.join(room).join(word).exists());
                if house.join(word).exists() || in_a_room {
                    continue;
                }
                match moved(word, &sources).as_slice() {
                    [one] if bless() => text = text.replace(word, one),
                    [] => wrong.push(format!("{}: there is no {word}", document.name())),
                    some => {
                        wrong.push(format!("{}: there is no {word} ({}?)", document.name(), some.join(", ")))
                    }
                }
            }
        }
        if text != document.text {
            replace(&document.path, &text);
        }
    }
    wrong.dedup();
    none(&wrong);
}

#[test]
fn tests_that_are_named_exist() {
    let code: String = files(&house(), &[".rs"]).iter().map(|path| read(path)).collect();
    let mut wrong = Vec::new();
    for document in documents() {
        for code_word in &document.codes {
            let sentence = code_word.matches('_').count() >= 4
                && code_word.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_');
            if sentence && !code.contains(&format!("fn {code_word}(")) {
                wrong.push(format!("{}: there is no test {code_word}", document.name()));
            }
        }
    }
    none(&wrong);
}

#[test]
fn programs_of_tests_are_listed() {
    let testing = document("docs/testing.md");
    let listed = testing.table("Programs under load");
    let programs = files(&house().join("tests/programs"), &[".c", ".py"]);
    let missing: Vec<_> = programs
        .iter()
        .map(|path| name(path).replacen("tests/programs/", "", 1))
        .filter(|program| !listed.contains(program.as_str()))
        .map(|program| format!("docs/testing.md does not list {program}"))
        .collect();
    none(&missing);
}

/// The first sentence of a file's documentation.
fn summary(path: &Path) -> String {
    let text = read(path);
    let lines = text.lines().map_while(|line| line.strip_prefix("//!")).map(str::trim);
    let paragraph: Vec<_> = lines.take_while(|line| !line.is_empty()).collect();
    let paragraph = paragraph.join(" ");
    assert!(!paragraph.is_empty(), "{} has no `//!`: the list of files needs its first line", name(path));
    let end = paragraph.find(". ").unwrap_or(paragraph.len());
    paragraph[..end].trim_end_matches('.').to_owned()
}

/// The list of all source files, as docs/internals/files.md should be.
fn list_of_files() -> String {
    let mut text = String::from(
        "# Every file\n\nMade from the first sentence of each file's `//!` by\n\
         `PAGETIDE_BLESS=1 cargo test -p pagetide-cli --test house docs::`; do not edit it.\n",
    );
    for room in rooms() {
        let mut folder = PathBuf::new();
        for path in files(&house().join(room).join("src"), &[".rs"]) {
            let here = path.parent().expect("a file lies in a folder").to_owned();
            if here != folder {
                let _ = write!(text, "\n## {}/\n\n", name(&here));
                folder = here;
            }
            let file = path.file_name().expect("it has a name").to_string_lossy().into_owned();
            let _ = writeln!(text, "- `{file}`: {}", summary(&path));
        }
    }
    text
}

#[test]
fn the_list_of_files_is_complete() {
    let path = house().join("docs/internals/files.md");
    let made = list_of_files();
    if bless() {
        replace(&path, &made);
    }
    let found = read(&path);
    let lines = |text: &str| -> BTreeSet<String> { text.lines().map(str::to_owned).collect() };
    let (made_lines, found_lines) = (lines(&made), lines(&found));
    let show = |prefix: char, lines: Vec<&String>| -> String {
        lines.iter().map(|line| format!("{prefix} {line}\n")).collect()
    };
    let missing = show('+', made_lines.difference(&found_lines).collect());
    let stale = show('-', found_lines.difference(&made_lines).collect());
    assert!(found == made, "docs/internals/files.md (PAGETIDE_BLESS=1 writes it):\n{missing}{stale}");
}

/// Folders of the tree in ARCHITECTURE.md: lines of an indented block of which the first word ends with a slash.
fn tree() -> BTreeSet<String> {
    let architecture = document("ARCHITECTURE.md");
    let block = architecture.blocks.iter().map(|(_, text)| text).find(|text| text.contains("/src/"));
    let mut found = BTreeSet::new();
    let mut above: Vec<(usize, String)> = Vec::new();
    for line in block.expect("ARCHITECTURE.md has a tree").lines() {
        let indent = line.len() - line.trim_start().len();
        let Some(folder) = line.split_whitespace().next().filter(|word| word.ends_with('/')) else {
            continue;
        };
        if folder.contains('*') {
            continue;
        }
        above.retain(|(other, _)| *other < indent);
        let path = above.last().map_or_else(|| folder.to_owned(), |(_, parent)| format!("{parent}{folder}"));
        above.push((indent, path.clone()));
        found.insert(path);
    }
    found
}

#[test]
fn the_tree_has_every_folder_of_code() {
    let mut folders = BTreeSet::new();
    for room in rooms() {
        for path in files(&house().join(room).join("src"), &[".rs"]) {
            folders.insert(format!("{}/", name(path.parent().expect("a file lies in a folder"))));
        }
    }
    assert_eq!(tree(), folders, "the tree in ARCHITECTURE.md, and the folders of */src");
}
