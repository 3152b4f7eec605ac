//! The real programs of agents against a scripted model server: they edit a file, run commands and finish.

use super::install::programs;
use crate::egress::world::World;
use crate::support::{Lab, Run, Task};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::process::Command;

const SERVER: &str = include_str!("../../support/model_server.py");
const KEY: &str = "s3cret-of-the-caller-0123456789";
/// Searches the memory of all processes inside. The end of the key is in no command: an agent may put the parts of a
/// command together.
const SEARCH_MEMORY: &str = r#"
import os
key, found, searched = b"-the-caller" + b"-012345" + b"6789", 0, 0
for pid in filter(str.isdigit, os.listdir("/proc")):
    if int(pid) == os.getpid():
        continue
    try:
        memory, maps = open(f"/proc/{pid}/mem", "rb", 0), open(f"/proc/{pid}/maps").read()
    except OSError:
        continue
    searched += 1
    for line in maps.splitlines():
        place, rights = line.split()[:2]
        at, end = (int(each, 16) for each in place.split("-"))
        while "r" in rights and at < end:
            try:
                memory.seek(at)
                part = memory.read(min(end - at, 1 << 24))
            except (OSError, ValueError, OverflowError):
                break
            found += key in part
            if not part or at + len(part) >= end:
                break
            at += max(len(part) - len(key), 1)
print("memory:", found, "of", "many" if searched > 1 else "none")
"#;

/// A model server, and the programs.
struct Model<'lab> {
    lab: &'lab Lab,
    world: World,
    folders: Vec<PathBuf>,
    work: PathBuf,
}

impl Model<'_> {
    fn new(lab: &Lab) -> Option<Model<'_>> {
        let folders = programs()?;
        let mut world = World::new(lab)?;
        // The key is nowhere in the command, so that no file with the command has it.
        let search = format!(
            "curl -sS -m 9 https://refused.test/; python3 -c '{SEARCH_MEMORY}'; k=s3cret-of; k=$k-the-caller; \
            echo files: $(grep -rsl $k /home /run /etc /workspace /dev/shm 2>/dev/null | wc -l) \
            variables: $(cat /proc/[0-9]*/environ | tr '\\0' '\\n' | grep -c $k) end"
        );
        let script = json!({
            "commands": ["echo hello > note.txt; rm old.txt; ls", search, "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"],
            "text": "All is done.",
        });
        let program = lab.file("server.py", SERVER);
        let script = lab.file("script.json", script.to_string());
        let mut server = Command::new("/usr/bin/python3");
        server.arg(program).args([&world.address.to_string(), "8444"]);
        server.args(["cert.pem", "key.pem"].map(|name| world.directory().join(name))).arg(script);
        world.also(server.arg(lab.path().join("log")), 8444);
        let work = lab.file("project/old.txt", "old\n").parent().unwrap().to_owned();
        Some(Model { lab, world, folders, work })
    }

    /// `brig agent NAME` with this key and this URL of the server.
    fn agent(&self, name: &str, flags: &[&str], variables: &[(&str, &str)]) -> Task<'_> {
        let near = format!("{}:8444", self.world.address);
        let (resolver, work) = (format!("{}:5353", self.world.address), self.work.display().to_string());
        let mut words = vec!["agent", name, "--resolver", &resolver];
        if !flags.contains(&"--resume") {
            words.extend(["--allow", &near, "--dir", &work]);
        } else {
            words.truncate(2);
        }
        words.extend(flags);
        let path =
            std::env::join_paths(self.folders.iter().cloned().chain(["/usr/bin".into(), "/bin".into()])).unwrap();
        let task = self.lab.command(words).env("PATH", path).env("XDG_CONFIG_HOME", self.lab.path().join("config"));
        let task = task.env("SSL_CERT_FILE", self.lab.directory("work").join("ca.pem"));
        variables.iter().fold(task, |task, (name, value)| task.env(name, value))
    }

    /// The requests that the server got.
    fn requests(&self) -> Vec<Value> {
        let log = std::fs::read_to_string(self.lab.path().join("log")).unwrap_or_default();
        log.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// Asserts that the agent did its work, that the key was only at the server, and that the caller sees what happened.
    #[track_caller]
    fn check(&self, run: &Run, credential: &str) {
        run.succeeded();
        let requests = self.requests();
        assert!(requests.len() >= 3, "{run:#?}");
        assert!(requests.iter().all(|each| each["credentials"] == json!([credential])), "{requests:#?}");
        let said: String = requests.iter().filter_map(|each| each["result"].as_str()).collect();
        assert!(said.contains("note.txt") && !said.contains("old.txt"), "{said}");
        assert!(said.contains("files: 0 variables: 0 end") && said.contains("memory: 0 of many"), "{said}");
        let id = self.lab.ids().pop().unwrap();
        for words in [
            "stays outside of the sandbox",
            &format!("refused refused.test; to allow it: brig task allow {id} refused.test"),
            "for the next run: --allow refused.test",
            "changes: 1 added, 0 modified, 1 deleted",
            &format!("brig task apply {id}"),
        ] {
            assert!(run.stderr.contains(words), "`{words}`: {run:#?}");
        }
        let names = || std::fs::read_dir(&self.work).unwrap().count();
        assert!(names() == 1 && self.work.join("old.txt").exists(), "the folder was written");
        self.lab.brig(["task", "apply", &id]).succeeded();
        assert!(names() == 1 && self.work.join("note.txt").exists(), "the changes were not applied");
    }

    fn url(&self) -> String {
        "https://a.test:8444".to_owned()
    }
}

#[test]
fn mini_swe_agent_works_with_its_key_outside() {
    let Some(lab) = Lab::root() else { return };
    let Some(model) = Model::new(&lab) else { return };
    let variables = [
        ("ANTHROPIC_API_KEY", KEY),
        ("ANTHROPIC_BASE_URL", &*model.url()),
        ("MSWEA_MODEL_NAME", "anthropic/claude-sonnet-4-5"),
    ];
    let run = model.agent("mini-swe-agent", &[], &variables).run(["-t", "write a note", "--exit-immediately"]);
    model.check(&run, KEY);
}

#[test]
fn mini_swe_agent_speaks_the_other_protocol_too() {
    let Some(lab) = Lab::root() else { return };
    let Some(model) = Model::new(&lab) else { return };
    let url = format!("{}/v1", model.url());
    let variables = [("OPENAI_API_KEY", KEY), ("OPENAI_BASE_URL", &*url), ("MSWEA_MODEL_NAME", "openai/gpt-4.1")];
    let run = model.agent("mini-swe-agent", &[], &variables).run(["-t", "write a note", "--exit-immediately"]);
    model.check(&run, &format!("Bearer {KEY}"));
}

#[test]
fn claude_code_works_and_goes_on_in_a_second_task() {
    let Some(lab) = Lab::root() else { return };
    let Some(model) = Model::new(&lab) else { return };
    let variables = [("ANTHROPIC_API_KEY", KEY), ("ANTHROPIC_BASE_URL", &*model.url())];
    let run = model.agent("claude", &["--keep"], &variables).run(["-p", "write a note"]);
    model.check(&run, KEY);
    let run = model.agent("claude", &["--resume", "@"], &variables).run(["-p", "--continue", "go on"]);
    run.succeeded();
    let requests = model.requests();
    let last = requests.last().unwrap();
    assert!(last["results"] == 3 && last["credentials"] == json!([KEY]), "{requests:#?}");
    lab.brig(["task", "discard", "@"]).succeeded();
}

#[test]
fn claude_code_works_by_its_login_and_goes_on_in_its_home() {
    let Some(lab) = Lab::root() else { return };
    let Some(model) = Model::new(&lab) else { return };
    let login = json!({"claudeAiOauth": {
        "accessToken": KEY, "refreshToken": "a-refresh-token", "expiresAt": 9_999_999_999_000_u64,
        "scopes": ["user:inference", "user:profile"], "subscriptionType": "pro",
    }});
    lab.file("user/.claude/.credentials.json", login.to_string());
    let home = lab.path().join("user").display().to_string();
    let variables = [("HOME", &*home), ("ANTHROPIC_BASE_URL", &*model.url())];
    let run = model.agent("claude", &[], &variables).run(["-p", "write a note"]);
    model.check(&run, &format!("Bearer {KEY}"));
    model.agent("claude", &[], &variables).run(["-p", "--continue", "go on"]).succeeded();
    let requests = model.requests();
    assert_eq!(requests.last().unwrap()["results"], 3, "{requests:#?}");
}

#[test]
fn codex_works_by_its_login_and_goes_on_in_its_home() {
    let Some(lab) = Lab::root() else { return };
    let Some(model) = Model::new(&lab) else { return };
    let tokens = json!({"access_token": KEY, "refresh_token": "a-refresh-token", "account_id": "account-1"});
    lab.file("user/.codex/auth.json", json!({"OPENAI_API_KEY": null, "tokens": tokens}).to_string());
    let home = lab.path().join("user").display().to_string();
    let url = format!("{}/v1", model.url());
    let variables = [("HOME", &*home), ("OPENAI_BASE_URL", &*url)];
    let words = ["exec", "-m", "gpt-5", "--skip-git-repo-check", "write a note"];
    let run = model.agent("codex", &[], &variables).run(words);
    model.check(&run, &format!("Bearer {KEY}"));
    let words = ["exec", "-m", "gpt-5", "--skip-git-repo-check", "resume", "--last", "go on"];
    model.agent("codex", &[], &variables).run(words).succeeded();
    let requests = model.requests();
    let last = requests.last().unwrap();
    assert!(last["results"] == 3 && last["account"] == "account-1", "{requests:#?}");
}

#[test]
fn codex_works_with_its_key_outside() {
    let Some(lab) = Lab::root() else { return };
    let Some(model) = Model::new(&lab) else { return };
    let url = format!("{}/v1", model.url());
    let variables = [("OPENAI_API_KEY", KEY), ("OPENAI_BASE_URL", &*url)];
    let words = ["exec", "-m", "gpt-5", "--skip-git-repo-check", "write a note"];
    let run = model.agent("codex", &[], &variables).run(words);
    model.check(&run, &format!("Bearer {KEY}"));
}
