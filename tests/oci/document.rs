//! docs/oci.md and the tests: each attack that it lists has its test, and each guard its switch.

use std::path::Path;

/// The words in backquotes of the table's rows, by column.
fn rows() -> Vec<[Vec<String>; 2]> {
    let text = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/oci.md")).unwrap();
    let (_, table) = text.split_once("| attack | test | without |").unwrap();
    let words = |cell: &str| cell.split('`').skip(1).step_by(2).map(str::to_owned).collect();
    table
        .lines()
        .skip(2)
        .take_while(|line| line.starts_with('|'))
        .map(|line| {
            let cells: Vec<_> = line.trim_matches('|').split('|').collect();
            [words(cells[1]), words(cells[2])]
        })
        .collect()
}

/// All text of the files below `directory`.
fn text_of(directory: &Path, text: &mut String) {
    for entry in std::fs::read_dir(directory).unwrap().flatten() {
        let path = entry.path();
        if path.is_dir() {
            text_of(&path, text);
        } else if path.extension().is_some_and(|each| each == "rs") {
            text.push_str(&std::fs::read_to_string(path).unwrap());
        }
    }
}

#[test]
fn every_attack_of_the_document_has_its_test_and_its_guard() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let rows = rows();
    assert!(rows.len() > 30, "only {} rows are read", rows.len());
    let mut source = String::new();
    text_of(&root.join("src"), &mut source);
    for [tests, guards] in rows {
        assert!(!tests.is_empty());
        for name in tests {
            let (module, test) = name.rsplit_once("::").unwrap();
            let file = format!("{}.rs", module.replace("::", "/"));
            let found = ["tests/oci", "tests/e2e", "tests"].iter().any(|place| {
                let text = std::fs::read_to_string(root.join(place).join(&file)).unwrap_or_default();
                text.contains(&format!("#[test]\nfn {test}()"))
            });
            assert!(found, "docs/oci.md names a test that does not exist: {name}");
        }
        for guard in guards {
            assert!(source.contains(&format!("\"{guard}\"")), "docs/oci.md names a guard that does not exist: {guard}");
        }
    }
}
