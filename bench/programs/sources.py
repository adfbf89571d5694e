"""Prints a source file that costs a compiler memory: `sources.py rust`, `haskell` or `sheet` (a table for a spreadsheet)."""

import sys


def rust(functions=250):
    print("// Made by bench/programs/sources.py.\n#![allow(dead_code)]\nuse std::collections::HashMap;")
    for nth in range(functions):
        print(f"""#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Row{nth} {{ key: u64, note: String, list: Vec<u32> }}
pub fn job{nth}(rows: &mut HashMap<u64, Row{nth}>, seed: u64) -> usize {{
    for step in 0..seed % {nth + 7} {{
        let key = step.wrapping_mul({nth * 7919 + 13}) % 1000;
        rows.entry(key).or_insert_with(|| Row{nth} {{ key, note: format!("note {{key}} {nth}"), list: vec![{nth}; 3] }}).list.push(step as u32);
    }}
    let mut sorted: Vec<_> = rows.values().cloned().collect();
    sorted.sort();
    sorted.iter().map(|row| row.note.len() + row.list.len()).sum()
}}""")


def haskell(types=60, constructors=14):
    print("-- Made by bench/programs/sources.py.\nmodule Large where")
    for nth in range(types):
        parts = " | ".join(f"C{nth}x{kind} Int [Integer] (Maybe String)" for kind in range(constructors))
        print(f"data T{nth} = {parts} deriving (Eq, Ord, Show, Read)")
        for kind in range(constructors):
            print(f"f{nth}x{kind} :: T{nth} -> Int\nf{nth}x{kind} (C{nth}x{kind} a b c) = a + length b + maybe {kind} length c\nf{nth}x{kind} other = length (show other)")


def sheet(rows=60_000):
    print("id,person,page,seconds,note")
    for row in range(rows):
        print(f"{row},{row * 7919 % 5003},page {row * 40503 % 997},{row % 977 / 8},note {row * 31 % 10007} of a visit")


{"rust": rust, "haskell": haskell, "sheet": sheet}[sys.argv[1]]()
