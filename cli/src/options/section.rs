//! Sections of help and of manual pages beside the options.

use std::fmt::Write as _;

/// Columns of a line of help.
pub const COLUMNS: usize = 80;
/// Columns in which the text beside a term begins at most.
const TERM_MAX: usize = 26;

/// A section. Text between backticks stands for itself, as on a command line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Section {
    /// Its heading.
    pub title: &'static str,
    /// Whether it is a part of `--help`; manual pages have all sections.
    pub in_help: bool,
    /// What it says.
    pub body: Body,
}

/// What a section says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Body {
    /// Paragraphs.
    Text(&'static [&'static str]),
    /// Terms, and what each means.
    Terms(&'static [(&'static str, &'static str)]),
    /// Command lines, and what each does.
    Examples(&'static [(&'static str, &'static str)]),
}

/// The sections of `sections` that are a part of `--help`, as text.
pub fn help(sections: &[Section]) -> String {
    let mut out = String::new();
    for Section { title, body, .. } in sections.iter().filter(|section| section.in_help) {
        let gap = if out.is_empty() { "" } else { "\n" };
        let _ = writeln!(out, "{gap}{title}:");
        match body {
            Body::Text(paragraphs) => paragraphs.iter().for_each(|text| hang(&mut out, "", text, 2)),
            Body::Terms(terms) => {
                let widest = terms.iter().map(|(term, _)| plain(term).chars().count()).max();
                let indent = (widest.unwrap_or(0) + 4).min(TERM_MAX);
                terms.iter().for_each(|(term, text)| hang(&mut out, term, text, indent));
            }
            Body::Examples(lines) => {
                for (line, what) in *lines {
                    hang(&mut out, "", what, 2);
                    let _ = writeln!(out, "    {line}");
                }
            }
        }
    }
    out.trim_end().to_owned()
}

/// Text as a terminal without bold letters shows it.
fn plain(text: &str) -> String {
    text.replace('`', "")
}

/// Appends a term, and a text that hangs beside it.
fn hang(out: &mut String, term: &str, text: &str, indent: usize) {
    let term = plain(term);
    let mut line = if term.is_empty() { String::new() } else { format!("  {term}") };
    if line.chars().count() + 2 > indent && !line.is_empty() {
        let _ = writeln!(out, "{line}");
        line.clear();
    }
    let text = plain(text);
    let mut words = text.split(' ').peekable();
    while words.peek().is_some() {
        let mut row = format!("{line:indent$}");
        while let Some(word) = words
            .next_if(|word| row.trim().is_empty() || row.chars().count() + 1 + word.chars().count() < COLUMNS)
        {
            if row.chars().count() > indent {
                row.push(' ');
            }
            row.push_str(word);
        }
        let _ = writeln!(out, "{row}");
        line.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_hang_beside_their_terms() {
        let long =
            "a text of so many words that they do not fit into the columns which a terminal has for it";
        let terms = [("`N`", long), ("a term that is wider than its column", "below it")];
        let mut out = String::new();
        terms.iter().for_each(|(term, text)| hang(&mut out, term, text, 8));
        assert_eq!(
            out,
            "  N     a text of so many words that they do not fit into the columns which a\n        terminal has for it\n  \
             a term that is wider than its column\n        below it\n"
        );
        assert!(out.lines().all(|line| line.len() < COLUMNS));
    }

    #[test]
    fn help_has_the_sections_that_are_for_it() {
        let shown = Section { title: "Values", in_help: true, body: Body::Terms(&[("N", "a number")]) };
        let hidden = Section { title: "Notes", in_help: false, body: Body::Text(&["none"]) };
        let examples =
            Section { title: "Examples", in_help: true, body: Body::Examples(&[("a b", "does c")]) };
        assert_eq!(
            help(&[shown, hidden, examples]),
            "Values:\n  N  a number\n\nExamples:\n  does c\n    a b"
        );
    }
}
