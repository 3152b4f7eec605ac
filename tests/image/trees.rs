//! What an image unpacks to, compared with what others make of it: umoci, Docker, buildah, and overlayfs itself over
//! the store's layers.

use crate::support::{self, Ran, Scratch, assert_same, has, is_root, list, run, skipped};
use std::process::Command;

/// Random images; CI may want more.
const SEEDS: u32 = 12;

/// The tree of an overlay of the store's layers, mounted in a separate namespace.
fn mounted(scratch: &Scratch, options: &str, unshare: &str) -> Ran {
    let inspected: serde_json::Value = serde_json::from_str(&scratch.image(&["inspect", "x"]).good().out).unwrap();
    let layers: Vec<&str> =
        inspected[0]["layers"].as_array().unwrap().iter().map(|layer| layer.as_str().unwrap()).collect();
    let (empty, target) = (scratch.path("empty"), scratch.path("mounted"));
    std::fs::create_dir_all(&empty).unwrap();
    std::fs::create_dir_all(&target).unwrap();
    let lower = layers.join(":");
    let list = support::script("list.py").display().to_string();
    let text =
        format!("mount -t overlay overlay -o {options}lowerdir={lower}:{empty} {target} && python3 {list} {target}");
    run(Command::new("unshare").args([unshare, "sh", "-c", &text]))
}

/// Whether umoci has unpacked it too.
fn compare(case: &str, argument: &str) -> bool {
    let scratch = Scratch::new();
    let layout = scratch.layout(case, argument);
    let (copied, moved, umoci) = (scratch.path("copied"), scratch.path("moved"), scratch.path("umoci"));
    scratch.image(&["load", &layout, "--name", "x"]).good();
    scratch.image(&["unpack", "x", &copied]).good();
    scratch.image(&["unpack", &format!("oci:{layout}"), &moved]).good();
    let (copied, moved) = (format!("{copied}/rootfs"), format!("{moved}/rootfs"));
    let tree = list(&copied, &[]);
    assert_same(&tree, &list(&moved, &[]), &format!("{case} {argument}: copied from the store and unpacked directly"));
    assert_same(&tree, &mounted(&scratch, "", "-m").good().out, &format!("{case} {argument}: unpacked and mounted"));
    if run(Command::new("umoci").args(["unpack", "--image", &format!("{layout}:t"), &umoci])).status != 0 {
        // It knows no zstd, and refuses some links that are fine.
        eprintln!("umoci cannot unpack {case} {argument}");
        return false;
    }
    // Times of directories that no entry mentions are the moment of unpacking there. A time that ext4 cannot keep comes
    // out as 1901 there, and as the latest possible one here.
    let without = |text: String| text.lines().filter(|line| !line.starts_with("'far'")).collect::<Vec<_>>().join("\n");
    let theirs = without(list(&format!("{umoci}/rootfs"), &["nodirtimes"]));
    assert_same(&without(list(&copied, &["nodirtimes"])), &theirs, &format!("{case} {argument}: ours and umoci's"));
    // A layer that is made again is the same, also in what no other program would show.
    scratch.image(&["verify"]).good();
    true
}

fn ready() -> bool {
    !skipped("root", is_root()) && !skipped("umoci", has("umoci"))
}

#[test]
fn an_ordinary_image_is_unpacked_with_everything_it_has() {
    if !ready() {
        return;
    }
    compare("plain", "");
    let scratch = Scratch::new();
    let layout = scratch.layout("plain", "");
    let bundle = scratch.path("bundle");
    scratch.image(&["unpack", &format!("oci:{layout}"), &bundle]).good();
    let tree = list(&format!("{bundle}/rootfs"), &[]);
    for wanted in [
        "'bin/su' 0o104755",
        "'srv' 0o42775 5:50",
        "'tmp' 0o41777",
        "'null' 0o20666 0:0 0 1600000000000000000 1:3",
        "'security.capability': '0100000200200000000000000000000000000000'",
        "'user.note': '6f6e650a74776f'",
        "'pipe' 0o10600",
        "'old' 0o100644 0:0 1 -86400500000000",
        "'lib' 0o120777",
        "'usr/lib/a.so'",
        "'secret' 0o40000",
    ] {
        assert!(tree.contains(wanted), "{wanted} is not in\n{tree}");
    }
    let config: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(format!("{bundle}/config.json")).unwrap()).unwrap();
    let process = &config["process"];
    assert_eq!(process["user"], serde_json::json!({ "uid": 1000, "gid": 1000, "additionalGids": [1000, 27] }));
    assert_eq!(process["args"], serde_json::json!(["/bin/sh"]));
    assert_eq!(process["cwd"], "/srv");
    assert_eq!(config["annotations"]["org.opencontainers.image.stopSignal"], "SIGINT");
    assert_eq!(config["annotations"]["org.opencontainers.image.exposedPorts"], "80/tcp");
}

#[test]
fn layers_change_what_is_below_whatever_they_are_packed_with() {
    if !ready() {
        return;
    }
    for pack in ["gzip", "none", "members"] {
        compare("layered", pack);
    }
    if !skipped("zstd", has("zstd")) {
        compare("layered", "zstd");
        compare("layered", "mislabelled");
    }
}

/// Names that come several times, or by way of a symlink of the layer below, in an order that no packer has to avoid.
#[test]
fn the_order_of_entries_decides_as_it_does_for_others() {
    if !ready() {
        return;
    }
    for layers in [
        // Folders that no entry mentions, behind a symlink below: theirs are the metadata of the real ones.
        "d:usr d:usr/lib d:usr/lib/x:755:5:5 f:usr/lib/x/libc s:lib>usr/lib | f:lib/x/new",
        "d:usr d:usr/lib d:usr/lib/x:711:5:5 d:usr/lib/x/y:750:6:7 s:lib>usr/lib | f:lib/x/y/z/new f:lib/x/other",
        "d:a d:a/x:700:5:5 s:z>a | f:z/x/new",
        "d:x:711:5:5 s:here>. | f:here/x/new",
        "d:b d:b/x:711:5:5 d:a s:a/l>../b | f:a/l/x/y/new",
        "d:usr d:usr/lib f:usr/lib/old s:lib>usr/lib | f:lib/.wh..wh..opq f:lib/new",
        // A whiteout that gives way to a folder goes on hiding.
        "d:foo f:foo/old | f:.wh.foo f:foo/bar d:foo:750",
        "d:foo f:foo/old | f:.wh.foo f:foo/bar",
        "d:foo:711:5:5 d:foo/sub f:foo/sub/old | f:.wh.foo f:foo/sub/bar d:foo/sub:750",
        "f:other | f:.wh.foo f:foo/bar",
        "f:other | f:.wh.foo f:foo/bar d:foo",
        // The last hard link of a name counts, and one to a name is one to what that was then.
        "f:X=x f:Y=y | h:A>X h:A>Y",
        "f:X=x f:Y=y | h:A>X h:B>A h:A>Y",
        "f:X=old | h:A>X f:X=new f:A=own",
        "f:X=old | h:A>X f:X=new h:B>A",
        "f:X=x | h:A>X f:.wh.X",
        "f:X=x f:A=a | h:A>X f:.wh.A",
        "f:X=x f:A=a | f:.wh.A h:A>X",
        "f:X=x d:A f:A/old | h:A>X d:A f:A/new",
        "f:X=x | d:A h:A/B>X h:A>X h:B>A",
        "d:d f:d/X=x d:e | h:A>d/X f:.wh.d",
        "d:d f:d/X=x d:e | h:A>d/X s:d>e",
        "d:d f:d/X=x | h:A>d/X f:d/.wh..wh..opq f:d/new",
        "d:usr f:usr/X=x s:lib>usr | h:A>lib/X h:B>usr/X",
    ] {
        assert!(compare("rows", layers), "umoci cannot unpack {layers}");
    }
}

/// A hard link is never a folder, also before it is made.
#[test]
fn nothing_is_put_into_a_hard_link() {
    let scratch = Scratch::new();
    let layout = scratch.layout("rows", "f:X=x | h:A>X f:A/f");
    scratch.image(&["load", &layout]).refused("its parent `A` is not a directory");
}

#[test]
fn random_images_unpack_as_umoci_and_overlayfs_show_them() {
    if !ready() {
        return;
    }
    for seed in 1..=SEEDS {
        compare("random", &seed.to_string());
    }
}

#[test]
fn an_image_of_umocis_is_what_umoci_unpacks() {
    if !ready() {
        return;
    }
    let scratch = Scratch::new();
    let layout = scratch.path("made");
    let text = format!(
        "umoci init --layout {layout}; umoci new --image {layout}:t; umoci unpack --image {layout}:t first; cd first/rootfs; \
         mkdir -p bin etc gone; echo one >bin/one; ln bin/one bin/two; ln -s one bin/link; chmod 4755 bin/one; chown 7:8 etc; echo x >gone/x; \
         setfattr -n user.note -v text bin/one; mkfifo pipe; truncate -s 8M sparse; cd ../..; umoci repack --image {layout}:t first; \
         umoci unpack --image {layout}:t second; cd second/rootfs; rm -r gone; mkdir gone; echo y >gone/y; rm bin/link; echo two >>bin/one; \
         cd ../..; umoci repack --image {layout}:t second; umoci config --image {layout}:t --config.user 7:8 --config.cmd /bin/one; \
         umoci unpack --image {layout}:t third"
    );
    run(Command::new("sh").args(["-ec", &text]).current_dir(scratch.path(""))).good();
    let theirs = list(&scratch.path("third/rootfs"), &["nodirtimes"]);
    for wanted in ["'bin/two'", "'user.note'", "'gone/y'", "'pipe'"] {
        assert!(theirs.contains(wanted), "{wanted} is not in\n{theirs}");
    }
    assert!(!theirs.contains("'gone/x'") && !theirs.contains("'bin/link'"), "{theirs}");
    scratch.image(&["load", &layout, "--name", "x"]).good();
    for (reference, name) in [("x", "copied"), (&*format!("oci:{layout}"), "moved")] {
        let target = scratch.path(name);
        scratch.image(&["unpack", reference, &target]).good();
        let ours = list(&format!("{target}/rootfs"), &["nodirtimes"]);
        assert_same(&ours, &theirs, &format!("{reference}: ours and umoci's"));
        let config = std::fs::read_to_string(format!("{target}/config.json")).unwrap();
        let config: serde_json::Value = serde_json::from_str(&config).unwrap();
        assert_eq!((&config["process"]["user"]["uid"], &config["process"]["args"][0]), (&7.into(), &"/bin/one".into()));
    }
}

/// copy_file_range(2) refuses it since Linux 5.19 where the kinds of the file systems differ.
#[test]
fn an_image_is_unpacked_onto_another_file_system_than_the_stores() {
    if skipped("root", is_root()) {
        return;
    }
    let scratch = Scratch::new();
    let layout = scratch.layout("plain", "");
    scratch.image(&["load", &layout, "--name", "x"]).good();
    let (here, there) = (scratch.path("here"), scratch.path("there"));
    scratch.image(&["unpack", "x", &here]).good();
    let (brig, store) = (env!("CARGO_BIN_EXE_brig"), scratch.path("store"));
    let list_script = support::script("list.py").display().to_string();
    std::fs::create_dir(&there).unwrap();
    for source in ["x", &format!("oci:{layout}")] {
        let text = format!(
            "mount -t tmpfs none {there} && {brig} image --store {store} unpack {source} {there}/b >&2 && python3 {list_script} {there}/b/rootfs"
        );
        let ran = run(Command::new("unshare").args(["-m", "sh", "-c", &text])).good();
        assert_same(
            &list(&format!("{here}/rootfs"), &[]),
            &ran.out,
            &format!("{source}: in the store's place and in memory"),
        );
    }
}

#[test]
fn of_an_index_the_platform_decides() {
    let scratch = Scratch::new();
    let layout = scratch.layout("multi", "");
    let bundle = scratch.path("bundle");
    scratch.image(&["load", &layout, "--name", "m", "--platform", "linux/arm64"]).good();
    scratch.image(&["unpack", "m", &bundle]).good();
    assert_eq!(std::fs::read(format!("{bundle}/rootfs/platform")).unwrap(), b"arm64");
    let refused = scratch.image(&["load", &layout, "--platform", "linux/s390x"]).refused("no image for linux/s390x");
    assert!(refused.err.contains("only for linux/arm64, linux/amd64"), "{}", refused.err);
}

#[test]
fn a_directory_with_something_in_it_is_not_unpacked_into() {
    let scratch = Scratch::new();
    let layout = scratch.layout("layered", "gzip");
    let target = scratch.path("full");
    std::fs::create_dir(&target).unwrap();
    std::fs::write(format!("{target}/mine"), "x").unwrap();
    scratch.image(&["unpack", &format!("oci:{layout}"), &target]).refused("the directory is not empty");
    assert_eq!(std::fs::read_dir(&target).unwrap().count(), 1);
}
