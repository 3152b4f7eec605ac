//! Plain language: a table of rules for comments, messages, names and documentation.
//!
//! Input: every source file, script and page of the repository. Each rule finds its violations in the prose of a file.
//! `docs/`, `README.md` and `SECURITY.md` have no violation. `tests/writing.txt` lists the files that still have some,
//! with their number. A number never rises; when it falls, the list must follow:
//! `BRIG_WRITE_FILES=1 cargo test --test writing` writes the list.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot go on fails, also within its helpers"
)]

#[path = "writing/prose.rs"]
mod prose;

use prose::Form;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The longest sentence, in words. A span of code and an address count as one word.
const WORDS: usize = 25;

/// The longest line of a page, in characters. Rows of tables cannot wrap.
const COLUMNS: usize = 120;

/// Words for unnamed actors. A sentence names its component: supervisor, init, gateway, agent, caller, operator.
const ACTORS: &[&str] = &[
    "who",
    "whom",
    "whoever",
    "whomever",
    "somebody",
    "nobody",
    "anybody",
    "everybody",
    "someone",
    "noone",
    "anyone",
    "everyone",
];

/// Phrases that hide the subject or the object of a sentence.
const PHRASES: &[&str] = &[
    "is no",
    "are no",
    "was no",
    "is none",
    "are none",
    "is told",
    "are told",
    "was told",
    "says",
    "hears",
    "heard",
    "knows of",
    "stands in",
    "lies in",
    "of ours",
    "of its own",
    "of their own",
    "what is left",
];

/// Phrases that contain a phrase of the list above and are plain English.
const PLAIN: &[&str] = &["is no longer", "are no longer", "was no longer"];

/// Types: a participle, a question word or a riddle is not a noun for a thing.
const TYPES: &[&str] = &[
    "Begun",
    "Made",
    "Held",
    "Told",
    "Heard",
    "Seen",
    "Got",
    "Came",
    "Fed",
    "Shown",
    "Settled",
    "Asked",
    "Left",
    "Kept",
    "Way",
    "WayOut",
    "Put",
    "Spot",
    "Far",
    "Kin",
    "Herald",
    "Course",
    "Wish",
    "Errand",
    "Visit",
    "Patient",
    "Anybody",
    "Elsewhere",
    "Handback",
    "Manner",
    "Workplace",
    "What",
    "When",
    "Then",
    "Why",
    "How",
    "Which",
    "Who",
];

/// Functions: a verb without its object, or a figure of speech.
const FUNCTIONS: &[&str] = &[
    "say",
    "tell",
    "hear",
    "look",
    "give",
    "go_on",
    "let_go",
    "settle",
    "give_way",
    "catch_up",
    "objection",
    "bury",
    "mourn",
];

/// Pages that are made from text elsewhere: that text is checked where it is written.
const GENERATED: &[&str] = &["docs/cli.md", "docs/seccomp.md"];

/// Decisions record what was true at their time: they are in the list like the source.
const RECORDS: &str = "docs/decisions/";

/// Files that contain the words as data.
const DATA: &[&str] = &["tests/writing.rs", "tests/writing.txt"];

/// One rule, and a passage that breaks it.
struct Rule {
    name: &'static str,
    forms: &'static [Form],
    find: fn(&str) -> Vec<String>,
    /// Text that breaks the rule, and text that nearly does.
    planted: (&'static str, &'static str),
}

const RULES: &[Rule] = &[
    Rule {
        name: "names its actor",
        forms: &[Form::Comment, Form::Message, Form::Function, Form::Page, Form::Cell],
        find: |text| found(text, ACTORS),
        planted: ("The lock is released by whoever holds it.", "The lock is released by its holder."),
    },
    Rule {
        name: "has a subject, a verb and an object",
        forms: &[Form::Comment, Form::Message, Form::Page, Form::Cell],
        find: |text| found(&without(text, PLAIN), PHRASES),
        planted: ("A link is no file.", "The link is no longer a file."),
    },
    Rule {
        name: "has at most 25 words",
        forms: &[Form::Comment, Form::Page, Form::Cell],
        find: long_sentences,
        planted: (
            "One two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen \
             seventeen eighteen nineteen twenty one two three four five six.",
            "One two three four five six seven eight nine ten eleven twelve thirteen. Fourteen fifteen sixteen \
             seventeen eighteen nineteen twenty one two three four five six.",
        ),
    },
    Rule {
        name: "is a noun for a thing",
        forms: &[Form::Type],
        find: |text| TYPES.iter().filter(|name| **name == text).map(|name| (*name).to_owned()).collect(),
        planted: ("Held", "HeldLock"),
    },
    Rule {
        name: "is a verb and its object",
        forms: &[Form::Function],
        find: |text| FUNCTIONS.iter().filter(|name| **name == text).map(|name| (*name).to_owned()).collect(),
        planted: ("tell", "tell_time"),
    },
    Rule {
        name: "wraps at 120 columns",
        forms: &[Form::Line],
        find: |text| if text.chars().count() > COLUMNS { vec![text.chars().take(60).collect()] } else { Vec::new() },
        planted: (
            "0123456789 0123456789 0123456789 0123456789 0123456789 0123456789 0123456789 0123456789 0123456789 \
             0123456789 0123456789 0123456789",
            "0123456789 0123456789 0123456789 0123456789 0123456789 0123456789 0123456789 0123456789",
        ),
    },
    Rule {
        name: "is a cell, not a paragraph",
        forms: &[Form::Cell],
        find: |text| if text.matches("; ").count() > 2 { vec![text.chars().take(60).collect()] } else { Vec::new() },
        planted: ("one; two; three; four", "one; two; three"),
    },
];

/// The words and phrases of a list that a text contains, in any case. `_` separates the words of a name.
fn found(text: &str, list: &[&str]) -> Vec<String> {
    let words: Vec<String> = text
        .split(|each: char| !each.is_alphanumeric() && each != '\'')
        .filter(|word| !word.is_empty())
        .map(str::to_lowercase)
        .collect();
    let text = format!(" {} ", words.join(" "));
    let times = |phrase: &&str| text.matches(&format!(" {phrase} ")).count();
    list.iter().flat_map(|phrase| vec![(*phrase).to_owned(); times(phrase)]).collect()
}

/// A text without these phrases.
fn without(text: &str, phrases: &[&str]) -> String {
    phrases.iter().fold(text.to_lowercase(), |text, phrase| text.replace(phrase, ""))
}

fn long_sentences(text: &str) -> Vec<String> {
    prose::sentences(text)
        .into_iter()
        .filter(|sentence| sentence.split(' ').filter(|word| word.contains(char::is_alphanumeric)).count() > WORDS)
        .map(|sentence| sentence.chars().take(60).collect())
        .collect()
}

/// What a file breaks: one line for each violation.
fn violations(path: &str, text: &str) -> Vec<String> {
    let mut all = Vec::new();
    for passage in prose::passages(path, text) {
        for rule in RULES.iter().filter(|rule| rule.forms.contains(&passage.form)) {
            let line = passage.line;
            all.extend((rule.find)(&passage.text).iter().map(|found| format!("{path}:{line}: {}: {found}", rule.name)));
        }
    }
    all
}

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// Every file with prose, by its path in the repository.
fn files() -> Vec<String> {
    let mut found = Vec::new();
    let mut folders: Vec<PathBuf> =
        ["src", "tests", "bench", "rootfs", "docs"].map(|folder| root().join(folder)).into();
    let entries = |folder: &Path| std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    found.extend(entries(&root()).filter(|path| path.is_file()));
    while let Some(folder) = folders.pop() {
        for path in entries(&folder) {
            if path.is_dir() && !path.ends_with("__pycache__") { folders.push(path) } else { found.push(path) }
        }
    }
    let mut found: Vec<_> =
        found.iter().map(|path| path.strip_prefix(root()).unwrap().to_str().unwrap().to_owned()).collect();
    found.retain(|path| !DATA.contains(&path.as_str()));
    found.sort_unstable();
    found
}

/// Whether a file may have no violation at all.
fn is_strict(path: &str) -> bool {
    let page = path.starts_with("docs/") && !path.starts_with(RECORDS) && !GENERATED.contains(&path);
    page || ["README.md", "SECURITY.md"].contains(&path)
}

/// The violations of every file that has some.
fn survey() -> BTreeMap<String, Vec<String>> {
    let read = |path: &String| std::fs::read_to_string(root().join(path)).unwrap_or_default();
    let mut all: BTreeMap<_, _> =
        files().into_iter().map(|path| (path.clone(), violations(&path, &read(&path)))).collect();
    all.retain(|_, violations| !violations.is_empty());
    all
}

/// `tests/writing.txt`: a file and its number of violations in each line.
const LIST: &str = "tests/writing.txt";

const HEAD: &str = "# Files that still break a rule of tests/writing.rs, with the number of violations. A number only falls.\n\
                    # BRIG_WRITE_FILES=1 cargo test --test writing\n";

fn listed(text: &str) -> BTreeMap<String, usize> {
    text.lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| line.split_once(' ').unwrap())
        .map(|(count, path)| (path.to_owned(), count.parse().unwrap()))
        .collect()
}

#[test]
fn pages_have_no_violation() {
    let all = survey();
    let wrong: Vec<String> =
        all.iter().filter(|(path, _)| is_strict(path)).flat_map(|(_, violations)| violations.clone()).collect();
    assert!(wrong.is_empty(), "{} violations:\n{}", wrong.len(), wrong.join("\n"));
}

/// The links of a page that lead nowhere.
fn broken_links(page: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(page).unwrap();
    let mut wrong = Vec::new();
    for target in targets(&text) {
        let (path, heading) = target.split_once('#').unwrap_or((target, ""));
        let file = if path.is_empty() { page.to_owned() } else { page.parent().unwrap().join(path) };
        if !file.exists() || !heading.is_empty() && !has_heading(&file, heading) {
            wrong.push(format!("{}: {target}", page.display()));
        }
    }
    wrong
}

/// The targets of the links in a text, without addresses of other hosts and code fences.
fn targets(text: &str) -> Vec<&str> {
    let prose = text.split("```").step_by(2);
    prose
        .flat_map(|part| part.split("](").skip(1))
        .filter_map(|rest| rest.split_once(')'))
        .map(|(target, _)| target)
        .filter(|target| !target.contains("://"))
        .collect()
}

fn has_heading(file: &PathBuf, heading: &str) -> bool {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    text.lines().filter(|line| line.starts_with('#')).any(|line| anchor(line.trim_start_matches(['#', ' '])) == heading)
}

/// The anchor that a heading gets: small letters and digits, a dash for each space.
fn anchor(heading: &str) -> String {
    let kept = heading.to_lowercase().replace(' ', "-");
    kept.chars().filter(|each| each.is_alphanumeric() || ['-', '_'].contains(each)).collect()
}

/// The pages of the documentation that are not generated and not decisions.
fn pages() -> Vec<String> {
    files().into_iter().filter(|path| path.ends_with(".md") && is_strict(path)).collect()
}

#[test]
fn links_of_pages_lead_to_a_file_and_a_heading() {
    let mut pages = pages();
    assert!(pages.len() > 18, "{pages:?}");
    pages.extend(["CHANGELOG.md"].map(str::to_owned));
    let wrong: Vec<_> = pages.iter().flat_map(|page| broken_links(&root().join(page))).collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert_eq!(targets("[a](b.md#c) ```[d](e)``` [f](https://g) [h](#i)"), ["b.md#c", "#i"]);
    assert_eq!(anchor("Files: `a`, b_c"), "files-a-b_c");
}

#[test]
fn each_page_begins_with_what_the_reader_can_do_and_is_in_the_index() {
    let index = std::fs::read_to_string(root().join("docs/README.md")).unwrap();
    for page in pages().iter().filter_map(|path| path.strip_prefix("docs/")).filter(|path| *path != "README.md") {
        let text = std::fs::read_to_string(root().join("docs").join(page)).unwrap();
        let begins = text.split("\n\n").nth(1).is_some_and(|first| first.starts_with("This page lets you "));
        assert!(begins, "docs/{page} must begin with `This page lets you …`");
        assert!(index.contains(&format!("]({page})")), "docs/README.md has no link to {page}");
    }
}

#[test]
fn violations_of_other_files_only_fall() {
    let old = listed(&std::fs::read_to_string(root().join(LIST)).unwrap_or_default());
    assert!(!old.keys().any(|path| is_strict(path)), "{LIST} must not list a page");
    let all: BTreeMap<_, _> = survey().into_iter().filter(|(path, _)| !is_strict(path)).collect();
    let new: BTreeMap<_, _> = all.iter().map(|(path, violations)| (path.clone(), violations.len())).collect();
    if new == old {
        return;
    }
    let (before, after) = (old.values().sum::<usize>(), new.values().sum::<usize>());
    if std::env::var_os("BRIG_WRITE_FILES").is_some() && after <= before {
        let lines: String = new.iter().map(|(path, count)| format!("{count} {path}\n")).collect();
        return std::fs::write(root().join(LIST), format!("{HEAD}{lines}")).unwrap();
    }
    let (risen, fallen) = compared(&old, &new);
    let words: String = risen.iter().flat_map(|path| &all[path]).map(|each| format!("  {each}\n")).collect();
    panic!(
        "{before} violations are listed, the files have {after}.\nMore than listed: {risen:#?}\n{words}Fewer than listed, \
         lower the list with BRIG_WRITE_FILES=1 cargo test --test writing: {fallen:#?}"
    );
}

/// The files that have more violations than listed, and those that have fewer.
fn compared(old: &BTreeMap<String, usize>, new: &BTreeMap<String, usize>) -> (Vec<String>, Vec<String>) {
    let of = |list: &BTreeMap<String, usize>, path: &String| list.get(path).copied().unwrap_or_default();
    let risen = new.keys().filter(|path| of(new, path) > of(old, path)).cloned().collect();
    let fallen = old.keys().filter(|path| of(new, path) < of(old, path)).cloned().collect();
    (risen, fallen)
}

#[test]
fn a_risen_and_a_fallen_number_are_seen() {
    let (risen, fallen) = compared(&listed("# head\n1 a\n2 b\n3 c\n4 d\n"), &listed("1 a\n3 b\n2 c\n5 e\n"));
    assert_eq!((risen.join(" "), fallen.join(" ")), ("b e".to_owned(), "c d".to_owned()));
}

#[test]
fn each_rule_finds_a_planted_violation() {
    for rule in RULES {
        let (bad, good) = rule.planted;
        assert_ne!((rule.find)(bad), Vec::<String>::new(), "{}: {bad}", rule.name);
        assert_eq!((rule.find)(good), Vec::<String>::new(), "{}: {good}", rule.name);
    }
    for word in ACTORS.iter().chain(PHRASES) {
        let list = [*word];
        assert_eq!(found(&format!("It {word} there, {word}."), &list).len(), 2, "{word}");
    }
}

#[test]
fn each_form_of_prose_is_read() {
    let check = |path: &str, text: &str, expected: &str| {
        let found: Vec<_> = prose::passages(path, text)
            .iter()
            .filter(|passage| passage.form != Form::Line)
            .map(|passage| format!("{} {:?} {}", passage.line, passage.form, passage.text))
            .collect();
        assert_eq!(found.join("\n"), expected, "{path}: {text}");
    };
    check(
        "a.rs",
        "/// One\n/// two.\n///\n/// Three.\nfn one() {}",
        "1 Comment One two.\n4 Comment Three.\n5 Function one",
    );
    check("a.rs", "let a = 1; // why\nlet b = 'x';", "1 Comment why");
    check("a.rs", "struct Held<'a>(&'a str);\ntype Why = u8;", "1 Type Held\n2 Type Why");
    check("src/a.rs", "say(\"one \\\"two three\", 'a', \"// no\")", "1 Message one \\\"two three");
    check("src/a.rs", "#[cfg(test)]\nmod tests {\n    let a = \"one two three\";\n}", "");
    check(
        "a.rs",
        "/// ```\n/// let a = 1;\n/// ```\n/// - one\n///   two\n/// - three",
        "4 Comment one two\n6 Comment three",
    );
    check("run", "#!/bin/sh\n# One\n# two.\necho # not \"$#\"\n", "2 Comment One two.\n4 Comment not \"$#\"");
    check(
        "a.md",
        "# Title\n\nOne\ntwo.\n\n```\ncode\n```\n- a [link](x.md)\n",
        "1 Page Title\n3 Page One two.\n9 Page a link",
    );
    check(
        "a.md",
        "| one | two; three |\n| --- | --- |\n| `a.b. C` | b |",
        "1 Cell one\n1 Cell two; three\n3 Cell X\n3 Cell b",
    );
    check("a.json", "{\"who\": 1}", "");
    assert_eq!(
        prose::sentences("One X, X and X two. Three? (Four.) five.").join("|"),
        "One X two.|Three?|(Four.)|five."
    );
}
