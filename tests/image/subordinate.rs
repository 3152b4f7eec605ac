//! An ordinary user with subordinate ids (/etc/subuid): files have the image's owners, in the store and unpacked.

use crate::support::{Scratch, assert_same, has, is_root, list, run, script, skipped};
use serde_json::json;
use std::process::Command;

/// The user with id 12345 and the range from 300000, by these files of `/etc`.
const WHO: [(&str, &str); 4] = [
    ("passwd", "subject:x:12345:12345::/:/bin/sh"),
    ("group", "subject:x:12345:"),
    ("subuid", "subject:300000:65536"),
    ("subgid", "subject:300000:65536"),
];

#[test]
fn with_subordinate_ids_files_have_the_owners_that_the_image_says() {
    if skipped("root, to become somebody else, and newuidmap", is_root() && has("setpriv") && has("newuidmap")) {
        return;
    }
    let scratch = Scratch::new();
    let layout = scratch.layout("plain", "");
    let layered = scratch.layout("layered", "gzip");
    let (at, own, brig) = (scratch.path(""), scratch.path("own"), scratch.path("brig"));
    std::fs::create_dir(&own).unwrap();
    std::fs::copy(env!("CARGO_BIN_EXE_brig"), &brig).unwrap();
    let mut cover = String::new();
    for (name, line) in WHO {
        let place = format!("/etc/{name}");
        let before = std::fs::read_to_string(&place).unwrap_or_default();
        std::fs::write(scratch.path(name), format!("{before}{line}\n")).unwrap();
        // A mount point must exist; an empty file has no effect.
        cover += &format!("touch {place} && mount --bind {at}/{name} {place} && ");
    }
    run(Command::new("chmod").args(["-R", "a+rX", &at])).good();
    run(Command::new("chown").args(["12345:12345", &own])).good();
    let user = |text: &str| {
        let text = format!("cd {own}; brig() {{ {brig} image --store {own}/store --subuid \"$@\"; }}; {text}");
        let become_user = "exec setpriv --reuid=12345 --regid=12345 --clear-groups sh -ec \"$TEXT\"";
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private", "sh", "-ec", &format!("{cover}{become_user}")]);
        run(command.env("TEXT", text).env("HOME", &own).env("BRIG_WEAKEN", ""))
    };
    user(&format!("brig load {layout} --name x; brig load {layered} --name l; brig unpack x a; brig unpack oci:{layout} b; brig verify")).good();
    let tree = list(&format!("{own}/a/rootfs"), &[]);
    for wanted in ["'bin/su' 0o104755 12345:12345", "'bin/ping' 0o100755 300006:300007", "'srv' 0o42775 300004:300049"]
    {
        assert!(tree.contains(wanted), "{wanted} is not in\n{tree}");
    }
    // For the root of the namespace of these ids alone: revision 3, whose last four bytes are the user's id
    // (capabilities(7)).
    assert!(tree.contains("'security.capability': '0100000300200000000000000000000000000000"), "{tree}");
    assert!(tree.contains("39300000'") && !tree.contains("'null'"), "{tree}");
    assert_same(&tree, &list(&format!("{own}/b/rootfs"), &[]), "copied from the store and unpacked directly");
    // The bundle is for a namespace of these ids, and runs in it as the image's user.
    let config = std::fs::read_to_string(format!("{own}/a/config.json")).unwrap();
    let config: serde_json::Value = serde_json::from_str(&config).unwrap();
    let line = |first: u32, outside: u32, size: u32| json!({ "containerID": first, "hostID": outside, "size": size });
    assert_eq!(config["linux"]["uidMappings"], json!([line(0, 12345, 1), line(1, 300_000, 65_536)]));
    assert_eq!(config["linux"]["gidMappings"], config["linux"]["uidMappings"]);
    assert_eq!(config["process"]["user"], json!({ "uid": 1000, "gid": 1000, "additionalGids": [1000, 27] }));
    let runnable = scratch.layout("runnable", "");
    run(Command::new("chmod").args(["-R", "a+rX", &runnable])).good();
    let ran =
        user(&format!("brig unpack oci:{runnable} r; {brig} --root {own}/records run --bundle r subordinate")).good();
    assert_eq!(ran.out.lines().last(), Some("hello"), "{}", ran.err);
    // What the store keeps is what an overlay in a namespace of these ids shows.
    let list_script = script("list.py").display().to_string();
    let shown = format!(
        "brig unpack l la; lower=$(brig inspect l | grep -o '/.*layers/.*/fs' | paste -sd:); mkdir e m; \
         unshare --user --map-root-user --map-auto --mount sh -ec \"python3 {list_script} la/rootfs >la.txt; \
         mount -t overlay o -o userxattr,lowerdir=$lower:e m; python3 {list_script} m >m.txt\"; diff la.txt m.txt; test -s m.txt"
    );
    user(&shown).good();
    let refused = user(&format!("{brig} run --store {own}/store --image x -- true"));
    assert!(
        refused.err.contains("files of many owners") && refused.err.contains("without --subuid"),
        "{}",
        refused.err
    );
    let gone = user("brig rm x; brig rm l; brig prune; ls store/layers | wc -l").good();
    assert!(gone.out.trim_end().ends_with('0'), "{}", gone.out);
}
