//! The attacks of attacks.rs on builds without their guard: each must get through, or its test shows nothing.

use crate::support::{self, Ran, Scratch, is_root, run, skipped};
use std::process::Command;

/// Unpacks an image of make.py without a guard, into `bundle` of the scratch.
fn without(guard: &str, case: &str) -> Option<(Scratch, Ran)> {
    if skipped("the feature `weakened`", cfg!(feature = "weakened")) {
        return None;
    }
    let scratch = Scratch::new();
    let canary = scratch.canary();
    let layout = scratch.layout(case, &canary);
    let ran = scratch.weakened(guard, &["unpack", &format!("oci:{layout}"), &scratch.path("bundle")]);
    Some((scratch, ran))
}

/// T-41: 100 000 marks, each of which makes it go through 2000 files.
#[test]
fn marks_that_count_each_time_take_minutes() {
    if skipped("the feature `weakened`", cfg!(feature = "weakened")) {
        return;
    }
    let scratch = Scratch::new();
    let layout = scratch.layout("many-opaque", "");
    let mut command = Command::new("timeout");
    command.args(["--signal=KILL", "11", env!("CARGO_BIN_EXE_brig"), "image", "--store", &scratch.path("store")]);
    let ran = run(command.args(["load", &layout]).env("BRIG_WEAKEN", "image-opaque-once"));
    // timeout ends itself by the signal too.
    assert!(ran.status != 0 && ran.took.as_secs() >= 11, "{} {:?} {}", ran.status, ran.took, ran.err);
}

/// T-57: a record that lies outside is taken for one of the store. Of a document the parser would refuse such a digest
/// as well.
#[test]
fn a_digest_that_is_a_path_leads_out_of_the_store() {
    if skipped("the feature `weakened`", cfg!(feature = "weakened")) {
        return;
    }
    let scratch = Scratch::new();
    let layout = scratch.layout("layered", "gzip");
    scratch.image(&["load", &layout, "--name", "x"]).good();
    let record = std::fs::read_dir(scratch.path("store/images")).unwrap().next().unwrap().unwrap().path();
    std::fs::rename(record, scratch.path("elsewhere")).unwrap();
    let inspect = |guard: &str| scratch.weakened(guard, &["inspect", "sha256:../../elsewhere"]);
    inspect("").refused("the store has no such image");
    let ran = inspect("image-digest-grammar").good();
    assert!(ran.out.contains("\"layers\""), "{}", ran.out);
}

/// T-51.
#[test]
fn a_root_that_is_a_link_leads_out() {
    let Some((scratch, ran)) = without("image-root-entry", "root-symlink-filled") else { return };
    assert!(std::path::Path::new(&scratch.path("canary/pwned")).exists(), "{}", ran.err);
}

/// T-52.
#[test]
fn a_mode_goes_through_a_link() {
    let Some((scratch, ran)) = without("image-mode-of-link", "chmod-through-symlink") else { return };
    let listed = scratch.canary_is_whole().expect_err(&ran.err);
    assert!(listed.contains("'file' 0o100777"), "{listed}");
}

/// T-55: a sparse file of two gigabytes is read into memory, of which there is half of one.
#[test]
fn a_huge_document_takes_all_memory() {
    if skipped("the feature `weakened`", cfg!(feature = "weakened")) {
        return;
    }
    let scratch = Scratch::new();
    let layout = scratch.layout("huge-index", "");
    let load = |guard: &str| {
        let mut command = Command::new("prlimit");
        command.args([
            "--as=500000000",
            "--core=0",
            env!("CARGO_BIN_EXE_brig"),
            "image",
            "--store",
            &scratch.path("store"),
        ]);
        run(command.args(["load", &layout]).env("BRIG_WEAKEN", guard))
    };
    load("").refused("is longer than");
    let ran = load("image-document-size");
    assert!(!ran.err.contains("is longer than") && ran.status != 0, "{} {}", ran.status, ran.err);
    assert!(ran.err.contains("memory"), "{} {}", ran.status, ran.err);
}

/// T-58.
#[test]
fn a_size_that_is_passed_over_smuggles_an_entry() {
    let Some((scratch, ran)) = without("image-pax-size", "pax-size") else { return };
    ran.good();
    assert!(std::path::Path::new(&scratch.path("bundle/rootfs/smuggled")).exists());
}

/// T-59.
#[test]
fn a_record_that_does_not_parse_is_passed_over() {
    let Some((_, ran)) = without("image-pax-records", "pax-malformed") else { return };
    ran.good();
}

/// T-61: it gets as far as the kernel.
#[test]
fn an_attribute_without_bounds_is_handed_to_the_kernel() {
    let Some((_, ran)) = without("image-attribute-size", "xattr-long") else { return };
    assert!(ran.err.contains("set the attribute `user.x`"), "{}", ran.err);
}

/// T-62: the number is cut off, and names another device.
#[test]
fn a_device_number_that_is_too_large_is_another_device() {
    if skipped("root", is_root()) {
        return;
    }
    let Some((scratch, ran)) = without("image-device-number", "device-number") else { return };
    ran.good();
    let listed = support::list(&scratch.path("bundle/rootfs"), &[]);
    assert!(listed.lines().any(|line| line.starts_with("'dev'") && line.contains(" 1:")), "{listed}");
}

/// T-58: each is an archive in which another reader sees something else.
#[test]
fn archives_that_readers_disagree_about_are_read_in_one_way() {
    let cases = [
        "pax-and-long-name",
        "pax-and-long-link",
        "pax-taken-back",
        "pax-sparse-name",
        "size-with-nul",
        "gnu-prefix",
        "plain-and-zstd",
        "tar-and-zstd",
        "plain-and-gzip",
    ];
    for case in cases {
        let Some((_, ran)) = without("image-tar-readers", case) else { return };
        ran.good();
    }
}
