//! Hostile images: what they try, and that nothing outside the root is touched, read or waited for.
//!
//! Each row is one image of tests/image/make.py. Rows that must be refused name the reason; the others must unpack with
//! the canary whole. Where a guard is one switch, the same image is shown to succeed on a weakened build.

use crate::support::{self, Ran, Scratch, is_root, skipped};
use std::time::Duration;

/// Loads and unpacks, both ways; returns the errors of the three steps.
fn try_image(scratch: &Scratch, weaken: &str, case: &str) -> [Ran; 3] {
    let layout = scratch.layout(case, &scratch.path("canary"));
    let direct = format!("oci:{layout}");
    let tag = if weaken.is_empty() { "a" } else { "b" };
    [
        scratch.weakened(weaken, &["load", &layout, "--name", "x"]),
        scratch.weakened(weaken, &["unpack", "x", &scratch.path(&format!("copied-{tag}"))]),
        scratch.weakened(weaken, &["unpack", &direct, &scratch.path(&format!("moved-{tag}"))]),
    ]
}

fn harmless(case: &str) {
    let scratch = Scratch::new();
    scratch.canary();
    for step in try_image(&scratch, "", case) {
        step.good();
    }
    scratch.canary_is_whole().unwrap_or_else(|listed| panic!("{case} hurt the canary:\n{listed}"));
}

fn refused(case: &str, reason: &str) {
    let scratch = Scratch::new();
    scratch.canary();
    let [load, _, direct] = try_image(&scratch, "", case);
    load.refused(reason);
    direct.refused(reason);
    scratch.canary_is_whole().unwrap_or_else(|listed| panic!("{case} hurt the canary:\n{listed}"));
    let left = std::fs::read_dir(scratch.path("store/layers")).map_or(0, Iterator::count);
    assert!(left <= 1, "{case} left more than its harmless first layer");
    assert!(!std::path::Path::new(&scratch.path("moved-a")).exists(), "{case} left a bundle");
}

/// T-50: CVE-2014-6407, -6408, -9356, -9357, CVE-2018-20990, CVE-2021-38511.
#[test]
fn paths_stay_inside_the_root() {
    for case in [
        "symlink-parent",
        "relative-symlink-parent",
        "symlink-below",
        "whiteout-through-symlink",
        "whiteout-through-own-symlink",
        "opaque-through-symlink",
        "absolute",
        "hardlink-overwrite",
    ] {
        harmless(case);
    }
    for (case, reason) in [
        ("dotdot", "its path leads out of the root"),
        ("dotdot-inside", "its path leads out of the root"),
        ("hardlink-outside", "its path leads out of the root"),
        ("hardlink-absolute", "a file that no layer has"),
        ("hardlink-through-symlink", "a file that no layer has"),
        ("hardlink-directory", "a hard link to a directory"),
        ("hardlink-whiteout", "a file that this layer removes"),
        ("whiteout-of-dotdot", "a whiteout of no name"),
        ("whiteout-of-dot", "a whiteout of no name"),
        ("whiteout-of-nothing", "a whiteout of no name"),
        ("loop", "too many symlinks"),
        ("file-parent", "is not a directory"),
    ] {
        refused(case, reason);
    }
}

/// What a symlink of the image points to is inside the image.
#[test]
fn a_file_behind_a_symlink_lands_where_the_link_leads_inside() {
    let scratch = Scratch::new();
    let canary = scratch.canary();
    for (number, case) in ["symlink-parent", "symlink-below"].into_iter().enumerate() {
        let layout = scratch.layout(case, &canary);
        let bundle = scratch.path(&format!("bundle{number}"));
        scratch.image(&["unpack", &format!("oci:{layout}"), &bundle]).good();
        assert_eq!(std::fs::read(format!("{bundle}/rootfs{canary}/pwned")).unwrap(), b"pwned");
    }
}

/// The guard is shown to matter: with paths resolved by the host, the same image writes outside.
#[test]
fn without_its_resolver_the_same_image_escapes() {
    if skipped("the feature `weakened`", cfg!(feature = "weakened")) {
        return;
    }
    let scratch = Scratch::new();
    scratch.canary();
    try_image(&scratch, "image-symlinks", "symlink-parent");
    assert!(scratch.canary_is_whole().is_err(), "the attack of T-50 needs no guard");
}

/// T-51, CVE-2021-29136.
#[test]
fn the_root_is_never_replaced() {
    refused("root-symlink", "the root of the image must be a directory");
    refused("root-symlink-filled", "the root of the image must be a directory");
    refused("root-file", "the root of the image must be a directory");
}

/// T-52, CVE-2021-32760, CVE-2026-33056.
#[test]
fn a_mode_is_never_set_through_a_link() {
    harmless("chmod-through-symlink");
}

/// T-36, T-38, T-38b, T-39: attacks by a configuration and by account files.
#[test]
fn a_config_cannot_reach_the_host() {
    for (case, reason) in [
        ("volume", "leads upwards"),
        ("user2147483648", "is not between 0 and"),
        ("user4294967295", "is not between 0 and"),
        ("user4294967296", "is not between 0 and"),
        ("user-1", "is not between 0 and"),
        ("user-crafted", "is not between 0 and"),
        ("user-by-name", "is not between 0 and"),
        ("passwd-fifo", "is not a regular file"),
        ("passwd-sparse", "is longer than"),
        ("passwd-host", "unable to find user canary"),
    ] {
        let scratch = Scratch::new();
        scratch.canary();
        let [load, copied, moved] = try_image(&scratch, "", case);
        load.good();
        for step in [copied.refused(reason), moved.refused(reason)] {
            assert!(step.took < Duration::from_secs(10), "{case} took {:?}", step.took);
        }
    }
    if !skipped("root", is_root()) {
        let scratch = Scratch::new();
        let [_, copied, _] = try_image(&scratch, "", "passwd-zero");
        copied.refused("is not a regular file");
    }
}

/// T-25: annotations are how the maker of a bundle speaks to a runtime.
#[test]
fn a_label_that_a_runtime_would_obey_is_no_annotation() {
    let scratch = Scratch::new();
    for step in try_image(&scratch, "", "labels") {
        step.good();
    }
    for bundle in ["copied-a", "moved-a"] {
        let config = std::fs::read(scratch.path(&format!("{bundle}/config.json"))).unwrap();
        let config: serde_json::Value = serde_json::from_slice(&config).unwrap();
        let names: Vec<&String> = config["annotations"].as_object().unwrap().keys().collect();
        assert_eq!(names, ["maintainer", "org.opencontainers.image.architecture", "org.opencontainers.image.os"]);
    }
}

/// Below it lie set-id files of the image's owners.
#[test]
fn a_bundle_is_open_to_its_maker_alone_or_as_its_directory_was() {
    use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
    let scratch = Scratch::new();
    let layout = scratch.layout("plain", "");
    scratch.image(&["load", &layout, "--name", "x"]).good();
    let look = |path: &str| {
        let found = std::fs::metadata(path).unwrap();
        (format!("{:o}", found.mode() & 0o7777), found.uid(), found.gid())
    };
    let own = look(&scratch.path("store"));
    for (number, image) in ["x", &format!("oci:{layout}")].into_iter().enumerate() {
        let fresh = scratch.path(&format!("fresh-{number}"));
        scratch.image(&["unpack", image, &fresh]).good();
        assert_eq!(look(&fresh), ("700".to_owned(), own.1, own.2));
        for mode in [0o700, 0o755, 0o500] {
            let there = scratch.path(&format!("there-{number}-{mode:o}"));
            std::fs::create_dir(&there).unwrap();
            if !skipped("root", is_root()) {
                chown(&there, Some(1000), Some(1001)).unwrap();
            }
            std::fs::set_permissions(&there, PermissionsExt::from_mode(mode)).unwrap();
            let before = look(&there);
            scratch.image(&["unpack", image, &there]).good();
            assert_eq!(look(&there), before);
            assert!(std::path::Path::new(&format!("{there}/config.json")).exists());
        }
    }
}

#[test]
fn without_its_checks_a_config_does_what_it_wants() {
    if skipped("the feature `weakened`", cfg!(feature = "weakened")) {
        return;
    }
    for (switch, case, shown) in [
        ("image-user-range", "user4294967296", "\"uid\": 0"),
        ("image-user-name", "user-crafted", "\"uid\": 0"),
        ("image-volume-path", "volume", "/../../../etc"),
    ] {
        let scratch = Scratch::new();
        try_image(&scratch, switch, case)[2].status.eq(&0).then_some(()).expect(case);
        let config = std::fs::read_to_string(scratch.path("moved-b/config.json")).unwrap();
        assert!(config.contains(shown), "{case}: {config}");
    }
}

/// T-41, CVE-2026-95838. The bound is for an optimised build; an unoptimised one gets five times as long.
#[test]
fn many_opaque_marks_take_no_time() {
    let scratch = Scratch::new();
    let layout = scratch.layout("many-opaque", "");
    let took = scratch.image(&["load", &layout, "--name", "x"]).good().took;
    assert!(took < Duration::from_secs(if cfg!(debug_assertions) { 10 } else { 2 }), "{took:?}");
}

/// T-54, T-55, T-57: CVE-2021-41190, CVE-2023-25153, CVE-2024-3727.
#[test]
fn documents_that_lie_are_refused() {
    for (case, reason) in [
        ("ambiguous", "both `manifests` and `layers`"),
        ("lies-about-itself", "announced was"),
        ("schema1", "schema 1 is not supported"),
        ("artifact", "it is an artifact"),
        ("missing-layer", "0 layers and its config 1"),
        ("wrong-size", "where 5 were announced"),
        ("huge-index", "is longer than"),
        ("huge-layout", "is longer than"),
        ("traversal", "../../x"),
        ("traversal-read", "../../../canary/file"),
        ("corrupt", "its content is `sha256:"),
        ("wrong-diff", "it unpacks to `sha256:"),
    ] {
        refused(case, reason);
    }
}

/// Other images brought both: what is saved would not be what runs.
#[test]
fn layer_and_blob_of_different_images_are_refused() {
    let scratch = Scratch::new();
    for (name, layers) in [("own", "own,own"), ("other", "other,other")] {
        scratch.image(&["load", &scratch.layout("borrowed", layers), "--name", name]).good();
    }
    let layout = scratch.layout("borrowed", "own,other");
    for _ in 0..2 {
        scratch.image(&["load", &layout, "--name", "x"]).refused("it unpacks to `sha256:");
    }
    scratch.image(&["inspect", "x"]).refused("x");
    scratch.image(&["verify"]).good();
}

/// Four layers of one size, whose streams are hashed together where the processor gains by it: each has its own digest
/// all the same.
#[test]
fn one_wrong_layer_among_those_that_are_hashed_together_is_refused() {
    for (case, reason) in
        [("corrupt-of-four", "its content is `sha256:"), ("wrong-diff-of-four", "it unpacks to `sha256:")]
    {
        let scratch = Scratch::new();
        scratch.canary();
        let [load, _, direct] = try_image(&scratch, "", case);
        load.refused(reason);
        direct.refused(reason);
        scratch.image(&["inspect", "x"]).refused("x");
        assert!(!std::path::Path::new(&scratch.path("moved-a")).exists(), "{case} left a bundle");
    }
}

/// Blobs of a layout that are symlinks to files of the host.
#[test]
fn a_layout_cannot_borrow_files_of_the_host() {
    let scratch = Scratch::new();
    std::fs::create_dir(scratch.path("canary")).unwrap();
    let [load, ..] = try_image(&scratch, "", "linked-blob");
    load.refused("symbolic links");
}

/// T-58, T-59, T-61, T-62.
#[test]
fn archives_that_readers_disagree_about_are_refused() {
    for (case, reason) in [
        ("pax-malformed", "a record that does not parse"),
        ("pax-twice", "two extended headers"),
        ("pax-and-long-name", "it has two names"),
        ("pax-and-long-link", "it has two names"),
        ("pax-taken-back", "twice, or takes it back"),
        ("pax-sparse-name", "holes in no version"),
        ("size-with-nul", "begins with a NUL"),
        ("gnu-prefix", "whether its name has a prefix"),
        ("plain-and-zstd", "its type is a plain tar"),
        ("tar-and-zstd", "begins as a compressed blob"),
        ("plain-and-gzip", "its type is a plain tar"),
        ("pax-huge", "1048576 are allowed"),
        ("xattr-long", "extended attribute is too large"),
        ("xattr-name", "name is empty or too long"),
        ("device-number", "is out of range"),
        ("directory-with-data", "is not a file and has data"),
        ("unknown-type", "unknown type"),
    ] {
        refused(case, reason);
    }
}

/// T-58, CVE-2025-62518: the same entries that GNU tar sees.
#[test]
fn a_size_in_an_extended_header_smuggles_nothing() {
    let scratch = Scratch::new();
    let layout = scratch.layout("pax-size", "");
    let bundle = scratch.path("bundle");
    scratch.image(&["unpack", &format!("oci:{layout}"), &bundle]).good();
    let names: Vec<_> =
        std::fs::read_dir(format!("{bundle}/rootfs")).unwrap().map(|each| each.unwrap().file_name()).collect();
    assert!(names.iter().any(|name| name == "last") && !names.iter().any(|name| name == "smuggled"), "{names:?}");
    assert_eq!(std::fs::metadata(format!("{bundle}/rootfs/outer")).unwrap().len(), 1536);
    // GNU tar's listing of the same layer.
    let listing = "cd \"$1\"/blobs/sha256 && for blob in *; do gzip -dc $blob 2>/dev/null | tar t 2>/dev/null; done";
    let gnu = support::run(std::process::Command::new("sh").args(["-c", listing, "sh", &layout]));
    assert!(gnu.out.contains("last") && !gnu.out.contains("smuggled"), "{}", gnu.out);
}

/// An image must not control overlayfs: a redirect or an opaque mark would show other files than it has.
#[test]
fn attributes_of_overlayfs_are_dropped() {
    let marks = |scratch: &Scratch| {
        let show = format!("getfattr -R -h -d -m '.*overlay.*|selinux' {} 2>/dev/null", scratch.path("store/layers"));
        support::run(std::process::Command::new("sh").args(["-c", &show])).out
    };
    if skipped("getfattr", support::has("getfattr")) {
        return;
    }
    let scratch = Scratch::new();
    try_image(&scratch, "", "overlay-attributes");
    assert!(!marks(&scratch).contains("redirect") && !marks(&scratch).contains("x:y:z"), "{}", marks(&scratch));
    if skipped("the feature `weakened`", cfg!(feature = "weakened")) {
        return;
    }
    let scratch = Scratch::new();
    try_image(&scratch, "image-overlay-attributes", "overlay-attributes");
    assert!(marks(&scratch).contains("overlay.redirect"), "the attack needs no guard");
}

#[test]
fn bombs_are_refused_before_they_fill_the_disk() {
    refused("bomb-depth", "levels deep");
    refused("bomb-depth-by-symlink", "levels deep");
    refused("bomb-name", "4096 are allowed");
    let scratch = Scratch::new();
    let layout = scratch.layout("bomb-entries", "");
    scratch.image(&["load", &layout, "--limit", "entries=100"]).refused("more than 100 entries");
    scratch.image(&["load", &layout, "--limit", "bytes=1000"]).refused("more than 1000 bytes");
    scratch.image(&["load", &layout]).good();
    let layout = scratch.layout("bomb-ratio", "");
    scratch.image(&["load", &layout, "--limit", "ratio=100"]).refused("over 100 times as much");
}

/// Each layer is small, and there may be a hundred: all count together, also copies of a lower layer by hard links.
#[test]
fn layers_are_counted_together() {
    let scratch = Scratch::new();
    let three = scratch.layout("rows", "f:a | f:b | f:c");
    let large = "x".repeat(50_000);
    let copies = scratch.layout("rows", &format!("f:X={large} | h:A>X | h:B>X | h:C>X"));
    let folders = scratch.layout("rows", "d:a | d:b");
    for (number, (layout, limit, reason)) in [
        (&folders, "paths=200", "more than 200 bytes to remember"),
        (&three, "bytes=25000", "the image unpacks to more than 25000 bytes"),
        (&three, "entries=2", "the image has more than 2 entries"),
        (&copies, "bytes=150000", "the image unpacks to more than 150000 bytes"),
    ]
    .into_iter()
    .enumerate()
    {
        scratch.image(&["load", layout, "--limit", limit]).refused(reason);
        let target = scratch.path(&format!("bundle-{number}"));
        let refused = scratch.image(&["unpack", &format!("oci:{layout}"), &target, "--limit", limit]).refused(reason);
        assert!(refused.err.contains("--limit"), "{}", refused.err);
    }
    // What is there from the tries before is counted as well, and is not too much.
    scratch.image(&["load", &three, "--limit", "bytes=31000", "--limit", "entries=3"]).good();
    scratch.image(&["load", &copies, "--limit", "bytes=300000"]).good();
}

/// Without its digest check a corrupt layer would be taken.
#[test]
fn without_digests_a_corrupt_layer_is_not_noticed() {
    if skipped("the feature `weakened`", cfg!(feature = "weakened")) {
        return;
    }
    let scratch = Scratch::new();
    for case in ["wrong-diff", "wrong-diff-of-four"] {
        let [load, ..] = try_image(&scratch, "image-digest", case);
        assert_eq!(load.status, 0, "{case}: the check was still there: {}", load.err);
    }
    let scratch = Scratch::new();
    let [load, ..] = try_image(&scratch, "image-ambiguous", "ambiguous");
    assert!(!load.err.contains("both `manifests`"), "{}", load.err);
}
