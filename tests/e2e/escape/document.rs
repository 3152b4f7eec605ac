//! docs/security.md and these tests: each claim has its test, and each test its claim.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// The names of the tests in a source file.
fn tests_of(path: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(path).unwrap_or_else(|cause| panic!("{}: {cause}", path.display()));
    let mut lines = text.lines().map(str::trim);
    let mut names = Vec::new();
    while let Some(line) = lines.next() {
        if line == "#[test]" {
            let next = lines.next().unwrap();
            names.push(next.trim_start_matches("fn ").split('(').next().unwrap().to_owned());
        }
    }
    names
}

/// Every `module::…::test` that the document names.
fn claimed() -> BTreeSet<String> {
    let text = std::fs::read_to_string(root().join("docs/security.md")).unwrap();
    text.split('`')
        .skip(1)
        .step_by(2)
        .filter(|word| {
            word.contains("::") && word.chars().all(|each| each.is_ascii_alphanumeric() || "_:".contains(each))
        })
        .map(str::to_owned)
        .collect()
}

#[test]
fn every_test_that_the_document_names_exists() {
    let claimed = claimed();
    assert!(claimed.len() > 50, "only {} tests are named", claimed.len());
    let missing: Vec<_> = claimed
        .iter()
        .filter(|name| {
            let (module, test) = name.rsplit_once("::").unwrap();
            let module = root().join("tests/e2e").join(module.replace("::", "/"));
            let files = [module.with_extension("rs"), module.join("mod.rs")];
            let Some(path) = files.into_iter().find(|path| path.is_file()) else { return true };
            !tests_of(&path).iter().any(|each| each == test)
        })
        .collect();
    assert!(missing.is_empty(), "docs/security.md names tests that do not exist: {missing:#?}");
}

#[test]
fn every_attack_is_in_the_document() {
    let claimed = claimed();
    let folder = root().join("tests/e2e/escape");
    let mut missing = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap().flatten() {
        let path = entry.path();
        let module = path.file_stem().unwrap().to_string_lossy().into_owned();
        if path.extension().is_some_and(|each| each == "rs") && module != "document" {
            let names = tests_of(&path).into_iter().map(|test| format!("escape::{module}::{test}"));
            missing.extend(names.filter(|name| !claimed.contains(name)));
        }
    }
    assert!(missing.is_empty(), "docs/security.md does not name: {missing:#?}");
}
