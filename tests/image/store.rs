//! The store: many at once, crashes at any moment, leases, verification, what goes in comes out.

use crate::support::{
    Scratch, assert_same, brig, has, is_root, kill_somewhere, kills, left_over, list, run, script, skipped,
};
use std::process::Command;
use std::time::Duration;

#[test]
fn a_killed_load_or_prune_leaves_a_store_that_verifies_and_goes_on() {
    let scratch = Scratch::new();
    let layout = scratch.layout("random-large", "3");
    let full = scratch.image(&["load", &layout, "--name", "x"]).good().took;
    for round in 0..kills() {
        scratch.image(&["rm", "x"]);
        kill_somewhere(brig(&scratch, &["prune"]), round, Duration::from_millis(20));
        kill_somewhere(brig(&scratch, &["load", &layout, "--name", "x"]), round, full.mul_f64(1.2));
        let verified = scratch.image(&["verify"]).good();
        assert!(!verified.out.contains("damaged"), "round {round}: {}", verified.out);
        scratch.image(&["load", &layout, "--name", "x"]).good();
        assert!(scratch.image(&["verify"]).good().out.contains("1 image, 3 layers"), "round {round}");
    }
    scratch.image(&["prune"]).good();
    assert_eq!(left_over(&scratch), Vec::<String>::new());
}

#[test]
fn a_killed_unpack_leaves_no_bundle_that_looks_whole() {
    let scratch = Scratch::new();
    let layout = scratch.layout("random-large", "4");
    let direct = format!("oci:{layout}");
    let full = scratch.image(&["unpack", &direct, &scratch.path("whole")]).good().took;
    let wanted = list(&scratch.path("whole/rootfs"), &[]);
    for round in 0..kills() {
        let target = scratch.path(&format!("bundle-{round}"));
        kill_somewhere(brig(&scratch, &["unpack", &direct, &target]), round, full.mul_f64(1.2));
        if std::path::Path::new(&target).exists() {
            assert_same(&list(&format!("{target}/rootfs"), &[]), &wanted, "a bundle that is there");
        }
        let target = scratch.path(&format!("again-{round}"));
        scratch.image(&["unpack", &direct, &target]).good();
    }
}

#[test]
fn many_at_once_load_the_same_and_the_store_is_whole() {
    let scratch = Scratch::new();
    let layout = scratch.layout("layered", "gzip");
    let children: Vec<_> = (0..6)
        .map(|number| brig(&scratch, &["load", &layout, "--name", &format!("x:{number}")]).spawn().unwrap())
        .collect();
    for mut child in children {
        assert!(child.wait().unwrap().success());
    }
    assert!(scratch.image(&["verify"]).good().out.contains("1 image, 3 layers"));
    assert_eq!(scratch.image(&["ls"]).good().out.lines().count(), 7);
}

#[test]
fn what_is_in_use_is_not_pruned() {
    let scratch = Scratch::new();
    let layout = scratch.layout("layered", "gzip");
    let digest =
        scratch.image(&["load", &layout, "--name", "x"]).good().out.split_whitespace().next().unwrap().to_owned();
    // A sandbox holds the image's directory locked, as Store::resolve does.
    let path = scratch.path(&format!("store/images/{}", digest.strip_prefix("sha256:").unwrap()));
    let lease = std::fs::File::open(&path).unwrap();
    rustix::fs::flock(&lease, rustix::fs::FlockOperation::LockShared).unwrap();
    let removed = scratch.image(&["rm", "x"]).good();
    assert!(removed.out.contains("untagged x:latest") && !removed.out.contains("removed"), "{}", removed.out);
    let pruned = scratch.image(&["prune"]).good();
    assert!(pruned.out.contains(&format!("in use {digest}")), "{}", pruned.out);
    scratch.image(&["verify"]).good();
    if !skipped("the feature `weakened`", cfg!(feature = "weakened")) {
        assert!(
            scratch.weakened("image-lease", &["prune"]).good().out.contains("removed sha256:"),
            "the lease guards nothing"
        );
        return;
    }
    drop(lease);
    assert!(scratch.image(&["prune"]).good().out.contains(&format!("removed {digest}")));
    assert_eq!(std::fs::read_dir(scratch.path("store/layers")).unwrap().count(), 0);
}

#[test]
fn damage_is_found_and_mended() {
    let scratch = Scratch::new();
    let layout = scratch.layout("layered", "gzip");
    scratch.image(&["load", &layout, "--name", "x"]).good();
    let inspected: serde_json::Value = serde_json::from_str(&scratch.image(&["inspect", "x"]).good().out).unwrap();
    let top = inspected[0]["layers"][0].as_str().unwrap();
    std::fs::write(format!("{top}/d/stays"), "tampered").unwrap();
    let refused = scratch.image(&["verify"]).refused("1 faults");
    assert!(refused.out.contains("/d/stays"), "{}", refused.out);
    assert!(scratch.image(&["verify", "--repair"]).good().out.contains("repaired"));
    scratch.image(&["verify"]).good();
    let blob = inspected[0]["layer_blobs"][0]["digest"].as_str().unwrap().replace("sha256:", "store/blobs/sha256/");
    let mut bytes = std::fs::read(scratch.path(&blob)).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 255;
    std::fs::write(scratch.path(&blob), bytes).unwrap();
    scratch.image(&["verify"]).refused("1 faults");
    scratch.image(&["verify", "--repair"]).refused("1 faults");
    scratch.image(&["load", &layout]).good();
    scratch.image(&["verify"]).good();
}

/// Not only the image that is named: any that has the layer.
#[test]
fn a_layer_that_is_in_use_is_not_replaced() {
    let scratch = Scratch::new();
    let load = |seed: &str| {
        let layout = scratch.layout("shared", seed);
        scratch.image(&["load", &layout, "--name", seed]).good().out.split_whitespace().next().unwrap().to_owned()
    };
    let (one, _) = (load("a"), load("bb"));
    let inspected: serde_json::Value = serde_json::from_str(&scratch.image(&["inspect", "bb"]).good().out).unwrap();
    let bottom = inspected[0]["layers"].as_array().unwrap().last().unwrap().as_str().unwrap().to_owned();
    std::fs::write(format!("{bottom}/more"), "tampered").unwrap();
    // A sandbox holds the image's directory locked, as Store::resolve does.
    let lease = std::fs::File::open(scratch.path(&format!("store/images/{}", &one[7..]))).unwrap();
    rustix::fs::flock(&lease, rustix::fs::FlockOperation::LockShared).unwrap();
    let in_sandbox = std::fs::File::open(&bottom).unwrap();
    let refused = scratch.image(&["verify", "bb", "--repair"]).refused("1 faults");
    assert!(refused.out.contains("/more") && refused.out.contains("in use, not repaired"), "{}", refused.out);
    assert!(refused.err.contains("when that has ended"), "{}", refused.err);
    assert!(std::path::Path::new(&format!("{bottom}/more")).exists());
    let links = |file: &std::fs::File| std::os::unix::fs::MetadataExt::nlink(&file.metadata().unwrap());
    assert!(links(&in_sandbox) > 0, "the folder was deleted");
    drop(lease);
    assert!(scratch.image(&["verify", "bb", "--repair"]).good().out.contains("repaired"));
    assert_eq!(links(&in_sandbox), 0, "the control: nothing was replaced");
    scratch.image(&["verify"]).good();
}

/// A removed file shown again, or write access for all, is damage too, though no content has changed.
#[test]
fn a_lost_mark_and_an_opened_root_are_damage() {
    let scratch = Scratch::new();
    let layout = scratch.layout("layered", "gzip");
    scratch.image(&["load", &layout, "--name", "x"]).good();
    let inspected: serde_json::Value = serde_json::from_str(&scratch.image(&["inspect", "x"]).good().out).unwrap();
    let middle = inspected[0]["layers"][1].as_str().unwrap();
    let mark = if is_root() { "trusted.overlay.opaque" } else { "user.overlay.opaque" };
    let verified = |fault: &str| {
        let refused = scratch.image(&["verify"]).refused("1 faults");
        assert!(refused.out.contains(fault), "{}", refused.out);
        assert!(scratch.image(&["verify", "--repair"]).good().out.contains("repaired"));
        scratch.image(&["verify"]).good();
    };
    rustix::fs::removexattr(format!("{middle}/o"), mark).unwrap();
    verified("`/o/` has other attributes");
    std::fs::set_permissions(middle, std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
    verified("`/` has another type or mode");
}

/// After a power cut, layers that were not synced are made again before they are used.
#[test]
fn a_layer_of_another_boot_is_made_again() {
    let scratch = Scratch::new();
    let layout = scratch.layout("layered", "gzip");
    let digest =
        scratch.image(&["load", &layout, "--name", "x"]).good().out.split_whitespace().next().unwrap().to_owned();
    let inspected: serde_json::Value = serde_json::from_str(&scratch.image(&["inspect", "x"]).good().out).unwrap();
    let mut records = vec![scratch.path(&format!("store/images/{}/image.json", &digest[7..]))];
    let layers: Vec<&str> =
        inspected[0]["layers"].as_array().unwrap().iter().map(|layer| layer.as_str().unwrap()).collect();
    records.extend(layers.iter().map(|path| path.replace("/fs", "/layer.json")));
    for record in records {
        let text = std::fs::read_to_string(&record).unwrap();
        let mut value: serde_json::Value = serde_json::from_str(&text).unwrap();
        value["unsynced_boot"] = "another".into();
        std::fs::write(&record, value.to_string()).unwrap();
    }
    std::fs::write(format!("{}/d/stays", layers[0]), "").unwrap();
    scratch.image(&["unpack", "x", &scratch.path("bundle")]).good();
    assert_eq!(std::fs::read(scratch.path("bundle/rootfs/d/stays")).unwrap(), b"changed");
    scratch.image(&["verify"]).good();
}

#[test]
fn what_is_saved_is_loaded_here_and_elsewhere() {
    let scratch = Scratch::new();
    let layout = scratch.layout("layered", "gzip");
    let digest = scratch.image(&["load", &layout, "--name", "tool:1"]).good().out;
    let (one, two) = (scratch.path("one.tar"), scratch.path("two.tar"));
    scratch.image(&["save", "tool:1", "-o", &one]).good();
    scratch.image(&["save", "tool:1", "-o", &two]).good();
    assert!(std::fs::read(&one).unwrap() == std::fs::read(&two).unwrap(), "two savings differ");
    let other = Scratch::new();
    assert_eq!(other.image(&["load", &one]).good().out, digest);
    assert!(other.image(&["ls"]).good().out.contains("tool:1"));
    if skipped("skopeo", has("skopeo")) {
        return;
    }
    // Others read it in both of its forms, and we read what they write.
    for form in ["oci-archive", "docker-archive"] {
        let archive = scratch.path(&format!("{form}.tar"));
        let back = format!("{form}:{archive}:tool:1");
        run(Command::new("skopeo").args(["--insecure-policy", "copy", "-q", &format!("{form}:{one}"), &back])).good();
        let store = Scratch::new();
        store.image(&["load", &archive, "--name", "tool:1"]).good();
        store.image(&["unpack", "tool:1", &store.path("bundle")]).good();
        scratch.image(&["unpack", "tool:1", &scratch.path(form)]).good();
        let ours = list(&scratch.path(&format!("{form}/rootfs")), &[]);
        assert_same(&ours, &list(&store.path("bundle/rootfs"), &[]), form);
    }
}

#[test]
fn standard_input_is_loaded() {
    let scratch = Scratch::new();
    let layout = scratch.layout("layered", "gzip");
    let text = format!(
        "tar -C {layout} -c . | {} image --store {} load --name piped",
        env!("CARGO_BIN_EXE_brig"),
        scratch.path("store")
    );
    run(Command::new("sh").args(["-c", &text])).good();
    assert!(scratch.image(&["ls"]).good().out.contains("piped:latest"));
}

#[test]
fn an_imported_root_comes_out_as_it_was() {
    if skipped("root", is_root()) {
        return;
    }
    let scratch = Scratch::new();
    let layout = scratch.layout("plain", "");
    let (first, second, third) = (scratch.path("first"), scratch.path("second"), scratch.path("third"));
    scratch.image(&["unpack", &format!("oci:{layout}"), &first]).good();
    let root = format!("{first}/rootfs");
    scratch.image(&["import", &root, "folder", "--user", "me", "--", "/bin/sh", "-l"]).good();
    scratch.image(&["unpack", "folder", &second]).good();
    assert_same(&list(&root, &[]), &list(&format!("{second}/rootfs"), &[]), "an imported folder");
    let again = scratch.image(&["import", &root, "again", "--user", "me", "--", "/bin/sh", "-l"]).good().out;
    assert_eq!(scratch.image(&["import", &root, "folder", "--user", "me", "--", "/bin/sh", "-l"]).good().out, again);
    let tar = scratch.path("root.tar");
    run(Command::new("tar").args(["--xattrs", "--xattrs-include=*", "--numeric-owner", "-C", &root, "-cf", &tar, "."]))
        .good();
    scratch.image(&["import", &tar, "tar"]).good();
    scratch.image(&["unpack", "tar", &third]).good();
    assert_same(&list(&root, &[]), &list(&format!("{third}/rootfs"), &[]), "an imported tar");
}

/// A store in another container, whose file system is an overlay, and which no kernel mounts with other owners: the
/// task has a copy.
#[test]
fn where_layers_cannot_be_shown_with_other_owners_their_files_are_copied() {
    if skipped("root", is_root()) {
        return;
    }
    let scratch = Scratch::new();
    let layout = scratch.layout("runnable", "");
    for name in ["lower", "upper", "work", "seen"] {
        std::fs::create_dir(scratch.path(name)).unwrap();
    }
    let (brig, at) = (env!("CARGO_BIN_EXE_brig"), scratch.path(""));
    let text = format!(
        "mount -t tmpfs none {at}/upper && mkdir {at}/upper/u {at}/upper/w && \
         mount -t overlay none -o lowerdir={at}/lower,upperdir={at}/upper/u,workdir={at}/upper/w {at}/seen || exit 9; s={at}/seen/store; \
         {brig} image --store $s load {layout} --name x && \
         {brig} run --store $s --image x -- sh -c '/bin/busybox stat -c %u:%g:%a /bin/busybox; echo new > /tmp/made && cat /tmp/made' && \
         {brig} run --store $s --explain --image x -- true | grep -o 'copied for this task: .*idmapped mounts'; \
         {brig} run --store $s --image x -- touch /bin/busybox; echo status $?; ls -A $s/temporary | grep -c ^.brig; \
         {brig} task show --store $s --json $({brig} task ls --store $s --json | grep -o '\"id\": *\"[a-z0-9]*\"' | head -1 | cut -d'\"' -f4) | grep '\"copied\"'"
    );
    let ran = run(Command::new("unshare").args(["-m", "sh", "-c", &text]).env("BRIG_WEAKEN", ""));
    assert!(ran.err.contains("note: all files of the image `x` are copied for this task"), "{} {}", ran.out, ran.err);
    assert!(ran.out.contains("0:0:755\nnew\ncopied for this task: "), "{} {}", ran.out, ran.err);
    assert!(ran.out.contains("\n0\n") && ran.out.contains("\"copied\": true"), "{} {}", ran.out, ran.err);
}

/// The same for an ordinary user. No overlay takes an overlay of an overlay as a layer (`FILESYSTEM_MAX_STACK_DEPTH` is
/// 2), so the copy is in memory.
#[test]
fn where_an_ordinary_user_cannot_mount_layers_their_files_are_copied_into_memory() {
    if skipped("root, to mount overlays and to become somebody else", is_root() && has("setpriv")) {
        return;
    }
    let scratch = Scratch::new();
    let layout = scratch.layout("stacked", "");
    for name in ["bottom", "memory", "first", "second"] {
        std::fs::create_dir(scratch.path(name)).unwrap();
    }
    let (at, brig) = (scratch.path(""), scratch.path("brig"));
    std::fs::copy(env!("CARGO_BIN_EXE_brig"), &brig).unwrap();
    run(Command::new("chmod").args(["-R", "a+rX", &at])).good();
    let as_user = format!(
        "s={at}/second/own/store; run=\"{brig} run --store $s --allow-degraded memory,swap,pids,cpus,cpu_time --image x\"; \
         {brig} image --store $s load {layout} --name x >/dev/null; \
         lower=$({brig} image --store $s inspect x | grep -o '/.*layers/.*/fs' | head -n 1); \
         unshare -Urm mount -t overlay none -o userxattr,lowerdir=$lower:$s/blobs {at}/bottom 2>/dev/null && echo taken; \
         $run -- 'cd /data; busybox ls; busybox stat -c %h:%a one; [ one -ef two ] && echo linked; busybox ls /old; busybox stat -c %a /old /shut; \
                 [ $(busybox stat -c %u one) = $(busybox id -u) ] && echo mine; echo more >>one; busybox cat one; busybox chmod 700 /shut && busybox ls /shut'; \
         $run --explain -- true | grep -o 'copied for this task into memory'; $run --explain --memory 1M -- true; echo explained $?; \
         $run --memory 1M -- true; echo status $?; $run -- 'busybox cat /data/two'; $run -- 'busybox sleep 60' & \
         until {brig} task ls --store $s --json | grep -q '\"running\"'; do :; done; kill -9 $!; \
         for try in 1 2 3 4 5 6 7 8 9; do {brig} task ls --store $s >/dev/null; {brig} doctor --leaks --store $s && break; sleep 0.3; done; \
         echo leaks $?; \
         for id in $(ls $s/tasks); do {brig} task show --store $s --json $id | grep -E '\"(copied|outcome)\":'; done"
    );
    let text = format!(
        "mount -t tmpfs none {at}/memory && cd {at}/memory && mkdir u1 w1 u2 w2 && \
         mount -t overlay none -o lowerdir={at}/bottom,upperdir=u1,workdir=w1 {at}/first && \
         mount -t overlay none -o lowerdir={at}/first,upperdir=u2,workdir=w2 {at}/second || exit 9; \
         mkdir {at}/second/own && chown 12345:12345 {at}/second/own && cd / && \
         exec setpriv --reuid=12345 --regid=12345 --clear-groups env HOME={at}/second/own sh -c \"$AS_USER\""
    );
    let ran =
        run(Command::new("unshare").args(["-m", "sh", "-c", &text]).env("AS_USER", as_user).env("BRIG_WEAKEN", ""));
    let told = format!("{} {}", ran.out, ran.err);
    assert!(!ran.out.contains("taken"), "the control: an overlay takes these layers here, so nothing is shown: {told}");
    assert!(ran.err.contains("note: all files of the image `x` are copied for this task into memory"), "{told}");
    let seen = "one\ntwo\n2:640\nlinked\nb\n750\n0\nmine\none\nmore\nin\n";
    assert!(ran.out.starts_with(seen), "{told}");
    assert!(ran.err.contains("the memory limit is 1048576 bytes"), "{told}");
    assert!(ran.out.contains("copied for this task into memory\nexplained 125\n"), "{told}");
    assert!(ran.out.contains("status 125\none\n"), "the copy of one task is another's: {told}");
    assert!(ran.out.contains("leaks 0\n") && ran.out.ends_with("\"copied\": true,\n"), "{told}");
    assert!(ran.out.contains("\"outcome\": \"lost\""), "{told}");
}

#[test]
fn a_full_disk_says_so_and_leaves_nothing_half_done() {
    if skipped("root", is_root()) {
        return;
    }
    let scratch = Scratch::new();
    let layout = scratch.layout("random-large", "5");
    let small = scratch.path("small");
    std::fs::create_dir(&small).unwrap();
    let brig = env!("CARGO_BIN_EXE_brig");
    let text = format!(
        "mount -t tmpfs -o size=100k none {small} || exit 9; {brig} image --store {small}/s load {layout} --name x; echo status $?; \
         ls {small}/s/layers | wc -l; {brig} image --store {small}/s ls --json"
    );
    let ran = run(Command::new("unshare").args(["-m", "sh", "-c", &text]));
    assert!(ran.err.contains("No space left on device") && ran.err.contains("E-DISK"), "{} {}", ran.out, ran.err);
    assert!(ran.out.contains("status 125") && ran.out.trim_end().ends_with("[]"), "{}", ran.out);
    // What is unpacked from elsewhere has no name before it is whole.
    scratch.image(&["load", &layout, "--name", "x"]).good();
    for source in ["x", &format!("oci:{layout}")] {
        let store = scratch.path("store");
        let text = format!(
            "mount -t tmpfs -o size=100k none {small} || exit 9; {brig} image --store {store} unpack {source} {small}/b; echo status $?; ls {small}"
        );
        let ran = run(Command::new("unshare").args(["-m", "sh", "-c", &text]));
        assert!(ran.err.contains("No space left on device") && ran.err.contains("E-DISK"), "{} {}", ran.out, ran.err);
        assert_eq!(ran.out, "status 125\n", "{source}");
    }
}

/// 64 MB whatever the image's size: this one is of 140 MiB, each file of it larger than that.
#[test]
fn a_large_image_is_loaded_and_unpacked_in_little_memory() {
    if skipped("python3", has("python3")) {
        return;
    }
    let scratch = Scratch::new();
    let layout = scratch.layout("large", "");
    let measure = "import resource, subprocess, sys; status = subprocess.run(sys.argv[1:], stdout=2).returncode; \
                   print(status, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)";
    let peak = |arguments: &[&str]| {
        let brig = brig(&scratch, arguments);
        let measured = run(Command::new("python3").args(["-c", measure]).arg(brig.get_program()).args(brig.get_args()));
        let (status, kibibytes) = measured.out.trim().split_once(' ').unwrap();
        assert_eq!(status, "0", "{}", measured.err);
        kibibytes.parse::<u64>().unwrap() << 10
    };
    let straight = format!("oci:{layout}");
    let (one, two) = (scratch.path("one"), scratch.path("two"));
    for arguments in [["load", &layout, "--name=x"], ["unpack", "x", &one], ["unpack", &straight, &two]] {
        let peak = peak(&arguments);
        assert!(peak < 64_000_000, "{arguments:?}: {peak} bytes");
    }
}

#[test]
fn a_terminal_sees_bars_and_a_file_plain_lines() {
    let scratch = Scratch::new();
    let layout = scratch.layout("random-large", "6");
    let plain = scratch.image(&["load", &layout, "--name", "x"]).good().err;
    assert!(plain.contains(": done\n") && !plain.contains(['\r', '\x1b', '█']), "{plain:?}");
    scratch.image(&["rm", "x"]).good();
    scratch.image(&["prune"]).good();
    let (brig, store) = (env!("CARGO_BIN_EXE_brig"), scratch.path("store"));
    let line = format!("stty cols 120 rows 30; {brig} image --store {store} load {layout} --name x >/dev/null");
    let seen = run(Command::new("script").args(["-qec", &line, "/dev/null"]).env("TERM", "xterm")).good().out;
    assert!(seen.contains("█") && seen.contains(" of ") && seen.contains("done"), "{seen:?}");
    let line = line.replace(" load ", " --quiet load ");
    assert_eq!(run(Command::new("script").args(["-qec", &line, "/dev/null"])).good().out, "");
}

/// As a user: everything works, with the user's own id or with subordinate ones.
#[test]
fn without_root_everything_works() {
    if skipped("root, to become somebody else", is_root() && has("setpriv")) {
        return;
    }
    let scratch = Scratch::new();
    let layout = scratch.layout("plain", "");
    let own = scratch.path("own");
    std::fs::create_dir(&own).unwrap();
    let brig = scratch.path("brig");
    std::fs::copy(env!("CARGO_BIN_EXE_brig"), &brig).unwrap();
    run(Command::new("chmod").args(["-R", "a+rX", &scratch.path("")])).good();
    run(Command::new("chown").args(["12345:12345", &own])).good();
    let list = script("list.py").display().to_string();
    let user = |text: &str| {
        let text = format!("cd {own} && brig() {{ {brig} image --store {own}/store \"$@\"; }} && {text}");
        run(Command::new("setpriv")
            .args(["--reuid=12345", "--regid=12345", "--clear-groups", "sh", "-ec", &text])
            .env("HOME", &own))
    };
    let text = format!(
        "brig load {layout} --name x >/dev/null; brig unpack x a; brig unpack oci:{layout} b; brig verify; brig tag x y; brig save y -o y.tar; \
         brig import {own}/b/rootfs/etc z; brig rm y; grep hostID b/config.json | head -1; unshare -Ur python3 {list} a/rootfs > a.txt; \
         unshare -Ur python3 {list} b/rootfs > b.txt; cmp a.txt b.txt; cat a.txt"
    );
    let ran = user(&text).good();
    assert!(ran.out.contains("1 image, 1 layer") && ran.out.contains("12345"), "{} {}", ran.out, ran.err);
    assert!(ran.out.contains("'bin/su' 0o104755") && !ran.out.contains("'null'"), "{}", ran.out);
    // What the store keeps is what an overlay in a user namespace shows.
    let mounted = format!(
        "lower=$(brig inspect x | grep -o '/.*layers/.*/fs'); mkdir e m; unshare -Urm sh -ec \"mount -t overlay o -o userxattr,lowerdir=$lower:e m; \
         python3 {list} m\" > m.txt; cmp a.txt m.txt"
    );
    user(&mounted).good();
    let layered = scratch.layout("layered", "gzip");
    run(Command::new("chmod").args(["-R", "a+rX", &layered])).good();
    let mounted = format!(
        "brig load {layered} --name l >/dev/null; brig unpack l la; lower=$(brig inspect l | grep -o '/.*layers/.*/fs' | paste -sd:); mkdir -p e m; \
         unshare -Urm sh -ec \"mount -t overlay o -o userxattr,lowerdir=$lower:e m; python3 {list} m\" > m.txt; \
         unshare -Ur python3 {list} la/rootfs > la.txt; diff la.txt m.txt; brig rm x; brig rm l; brig rm z; brig prune; ls store/layers | wc -l"
    );
    let ran = user(&mounted).good();
    assert!(ran.out.trim_end().ends_with('0'), "{}", ran.out);
}
