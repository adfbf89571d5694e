//! `docs/one-page.md` walks through the code as it is: functions that it names lie where it says, each row of its walks
//! is called by the row that it names, and entries into files are counted right.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use syn::visit::{self, Visit};
use syn::{Expr, ExprCall, ExprMethodCall, ImplItem, Item, ItemImpl, TraitItem, Type};

const PAGE: &str = "docs/one-page.md";
/// The walks: a heading, what their sentence begins with, and the entries and files that they may have at most. A
/// change that makes a walk longer needs a reason.
const WALKS: [(&str, &str, [usize; 2]); 2] = [
    ("A fault of a page in the pool", "A fault makes", [23, 17]),
    ("A store into the pool", "A store makes", [14, 11]),
];

fn house() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("cli/ lies in the house").to_owned()
}

fn read(path: &str) -> String {
    fs::read_to_string(house().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn parse(path: &str) -> syn::File {
    syn::parse_file(&read(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// One row of a walk.
struct Row {
    /// `Type::function`, or a function of no type.
    function: String,
    file: String,
    caller: Option<usize>,
}

impl Row {
    /// The function's name, without its type.
    fn name(&self) -> &str {
        self.function.rsplit("::").next().expect("a name has a last part")
    }
}

/// The text below a heading, up to the next one.
fn section<'a>(page: &'a str, heading: &str) -> &'a str {
    let (_, rest) =
        page.split_once(&format!("### {heading}\n")).unwrap_or_else(|| panic!("no heading: {heading}"));
    rest.split_once("\n##").map_or(rest, |(section, _)| section)
}

/// The rows of the table in a section. They are numbered from 1 on.
fn rows(section: &str) -> Vec<Row> {
    let lines = section.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| row "));
    let rows: Vec<_> = lines
        .enumerate()
        .map(|(nth, line)| {
            let cells: Vec<_> = line.split('|').map(|cell| cell.trim().trim_matches('`')).collect();
            let [_, number, function, file, caller, _] = cells[..] else { panic!("not four cells: {line}") };
            assert_eq!(number, (nth + 1).to_string(), "{line}");
            Row { function: function.to_owned(), file: file.to_owned(), caller: caller.parse().ok() }
        })
        .collect();
    assert!(!rows.is_empty(), "there is no table");
    rows
}

/// How often control passes into another file, and how many files there are.
fn entries(rows: &[Row]) -> [usize; 2] {
    let entries = rows.windows(2).filter(|pair| pair[0].file != pair[1].file).count();
    [entries, rows.iter().map(|row| &row.file).collect::<BTreeSet<_>>().len()]
}

/// The names of all that a function calls, closures in it included.
#[derive(Default)]
struct Calls(BTreeSet<String>);

impl<'a> Visit<'a> for Calls {
    fn visit_expr_method_call(&mut self, call: &'a ExprMethodCall) {
        self.0.insert(call.method.to_string());
        visit::visit_expr_method_call(self, call);
    }

    fn visit_expr_call(&mut self, call: &'a ExprCall) {
        if let Expr::Path(path) = &*call.func
            && let Some(last) = path.path.segments.last()
        {
            self.0.insert(last.ident.to_string());
        }
        visit::visit_expr_call(self, call);
    }
}

/// The functions of a file, those of its tests apart: the type that each belongs to, its name, and what it calls.
struct Functions(Vec<(Option<String>, String, Calls)>);

impl Functions {
    fn of(file: &syn::File) -> Self {
        let mut found = Self(Vec::new());
        file.items.iter().for_each(|item| found.item(item));
        found
    }

    fn add(&mut self, of: Option<String>, name: &syn::Ident, body: Option<&syn::Block>) {
        let mut calls = Calls::default();
        body.into_iter().for_each(|body| calls.visit_block(body));
        self.0.push((of, name.to_string(), calls));
    }

    fn item(&mut self, item: &Item) {
        match item {
            Item::Fn(function) => self.add(None, &function.sig.ident, Some(&function.block)),
            Item::Impl(ItemImpl { self_ty, items, .. }) => {
                let Type::Path(path) = &**self_ty else { return };
                let of = path.path.segments.last().map(|segment| segment.ident.to_string());
                for item in items {
                    if let ImplItem::Fn(method) = item {
                        self.add(of.clone(), &method.sig.ident, Some(&method.block));
                    }
                }
            }
            Item::Trait(definition) => {
                for item in &definition.items {
                    if let TraitItem::Fn(method) = item {
                        self.add(
                            Some(definition.ident.to_string()),
                            &method.sig.ident,
                            method.default.as_ref(),
                        );
                    }
                }
            }
            _ => {}
        }
    }

    /// What the function of this name calls, `Type::name` if it has a type. `None` if there is no such function.
    fn calls(&self, function: &str) -> Option<&Calls> {
        let (of, name) = function.rsplit_once("::").map_or((None, function), |(of, name)| (Some(of), name));
        self.0.iter().find(|(has, is, _)| has.as_deref() == of && is == name).map(|(_, _, calls)| calls)
    }

    fn has(&self, name: &str) -> bool {
        self.0.iter().any(|(_, is, _)| is == name)
    }
}

#[test]
fn each_row_of_a_walk_is_called_by_the_row_that_it_names() {
    let page = read(PAGE);
    let mut wrong = Vec::new();
    for (heading, _, _) in WALKS {
        let rows = rows(section(&page, heading));
        for (nth, row) in rows.iter().enumerate() {
            let Row { function, file, caller } = row;
            if Functions::of(&parse(file)).calls(function).is_none() {
                wrong.push(format!("{heading}, row {}: {file} has no {function}", nth + 1));
            }
            let Some(caller) = caller else {
                assert_eq!(nth, 0, "{heading}: only the first row has no caller");
                continue;
            };
            assert!((1..=nth).contains(caller), "{heading}: row {} is called by a row below it", nth + 1);
            let from = &rows[caller - 1];
            let functions = Functions::of(&parse(&from.file));
            if functions.calls(&from.function).is_none_or(|calls| !calls.0.contains(row.name())) {
                wrong.push(format!("{heading}, row {}: {} does not call {function}", nth + 1, from.function));
            }
        }
    }
    assert!(wrong.is_empty(), "{PAGE}:\n{}", wrong.join("\n"));
}

#[test]
fn entries_of_a_walk_are_counted_right_and_do_not_grow() {
    let page = read(PAGE);
    for (heading, begins, most) in WALKS {
        let section = section(&page, heading);
        let [entries, files] = entries(&rows(section));
        let sentence = format!("{begins} {entries} entries in {files} files.");
        assert!(section.contains(&sentence), "{PAGE}, {heading}, by its table: {sentence}");
        assert!(entries <= most[0] && files <= most[1], "{sentence} {} in {} were enough", most[0], most[1]);
    }
}

/// In parentheses stand files, and behind a file functions of it.
#[test]
fn functions_that_are_named_beside_a_file_lie_there() {
    let page = read(PAGE);
    let mut wrong = Vec::new();
    let mut count = 0;
    for group in page.split('(').skip(1).filter_map(|rest| rest.split_once(')')).map(|(group, _)| group) {
        let mut functions = None;
        for code in group.split('`').skip(1).step_by(2) {
            if code.ends_with(".rs") {
                functions = Some((code, Functions::of(&parse(code))));
            } else if let Some((file, functions)) = &functions
                && code.chars().all(|c| c.is_ascii_lowercase() || c == '_')
            {
                count += 1;
                if !functions.has(code) {
                    wrong.push(format!("{file} has no {code}"));
                }
            }
        }
    }
    assert!(count > 0, "{PAGE} names no function beside its file");
    assert!(wrong.is_empty(), "{PAGE}:\n{}", wrong.join("\n"));
}

#[test]
fn entries_count_each_change_of_file() {
    let table = "| row | function | file | called in row |\n|---:|---|---|---|\n| 1 | `A::f` | `a.rs` | |\n\
                 | 2 | `g` | `a.rs` | 1 |\n| 3 | `B::h` | `b.rs` | 2 |\n| 4 | `A::i` | `a.rs` | 1 |\n";
    assert_eq!(entries(&rows(table)), [2, 2]);
}

#[test]
fn calls_are_found_in_closures_and_of_the_type_that_is_named() {
    let source = "impl<T> A<T> { fn f(&self) { let g = || self.b.h(i::j()); g() } } impl B for C { fn f() {} } fn k() {}";
    let functions = Functions::of(&syn::parse_file(source).unwrap());
    let calls =
        |function: &str| functions.calls(function).map(|calls| calls.0.iter().cloned().collect::<Vec<_>>());
    assert_eq!(calls("A::f").unwrap(), ["g", "h", "j"]);
    assert_eq!(calls("C::f").unwrap(), [""; 0]);
    assert!(calls("B::f").is_none() && calls("k").is_some() && functions.has("f"));
}
