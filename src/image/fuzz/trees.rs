//! Entries with any names and links, in any order and over any layer, touch nothing outside the root.

use super::{Dice, rounds};
use crate::image::flatten::{self, ApplyMode};
use crate::image::form::Form;
use crate::image::layer::{Budget, Extractor, Limits, finish_layer};
use crate::image::tar::write::Writer;
use crate::image::tar::{Entry, EntryKind, Reader};
use crate::image::union::Stack;
use std::fs::{Permissions, set_permissions};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::Command;

const PARTS: [&str; 13] = ["a", "a", "b", "b", "c", "..", ".", "", ".wh.a", ".wh.b", ".wh..wh..opq", "canary", "root"];

fn name(dice: &mut Dice) -> String {
    let parts: Vec<&str> = (0..=dice.below(4)).map(|_| *dice.pick(&PARTS)).collect();
    format!("{}{}", if dice.one_in(8) { "/" } else { "" }, parts.join("/"))
}

fn target(dice: &mut Dice, canary: &str) -> String {
    match dice.below(6) {
        0 => canary.to_owned(),
        1 => "../canary".to_owned(),
        2 => "../../canary/file".to_owned(),
        3 => "..".to_owned(),
        4 => format!("{canary}/file"),
        _ => name(dice),
    }
}

fn layer(dice: &mut Dice, canary: &str) -> Vec<u8> {
    use EntryKind::{Directory, Fifo, File, HardLink, Symlink};
    let mut writer = Writer::new(Vec::new());
    for _ in 0..=dice.below(12) {
        let kind =
            *dice.pick(&[File, File, File, Directory, Directory, Symlink, Symlink, Symlink, HardLink, HardLink, Fifo]);
        let size = if kind == File { dice.below(5) as u64 } else { 0 };
        let link = if matches!(kind, Symlink | HardLink) { target(dice, canary) } else { String::new() };
        let entry = Entry {
            kind,
            path: name(dice).into_bytes(),
            link: link.into_bytes(),
            mode: *dice.pick(&[0o644, 0o777, 0, 0o4755, 0o1777]),
            uid: 0,
            gid: 0,
            mtime: (*dice.pick(&[0, 1_700_000_000]), 0),
            size,
            sparse: None,
            device: (0, 0),
            xattrs: if dice.one_in(8) { vec![(b"user.x".to_vec(), b"y".to_vec())] } else { Vec::new() },
        };
        writer.entry(&entry).unwrap();
        writer.data(&vec![b'x'; size as usize]).unwrap();
    }
    writer.finish().unwrap()
}

/// An ordinary user must open a root that a layer closed.
fn open(path: &Path) -> OwnedFd {
    let opened = std::fs::File::open(path).or_else(|_| {
        set_permissions(path, Permissions::from_mode(0o700))?;
        std::fs::File::open(path)
    });
    opened.unwrap().into()
}

fn describe(outside: &Path) -> String {
    let mut all = Vec::new();
    for path in [outside.join("canary"), outside.join("canary/file")] {
        let found = std::fs::symlink_metadata(&path).unwrap();
        all.push(format!(
            "{} {:o} {} {} {}",
            found.ino(),
            found.mode(),
            found.nlink(),
            found.mtime_nsec(),
            found.ctime_nsec()
        ));
    }
    let mut names: Vec<_> = walk(outside);
    names.retain(|name| !name.starts_with("work/"));
    names.sort();
    format!("{all:?} {names:?} {:?}", std::fs::read(outside.join("canary/file")).unwrap())
}

fn walk(outside: &Path) -> Vec<String> {
    let below = |folder: &str| -> Vec<String> {
        let listed = std::fs::read_dir(outside.join(folder)).unwrap();
        listed.map(|entry| format!("{folder}/{}", entry.unwrap().file_name().display())).collect()
    };
    [below("."), below("canary")].concat()
}

#[test]
fn nothing_outside_the_root_is_touched() {
    let scratch = tempfile::tempdir().unwrap();
    let outside = scratch.path().join("outside");
    let canary = outside.join("canary");
    std::fs::create_dir_all(&canary).unwrap();
    std::fs::write(canary.join("file"), "precious").unwrap();
    set_permissions(canary.join("file"), Permissions::from_mode(0o640)).unwrap();
    let unpacked = std::sync::atomic::AtomicUsize::new(0);
    rounds(800, |dice| {
        // Two levels below the watched folder, so that `..` leads somewhere.
        let work = outside.join("work");
        std::fs::create_dir_all(work.join("layers")).unwrap();
        let before = describe(&outside);
        let form = Form::probe(open(&work).as_fd()).unwrap();
        let mut paths = Vec::new();
        let flat = work.join("root");
        std::fs::create_dir(&flat).unwrap();
        for index in 0..3 {
            let path = work.join(format!("layers/{index}"));
            std::fs::create_dir(&path).unwrap();
            let bytes = layer(dice, &canary.display().to_string());
            let mut extractor = Extractor::new(open(&path), form, &Budget::new(Limits::default()));
            let applied = extractor.apply(&mut Reader::new(bytes.as_slice()));
            let below: Vec<_> = paths.iter().rev().collect();
            let stack = Stack::open(&below, form).unwrap();
            let finished = applied.and_then(|()| finish_layer(extractor, &stack));
            let merged = finished.and_then(|finished| {
                flatten::apply(open(&path).as_fd(), open(&flat).as_fd(), form, ApplyMode::Copy, finished.removes)
            });
            if merged.is_ok() {
                unpacked.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                paths.push(path);
            }
            let stack = paths.iter().rev().collect::<Vec<_>>();
            for wanted in ["/a/file", "/b", "/a", "/../canary/file"] {
                let found = Stack::open(&stack, form).unwrap().read(wanted, 100);
                assert!(found.ok().flatten().is_none_or(|bytes| !bytes.starts_with(b"precious")), "{wanted}");
            }
        }
        assert_eq!(before, describe(&outside));
        std::fs::remove_dir_all(&work).or_else(|_| open_up(&work)).unwrap();
    });
    let unpacked = unpacked.into_inner();
    assert!(unpacked > 200, "nearly everything is refused: {unpacked} layers");
}

fn open_up(path: &Path) -> std::io::Result<()> {
    Command::new("chmod").args(["-R", "u+rwX"]).arg(path).stderr(std::process::Stdio::null()).status()?;
    std::fs::remove_dir_all(path)
}

/// The control: the host resolves the paths.
#[cfg(feature = "weakened")]
#[test]
fn on_a_weakened_build_the_same_rounds_get_out() {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "image::fuzz::trees::nothing_outside_the_root_is_touched"])
        .env("BRIG_WEAKEN", "image-symlinks")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(said.contains("running 1 test") && !output.status.success(), "{said}");
}
