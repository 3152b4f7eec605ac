//! Every mount option, as the kernel shows it: alone, reverted, with submounts, and owners by an id map.

use crate::fields::through;
use crate::support::{Done, Lab};
use serde_json::json;
use std::collections::BTreeSet;

/// The options of the mounts at and below `place`, in the order of the table, with those of the whole file system.
fn options(table: &str, place: &str) -> Vec<BTreeSet<String>> {
    let lines = table.lines().filter_map(|line| {
        let fields: Vec<_> = line.split(' ').collect();
        let is_there = fields.get(4).is_some_and(|at| *at == place || at.starts_with(&format!("{place}/")));
        let whole = fields.last().filter(|_| is_there)?;
        Some(fields[5].split(',').chain(whole.split(',')).map(str::to_owned).collect())
    });
    lines.collect()
}

#[test]
fn every_word_for_one_mount_is_on_it_and_its_opposite_takes_it_back() {
    let Some(mut lab) = Lab::new() else { return };
    let cases: [(&[&str], &str, &str); 30] = [
        (&[], "rw relatime", "nosuid nodev noexec"),
        (&["ro"], "ro", ""),
        (&["ro", "rw"], "rw", "ro"),
        (&["nosuid"], "nosuid", ""),
        (&["nosuid", "suid"], "rw", "nosuid"),
        (&["nodev"], "nodev", ""),
        (&["nodev", "dev"], "rw", "nodev"),
        (&["noexec"], "noexec", ""),
        (&["noexec", "exec"], "rw", "noexec"),
        (&["nosymfollow"], "nosymfollow", ""),
        (&["nosymfollow", "symfollow"], "rw", "nosymfollow"),
        (&["noatime"], "noatime", "relatime"),
        (&["noatime", "atime"], "relatime", "noatime"),
        (&["noatime", "relatime"], "noatime", "relatime"),
        (&["norelatime"], "relatime", "noatime"),
        (&["strictatime"], "rw", "relatime noatime"),
        (&["strictatime", "nostrictatime"], "relatime", "noatime"),
        (&["nodiratime"], "nodiratime", ""),
        (&["nodiratime", "diratime"], "rw", "nodiratime"),
        (&["sync"], "sync", ""),
        (&["async"], "rw", "sync"),
        (&["dirsync"], "dirsync", ""),
        (&["lazytime"], "lazytime", ""),
        (&["nolazytime", "noiversion", "nomand", "loud"], "rw", "lazytime mand"),
        (&["defaults", "silent", "iversion"], "rw relatime", "nosuid"),
        (&["_netdev", "auto", "noauto", "nofail", "nouser", "user", "users"], "rw", ""),
        (&["size=64k", "mode=700"], "size=64k mode=700", ""),
        (&["nosuid,nodev"], "", ""),
        (&["size=64k,mode=700", "ro", "noexec"], "size=64k mode=700 ro noexec", ""),
        (&["remount", "ro"], "", ""),
    ];
    let good = lab.config.clone();
    for (words, present, absent) in cases {
        // One string is not a list, and no mount exists to be changed: these two are refused.
        let is_wrong = words == ["nosuid,nodev"] || words.contains(&"remount");
        lab.config = good.clone();
        lab.mount("/on", "tmpfs", "tmpfs", words);
        let done = lab.sh("cat /proc/self/mountinfo").run();
        if is_wrong {
            assert_ne!(done.status, 0, "{words:?}");
            continue;
        }
        let found = options(&done.succeeded().out, "/on").remove(0);
        for word in present.split(' ').filter(|word| !word.is_empty()) {
            assert!(found.contains(word), "{words:?}: {word} is not in {found:?}");
        }
        for word in absent.split(' ').filter(|word| !word.is_empty()) {
            assert!(!found.contains(word), "{words:?}: {word} is in {found:?}");
        }
    }
    lab.config = good;
}

/// Runs the container where `source` of the bundle has a file system below it.
fn below(lab: &Lab) -> Done {
    let shell = "unshare -m /bin/sh -c 'mount --make-rprivate / && mount -t tmpfs tmpfs source/inner && touch source/inner/file && \"$@\"' sh \"$@\"";
    through(lab, &["run", &lab.id], shell)
}

fn with_source() -> Option<Lab> {
    let lab = Lab::new()?;
    std::fs::create_dir_all(lab.path().join("source/inner")).unwrap();
    std::fs::write(lab.path().join("source/file"), "").unwrap();
    Some(lab)
}

#[test]
fn a_word_for_all_mounts_below_is_on_each_and_any_other_on_the_first() {
    let Some(mut lab) = with_source() else { return };
    let source = lab.path().join("source").display().to_string();
    let good = lab.config.clone();
    for (words, present, absent) in [
        (&["rro"][..], "ro", ""),
        (&["rro", "rrw"], "rw", "ro"),
        (&["rnosuid", "rnodev", "rnoexec"], "nosuid nodev noexec", ""),
        (&["rnosuid", "rsuid", "rnodev", "rdev", "rnoexec", "rexec"], "rw", "nosuid nodev noexec"),
        (&["rnosymfollow"], "nosymfollow", ""),
        (&["rnosymfollow", "rsymfollow"], "rw", "nosymfollow"),
        (&["rnoatime"], "noatime", "relatime"),
        (&["rnoatime", "ratime"], "relatime", "noatime"),
        (&["rnoatime", "rrelatime"], "relatime", "noatime"),
        (&["rstrictatime"], "rw", "relatime noatime"),
        (&["rnorelatime"], "relatime", "noatime"),
        (&["rstrictatime", "rnostrictatime"], "relatime", ""),
        (&["rnodiratime"], "nodiratime", ""),
        (&["rnodiratime", "rdiratime"], "rw", "nodiratime"),
    ] {
        lab.config = good.clone();
        lab.mount("/on", "bind", &source, &[&["rbind"], words].concat());
        lab.sh("cat /proc/self/mountinfo");
        let done = below(&lab);
        let both = options(&done.succeeded().out, "/on");
        assert_eq!(both.len(), 2, "{words:?}: {}", done.out);
        for found in both {
            for word in present.split(' ') {
                assert!(found.contains(word), "{words:?}: {word} is not in {found:?}");
            }
            for word in absent.split(' ').filter(|word| !word.is_empty()) {
                assert!(!found.contains(word), "{words:?}: {word} is in {found:?}");
            }
        }
    }
    lab.config = good.clone();
    lab.mount("/on", "bind", &source, &["rbind", "ro", "noexec"]).sh("cat /proc/self/mountinfo");
    let both = options(&below(&lab).succeeded().out, "/on");
    assert!(both[0].contains("ro") && both[0].contains("noexec"), "{both:?}");
    assert!(both[1].contains("rw") && !both[1].contains("noexec"), "only the first: {both:?}");
    lab.config = good;
    lab.mount("/on", "bind", &source, &["bind"]).sh("cat /proc/self/mountinfo");
    assert_eq!(options(&below(&lab).succeeded().out, "/on").len(), 1, "bind is of one mount");
}

#[test]
fn owners_are_mapped_on_one_mount_or_on_all_below() {
    let Some(mut lab) = with_source() else { return };
    let source = lab.path().join("source").display().to_string();
    let good = lab.config.clone();
    // (the options, whether the maps are the mount's own or the container's) -> the owners of the two files
    let map = json!([{"containerID": 0, "hostID": 5000, "size": 10}]);
    for (words, own, expected) in [
        (&["rbind"][..], true, "5000\n0\n"),
        (&["rbind", "idmap"], true, "5000\n0\n"),
        (&["rbind", "ridmap"], true, "5000\n5000\n"),
        // The overflow id in the container, for owners without a mapping.
        (&["rbind"], false, "65534\n65534\n"),
        (&["rbind", "idmap"], false, "0\n65534\n"),
        (&["rbind", "ridmap"], false, "0\n0\n"),
    ] {
        lab.config = good.clone();
        lab.mount("/on", "bind", &source, words);
        if own {
            let mount = lab.config["mounts"].as_array_mut().unwrap().last_mut().unwrap();
            mount["uidMappings"] = map.clone();
            mount["gidMappings"] = map.clone();
        } else {
            lab.user_namespace();
        }
        lab.sh("stat -c %u /on/file /on/inner/file");
        let done = below(&lab);
        assert_eq!(done.out, expected, "{words:?} {own}: {}", done.err);
    }
    lab.config = good;
    lab.mount("/on", "tmpfs", "tmpfs", &["idmap"]).sh("true");
    lab.run().failed_with("needs mappings");
    lab.user_namespace().run().failed_with("only bind mounts can be id-mapped");
}

#[test]
fn a_mount_has_the_propagation_that_was_asked_for() {
    let Some(mut lab) = with_source() else { return };
    let source = lab.path().join("source").display().to_string();
    let good = lab.config.clone();
    for (word, first, second) in [
        ("private", "", "master"),
        ("rprivate", "", ""),
        ("shared", "shared", "master"),
        ("rshared", "shared", "shared"),
        ("slave", "master", "master"),
        ("rslave", "master", "master"),
        ("unbindable", "unbindable", "master"),
        ("runbindable", "unbindable", "unbindable"),
    ] {
        lab.config = good.clone();
        lab.mount("/on", "bind", &source, &["rbind", word]).sh("grep ' /on' /proc/self/mountinfo");
        let shell =
            "unshare -m /bin/sh -c 'mount --make-rshared / && mount -t tmpfs tmpfs source/inner && \"$@\"' sh \"$@\"";
        let done = through(&lab, &["run", &lab.id], shell);
        let kinds: Vec<_> = done
            .out
            .lines()
            .map(|line| line.split(" - ").next().unwrap().split(' ').skip(6).collect::<Vec<_>>().join(" "))
            .collect();
        assert_eq!(kinds.len(), 2, "{word}: {}{}", done.out, done.err);
        for (kind, expected) in kinds.iter().zip([first, second]) {
            let is_so = if expected.is_empty() { kind.is_empty() } else { kind.contains(expected) };
            assert!(is_so, "{word}: {kinds:?} instead of {first} and {second}");
        }
    }
}

#[test]
fn files_of_proc_can_be_stood_in_for_and_a_procfs_elsewhere_is_the_callers() {
    let Some(mut lab) = with_source() else { return };
    let source = lab.path().join("source");
    let file = source.join("file").display().to_string();
    std::fs::write(&file, "ours\n").unwrap();
    for key in ["maskedPaths", "readonlyPaths"] {
        lab.config["linux"].as_object_mut().unwrap().remove(key);
    }
    // As in monitoring tools: the host's own files, with its /proc below them.
    std::fs::create_dir(source.join("proc")).unwrap();
    lab.mount("/host", "bind", source.to_str().unwrap(), &["rbind"])
        .mount("/host/proc", "proc", "proc", &[])
        .mount("/host/proc", "bind", "/proc", &["rbind"])
        .mount("/host/proc/uptime", "bind", &file, &["bind"])
        .mount("/proc", "proc", "proc", &["nosuid"]);
    for name in ["cpuinfo", "sys/kernel/ns_last_pid", "uptime"] {
        lab.mount(&format!("/proc/{name}"), "bind", &file, &["bind"]);
    }
    let line = "cat /proc/cpuinfo /proc/sys/kernel/ns_last_pid /proc/uptime /host/proc/uptime; ls -d /host/proc/2";
    assert_eq!(lab.sh(line).run().succeeded().out, "ours\nours\nours\nours\n/host/proc/2\n");
    // The name is correct, its target is not.
    lab.config["mounts"]
        .as_array_mut()
        .unwrap()
        .retain(|mount| !mount["destination"].as_str().unwrap().contains("/proc"));
    std::fs::remove_dir(lab.root("/proc")).unwrap();
    std::fs::create_dir(lab.root("/true")).unwrap();
    std::os::unix::fs::symlink("/true/self", lab.root("/proc")).unwrap();
    lab.mount("/true", "proc", "proc", &[]).mount("/proc/stat", "bind", &file, &["bind"]);
    lab.run().failed_with("inside /proc");
}
