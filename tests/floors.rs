//! Imports go down: every `crate::…` of the library names something that stands lower than where it is written.
//!
//! The table below is the house. A module of `src/` that is not in it is a failure, so that nobody builds outside.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot go on fails, also within its helpers"
)]

#[path = "floors/cycles.rs"]
mod cycles;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// How the neighbours on one floor meet.
#[derive(Clone, Copy, PartialEq)]
enum Shape {
    /// Never.
    Flat,
    /// Each may name those after it.
    Stairs,
}

/// The floors, the lowest first.
const FLOORS: [(Shape, &[&str]); 5] = [
    // `start` may contain `unsafe` as `sys` may: an allocator and the release of pages are more than one system call.
    (Shape::Flat, &["error", "sys", "start"]),
    (Shape::Flat, &["host", "spec", "files"]),
    (
        Shape::Flat,
        &["ns", "cgroup", "mounts", "seccomp", "landlock", "hooks", "net", "egress", "image", "resctrl", "systemd"],
    ),
    (Shape::Stairs, &["container", "process"]),
    (Shape::Stairs, &["mcp", "doctor", "engine", "worker", "task", "sandbox"]),
];

/// Downward and still wrong: who may not name whom, and why.
const FENCES: [(&[&str], &[&str], &str); 2] = [
    (
        &["doctor", "engine", "mcp", "sandbox", "task", "worker"],
        &["ns", "cgroup", "mounts", "seccomp", "landlock", "hooks"],
        "a wish becomes a spec, and `container` carries it out",
    ),
    (&["doctor", "engine", "mcp", "sandbox", "task", "worker"], &["sys"], "system calls are made below"),
];

/// The floor and the stair of a module.
fn place(module: &str) -> Option<(usize, usize)> {
    FLOORS
        .iter()
        .enumerate()
        .find_map(|(floor, (_, modules))| Some((floor, modules.iter().position(|each| *each == module)?)))
}

/// Why `from` may not name `to`; `None` if it may.
fn objection(from: &str, to: &str) -> Option<String> {
    let Some((floor, stair)) = place(from) else { return Some(format!("`{from}` is on no floor")) };
    let Some((below, step)) = place(to) else { return Some(format!("`{to}` is on no floor")) };
    if from == to {
        return None;
    }
    let fence = FENCES.iter().find(|(who, whom, _)| who.contains(&from) && whom.contains(&to));
    if let Some((.., reason)) = fence {
        return Some((*reason).to_owned());
    }
    match FLOORS[floor].0 {
        _ if below < floor => None,
        Shape::Stairs if below == floor && step > stair => None,
        _ if below == floor => Some(format!("both stand on floor {floor}")),
        _ => Some(format!("floor {floor} looks up to floor {below}")),
    }
}

/// The modules of the library that some code names by `crate::`, comments left out.
fn named(code: &str) -> BTreeSet<String> {
    let code: String =
        code.lines().map(|line| line.split("//").next().unwrap_or_default()).collect::<Vec<_>>().join("\n");
    let mut found = BTreeSet::new();
    for (at, _) in code.match_indices("crate::") {
        let rest = &code[at + "crate::".len()..];
        if rest.starts_with('{') {
            found.extend(group(rest));
        } else {
            found.insert(word(rest).to_owned());
        }
    }
    found.remove("");
    found
}

fn word(text: &str) -> &str {
    let end = text.find(|character: char| !character.is_alphanumeric() && character != '_').unwrap_or(text.len());
    &text[..end]
}

/// The first words of `{a, b::c, d::{e, f}}`.
fn group(text: &str) -> BTreeSet<String> {
    let (mut depth, mut fresh, mut found) = (0, false, BTreeSet::new());
    for (at, character) in text.char_indices() {
        match character {
            '{' => (depth, fresh) = (depth + 1, depth == 0),
            '}' if depth == 1 => break,
            '}' => depth -= 1,
            ',' => fresh = depth == 1,
            _ if fresh && !character.is_whitespace() => {
                found.insert(word(&text[at..]).to_owned());
                fresh = false;
            }
            _ => {}
        }
    }
    found
}

/// Every Rust file of the library with the top module that it belongs to.
fn library() -> Vec<(String, PathBuf)> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    let mut folders = vec![source.clone()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let inside = path.strip_prefix(&source).unwrap();
            let first = inside.iter().next().unwrap().to_str().unwrap();
            let module = first.trim_end_matches(".rs");
            // The command line is a crate of its own: the compiler keeps that fence.
            if path.extension().is_some_and(|extension| extension == "rs") && !["main", "cli", "lib"].contains(&module)
            {
                files.push((module.to_owned(), path));
            }
        }
    }
    files
}

#[test]
fn imports_go_down() {
    let mut wrong = Vec::new();
    let files = library();
    for (module, path) in &files {
        let code = std::fs::read_to_string(path).unwrap();
        for other in named(&code) {
            if let Some(reason) = objection(module, &other) {
                wrong.push(format!("{}: names `{other}`: {reason}", path.display()));
            }
        }
    }
    assert!(files.len() > 50, "only {} files were looked at", files.len());
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[test]
fn every_module_of_the_library_has_its_floor() {
    let homeless: BTreeSet<_> =
        library().into_iter().map(|(module, _)| module).filter(|module| place(module).is_none()).collect();
    assert!(homeless.is_empty(), "give these a floor in tests/floors.rs and docs/architecture.md: {homeless:?}");
}

#[test]
fn every_name_of_the_tables_is_a_module() {
    let modules: BTreeSet<_> = library().into_iter().map(|(module, _)| module).collect();
    let fenced = FENCES.iter().flat_map(|(who, whom, _)| who.iter().chain(*whom));
    let stale: BTreeSet<_> =
        FLOORS.iter().flat_map(|(_, names)| *names).chain(fenced).filter(|name| !modules.contains(**name)).collect();
    assert!(stale.is_empty(), "these are no modules of the library: {stale:?}");
}

#[test]
fn oci_crate_is_only_an_oracle_of_tests() {
    let crate_name = concat!("oci", "_spec::");
    let strays: Vec<_> = library()
        .into_iter()
        .filter(|(_, path)| {
            path.file_name().is_some_and(|name| name != "oracle.rs")
                && std::fs::read_to_string(path).unwrap().contains(crate_name)
        })
        .collect();
    assert!(strays.is_empty(), "{strays:?}");
}

#[test]
fn async_runtime_is_only_in_the_server_of_models() {
    let crates = [concat!("tok", "io::"), concat!("rm", "cp::")];
    let strays: Vec<_> = library()
        .into_iter()
        .filter(|(module, path)| {
            let code = std::fs::read_to_string(path).unwrap();
            module != "mcp" && crates.iter().any(|name| code.contains(name))
        })
        .collect();
    assert!(strays.is_empty(), "{strays:?}");
}

#[test]
fn the_page_about_the_architecture_shows_every_module() {
    let page = include_str!("../docs/architecture.md");
    let missing: BTreeSet<_> = library()
        .into_iter()
        .map(|(module, _)| module)
        .filter(|module| !page.contains(&format!("| `{module}` |")))
        .collect();
    assert!(missing.is_empty(), "docs/architecture.md has no row for {missing:?}");
}

#[test]
fn what_is_wrong_is_seen() {
    let check = |code: &str, expected: &str| {
        assert_eq!(named(code).into_iter().collect::<Vec<_>>().join(" "), expected, "{code}");
    };
    check("use crate::error::{Error, Kind};", "error");
    check("use crate::{mounts, ns::Range, sys::{a, b}};", "mounts ns sys");
    check("pub(crate) use crate::container::Place;", "container");
    check("let x = crate::sandbox::size(1); // crate::task", "sandbox");
    check("/// See [`Root`](crate::spec::root).\npub(crate) fn f() {}", "");
    for (from, to) in [
        ("cgroup", "mounts"),
        ("error", "sys"),
        ("process", "container"),
        ("task", "cgroup"),
        ("sandbox", "task"),
        ("task", "sys"),
        ("nowhere", "error"),
        ("error", "nowhere"),
    ] {
        assert!(objection(from, to).is_some(), "{from} -> {to}");
    }
    for (from, to) in
        [("cgroup", "spec"), ("container", "process"), ("task", "sandbox"), ("sandbox", "container"), ("task", "task")]
    {
        assert_eq!(objection(from, to), None, "{from} -> {to}");
    }
}
