//! No cycles inside a module: its children, each with all that is below it, import each other in one direction.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

type Module = Vec<String>;

/// The source of each module, without comments and tests, and what `pub use` in it renames.
struct Tree {
    code: BTreeMap<Module, String>,
    exports: BTreeMap<(Module, String), Module>,
}

impl Tree {
    fn new(files: impl IntoIterator<Item = (Module, String)>) -> Tree {
        let mut code: BTreeMap<Module, String> =
            files.into_iter().map(|(module, text)| (module, without_tests(&without_comments(&text)))).collect();
        let only_for_tests: Vec<Module> = code.iter().flat_map(|(module, text)| test_modules(module, text)).collect();
        code.retain(|module, _| !only_for_tests.iter().any(|each| module.starts_with(each)));
        let mut exports = BTreeMap::new();
        for (module, text) in &code {
            for (start, _) in text.match_indices("use ") {
                let line = text[..start].rsplit(['\n', ';']).next().unwrap_or_default().trim();
                if !line.starts_with("pub") {
                    continue;
                }
                let end = text[start..].find(';').map_or(text.len(), |length| start + length);
                for mut path in expand(&text[start + "use ".len()..end]) {
                    let name = path.last().cloned().unwrap_or_default();
                    if code.contains_key(&[module.clone(), vec![path[0].clone()]].concat()) {
                        path.insert(0, "self".into());
                    }
                    exports.insert((module.clone(), name), path);
                }
            }
        }
        Tree { code, exports }
    }

    /// The module that a path in `from` leads to; re-exports are followed.
    fn resolve(&self, from: &[String], path: &[String], depth: usize) -> Option<Module> {
        let mut at = from.to_vec();
        let mut rest = path.iter().peekable();
        match rest.next()?.as_str() {
            "crate" => at.clear(),
            "self" => {}
            "super" => {
                at.pop();
                while rest.next_if(|word| *word == "super").is_some() {
                    at.pop();
                }
            }
            _ => return None,
        }
        while let Some(word) = rest.peek() {
            let below = [at.clone(), vec![(*word).clone()]].concat();
            if !self.code.contains_key(&below) {
                break;
            }
            at = below;
            rest.next();
        }
        let exported = rest.next().and_then(|name| self.exports.get(&(at.clone(), name.clone())));
        match exported {
            Some(path) if depth < 8 => self.resolve(&at, path, depth + 1).or(Some(at)),
            _ => Some(at),
        }
    }

    /// For each module with children: which child imports which other one.
    fn imports(&self) -> BTreeMap<Module, BTreeMap<String, BTreeSet<String>>> {
        let mut found: BTreeMap<Module, BTreeMap<String, BTreeSet<String>>> = BTreeMap::new();
        for (module, text) in &self.code {
            for path in paths(text) {
                let Some(target) = self.resolve(module, &path, 0) else { continue };
                let common = module.iter().zip(&target).take_while(|(a, b)| a == b).count();
                if common > 0 && common < module.len() && common < target.len() {
                    let edges = found.entry(module[..common].to_vec()).or_default();
                    edges.entry(module[common].clone()).or_default().insert(target[common].clone());
                }
            }
        }
        found
    }

    /// The groups of children that reach each other, with their parent.
    fn cycles(&self) -> BTreeSet<(String, Vec<String>)> {
        let mut found = BTreeSet::new();
        for (parent, edges) in self.imports() {
            for child in edges.keys() {
                let from_child = reached(&edges, child);
                let group: Vec<String> =
                    from_child.iter().filter(|other| reached(&edges, other).contains(child)).cloned().collect();
                if group.len() > 1 {
                    found.insert((parent.join("/"), group));
                }
            }
        }
        found
    }
}

/// All that can be reached from `start`, which counts itself only if a path leads back to it.
fn reached(edges: &BTreeMap<String, BTreeSet<String>>, start: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut open = vec![start.to_owned()];
    while let Some(next) = open.pop() {
        for other in edges.get(&next).into_iter().flatten() {
            if found.insert(other.clone()) {
                open.push(other.clone());
            }
        }
    }
    found
}

fn without_comments(text: &str) -> String {
    text.lines().map(|line| line.split("//").next().unwrap_or_default()).collect::<Vec<_>>().join("\n")
}

/// Tests are the last item of a file.
fn without_tests(code: &str) -> String {
    let end = code.find("#[cfg(test)]\nmod tests {").unwrap_or(code.len());
    code[..end].to_owned()
}

/// Children that exist for tests alone.
fn test_modules(parent: &[String], code: &str) -> Vec<Module> {
    let after = code.split("#[cfg(test)]\n").skip(1);
    let names = after.filter_map(|rest| {
        let line = rest.lines().next()?;
        let name = line.split("mod ").nth(1)?.strip_suffix(';')?;
        Some([parent, &[name.to_owned()]].concat())
    });
    names.collect()
}

/// Every path of some code that begins with `crate`, `super` or `self`.
fn paths(code: &str) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    for word in ["crate::", "super::", "self::"] {
        for (at, _) in code.match_indices(word) {
            let before = code[..at].chars().next_back();
            if !before.is_some_and(|character| character.is_alphanumeric() || "_:".contains(character)) {
                found.extend(expand(&code[at..]));
            }
        }
    }
    found
}

/// The paths of a use tree at the beginning of `text`: `a::{b, c::D}` is `a::b` and `a::c::D`.
fn expand(text: &str) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    tree(&mut text.chars().peekable(), &mut Vec::new(), &mut found);
    found
}

fn tree(text: &mut std::iter::Peekable<std::str::Chars<'_>>, prefix: &mut Vec<String>, found: &mut Vec<Vec<String>>) {
    let depth = prefix.len();
    loop {
        while text.next_if(|character| character.is_whitespace()).is_some() {}
        if text.next_if_eq(&'{').is_some() {
            loop {
                tree(text, prefix, found);
                while text.next_if(|character| character.is_whitespace()).is_some() {}
                if text.next_if_eq(&',').is_none() {
                    break;
                }
            }
            text.next_if_eq(&'}');
            break;
        }
        let mut word = String::new();
        while let Some(character) = text.next_if(|character| character.is_alphanumeric() || *character == '_') {
            word.push(character);
        }
        if word.is_empty() {
            break;
        }
        if word != "self" || prefix.is_empty() {
            prefix.push(word);
        }
        let has_more = text.next_if_eq(&':').is_some() && text.next_if_eq(&':').is_some();
        if !has_more {
            found.push(prefix.clone());
            break;
        }
    }
    prefix.truncate(depth);
    // `as NAME`
    while text.next_if(|character| !",;}{()".contains(*character)).is_some() {}
}

fn library() -> Tree {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    Tree::new(super::library().into_iter().map(|(_, path)| {
        let inside = path.strip_prefix(&source).unwrap().with_extension("");
        let mut module: Module = inside.iter().map(|part| part.to_str().unwrap().to_owned()).collect();
        if module.last().is_some_and(|last| last == "mod") {
            module.pop();
        }
        (module, std::fs::read_to_string(&path).unwrap())
    }))
}

#[test]
fn children_of_a_module_do_not_import_each_other_in_a_circle() {
    let found = library().cycles();
    assert!(found.is_empty(), "these children of a module import each other in a circle: {found:#?}");
}

#[test]
fn planted_cycles_are_found() {
    let cycles = |files: &[(&str, &str)]| {
        let module = |name: &str| name.split('/').map(str::to_owned).collect();
        let tree = Tree::new(files.iter().map(|(name, text)| (module(name), (*text).to_owned())));
        let groups: Vec<_> =
            tree.cycles().into_iter().map(|(parent, group)| format!("{parent}: {}", group.join(" "))).collect();
        groups.join("; ")
    };
    assert_eq!(cycles(&[("m", ""), ("m/a", "use super::b::B;"), ("m/b", "")]), "");
    assert_eq!(cycles(&[("m", ""), ("m/a", "use super::b::B;"), ("m/b", "fn f() { crate::m::a::g() }")]), "m: a b");
    assert_eq!(cycles(&[("m", ""), ("m/a", "use super::b;"), ("m/b", "use super::a::{self, A};")]), "m: a b");
    // A re-export does not hide the module behind it, nor does a longer way.
    let exported = "mod a; mod b; mod c;\npub(crate) use a::{A, Other};";
    let round = [("m", exported), ("m/a", "use super::b;"), ("m/b", "use super::c;"), ("m/c", "use super::{A};")];
    assert_eq!(cycles(&round), "m: a b c");
    // What is below a child belongs to it.
    assert_eq!(
        cycles(&[("m", ""), ("m/a", ""), ("m/a/x", "use super::super::b;"), ("m/b", "use crate::m::a;")]),
        "m: a b"
    );
    // Comments, tests and modules for tests do not count.
    let tests = "// use super::a;\n#[cfg(test)]\nmod tests {\n    use super::super::a;\n}\n";
    assert_eq!(cycles(&[("m", ""), ("m/a", "use super::b;"), ("m/b", tests)]), "");
    assert_eq!(cycles(&[("m", "#[cfg(test)]\nmod b;"), ("m/a", "use super::b;"), ("m/b", "use super::a;")]), "");
}
