//! The house inside its rooms: no file of a product is too long, and modules that lie beside each other import in one
//! direction only.
//!
//! A module may name its parent, and a parent its children: those are one noun. Siblings, and what lies below them, may
//! not name each other in a circle: else neither is understood, moved or tested without the other.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use syn::visit::{self, Visit};
use syn::{Attribute, Item, UseTree};

/// Lines of a file at most.
const LINES_MAX: usize = 600;
/// Re-exports that are followed from one name, at most.
const REEXPORTS_MAX: usize = 8;

/// A module, by the names that lead to it from its crate.
type Module = Vec<String>;

fn house() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("cli/ lies in the house").to_owned()
}

/// The folders of the code of each room.
fn rooms() -> Vec<PathBuf> {
    let manifest = fs::read_to_string(house().join("Cargo.toml")).unwrap();
    let members =
        manifest.lines().find(|line| line.starts_with("members")).expect("the workspace has members");
    members.split('"').skip(1).step_by(2).map(|room| house().join(room).join("src")).collect()
}

/// The files of a folder and of those below it.
fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let paths = entries.map(|entry| entry.unwrap().path());
    paths.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}

/// The module that a file is, by its path below `src/`.
fn module_of(file: &Path) -> Module {
    let mut names: Module =
        file.with_extension("").iter().map(|name| name.to_str().unwrap().to_owned()).collect();
    if names.last().is_some_and(|name| ["mod", "lib", "main"].contains(&name.as_str())) {
        names.pop();
    }
    names
}

fn is_for_tests(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        attribute.path().is_ident("cfg")
            && attribute.meta.require_list().is_ok_and(|list| list.tokens.to_string().contains("test"))
    })
}

/// What a file names, but for its tests.
#[derive(Default)]
struct Names {
    paths: BTreeSet<Vec<String>>,
    /// Names that it exports again, and where they come from.
    exports: BTreeMap<String, Vec<String>>,
    /// Modules below it that are for tests.
    tests: BTreeSet<String>,
}

impl Names {
    fn tree(&mut self, before: &[String], tree: &UseTree, exports: bool) {
        let with = |name: String| [before, &[name]].concat();
        let (path, name) = match tree {
            UseTree::Path(path) => return self.tree(&with(path.ident.to_string()), &path.tree, exports),
            UseTree::Group(group) => {
                return group.items.iter().for_each(|tree| self.tree(before, tree, exports));
            }
            UseTree::Glob(_) => {
                self.paths.insert(before.to_vec());
                return;
            }
            UseTree::Name(name) => (with(name.ident.to_string()), name.ident.to_string()),
            UseTree::Rename(rename) => (with(rename.ident.to_string()), rename.rename.to_string()),
        };
        if exports {
            self.exports.insert(name, path.clone());
        }
        self.paths.insert(path);
    }
}

impl<'a> Visit<'a> for Names {
    fn visit_item(&mut self, item: &'a Item) {
        match item {
            Item::Mod(module) if is_for_tests(&module.attrs) => {
                self.tests.insert(module.ident.to_string());
            }
            Item::Fn(function) if is_for_tests(&function.attrs) => {}
            Item::Impl(block) if is_for_tests(&block.attrs) => {}
            Item::Use(import) if is_for_tests(&import.attrs) => {}
            Item::Use(import) => {
                let exports = !matches!(import.vis, syn::Visibility::Inherited);
                self.tree(&[], &import.tree, exports);
            }
            _ => visit::visit_item(self, item),
        }
    }

    fn visit_path(&mut self, path: &'a syn::Path) {
        let names: Vec<_> = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        if ["crate", "super"].contains(&names[0].as_str()) {
            self.paths.insert(names);
        }
        visit::visit_path(self, path);
    }
}

/// The modules of a crate, and what each names.
struct Crate(BTreeMap<Module, Names>);

impl Crate {
    fn read(sources: impl IntoIterator<Item = (Module, String)>) -> Self {
        let mut modules = BTreeMap::new();
        for (module, source) in sources {
            let file = syn::parse_file(&source).unwrap_or_else(|error| panic!("{module:?}: {error}"));
            let mut names = Names::default();
            names.visit_file(&file);
            modules.insert(module, names);
        }
        let tests: Vec<Module> = modules
            .iter()
            .flat_map(|(module, names): (&Module, &Names)| {
                names.tests.iter().map(|test| [&module[..], std::slice::from_ref(test)].concat())
            })
            .collect();
        modules.retain(|module, _| !tests.iter().any(|test| module.starts_with(test)));
        Self(modules)
    }

    /// The module that a path which `from` names leads into. `None` if it leads out of the crate.
    fn target(&self, from: &Module, path: &[String], depth: usize) -> Option<Module> {
        let mut rest = path;
        let mut at = match rest[0].as_str() {
            "crate" => Module::new(),
            "super" => from[..from.len() - 1].to_vec(),
            "self" => from.clone(),
            child if self.0.contains_key(&[&from[..], &[child.to_owned()]].concat()) => {
                return self.follow(from.clone(), rest, depth);
            }
            _ => return None,
        };
        rest = &rest[1..];
        while rest.first().is_some_and(|name| name == "super") {
            at.pop();
            rest = &rest[1..];
        }
        self.follow(at, rest, depth)
    }

    fn follow(&self, mut at: Module, path: &[String], depth: usize) -> Option<Module> {
        for name in path {
            let below = [&at[..], std::slice::from_ref(name)].concat();
            if self.0.contains_key(&below) {
                at = below;
                continue;
            }
            if let Some(origin) = self.0.get(&at).and_then(|names| names.exports.get(name))
                && depth < REEXPORTS_MAX
            {
                return self.target(&at, origin, depth + 1).or(Some(at));
            }
            break;
        }
        Some(at)
    }

    /// Which siblings name each other, with all that lies below them.
    fn arrows(&self) -> BTreeMap<Module, BTreeSet<Module>> {
        let mut arrows: BTreeMap<Module, BTreeSet<Module>> = BTreeMap::new();
        for (from, names) in &self.0 {
            for to in names.paths.iter().filter_map(|path| self.target(from, path, 0)) {
                let common = from.iter().zip(&to).take_while(|(one, other)| one == other).count();
                // One lies above the other, or they are the same.
                if common < from.len().min(to.len()) {
                    arrows.entry(from[..=common].to_vec()).or_default().insert(to[..=common].to_vec());
                }
            }
        }
        arrows
    }

    /// Modules from which arrows lead back to themselves.
    fn circles(&self) -> Vec<String> {
        let arrows = self.arrows();
        let reaches = |start: &Module| {
            let mut seen = BTreeSet::new();
            let mut next: Vec<&Module> = arrows[start].iter().collect();
            while let Some(module) = next.pop() {
                if seen.insert(module) {
                    next.extend(arrows.get(module).into_iter().flatten());
                }
            }
            seen.contains(start)
        };
        arrows.keys().filter(|module| reaches(module)).map(|module| module.join("::")).collect()
    }
}

#[test]
fn siblings_import_in_one_direction() {
    for folder in rooms() {
        let sources = files(&folder)
            .into_iter()
            .map(|file| (module_of(file.strip_prefix(&folder).unwrap()), fs::read_to_string(&file).unwrap()));
        let circles = Crate::read(sources).circles();
        assert!(
            circles.is_empty(),
            "{}: these modules name each other in a circle: {circles:?}",
            folder.display()
        );
    }
}

#[test]
fn no_file_of_a_product_is_too_long() {
    for file in rooms().iter().flat_map(|folder| files(folder)) {
        let lines = fs::read_to_string(&file).unwrap().lines().count();
        assert!(lines <= LINES_MAX, "{}: {lines} lines of at most {LINES_MAX}", file.display());
    }
}

#[test]
fn circles_are_found_through_uses_paths_and_what_is_exported_again() {
    let circles = |sources: &[(&str, &str)]| {
        let module =
            |name: &str| name.split("::").filter(|name| !name.is_empty()).map(str::to_owned).collect();
        Crate::read(sources.iter().map(|&(name, source)| (module(name), source.to_owned()))).circles()
    };
    let top = ("", "mod a; mod b; pub use b::thing;");
    assert_eq!(circles(&[top, ("a", "use crate::b;"), ("b", "fn thing() {}")]), [""; 0]);
    assert_eq!(circles(&[top, ("a", "use crate::b;"), ("b", "use super::a::X;")]), ["a", "b"]);
    assert_eq!(circles(&[top, ("a", "use crate::thing;"), ("b", "fn f() { crate::a::g() }")]), ["a", "b"]);
    // Deeper modules stand for those that they lie in; parent and child may name each other.
    assert_eq!(
        circles(&[top, ("a", "mod c;"), ("a::c", "use crate::b::d;"), ("b", "use crate::a::e;")]),
        ["a", "b"]
    );
    assert_eq!(circles(&[top, ("a", "mod c; use c::F;"), ("a::c", "use super::G;"), ("b", "")]), [""; 0]);
    // What is for tests does not count.
    let test = "#[cfg(test)] mod tests { use crate::a; }";
    assert_eq!(circles(&[top, ("a", "use crate::b;"), ("b", test)]), [""; 0]);
    let (a, b) = (("a", "use crate::b;"), ("b", "#[cfg(test)] mod c;"));
    assert_eq!(circles(&[top, a, b, ("b::c", "use crate::a;")]), [""; 0]);
}
