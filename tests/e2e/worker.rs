//! Workers without a service manager: their files, their life, their deaths; and their units, which systemd verifies.

use crate::hosted;
use crate::support::{Image, Lab, Run, Started, eventually, has_program, program_under_test, skip};
use serde_json::{Value, json};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A worker's file, written into the lab.
fn write(lab: &Lab, name: &str, text: &str) {
    lab.file(&format!("workers/{name}.toml"), text);
}

fn folder(lab: &Lab) -> String {
    lab.path().join("workers").to_str().unwrap().to_owned()
}

/// `brig worker VERB …` on the lab's files.
fn worker(lab: &Lab, words: &[&str]) -> Run {
    lab.brig([&["worker", "--workers", &folder(lab)], words].concat())
}

fn start(lab: &Lab, name: &str) -> Started {
    lab.start(["worker", "--workers", &folder(lab), "run", name])
}

fn rows(run: &Run) -> Value {
    serde_json::from_str(&run.succeeded().stdout).unwrap()
}

/// Waits until the worker answers commands.
fn await_worker(lab: &Lab, name: &str) {
    eventually("the worker runs", || lab.brig(["task", "exec", name, "--", "true"]).status == Some(0));
}

#[test]
fn worker_runs_holds_and_ends_as_wished() {
    let Some(lab) = Lab::root() else { return };
    write(&lab, "alpha", "[limits]\nmemory = \"256M\"\n[env]\nROLE = \"search\"\n[health]\ncommand = \"true\"\n");
    let run = start(&lab, "alpha");
    await_worker(&lab, "alpha");
    assert_eq!(lab.brig(["task", "exec", "alpha", "--", "sh", "-c", "echo $ROLE"]).succeeded().stdout, "search\n");
    eventually("it is healthy", || rows(&worker(&lab, &["ls", "--json"]))[0]["health"] == "healthy");
    let row = rows(&worker(&lab, &["show", "--json", "alpha"]));
    assert_eq!(
        (&row["state"], &row["deaths"], &row["has_file"]),
        (&json!("running"), &json!(0), &json!(true)),
        "{row}"
    );
    // A second one of the name is refused, and the first one lives on.
    worker(&lab, &["run", "alpha"]).refused(125, &["the name `alpha` is in use by the running task"]);
    let id = row["task"].as_str().unwrap();
    let record = std::fs::read_to_string(lab.store().join("tasks").join(id).join("record.json")).unwrap();
    let limits = serde_json::from_str::<Value>(&record).unwrap()["limits"].clone();
    assert_eq!((&limits["wall"], &limits["idle"], &limits["cpu_time"]), (&Value::Null, &Value::Null, &Value::Null));
    lab.brig(["task", "stop", "--drain", "5s", "alpha"]).succeeded();
    assert_eq!(run.finish().status, Some(0));
    let deaths = rows(&worker(&lab, &["history", "--json", "alpha"]));
    assert_eq!((&deaths[0]["outcome"], deaths.as_array().unwrap().len()), (&json!("stopped"), 1), "{deaths}");
    lab.assert_clean();
}

#[test]
fn each_death_is_in_the_history_with_its_reason() {
    let Some(lab) = Lab::root() else { return };
    let eat = "head -c 100M /dev/zero | tail > /dev/null";
    write(&lab, "oom", &format!("command = [\"sh\", \"-c\", \"{eat}\"]\n[limits]\nmemory = \"32M\"\n"));
    write(&lab, "fails", "command = [\"sh\", \"-c\", \"exit 7\"]\nrestart = \"no\"\n");
    write(&lab, "ends", "command = [\"true\"]\nrestart = \"always\"\n");
    write(&lab, "sick", "command = [\"sleep\", \"300\"]\n[health]\ncommand = \"echo ill; false\"\nstart = \"1s\"\n");
    write(&lab, "killed", "");
    assert_eq!(worker(&lab, &["run", "oom"]).status, Some(137));
    for _ in 0..2 {
        assert_eq!(worker(&lab, &["run", "fails"]).status, Some(78), "the unit does not start it again");
    }
    assert_eq!(worker(&lab, &["run", "ends"]).status, Some(75), "the unit starts it again");
    assert_eq!(worker(&lab, &["run", "sick"]).status, Some(125));
    let killed = start(&lab, "killed");
    await_worker(&lab, "killed");
    killed.signal(rustix::process::Signal::KILL);
    killed.finish();
    for (name, count, outcome, reason) in [
        ("oom", 1, "memory", "memory: "),
        ("fails", 2, "failed", ""),
        ("ends", 1, "succeeded", ""),
        ("sick", 1, "unhealthy", "the health check has not passed within 1s: exit status 1: ill"),
        ("killed", 1, "lost", "supervisor"),
    ] {
        let deaths = rows(&worker(&lab, &["history", "--json", name]));
        assert_eq!(deaths.as_array().unwrap().len(), count, "{name}: {deaths}");
        assert_eq!(deaths[0]["outcome"], outcome, "{name}: {deaths}");
        assert!(deaths[0]["reasons"].to_string().contains(reason), "{name}: {deaths}");
        // A worker that is down fails at once, with the reason.
        let words = format!("it has ended: {outcome}");
        lab.brig(["task", "exec", name, "--", "true"]).refused(125, &[&words]);
    }
    // With `restart = "no"` an error before the start is final too.
    write(&lab, "fails", "command = [\"true\"]\nrestart = \"no\"\nimage = \"localhost:1/none:1\"\n");
    let run = worker(&lab, &["run", "fails"]);
    assert!(
        run.status == Some(78) && run.stderr.contains("the image `localhost:1/none:1` was not fetched"),
        "{run:#?}"
    );
    let text = worker(&lab, &["history", "oom"]).succeeded().stdout.clone();
    assert!(text.contains("memory") && text.contains("oom_kill"), "{text}");
    // A name whose last life ended badly is free for the next one.
    write(&lab, "killed", "[limits]\npids = 64\n");
    let again = start(&lab, "killed");
    await_worker(&lab, "killed");
    lab.brig(["task", "stop", "killed"]).succeeded();
    assert_eq!(again.finish().status, Some(0));
    lab.assert_clean();
}

#[test]
fn stop_of_a_worker_with_a_command_is_wished() {
    let Some(lab) = Lab::root() else { return };
    for restart in ["on-failure", "always", "no"] {
        write(&lab, "sleeps", &format!("command = [\"sleep\", \"300\"]\nrestart = \"{restart}\"\n"));
        let run = start(&lab, "sleeps");
        await_worker(&lab, "sleeps");
        lab.brig(["task", "stop", "sleeps"]).succeeded();
        assert_eq!(run.finish().status, Some(0), "{restart}");
    }
}

#[test]
fn wrong_file_starts_nothing() {
    let lab = Lab::new();
    let home = lab.directory("home/.ssh");
    std::fs::write(home.join("id_ed25519"), "a-private-key").unwrap();
    let key = home.join("id_ed25519").display().to_string();
    for (text, words) in [
        ("bogus = 1", "line 1 (`bogus = 1`): unknown field `bogus`, expected one of"),
        ("comand = [\"true\"]", "unknown field `comand`"),
        ("command = [\"true\"]\nrestart = \"maybe\"", "`restart` is `maybe`"),
        ("command = [\"true\"]\nname = \"other\"", "its `name` is `other`"),
        (
            "command = [\"true\"]\n[health]\ncommand = \"true\"\ntimeout = \"0s\"",
            "read `health.timeout`: the time is 0",
        ),
        ("command = [\"true\"]\n[limits]\nmemory = \"much\"", "memory"),
        (&format!("command = [\"true\"]\n[secrets.KEY]\nsource = \"file:{key}\""), "is the login of a person"),
        (&format!("command = [\"true\"]\nmounts = [\"{}:/keys\"]", home.display()), "is the login of a person"),
        (&format!("command = [\"true\"]\n[git]\nssh_key = \"file:{key}\""), "is the login of a person"),
        (&format!("command = [\"true\"]\n[git]\ncredential = \"file:{key}\""), "is the login of a person"),
    ] {
        write(&lab, "bad", text);
        for verb in [&["run", "bad"][..], &["diff"], &["apply"]] {
            worker(&lab, verb).refused(125, &[words, "bad.toml"]);
        }
    }
    write(&lab, "bad", &format!("mounts = [\"{}:/keys\"]", home.parent().unwrap().display()));
    let run = lab.command(["worker", "--workers", &folder(&lab), "run", "bad"]).env("HOME", home.parent().unwrap());
    let error = String::from_utf8(run.command().output().unwrap().stderr).unwrap();
    assert!(error.contains("contains the login of a person") && error.contains("bad.toml"), "{error}");
    for verb in ["run", "show", "history", "update"] {
        worker(&lab, &[verb, "none"]).refused(125, &["worker `none`"]);
    }
    worker(&lab, &["run", "../bad"]).refused(125, &["is not a name"]);
    assert!(lab.ids().is_empty());
    // A login that is named twice is given.
    write(
        &lab,
        "good",
        &format!(
            "command = [\"cat\", \"/run/secrets/KEY\"]\nlogins = [\"{key}\"]\n[secrets.KEY]\nsource = \"file:{key}\""
        ),
    );
    assert_eq!(worker(&lab, &["run", "good"]).status, Some(0));
}

#[test]
fn two_workers_of_one_port_are_refused() {
    let lab = Lab::new();
    for name in ["one", "two"] {
        let network = "[network]\nmode = \"egress\"\npublish = [\"127.0.0.1:18080:80\"]\n";
        write(&lab, name, &format!("command = [\"true\"]\n{network}"));
    }
    worker(&lab, &["diff"]).refused(125, &["the workers `one` and `two` publish the same port"]);
}

#[test]
fn two_workers_that_write_one_volume_are_refused() {
    let lab = Lab::new();
    write(&lab, "one", "command = [\"true\"]\nhome = \"shared\"\n");
    write(&lab, "two", "command = [\"true\"]\nvolumes = [\"shared:/data\"]\n");
    worker(&lab, &["diff"]).refused(125, &["the workers `one` and `two` write to the volume `shared`"]);
}

#[test]
fn credential_file_of_a_worker_follows_its_rotation() {
    let Some(lab) = Lab::root() else { return };
    let token = lab.file("token", "first-value-of-it\n");
    write(&lab, "rotates", &format!("[secrets.TOKEN]\nsource = \"file:{}\"\n", token.display()));
    let run = start(&lab, "rotates");
    await_worker(&lab, "rotates");
    let digest = || lab.brig(["task", "exec", "rotates", "--", "sha256sum", "/run/secrets/TOKEN"]).stdout;
    let before = digest();
    let next = lab.file("token.new", "second-value-of-it\n");
    std::fs::rename(next, &token).unwrap();
    eventually("the new value is inside", || digest() != before);
    assert!(lab.brig(["task", "exec", "rotates", "--", "sh", "-c", "echo x > /run/secrets/TOKEN"]).status != Some(0));
    lab.brig(["task", "stop", "rotates"]).succeeded();
    assert_eq!(run.finish().status, Some(0));
}

/// A program in the place of systemctl(1), which writes down its calls and reads the state of units from files.
fn fake_systemctl(lab: &Lab) -> PathBuf {
    let folder = lab.directory("bin");
    let script = format!(
        "#!/bin/sh\ncd {}\nshift\nverb=$1\ncase $verb in\n\
         list-units|list-unit-files) cat $verb 2> /dev/null; exit 0 ;;\n\
         show) shift 2; for unit; do cat \"show.$unit\" 2> /dev/null || printf 'Id=%s\\nLoadState=loaded\\n' \"$unit\"; echo; done ;;\n\
         *) echo \"$@\" >> calls; [ ! -e broken ] || {{ rm broken; echo \"Job for $unit failed.\" >&2; exit 1; }} ;;\nesac\n",
        folder.display()
    );
    let path = folder.join("systemctl");
    std::fs::write(&path, script).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    folder
}

fn with_systemctl(lab: &Lab, bin: &Path, words: &[&str]) -> (Option<i32>, String, String) {
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
    let mut command = Command::new(program_under_test());
    command.args(["worker", "--workers", &folder(lab)]).args(words).env("PATH", path).env("BRIG_STORE", lab.store());
    let output = command.output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

#[test]
fn apply_makes_the_units_match_the_files() {
    let Some(lab) = Lab::root() else { return };
    let bin = fake_systemctl(&lab);
    let unit = |name: &str, active: &str, file: &str| {
        let id = format!("brig-worker@{name}.service");
        let text = format!("Id={id}\nLoadState=loaded\nActiveState={active}\nSubState=x\nUnitFileState={file}\n");
        std::fs::write(bin.join(format!("show.{id}")), text).unwrap();
        id
    };
    write(&lab, "new", "");
    write(&lab, "same", "[limits]\npids = 64\n");
    write(&lab, "changed", "[limits]\npids = 64\n");
    let runs = ["same", "changed"].map(|name| start(&lab, name));
    ["same", "changed"].iter().for_each(|name| await_worker(&lab, name));
    write(&lab, "changed", "[limits]\npids = 65\n");
    let gone = unit("gone", "active", "enabled");
    std::fs::write(bin.join("list-units"), format!("{gone} loaded active running brig worker gone\n")).unwrap();
    for name in ["same", "changed"] {
        unit(name, "active", "enabled");
    }
    let (status, out, error) = with_systemctl(&lab, &bin, &["diff", "--json"]);
    assert_eq!(status, Some(0), "{error}");
    let changes: Value = serde_json::from_str(&out).unwrap();
    let found: Vec<_> = changes.as_array().unwrap().iter().map(|each| (&each["worker"], &each["change"])).collect();
    // The units do not read this folder, so `gone` is not for it to stop.
    let expected = [("changed", "restart"), ("new", "start")].map(|(one, two)| (json!(one), json!(two)));
    assert_eq!(found, expected.iter().map(|(one, two)| (one, two)).collect::<Vec<_>>(), "{changes:#}");
    assert!(!bin.join("calls").exists(), "diff changes nothing");
    let (status, out, error) = with_systemctl(&lab, &bin, &["apply"]);
    assert_eq!(status, Some(0), "{error}");
    assert!(out.contains("its file has changed since its start"), "{out}");
    let calls = std::fs::read_to_string(bin.join("calls")).unwrap();
    assert_eq!(
        calls,
        "enable brig-worker@changed.service\nrestart brig-worker@changed.service\nenable --now brig-worker@new.service\n"
    );
    std::fs::write(bin.join("broken"), "").unwrap();
    let (status, _, error) = with_systemctl(&lab, &bin, &["apply", "new"]);
    assert_eq!(status, Some(125));
    assert!(error.contains("enable --now brig-worker@new.service") && error.contains("failed"), "{error}");
    for (name, run) in ["same", "changed"].into_iter().zip(runs) {
        lab.brig(["task", "stop", name]).succeeded();
        assert_eq!(run.finish().status, Some(0));
    }
}

#[test]
fn only_the_folder_of_the_units_stops_workers_without_a_file() {
    let Some(lab) = Lab::root() else { return };
    let bin = fake_systemctl(&lab);
    let unit = "brig-worker@gone.service";
    std::fs::write(bin.join("list-units"), format!("{unit} loaded active running brig worker gone\n")).unwrap();
    let text = format!("Id={unit}\nLoadState=loaded\nActiveState=active\nSubState=x\nUnitFileState=enabled\n");
    std::fs::write(bin.join(format!("show.{unit}")), text).unwrap();
    for verb in ["diff", "apply"] {
        let (status, _, error) = with_systemctl(&lab, &bin, &[verb]);
        assert!(status == Some(125) && error.contains("is missing"), "{verb}: {error}");
    }
    lab.directory("workers");
    assert_eq!(with_systemctl(&lab, &bin, &["apply"]).0, Some(0));
    assert!(!bin.join("calls").exists(), "another folder stops no worker");
    let etc = hosted::etc(&lab, "mode = \"open\"\n");
    let default = || {
        let mut command = hosted::shown(&etc);
        let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
        let command = command.arg(program_under_test()).args(["worker", "apply"]);
        command.env("PATH", path).env("BRIG_STORE", lab.store()).output().unwrap()
    };
    let missing = default();
    if String::from_utf8_lossy(&missing.stderr).contains("mount") {
        return skip("nothing can be mounted over /etc here");
    }
    assert_eq!(missing.status.code(), Some(125), "{missing:?}");
    std::fs::create_dir_all(etc.join("brig/workers")).unwrap();
    assert_eq!(default().status.code(), Some(0));
    assert_eq!(std::fs::read_to_string(bin.join("calls")).unwrap(), format!("disable --now {unit}\n"));
}

#[test]
fn text_of_a_file_is_hidden_in_hosted_mode() {
    let Some(lab) = Lab::root() else { return };
    lab.file("workers/private.toml", "root:of-the-shadow-file:1\n");
    lab.file("workers/key.toml", "restart = \"of-the-shadow-file\"\n");
    let folder = folder(&lab);
    let run = |rules: &str, name: &str| hosted::brig(&lab, rules, &["worker", "--workers", &folder, "run", name]);
    let seen = run("mode = \"open\"\n", "private");
    if !seen.stderr.contains("of-the-shadow-file") {
        return skip("nothing can be mounted over /etc here");
    }
    let rules = format!("{}folders = [\"{}\"]\n", hosted::HOSTED, lab.path().display());
    for name in ["private", "key"] {
        run(hosted::HOSTED, name).refused(125, &["below no folder that is allowed"]);
        let refused = run(&rules, name);
        refused.refused(125, &["its text is not shown"]);
        assert!(!refused.stderr.contains("of-the-shadow-file"), "{refused:#?}");
    }
}

#[test]
fn worker_of_the_operator_runs_in_hosted_mode_with_a_key_that_tasks_do_not_see() {
    let Some(lab) = Lab::root() else { return };
    let etc = hosted::etc(&lab, hosted::HOSTED);
    let key = "file:/etc/brig/keys/search";
    let show = "command = [\"grep\", \"-q\", \"value-of-the-key\", \"/run/secrets/TOKEN\"]\n";
    lab.file("etc/brig/keys/search", "value-of-the-key\n");
    let own = format!("{show}[secrets.TOKEN]\nsource = \"{key}\"\n");
    lab.file("etc/brig/workers/search.toml", &own);
    lab.file("etc/brig/workers/relative.toml", own.replace(key, "file:key"));
    lab.file("etc/brig/workers/asks.toml", "command = [\"true\"]\n[limits]\nwall = \"none\"\n");
    lab.file("own/workers/search.toml", &own);
    let links = lab.directory("own/links");
    std::os::unix::fs::symlink("/etc/brig/workers/relative.toml", links.join("relative.toml")).unwrap();
    std::os::unix::fs::symlink("/etc/brig/workers/search.toml", links.join("search.toml")).unwrap();
    std::os::unix::fs::symlink("/etc/brig/keys/search", links.join("key")).unwrap();
    let brig = |words: &[&str]| hosted::brig(&lab, hosted::HOSTED, words);
    let run = brig(&["worker", "run", "search"]);
    if run.stderr.contains("mount") {
        return skip("nothing can be mounted over /etc here");
    }
    assert_eq!(run.status, Some(0), "{run:#?}");
    let record = lab.store().join("tasks").join(lab.ids().pop().unwrap()).join("record.json");
    let record: Value = serde_json::from_slice(&std::fs::read(record).unwrap()).unwrap();
    assert_eq!(record["limits"]["wall"].as_f64(), Some(7200.0), "{record}");
    brig(&["worker", "run", "asks"]).refused(125, &["`wall` is none"]);
    // The caller's link would choose another key.
    let links = links.display().to_string();
    brig(&["worker", "--workers", &links, "run", "relative"]).refused(125, &["file of a secret"]);
    assert_eq!(brig(&["worker", "--workers", &links, "run", "search"]).status, Some(0));
    let rules = format!("{}folders = [\"{}\"]\n", hosted::HOSTED, lab.path().join("own").display());
    let own = lab.path().join("own/workers").display().to_string();
    hosted::brig(&lab, &rules, &["worker", "--workers", &own, "run", "search"]).refused(125, &["file of a secret"]);
    let secret = format!("TOKEN={key}");
    brig(&["task", "run", "--secret", &secret, "--", "true"]).refused(125, &["file of a secret"]);
    std::fs::write(etc.join("brig/profile.toml"), format!("[secrets.TOKEN]\nsource = \"{key}\"\n")).unwrap();
    brig(&["task", "run", "--profile", "/etc/brig/profile.toml", "--", "true"]).refused(125, &["file of a secret"]);
}

#[test]
fn update_goes_back_to_the_former_image_if_the_new_one_does_not_start() {
    let Some(lab) = Lab::root() else { return };
    let bin = fake_systemctl(&lab);
    Image::new(&lab, "app").load();
    // Two old deaths: a receipt that cannot be read, and one that is not the new image's.
    write(&lab, "beta", "image = \"app:1\"\ncommand = [\"sh\", \"-c\", \"exit 1\"]\n");
    for _ in 0..2 {
        assert_eq!(worker(&lab, &["run", "beta"]).status, Some(1));
    }
    assert_eq!(rows(&worker(&lab, &["history", "--json", "beta"])).as_array().unwrap().len(), 2);
    std::fs::write(lab.store().join("tasks").join(&lab.ids()[0]).join("receipt.json"), "{").unwrap();
    write(&lab, "beta", "image = \"app:1\"\n");
    let run = start(&lab, "beta");
    await_worker(&lab, "beta");
    let update = || {
        let (status, out, error) = with_systemctl(&lab, &bin, &["update", "beta", "--no-pull", "--json"]);
        let update: Value = serde_json::from_str(&out).unwrap_or_else(|_| panic!("{error}"));
        (status, update["result"].as_str().unwrap().to_owned(), update)
    };
    let (status, result, first) = update();
    assert_eq!((status, result.as_str()), (Some(0), "unchanged"), "{first}");
    let former = || lab.brig(["image", "inspect", "localhost/brig-worker/beta:former"]).status;
    assert_ne!(former(), Some(0), "an update without a change gives no name");
    Image::new(&lab, "app").file("etc/version", "2", 0o644).load();
    std::fs::write(bin.join("broken"), "").unwrap();
    let (status, result, second) = update();
    assert_eq!((status, result.as_str()), (Some(1), "rolled_back"), "{second}");
    assert_eq!(second["from"], first["from"], "{second}");
    assert!(second["reason"].as_str().unwrap().contains("failed."), "the reason is not an old death: {second}");
    assert_eq!(former(), Some(0));
    let calls = std::fs::read_to_string(bin.join("calls")).unwrap();
    assert_eq!(calls, "restart brig-worker@beta.service\n".repeat(2));
    // The name means the former image again.
    assert_eq!(update().1, "unchanged");
    Image::new(&lab, "app").file("etc/version", "3", 0o644).load();
    let (status, result, third) = update();
    assert_eq!((status, result.as_str(), &third["reason"]), (Some(0), "updated", &Value::Null), "{third}");
    // Another image in the file is not an update: going back would give its name to the former image.
    write(&lab, "beta", "image = \"app:2\"\n");
    let (status, _, error) = with_systemctl(&lab, &bin, &["update", "beta", "--no-pull"]);
    assert!(status == Some(125) && error.contains("its file names `app:2`"), "{error}");
    // A digest keeps its meaning.
    let pinned = format!("app@{}", third["to"].as_str().unwrap());
    write(&lab, "beta", &format!("image = \"{pinned}\"\n"));
    std::fs::write(bin.join("broken"), "").unwrap();
    let (status, _, error) = with_systemctl(&lab, &bin, &["update", "beta", "--no-pull"]);
    assert!(status == Some(125) && error.contains("pinned image") && bin.join("broken").exists(), "{error}");
    let found = lab.brig(["image", "inspect", &pinned]).succeeded().stdout.clone();
    assert!(found.contains(third["to"].as_str().unwrap()), "{found}");
    lab.brig(["task", "stop", "beta"]).succeeded();
    assert_eq!(run.finish().status, Some(0));
}

#[test]
fn unit_of_workers_is_accepted_by_systemd_and_its_commands_exist() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("rootfs/systemd/brig-worker@.service");
    let text = std::fs::read_to_string(path).unwrap();
    let lab = Lab::new();
    let commands: Vec<_> =
        text.lines().filter_map(|line| line.split_once("/usr/bin/brig ")).map(|(_, rest)| rest).collect();
    assert_eq!(commands, ["worker run %i", "task stop --drain 5m %i"]);
    for command in commands {
        let words = command.replace("%i", "--help");
        lab.brig(words.split(' ')).succeeded();
    }
    if !has_program("systemd-analyze") {
        return;
    }
    let program = program_under_test().display().to_string();
    let verify = |name: &str, text: &str| {
        let unit = lab.file(&format!("units/{name}"), text.replace("/usr/bin/brig", &program));
        let mut command = Command::new("systemd-analyze");
        let path = format!("{}:", unit.parent().unwrap().display());
        let output = command.arg("verify").arg(&unit).env("SYSTEMD_UNIT_PATH", path).output().unwrap();
        // Keys of systemd 254.
        let known = |line: &&str| !line.contains("Unknown key") || !line.contains("Restart");
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.success(), error.lines().filter(known).map(str::to_owned).collect::<Vec<_>>())
    };
    assert_eq!(verify("brig-worker@.service", &text), (true, Vec::new()));
    let of_engines = include_str!("../../rootfs/systemd/brig-runtime.service");
    assert_eq!(verify("brig-runtime.service", of_engines), (true, Vec::new()));
    let (is_good, lines) = verify("brig-worker@.service", &text.replace("Type=notify", "Type=sometimes"));
    assert!(!is_good || !lines.is_empty(), "a wrong unit is seen");
}
