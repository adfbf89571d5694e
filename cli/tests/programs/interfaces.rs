//! What programs ask of their run: `include/pagetide.h`, and the Python module.

use crate::common::*;
use std::path::Path;
use std::process::{Command, Output};

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn succeeds(output: &Output) -> String {
    assert!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
    text(&output.stdout)
}

/// The example of the documents, with the most that compilers say about the header.
#[test]
fn a_c_program_tells_what_is_cold_and_does_the_same_without_us() {
    let _turn = turn();
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("cold-{}", std::process::id()));
    for language in ["c", "c++"] {
        let built = Command::new("gcc")
            .current_dir(house())
            .args([
                "-O2",
                "-Wall",
                "-Wextra",
                "-Wpedantic",
                "-Werror",
                "-D_GNU_SOURCE",
                "-Iinclude",
                "-x",
                language,
            ])
            .args(["-fsyntax-only", "include/pagetide.h"])
            .output()
            .unwrap();
        // Not every machine has a compiler for C++.
        assert!(built.status.success() || text(&built.stderr).contains("cc1plus"), "{}", text(&built.stderr));
    }
    let built = Command::new("gcc")
        .current_dir(house())
        .args(["-O2", "-Wall", "-Wextra", "-Werror", "-D_GNU_SOURCE", "-Iinclude", "examples/cold.c", "-o"])
        .arg(&program)
        .arg("-ldl")
        .output()
        .unwrap();
    succeeds(&built);
    let sum = |said: &str| said.lines().find(|line| line.starts_with("sum ")).unwrap().to_owned();
    let alone = succeeds(&Command::new(&program).output().unwrap());
    assert!(alone.contains("not under Pagetide (Function not implemented)"), "{alone}");
    let run = start(pagetide("64M", "", &[], &[program.to_str().unwrap()]));
    let with = run.end().succeeds();
    assert_eq!(sum(&with), sum(&alone));
    let read = with.lines().nth(1).unwrap();
    let number = |before: &str| -> u64 {
        let rest = read.split(before).nth(1).unwrap().trim_start();
        rest.split(|letter: char| !letter.is_ascii_digit()).next().unwrap().parse().unwrap()
    };
    // All would have fitted.
    assert!(number(" of ") == 64 && number("swapped,") > 0, "{read}");
    assert!(with.contains("pinned: the first year"), "{with}");
    let _ = std::fs::remove_file(&program);
}

#[test]
fn the_python_module_works_in_a_run_and_says_so_outside() {
    let _turn = turn();
    let job = house().join("tests/programs/module.py");
    let job = job.to_str().unwrap();
    let path = house().join("python");
    succeeds(&Command::new(python()).arg(job).env("PYTHONPATH", &path).output().unwrap());
    let mut run = pagetide("64M", "", &[], &[&python(), job, "--expect"]);
    run.env("PYTHONPATH", &path);
    start(run).end().succeeds();
}

/// With a Python that says that it can run notebooks: `./test --long notebook` runs one.
#[test]
fn a_kernel_of_jupyter_is_added_and_removed() {
    use std::os::unix::fs::PermissionsExt;
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("jupyter-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let interpreter = folder.join("python");
    let write = |status: &str| {
        std::fs::write(&interpreter, format!("#!/bin/sh\necho /opt/of/it/python\nexit {status}\n")).unwrap();
        std::fs::set_permissions(&interpreter, std::fs::Permissions::from_mode(0o755)).unwrap();
    };
    let jupyter = |arguments: &[&str]| {
        let mut command = Command::new(PAGETIDE);
        command.env("JUPYTER_DATA_DIR", folder.join("data")).arg("jupyter").args(arguments);
        command.args(["--python", interpreter.to_str().unwrap()]).output().unwrap()
    };
    write("1");
    let refused = jupyter(&["install"]);
    assert!(refused.status.code() == Some(125), "{refused:?}");
    assert!(text(&refused.stderr).contains("-m pip install ipykernel"), "{}", text(&refused.stderr));
    write("0");
    assert!(succeeds(&jupyter(&["install", "--memory", "2G"])).contains("Python 3 (Pagetide, 2G)"));
    let kernel = folder.join("data/kernels/pagetide/kernel.json");
    let written: serde_json::Value = serde_json::from_slice(&std::fs::read(&kernel).unwrap()).unwrap();
    let own = std::fs::canonicalize(PAGETIDE).unwrap();
    let words =
        ["run", "--quiet", "--memory", "2G", "--", "/opt/of/it/python", "-m", "ipykernel_launcher", "-f"];
    assert_eq!(written["argv"][0], own.to_str().unwrap());
    assert_eq!(written["argv"].as_array().unwrap()[1..10], words.map(serde_json::Value::from));
    assert_eq!(written["argv"][10], "{connection_file}");
    // What is somebody else's stays.
    let other = folder.join("data/kernels/other/kernel.json");
    std::fs::create_dir_all(other.parent().unwrap()).unwrap();
    std::fs::write(&other, "{}").unwrap();
    let refused = jupyter(&["remove", "--name", "other"]);
    assert!(text(&refused.stderr).contains("is no kernel of Pagetide") && other.exists(), "{refused:?}");
    succeeds(&jupyter(&["remove"]));
    assert!(!kernel.parent().unwrap().exists());
    for wrong in [&["install", "--name", "../x"][..], &["install", "--memory", "much"], &["start"]] {
        assert_eq!(jupyter(wrong).status.code(), Some(125), "{wrong:?}");
    }
    std::fs::remove_dir_all(&folder).unwrap();
}
