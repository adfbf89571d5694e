# What is done often, by one word each: `just --list`. Without just (https://just.systems) the commands below do the same.

# The host's triple, for what is built with a sanitizer.
host := `rustc -vV | sed -n 's/^host: //p'`

# List the recipes.
default:
    @just --list

# Check format, lints and documentation.
check:
    cargo fmt --all --check
    cargo clippy --workspace --all-targets -- -D warnings
    RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps

# Run every test (ten to twenty minutes on two processors).
test *arguments:
    ./test {{ arguments }}

# Run what takes longer, all of it (four hours) or some parts: `just long stress`; `just long --list`.
long *parts:
    ./test --long {{ parts }}

# Eight threads on the swap subsystem, and the engine's threads (ten minutes).
stress: (long "stress")

# Memory errors, by AddressSanitizer (needs a nightly toolchain).
asan: (long "asan")

# Data races, by ThreadSanitizer (needs a nightly toolchain with rust-src).
tsan: (long "tsan")

# Fuzz one target of fuzz/ (needs a nightly toolchain and cargo-fuzz): `just fuzz trace 600`.
fuzz target="lzpage" seconds="60":
    @cargo +nightly --version >/dev/null 2>&1 || { echo 'no nightly toolchain: rustup toolchain install nightly --profile minimal' >&2; exit 1; }
    @cargo +nightly fuzz --version >/dev/null 2>&1 || { echo 'no cargo-fuzz: cargo install cargo-fuzz' >&2; exit 1; }
    mkdir -p fuzz/found/{{ target }}
    {{ if `command -v clang || true` != "" { "CC=clang CFLAGS=-fsanitize=fuzzer-no-link,address" } else { "" } }} cargo +nightly fuzz run {{ target }} fuzz/found/{{ target }} fuzz/corpus/{{ target }} -- -max_total_time={{ seconds }}

# Run one benchmark (docs/testing.md has what each needs): `just bench start --store`.
bench name *options:
    cargo build --release --workspace
    python3 bench/{{ name }}.py {{ options }}

# Build the documentation of the crates, and docs/programs.md from the newest stored results.
docs:
    RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps
    python3 bench/programs.py --table

# Install below PREFIX: program, library, manual pages, completions.
install prefix="/usr/local":
    make build
    make install PREFIX={{ prefix }}

# Make what is given to users: of a clean commit whose version the changelog names, and whose tests pass (scripts/release).
release *options:
    #!/usr/bin/env bash
    set -euo pipefail
    version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
    if [ -n "$(git status --porcelain)" ]; then echo 'release: the working tree has changes: commit them' >&2; exit 1; fi
    if ! grep -qF "## [$version]" CHANGELOG.md; then echo "release: CHANGELOG.md has no section [$version]" >&2; exit 1; fi
    .ci/run
    scripts/release {{ options }}
