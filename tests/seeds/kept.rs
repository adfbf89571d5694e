//! Seeds that failed once: `tests/seeds/NAME.txt`, of which a line is a seed, two spaces, and what it showed.

/// A random test's seeds, in the order of its file.
pub(crate) fn kept_seeds(name: &str) -> Vec<u64> {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/seeds").join(name);
    let text = std::fs::read_to_string(path.with_extension("txt"))
        .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    let seed = |line: &str| {
        let (seed, showed) = line.split_once("  ")?;
        (!showed.is_empty()).then(|| seed.parse().ok())?
    };
    lines
        .map(|line| seed(line).unwrap_or_else(|| panic!("{name}: not a seed and what it showed: {line}")))
        .collect()
}
