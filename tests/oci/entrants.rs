//! Who enters a container without a user namespace is no way out of it, whatever power over others its processes have.

use crate::attacks::attempt;
use crate::support::Lab;
use serde_json::json;

/// What Docker gives, and what `--cap-add SYS_PTRACE` adds.
const GIVEN: [&str; 15] = [
    "CAP_CHOWN",
    "CAP_DAC_OVERRIDE",
    "CAP_FSETID",
    "CAP_FOWNER",
    "CAP_MKNOD",
    "CAP_NET_RAW",
    "CAP_SETGID",
    "CAP_SETUID",
    "CAP_SETFCAP",
    "CAP_SETPCAP",
    "CAP_NET_BIND_SERVICE",
    "CAP_SYS_CHROOT",
    "CAP_KILL",
    "CAP_AUDIT_WRITE",
    "CAP_SYS_PTRACE",
];

/// Stops whoever comes, looks at him, and lets him go a little further.
const WATCH: &str = r#"
touch /ready
while :; do
    kill -STOP -1 2> /dev/null || continue
    for each in /proc/[0-9]*; do
        [ $each != /proc/1 ] || continue
        echo seen
        [ ! -e $each/root$HOST ] || echo "root of the host's"
        [ ! -e $each/cwd/config.json ] || echo "cwd of the host's"
        for descriptor in $each/fd/*; do
            [ ! -d $descriptor ] || echo "directory"
        done
        while read name value; do
            case $name in CapEff: | CapPrm: | CapBnd:) echo $name $value ;; esac
        done < $each/status
    done >> /seen 2> /dev/null
    kill -CONT -1
    usleep 3000
done"#;

/// What the container has seen of those who entered it, each line once.
fn watched(lab: &mut Lab, options: &[&str]) -> Vec<String> {
    for set in ["bounding", "effective", "permitted"] {
        lab.config["process"]["capabilities"][set] = json!(GIVEN);
    }
    let host = lab.path().join("config.json");
    lab.sh(&format!("HOST={}{WATCH}", host.display())).start();
    crate::support::eventually("it watches", || lab.root("/ready").exists());
    for _ in 0..60 {
        lab.brig(&[&["exec"], options, &[&lab.id, "/bin/true"]].concat()).succeeded();
    }
    let seen = std::fs::read_to_string(lab.root("/seen")).unwrap();
    let mut lines: Vec<_> = seen.lines().map(str::to_owned).collect();
    lines.sort_unstable();
    lines.dedup();
    assert!(lines.iter().any(|line| line == "seen"), "nobody was seen");
    lines
}

#[test]
fn a_container_without_mounts_of_its_own_is_entered_at_its_root() {
    let Some(mut lab) = Lab::new() else { return };
    lab.without("mount").config["mounts"] = json!([]);
    for key in ["maskedPaths", "readonlyPaths"] {
        lab.config["linux"].as_object_mut().unwrap().remove(key);
    }
    lab.args(&["sleep", "100"]).start();
    let host = lab.path().join("config.json");
    assert_eq!(lab.exec(&format!("cat {} || tail -n 1 /etc/passwd | cut -d: -f1", host.display())).out, "user\n");
}

/// Whether one of them had something of the host's in it.
fn is_of_the_host(seen: &[String]) -> bool {
    seen.iter().any(|line| line.contains("host") || line == "directory")
}

/// Whether one of them had a capability that the container has not.
fn is_mighty(seen: &[String]) -> bool {
    let own: u64 = GIVEN.iter().map(|name| name.parse::<caps::Capability>().unwrap().bitmask()).sum();
    let found = seen.iter().filter_map(|line| line.strip_prefix("Cap")?.split_once(' '));
    found.map(|(_, bits)| u64::from_str_radix(bits.trim(), 16).unwrap()).any(|bits| bits & !own != 0)
}

#[test]
fn processes_that_enter_a_container_bring_nothing_of_the_host() {
    // T-02, CVE-2016-9962: CAP_SYS_PTRACE without a user namespace is a power over who has our capabilities, and over who is undumpable
    attempt("joined-first", |lab| {
        let seen = watched(lab, &[]);
        is_of_the_host(&seen) && is_mighty(&seen)
    });
    for options in [[].as_slice(), &["--user", "1000:77"], &["--cwd", "/tmp"]] {
        let Some(mut lab) = Lab::new() else { return };
        let seen = watched(&mut lab, options);
        assert!(!is_of_the_host(&seen) && !is_mighty(&seen), "{seen:?}");
    }
}
