//! Hosted mode: the machine's rules at /etc/brig/brig.toml. There is no other place for them, so a test shows brig an /etc of its own, in a mount
//! namespace of its own.

use crate::support::{Lab, Run, skip};
use std::process::Command;

/// The host's /etc with these rules, for whoever is shown it.
fn etc(lab: &Lab, rules: &str) -> std::path::PathBuf {
    let etc = lab.path().join("etc");
    if !etc.exists() {
        assert!(Command::new("cp").args(["-a", "/etc"]).arg(&etc).status().unwrap().success());
    }
    let store = format!("{HOSTED}store = \"{}\"\n", lab.store().display());
    lab.file("etc/brig/brig.toml", &rules.replace(HOSTED, &store));
    etc
}

/// A command that is to see it: what follows are its words.
fn shown(etc: &std::path::Path) -> Command {
    let mut command = Command::new("unshare");
    command.args(["-m", "--propagation", "private", "sh", "-c", "mount --bind \"$0\" /etc && exec \"$@\""]).arg(etc);
    command
}

/// Runs brig where /etc has these rules.
fn brig(lab: &Lab, rules: &str, words: &[&str]) -> Run {
    let began = std::time::Instant::now();
    let mut command = shown(&etc(lab, rules));
    let done =
        command.arg(crate::support::program_under_test()).args(words).env("BRIG_STORE", lab.store()).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    Run {
        status: done.status.code(),
        signal: None,
        stdout: text(done.stdout),
        stderr: text(done.stderr),
        elapsed: began.elapsed(),
    }
}

/// A lab where that can be done.
fn lab() -> Option<Lab> {
    let lab = Lab::root()?;
    let seen = brig(&lab, "mode = \"open\"\n", &["doctor", "--json"]);
    if seen.stdout.contains("\"mode\"") {
        return Some(lab);
    }
    skip("nothing can be mounted over /etc here");
    None
}

const HOSTED: &str = "mode = \"hosted\"\n";

fn run<'a>(flags: &[&'a str]) -> Vec<&'a str> {
    [&["task", "run"], flags, &["--", "sh", "-c", "echo ran"]].concat()
}

#[test]
fn what_weakens_isolation_is_refused_until_the_operator_switches_it_on_by_name() {
    let Some(lab) = lab() else { return };
    lab.file("work/file", "x\n");
    let work = lab.path().join("work").display().to_string();
    let out = lab.path().join("out").display().to_string();
    let folders = format!("{HOSTED}folders = [\"{}\"]\n", lab.path().display());
    let check = |flags: &[&str], words: &[&str], switched: &str| {
        let refused = brig(&lab, HOSTED, &run(flags));
        refused.refused(125, words);
        assert!(refused.stderr.contains("/etc/brig/brig.toml") && refused.stderr.contains("E-POLICY"), "{refused:#?}");
        assert!(!refused.stdout.contains("ran"), "{refused:#?}");
        brig(&lab, HOSTED, &[&["task", "run", "--explain"], flags].concat()).refused(125, words);
        let allowed = brig(&lab, switched, &run(flags));
        assert!(allowed.status == Some(0) && allowed.stdout.contains("ran"), "{allowed:#?}");
    };
    check(&["--network", "host"], &["hosted mode", "network"], &format!("{HOSTED}allow_network_host = true\n"));
    check(&["--allow-degraded", "swap"], &["--allow-degraded swap"], &format!("{HOSTED}allow_degraded = [\"swap\"]\n"));
    check(&["--dir", &work], &["folder", "work"], &folders);
    check(&["--artifact", "x", "--artifacts-dir", &out], &["folder for artifacts"], &folders);
    check(&["--rootfs", "/"], &["root file system"], &format!("{HOSTED}folders = [\"/\"]\n"));
    brig(&lab, HOSTED, &run(&["--repo", &work])).refused(125, &[]);
    let networks = format!("{HOSTED}networks = [\"127.0.0.1:9\", \"127.0.0.1:53\"]\n");
    check(&["--allow", "127.0.0.1:9"], &["address `127.0.0.1:9`"], &networks);
    check(&["--network", "egress", "--resolver", "127.0.0.1"], &["127.0.0.1:53"], &networks);
    check(&["--learn"], &["--learn"], &format!("{HOSTED}allow_network_open = true\n"));
    let publish = format!("{HOSTED}publish = [\"127.0.0.1:39000-39999\"]\n");
    check(&["--publish", "127.0.0.1:39876:80"], &["port `127.0.0.1:39876`"], &publish);
    let most = format!("{HOSTED}[max]\nmemory = \"500G\"\nwall = \"3650d\"\ncpus = 64\npids = 4000000\n");
    check(&["--memory", "500G"], &["`memory` is 500G", "4G"], &most);
    check(&["--wall", "3650d"], &["`wall`", "2h"], &most);
    check(&["--cpus", "64"], &["`cpus` is 64"], &most);
    check(&["--pids", "4000000"], &["`pids` is 4000000", "1024"], &most);
    // What asks for none of that runs.
    let plain = brig(&lab, HOSTED, &run(&["--json"]));
    plain.ended_as("succeeded", 0);
    assert_eq!(plain.receipt()["guarantee"], "full");
}

#[test]
fn a_link_into_an_allowed_folder_leads_nowhere_else() {
    let Some(lab) = lab() else { return };
    lab.directory("allowed");
    lab.directory("private");
    std::os::unix::fs::symlink(lab.path().join("private"), lab.path().join("allowed/link")).unwrap();
    let rules = format!("{HOSTED}folders = [\"{}\"]\n", lab.path().join("allowed").display());
    let at = |name: &str| lab.path().join(name).display().to_string();
    brig(&lab, &rules, &run(&["--dir", &at("allowed")])).succeeded();
    for path in ["allowed/link", "allowed/../private", "private"] {
        brig(&lab, &rules, &run(&["--dir", &at(path)])).refused(125, &["hosted mode"]);
    }
}

#[test]
fn less_isolation_than_the_operator_wants_refuses_and_the_doctor_says_it_before() {
    let Some(lab) = lab() else { return };
    // The root of another user namespace is no more than an ordinary user.
    let nested = |rules: &str, words: &[&str]| {
        let mut command = shown(&etc(&lab, rules));
        command.args(["unshare", "--user", "--map-root-user"]).arg(crate::support::program_under_test()).args(words);
        command.env("BRIG_STORE", lab.store()).output().unwrap()
    };
    let refused = nested(HOSTED, &["task", "run", "--", "true"]);
    let text = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(refused.status.code() == Some(125) && text.contains("`full` is the least"), "{text}");
    let doctor = nested(HOSTED, &["doctor"]);
    let told = String::from_utf8_lossy(&doctor.stdout).into_owned();
    assert!(
        told.lines().any(|line| line.starts_with("mode") && line.contains("MISSING") && line.contains("least")),
        "{told}"
    );
    let doctor = brig(&lab, HOSTED, &["doctor"]);
    assert!(
        doctor.stdout.lines().any(|line| line.starts_with("mode") && line.contains("hosted: at least `full`")),
        "{doctor:#?}"
    );
}

#[test]
fn rules_that_cannot_be_believed_refuse_every_task() {
    let Some(lab) = lab() else { return };
    let check = |rules: &str, words: &[&str]| {
        brig(&lab, rules, &run(&[])).refused(125, words);
        let doctor = brig(&lab, rules, &["doctor"]);
        assert!(doctor.status == Some(1) && doctor.stdout.contains("/etc/brig/brig.toml"), "{doctor:#?}");
    };
    check("mode = \"hostd\"\n", &["/etc/brig/brig.toml", "line 1"]);
    check("mode = \"hosted\"\nfoldres = []\n", &["foldres"]);
    check("", &["mode"]);
    let path = lab.file("etc/brig/brig.toml", HOSTED);
    std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o666)).unwrap();
    check(HOSTED, &["somebody else than root"]);
}

#[test]
fn no_variable_and_no_flag_names_other_rules() {
    let Some(lab) = lab() else { return };
    let open = lab.file("open.toml", "mode = \"open\"\n").display().to_string();
    for name in ["BRIG_CONFIG", "BRIG_RULES", "BRIG_TOML", "BRIG_ETC", "XDG_CONFIG_HOME", "BRIG_WEAKEN"] {
        let mut command = shown(&etc(&lab, HOSTED));
        command.arg(crate::support::program_under_test()).args(run(&["--network", "host"]));
        let done = command.env("BRIG_STORE", lab.store()).env(name, &open).output().unwrap();
        assert_eq!(done.status.code(), Some(125), "{name}: {done:?}");
    }
}

#[test]
fn the_store_is_the_operators_and_a_default_is_lowered_to_its_ceiling() {
    let Some(lab) = lab() else { return };
    let other = lab.directory("other").display().to_string();
    for words in
        [vec!["task", "run", "--empty", "--store", &other, "--", "true"], vec!["task", "--store", &other, "ls"]]
    {
        brig(&lab, HOSTED, &words).refused(125, &["hosted mode", "store", "operator"]);
    }
    let rules = format!("{HOSTED}[max]\nmemory = \"64M\"\n");
    let lowered = brig(&lab, &rules, &run(&["--json"]));
    lowered.ended_as("succeeded", 0);
    let id = lowered.receipt()["id"].as_str().unwrap().to_owned();
    let record = std::fs::read_to_string(lab.store().join("tasks").join(&id).join("record.json")).unwrap();
    let record: serde_json::Value = serde_json::from_str(&record).unwrap();
    assert_eq!(record["limits"]["memory"], 64 << 20);
    brig(&lab, HOSTED, &["task", "cp", &format!("{id}:x"), &other]).refused(125, &["hosted mode", "`cp`"]);
    brig(&lab, HOSTED, &["task", "export", &id, "--patch", "-o", "/tmp/none"])
        .refused(125, &["hosted mode", "`export -o`"]);
    brig(&lab, HOSTED, &run(&["--image", "127.0.0.1:1/none"])).refused(125, &["hosted mode", "`127.0.0.1:1`"]);
}
