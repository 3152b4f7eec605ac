//! Names of images: a tag means its last assignment, a digest its content, and a named image stays.

use crate::servers::{faulty, ready, registry};
use crate::support::{self, Scratch, is_root, skipped};
use std::process::Command;

/// What `ls` has: names and digests.
fn names(scratch: &Scratch) -> Vec<(String, String)> {
    let rows: serde_json::Value = serde_json::from_str(&scratch.image(&["ls", "--json"]).good().out).unwrap();
    let word = |row: &serde_json::Value, field: &str| row[field].as_str().unwrap_or("-").to_owned();
    let mut all: Vec<_> = rows.as_array().unwrap().iter().map(|row| (word(row, "name"), word(row, "digest"))).collect();
    all.sort();
    all
}

fn load(scratch: &Scratch, case: &str, name: &str) -> String {
    let loaded = scratch.image(&["load", &scratch.layout(case, "gzip"), "--name", name]).good().out;
    loaded.split_whitespace().next().unwrap().to_owned()
}

#[test]
fn what_is_pulled_by_its_digest_moves_no_tag() {
    if !ready() {
        return;
    }
    let (full, scratch) = (Scratch::new(), Scratch::new());
    let server = registry(&full, "");
    let name = format!("{}/team/tool", server.host());
    let old = load(&full, "plain", &name);
    full.image(&["push", &name]).good();
    let new = load(&full, "layered", &name);
    full.image(&["push", &name]).good();
    scratch.image(&["pull", &name]).good();
    let (tag, pinned) = (format!("{name}:latest"), format!("{name}@{old}"));
    for text in [pinned.clone(), format!("{name}:latest@{old}")] {
        assert_eq!(scratch.image(&["pull", &text]).good().out.trim(), old);
        let wanted = [(tag.clone(), new.clone()), (pinned.clone(), old.clone())];
        assert_eq!(names(&scratch), wanted, "after the pull of {text}");
        assert!(scratch.image(&["inspect", &text]).good().out.contains(&old));
        let removed = scratch.image(&["rm", &text]).good().out;
        assert!(removed.contains(&format!("untagged {pinned}")) && removed.contains(&format!("removed {old}")));
        assert_eq!(names(&scratch), wanted[..1]);
    }
    // What is there already gets its name, too.
    let pinned = format!("{name}@{new}");
    assert!(scratch.image(&["pull", &pinned]).good().err.contains("is up to date"));
    let removed = scratch.image(&["rm", &tag]).good().out;
    assert!(!removed.contains("removed"), "{removed}");
    scratch.image(&["prune"]).good();
    assert_eq!(names(&scratch), [(pinned, new)]);
}

#[test]
fn the_digest_of_an_index_means_the_image_that_it_led_to() {
    if !ready() {
        return;
    }
    let (full, scratch) = (Scratch::new(), Scratch::new());
    let server = registry(&full, "");
    let digest = load(&full, "runnable", &server.reference());
    full.image(&["push", &server.reference()]).good();
    let inspected: serde_json::Value =
        serde_json::from_str(&full.image(&["inspect", &server.reference()]).good().out).unwrap();
    let index = server.put_index(&full, "team/tool", "many", &inspected[0]["manifest"]);
    assert_ne!(index, digest);
    let proxy = faulty(&server, &[]);
    let pinned = format!("{}/team/tool@{index}", proxy.host());
    assert_eq!(scratch.image(&["pull", &pinned]).good().out.trim(), digest);
    assert_eq!(names(&scratch), [(pinned.clone(), digest.clone())]);
    assert!(scratch.image(&["inspect", &pinned]).good().out.contains(&pinned));
    scratch.image(&["unpack", &pinned, &scratch.path("bundle")]).good();
    scratch.image(&["verify", &pinned]).good();
    let asked = proxy.requests().len();
    assert!(scratch.image(&["pull", &pinned]).good().err.contains("is up to date"));
    if !skipped("root", is_root()) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_brig"));
        command.args(["run", "--store", &scratch.path("store"), "--image", &pinned]).env("BRIG_WEAKEN", "");
        let ran = support::run(&mut command);
        assert_eq!((ran.status, ran.out.as_str()), (0, "hello\n"), "{}", ran.err);
    }
    assert_eq!(proxy.requests().len(), asked, "it was there, and was asked for again");
    // An archive has no digest names: they could not be checked.
    let archive = scratch.path("saved.tar");
    scratch.image(&["save", &pinned, "-o", &archive]).good();
    let other = Scratch::new();
    assert!(other.image(&["load", &archive]).good().out.contains(&digest));
    assert_eq!(names(&other), [("-".to_owned(), digest.clone())]);
    scratch.image(&["tag", &pinned, "tool:2"]).good();
    assert!(scratch.image(&["rm", &pinned]).good().out.contains(&format!("untagged {pinned}")));
    assert_eq!(names(&scratch), [("tool:2".to_owned(), digest)]);
}

#[test]
fn no_image_gets_the_name_of_another_digest() {
    let scratch = Scratch::new();
    let layout = scratch.layout("layered", "gzip");
    let pinned = format!("debian@sha256:{}", "ab".repeat(32));
    scratch.image(&["load", &layout, "--name", &pinned]).refused("a name with a digest is what has that digest");
    let digest = scratch.image(&["load", &layout, "--name", "x"]).good().out;
    let digest = digest.split_whitespace().next().unwrap().to_owned();
    scratch.image(&["tag", "x", &pinned]).refused("a name with a digest cannot be given");
    scratch.image(&["rm", "x", "no-such"]).refused("the store has no such image");
    scratch.image(&["rm", "x"]).good(); // a wrong name removes nothing
    let index = format!("{layout}/index.json");
    let text = std::fs::read_to_string(&index).unwrap();
    let lie = |name: &str| {
        let mut value: serde_json::Value = serde_json::from_str(&text).unwrap();
        value["manifests"][0]["annotations"]["io.containerd.image.name"] = name.into();
        std::fs::write(&index, value.to_string()).unwrap();
        scratch.image(&["load", &layout]).good();
        let names = names(&scratch);
        scratch.image(&["rm", &digest]).good();
        names
    };
    assert_eq!(lie(&format!("docker.io/library/{pinned}")), [("-".to_owned(), digest.clone())]);
    let own = format!("example.org/tool@{digest}");
    assert_eq!(lie(&own), [(own.clone(), digest.clone())]);
}

/// `rm` counts the names before it has the store's lock.
#[test]
fn an_image_that_is_named_while_it_is_being_removed_stays() {
    let scratch = Scratch::new();
    let digest = load(&scratch, "layered", "a:1");
    // As any writer holds it for a moment.
    let lock = std::fs::File::open(scratch.path("store/lock")).unwrap();
    rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockShared).unwrap();
    let mut remove = support::brig(&scratch, &["rm", "a:1"]).spawn().unwrap();
    while std::path::Path::new(&scratch.path("store/names/docker.io/library/a:1")).exists() {
        assert!(remove.try_wait().unwrap().is_none(), "it waits for nothing");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    scratch.image(&["tag", &digest, "kept:1"]).good();
    drop(lock);
    assert!(remove.wait().unwrap().success());
    assert_eq!(names(&scratch), [("kept:1".to_owned(), digest)]);
    scratch.image(&["verify", "kept:1"]).good();
}

/// `1.0` reads like a name, and would be `docker.io/library/1.0:latest`.
#[test]
fn a_bare_tag_is_no_name() {
    let scratch = Scratch::new();
    let layout = scratch.layout("layered", "gzip");
    let index = format!("{layout}/index.json");
    let text = std::fs::read_to_string(&index).unwrap();
    let load = |tag: &str, arguments: &[&str]| {
        let mut value: serde_json::Value = serde_json::from_str(&text).unwrap();
        value["manifests"][0]["annotations"]["org.opencontainers.image.ref.name"] = tag.into();
        std::fs::write(&index, value.to_string()).unwrap();
        let loaded = scratch.image(&[&["load", &layout], arguments].concat()).good();
        let names: Vec<String> = names(&scratch).into_iter().map(|(name, _)| name).collect();
        scratch.image(&["rm", &loaded.out[..71]]).good();
        (names.join(" "), loaded.err)
    };
    let (names, said) = load("1.0", &[]);
    assert_eq!(names, "-");
    assert!(said.contains("the tag `1.0` is not a complete name: name the image with --name NAME:TAG"), "{said}");
    for (tag, arguments, expected) in
        [("1.0", &["--name", "tool:2"][..], "tool:2"), ("tool:3", &[], "tool:3"), ("me/tool", &[], "me/tool:latest")]
    {
        let (names, said) = load(tag, arguments);
        assert_eq!(names, expected);
        assert!(!said.contains("is no name"), "{said}");
    }
}

#[test]
fn an_image_is_saved_by_one_of_its_names_alone_and_by_its_digest_with_all() {
    let scratch = Scratch::new();
    let digest = load(&scratch, "layered", "a:1");
    scratch.image(&["tag", &digest, "b:2"]).good();
    let archive = scratch.path("saved.tar");
    let saved = |words: &[&str]| {
        scratch.image(&[&["save"], words, &["-o", &archive]].concat()).good();
        let other = Scratch::new();
        other.image(&["load", &archive]).good();
        names(&other).into_iter().map(|(name, _)| name).collect::<Vec<_>>()
    };
    let (a, b) = ("a:1", "b:2");
    assert_eq!(saved(&["a:1"]), [a]);
    assert_eq!(saved(&["b:2"]), [b]);
    assert_eq!(saved(&["a:1", "b:2"]), [a, b]);
    assert_eq!(saved(&[&digest]), [a, b]);
}
