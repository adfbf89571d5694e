//! What is made from the options: manual pages, completions, and the tables in `docs/run.md` and `docs/replay.md`. What
//! is committed must be what they make; with `PAGETIDE_BLESS=1` it is written anew.

use clap::builder::PossibleValue;
use clap::{Arg, ArgAction, Command, CommandFactory};
use clap_complete::Shell;
use clap_mangen::Man;
use pagetide_cli::options::Cli;
use pagetide_cli::options::manual::sections;
use pagetide_cli::options::section::{Body, COLUMNS, Section};
use roff::{Roff, bold, roman};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

/// The options, as clap has them once all is known.
fn command() -> Command {
    let mut command = Cli::command();
    command.build();
    command
}

fn committed(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("cli/ lies in the workspace").join(path)
}

/// Compares a file with what it should be, or writes it.
fn check(path: &str, made: &str) {
    let file = committed(path);
    if std::env::var_os("PAGETIDE_BLESS").is_some_and(|value| value == "1") {
        fs::create_dir_all(file.parent().expect("it lies in a directory")).unwrap();
        fs::write(&file, made).unwrap();
        return;
    }
    let found = fs::read_to_string(&file).unwrap_or_else(|error| panic!("{path}: {error}"));
    let differs = found.lines().zip(made.lines()).position(|(found, made)| found != made);
    assert!(
        found == made,
        "{path} is not what the options make, from line {}: set PAGETIDE_BLESS=1 to write it anew",
        differs.unwrap_or_else(|| found.lines().count().min(made.lines().count())) + 1
    );
}

/// Sets in bold what stands between backticks.
fn bolden(line: &str) -> String {
    let parts: Vec<&str> = line.split('`').collect();
    assert!(parts.len() % 2 == 1, "a backtick is left open: {line}");
    let nth = |(nth, part): (usize, &&str)| {
        if nth % 2 == 1 { format!("\\fB{part}\\fR") } else { (*part).to_owned() }
    };
    parts.iter().enumerate().map(nth).collect()
}

/// A section as a part of a manual page.
fn section(page: &mut Roff, Section { title, body, .. }: &Section) {
    page.control("SH", [title.to_uppercase().as_str()]);
    match body {
        Body::Text(paragraphs) => {
            for text in *paragraphs {
                page.control("PP", []);
                page.text([roman(*text)]);
            }
        }
        Body::Terms(terms) => {
            for (term, text) in *terms {
                page.control("TP", []);
                page.text([roman(*term)]);
                page.text([roman(*text)]);
            }
        }
        Body::Examples(lines) => {
            for (line, what) in *lines {
                page.control("PP", []);
                page.text([roman(*what)]);
                page.control("PP", []);
                page.control("RS", ["4"]);
                page.control("nf", []);
                page.text([bold(*line)]);
                page.control("fi", []);
                page.control("RE", []);
            }
        }
    }
}

/// Defines the apostrophe that `roff` writes; it begins each of its parts with that.
const PREAMBLE: &str = ".ie \\n(.g .ds Aq \\(aq\n.el .ds Aq '\n";

/// The manual page of a command.
fn page(command: &Command) -> String {
    let name = command.get_display_name().unwrap_or("pagetide");
    let mut text = format!(
        "{PREAMBLE}.TH {} 1 \"\" \"pagetide {}\" \"User Commands\"\n.nh\n.ad l\n",
        name.to_uppercase(),
        env!("CARGO_PKG_VERSION")
    );
    let man = Man::new(for_manual(command));
    let mut page = Vec::new();
    man.render_name_section(&mut page).unwrap();
    man.render_synopsis_section(&mut page).unwrap();
    man.render_description_section(&mut page).unwrap();
    if command.has_subcommands() {
        man.render_subcommands_section(&mut page).unwrap();
    }
    man.render_options_section(&mut page).unwrap();
    let mut more = Roff::new();
    for found in sections(command.get_name()) {
        section(&mut more, &found);
    }
    more.to_writer(&mut page).unwrap();
    let is_preamble = |line: &str| line.starts_with(".ie ") || line.starts_with(".el ");
    for line in String::from_utf8(page).unwrap().lines().filter(|line| !is_preamble(line)) {
        text += &(bolden(line) + "\n");
    }
    // Groups are parts of one section.
    for heading in headings(command) {
        text = text.replace(&format!(".SH \"{}\"", heading.to_uppercase()), &format!(".SS \"{heading}\""));
    }
    text
}

/// A command as its manual page has it: the description does not begin with what follows the name, and the synopsis of
/// one with commands has all their forms.
fn for_manual(command: &Command) -> Command {
    let long = command.get_long_about().map(ToString::to_string).unwrap_or_default();
    let description = long.split_once("\n\n").map_or(long.clone(), |(_, rest)| rest.to_owned());
    let mut changed = command.clone().subcommand_help_heading("COMMANDS");
    if !description.is_empty() {
        changed = changed.long_about(description);
    }
    let forms: Vec<String> = command
        .get_subcommands()
        .map(|command| command.get_overridden_usage().expect("every command tells its usage").to_string())
        .collect();
    if forms.is_empty() { changed } else { changed.override_usage(forms.join("\n")) }
}

/// The headings of a command's options, in their order.
fn headings(command: &Command) -> Vec<String> {
    let mut found = Vec::new();
    for heading in command.get_arguments().filter_map(Arg::get_help_heading) {
        if !found.iter().any(|known| known == heading) {
            found.push(heading.to_owned());
        }
    }
    found
}

/// An option's help: what it is, and its default if the help tells one.
fn meaning(option: &Arg) -> (String, Option<String>) {
    let help =
        option.get_long_help().or_else(|| option.get_help()).expect("every option has help").to_string();
    let mut paragraphs = help.split("\n\n").map(|paragraph| paragraph.trim_end_matches('.').to_owned());
    let first = paragraphs.next().unwrap_or_default();
    let (first, default) = match first.split_once(" [default: ") {
        Some((first, default)) => (first.to_owned(), Some(default.trim_end_matches(']').to_owned())),
        None => (first, None),
    };
    let mut text = paragraphs.fold(first, |text, paragraph| format!("{text}. {paragraph}"));
    let value = |value: &PossibleValue| {
        let help = value.get_help().map(ToString::to_string).unwrap_or_default();
        let (first, rest) = help.split_at(help.chars().next().map_or(0, char::len_utf8));
        format!("`{}` ({}{rest})", value.get_name(), first.to_lowercase())
    };
    let values: Vec<String> = option.get_possible_values().iter().map(value).collect();
    if option.get_action().takes_values() && !values.is_empty() {
        let _ = write!(text, ": {}", values.join(", "));
    }
    (text.replace('|', "\\|"), default)
}

/// The options of a command as tables: those without a heading, and one table for each heading.
fn tables(command: &Command) -> String {
    let mut out = String::new();
    for heading in std::iter::once(None).chain(headings(command).into_iter().map(Some)) {
        let is_help = |option: &Arg| matches!(option.get_action(), ArgAction::Help | ArgAction::HelpShort);
        let mut options = command
            .get_arguments()
            .filter(|option| option.get_help_heading() == heading.as_deref())
            .filter(|option| !option.is_positional() && !is_help(option))
            .peekable();
        if options.peek().is_none() {
            continue;
        }
        if let Some(heading) = &heading {
            let _ = write!(out, "\n**{heading}**\n");
        }
        out += "\n| option | meaning | default |\n|---|---|---|\n";
        for option in options {
            let value = option.get_value_names().unwrap_or_default().join(" ");
            let value = if option.get_action().takes_values() { format!(" {value}") } else { String::new() };
            let long = option.get_long().expect("every option has a long name");
            let short = option.get_short().map(|short| format!("`-{short}`, ")).unwrap_or_default();
            let (meaning, told) = meaning(option);
            let default = option.get_default_values().first().filter(|_| option.get_action().takes_values());
            let default = told.or_else(|| default.map(|value| format!("`{}`", value.display())));
            let _ =
                writeln!(out, "| {short}`--{long}{value}` | {meaning} | {} |", default.unwrap_or_default());
        }
    }
    out
}

#[test]
fn the_definitions_agree_with_each_other() {
    Cli::command().debug_assert();
}

#[test]
fn manual_pages_are_what_the_options_make() {
    let command = command();
    check("man/pagetide.1", &page(&command));
    for command in command.get_subcommands() {
        check(&format!("man/pagetide-{}.1", command.get_name()), &page(command));
    }
}

#[test]
fn completions_are_what_the_options_make() {
    for (shell, file) in
        [(Shell::Bash, "pagetide.bash"), (Shell::Zsh, "_pagetide"), (Shell::Fish, "pagetide.fish")]
    {
        let mut made = Vec::new();
        clap_complete::generate(shell, &mut Cli::command(), "pagetide", &mut made);
        check(&format!("completions/{file}"), &String::from_utf8(made).unwrap());
    }
}

#[test]
fn the_tables_of_options_are_what_the_options_make() {
    const MARKS: [&str; 2] = ["<!-- options: begin -->\n", "<!-- options: end -->"];
    let command = command();
    for (name, path) in [("run", "docs/run.md"), ("replay", "docs/replay.md")] {
        let command = command.find_subcommand(name).expect("there is such a command");
        let text = fs::read_to_string(committed(path)).unwrap();
        let parts = text.split_once(MARKS[0]).and_then(|(before, rest)| {
            let (_, after) = rest.split_once(MARKS[1])?;
            Some((before, after))
        });
        let (before, after) = parts.unwrap_or_else(|| panic!("{path} does not mark where options stand"));
        check(path, &format!("{before}{}{}\n{}{after}", MARKS[0], tables(command), MARKS[1]));
    }
}

#[test]
fn help_fits_a_terminal_of_eighty_columns() {
    let command = command();
    let names = command.get_subcommands().map(|command| command.get_name().to_owned());
    for words in names.map(|name| vec![name]).chain([vec![]]) {
        for help in ["-h", "--help"] {
            let output = std::process::Command::new(env!("CARGO_BIN_EXE_pagetide"))
                .args(&words)
                .arg(help)
                .env("COLUMNS", COLUMNS.to_string())
                .output()
                .unwrap();
            let text = String::from_utf8(output.stdout).unwrap();
            assert!(output.status.success() && !text.is_empty(), "{words:?} {help}");
            let wide = text.lines().find(|line| line.chars().count() > COLUMNS);
            assert_eq!(wide, None, "{words:?} {help}");
        }
    }
}
