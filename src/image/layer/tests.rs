//! Run time, refusals and owners of layers.

use super::{Budget, Extractor, FinishedLayer, Limits, decode, finish_layer};
use crate::error::{Error, Kind, Result};
use crate::image::Form;
use crate::image::digest::Algorithm;
use crate::image::form::Owners;
use crate::image::tar::write::Writer;
use crate::image::tar::{Entry, EntryKind, Reader};
use crate::image::union::Stack;
use rustix::time::{ClockId, clock_gettime};
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tempfile::TempDir;

fn entry(kind: EntryKind, path: &str, link: &str) -> Entry {
    Entry { link: link.into(), mode: 0o755, ..Entry::new(kind, path) }
}

fn file(path: &str) -> Entry {
    entry(EntryKind::File, path, "")
}

fn folder(path: &str) -> Entry {
    entry(EntryKind::Directory, path, "")
}

fn link(path: &str, target: &str) -> Entry {
    entry(EntryKind::HardLink, path, target)
}

fn archive(entries: impl IntoIterator<Item = Entry>) -> Vec<u8> {
    let mut writer = Writer::new(Vec::new());
    entries.into_iter().for_each(|entry| writer.entry(&entry).unwrap());
    writer.finish().unwrap()
}

struct Lab {
    scratch: TempDir,
    layers: Vec<PathBuf>,
}

impl Lab {
    fn new() -> Lab {
        Lab { scratch: tempfile::tempdir().unwrap(), layers: Vec::new() }
    }

    fn form(&self) -> Form {
        Form::probe(open(self.scratch.path()).as_fd()).unwrap()
    }

    fn extractor(&self, limits: Limits) -> Extractor {
        let path = self.scratch.path().join(self.layers.len().to_string());
        std::fs::create_dir(&path).unwrap();
        Extractor::new(open(&path), self.form(), &Budget::new(limits))
    }

    fn lay(&mut self, entries: impl IntoIterator<Item = Entry>, limits: Limits) -> Result<FinishedLayer> {
        let mut extractor = self.extractor(limits);
        extractor.apply(&mut Reader::new(archive(entries).as_slice()))?;
        let below: Vec<&PathBuf> = self.layers.iter().rev().collect();
        let finished = finish_layer(extractor, &Stack::open(&below, self.form())?)?;
        self.layers.push(self.scratch.path().join(self.layers.len().to_string()));
        Ok(finished)
    }
}

/// As in Docker: `lib/y` is not put where the link led.
#[test]
fn a_directory_in_place_of_a_symlink_gets_the_files_that_follow() {
    let mut lab = Lab::new();
    let symlink = entry(EntryKind::Symlink, "lib", "usr/lib");
    let entries = [folder("usr"), folder("usr/lib"), symlink, file("lib/x"), folder("lib"), file("lib/y")];
    lab.lay(entries, Limits::default()).unwrap();
    let exists = |path: &str| lab.layers[0].join(path).exists();
    assert_eq!(["usr/lib/x", "lib/y", "usr/lib/y", "lib/x"].map(exists), [true, true, false, false]);
}

fn open(path: &Path) -> OwnedFd {
    std::fs::File::open(path).unwrap().into()
}

fn busy() -> Duration {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

/// All pairs would be four hundred million. Few links: each takes its time in the kernel.
#[test]
fn many_whiteouts_and_many_links_do_not_multiply() {
    let lab = Lab::new();
    let mut extractor = lab.extractor(Limits::default());
    let whiteouts = (0..20_000).map(|n| file(&format!(".wh.w{n}")));
    let links = (0..20_000).map(|n| link(&format!("l{n}"), "target"));
    let archive = archive(whiteouts.chain(links));
    let before = busy();
    extractor.apply(&mut Reader::new(archive.as_slice())).unwrap();
    let took = busy() - before;
    // An emulated machine is slower.
    let patience = std::env::var("BRIG_TEST_PATIENCE").map_or(1, |times| times.parse().unwrap());
    assert!(took < Duration::from_secs(10 * patience), "{took:?}");
}

/// A few bytes make a path of four thousand bytes with a folder for each part.
#[test]
fn what_is_remembered_of_paths_is_bounded() {
    let limits = Limits { paths: 128 << 10, ..Limits::default() };
    let refused = |what: &str, entries: Vec<Entry>| {
        let mut lab = Lab::new();
        lab.lay([file("x")], limits).unwrap();
        let refused = lab.lay(entries, limits).unwrap_err();
        assert!(refused.to_string().contains("more than 131072 bytes to remember"), "{what}: {refused}");
        assert!(refused.advice().is_some_and(|advice| advice.contains("--limit")), "{what}: {refused:?}");
    };
    let deep = ["d/"; 200].concat();
    refused("implied folders", (0..9).map(|n| file(&format!("{n}/{deep}f"))).collect());
    let long = format!("{}/{}", "a".repeat(200), "b".repeat(200));
    refused("whiteouts", (0..400).map(|n| file(&format!("{long}/.wh.{n}"))).collect());
    refused("folders", (0..400).map(|n| folder(&format!("{long}/{n}"))).collect());
    refused("links", (0..900).map(|n| link(&format!("{}{n}", "l".repeat(200)), "x")).collect());
    // A repeated path is recorded once.
    for again in [|| file(".wh.x"), || file(".wh..wh..opq"), || folder("a")] {
        Lab::new().lay((0..3_000).map(|_| again()), limits).unwrap();
    }
}

/// No user namespace has the id that the list names.
#[test]
fn acl_with_an_unknown_id_is_skipped_if_files_have_no_owners() {
    let user_id = [0xff_u8; 4];
    let acl = [&[2, 0, 0, 0, 2, 0, 7, 0][..], &user_id].concat();
    let entries = || {
        let xattrs = vec![(b"system.posix_acl_access".to_vec(), acl.clone())];
        let archive = archive([Entry { xattrs: xattrs.clone(), ..folder("d") }, Entry { xattrs, ..file("f") }]);
        std::io::Cursor::new(archive)
    };
    let lab = Lab::new();
    let mut extractor = lab.extractor(Limits::default());
    extractor.form.owners = Owners::Caller;
    extractor.apply(&mut Reader::new(entries())).unwrap();
    assert_eq!(extractor.skipped.attributes, 2);
    let lab = Lab::new();
    let mut extractor = lab.extractor(Limits::default());
    extractor.form.owners = Owners::Image;
    extractor.apply(&mut Reader::new(entries())).unwrap_err();
}

/// The rest is read only to distinguish a damaged blob from a wrong one.
#[test]
fn a_refused_blob_is_not_read_to_its_end_if_that_is_far() {
    let refuse = |size: u64| {
        let budget = Budget::new(Limits::default());
        let blob = Box::new(std::io::repeat(0xaa).take(size));
        let refused = |_: &mut _| Err::<(), Error>(Error::new(Kind::Image, "refused"));
        decode(blob, Algorithm::Sha256, Some(size), &budget, refused)
    };
    let (outcome, measured) = refuse(1 << 20).unwrap();
    assert_eq!((outcome.unwrap_err().to_string().as_str(), measured.blob_size), ("refused", 1 << 20));
    assert_eq!(refuse(1 << 40).unwrap_err().to_string(), "refused");
}

/// The store or the bundle may be below a directory with the set-group-ID bit.
#[test]
fn a_group_is_what_the_image_says_also_below_a_directory_that_hands_on_its_own() {
    if !rustix::process::geteuid().is_root() {
        return crate::sys::skip("to give folders to a group: needs root");
    }
    let mut lab = Lab::new();
    std::os::unix::fs::chown(lab.scratch.path(), None, Some(1000)).unwrap();
    std::fs::set_permissions(lab.scratch.path(), PermissionsExt::from_mode(0o2775)).unwrap();
    let shared = Entry { gid: 1000, mode: 0o2775, ..folder("shared") };
    let entries = [shared, file("shared/f"), file("shared/implied/f"), link("shared/l", "shared/f"), file(".wh.gone")];
    let fifo = entry(EntryKind::Fifo, "shared/fifo", "");
    lab.lay([file("gone"), file("lower")], Limits::default()).unwrap();
    lab.lay(entries.into_iter().chain([fifo, link("shared/copied", "lower")]), Limits::default()).unwrap();
    let look = |path: &str| {
        let found = std::fs::symlink_metadata(lab.layers[1].join(path)).unwrap();
        (found.mode() & 0o7777, found.gid())
    };
    assert_eq!(look(""), (0o755, 0));
    assert_eq!(look("shared"), (0o2775, 1000));
    for path in ["shared/f", "shared/implied", "shared/implied/f", "shared/fifo", "shared/copied"] {
        assert_eq!(look(path), (0o755, 0), "{path}");
    }
    assert_eq!(look("gone").1, 0);
}
