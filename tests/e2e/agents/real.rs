//! The real programs of agents against a scripted model server: they edit a file, run commands and finish.

use super::install::{more_programs, playwright, programs};
use crate::egress::world::World;
use crate::support::{Lab, Run, Task};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::process::Command;

const SERVER: &str = include_str!("../../support/model_server.py");
const KEY: &str = "s3cret-of-the-caller-0123456789";
const SEARCH: &str = include_str!("../../support/search_key.py");

/// A command that asks a refused server and searches the key. Without `$(`, which some agents refuse.
fn search() -> String {
    format!("curl -sS -m 9 https://refused.test/; python3 -c '{SEARCH}'; true")
}

/// A model server, and the programs.
struct Model<'lab> {
    lab: &'lab Lab,
    world: World,
    folders: Vec<PathBuf>,
    work: PathBuf,
}

impl Model<'_> {
    fn new(lab: &Lab) -> Option<Model<'_>> {
        Model::with(lab, programs()?)
    }

    /// With more programs.
    fn of_more(lab: &Lab) -> Option<Model<'_>> {
        Model::with(lab, more_programs()?)
    }

    /// With the programs of these folders.
    fn with(lab: &Lab, folders: Vec<PathBuf>) -> Option<Model<'_>> {
        let mut world = World::new(lab)?;
        let script = json!({
            "commands": ["echo hello > note.txt; rm old*; ls", search(), "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"],
            "text": "All is done.",
            "answer": "note.txt\n```\n<<<<<<< SEARCH\n=======\nhello\n>>>>>>> REPLACE\n```\n",
        });
        let program = lab.file("server.py", SERVER);
        let script = lab.file("script.json", script.to_string());
        let mut server = Command::new("/usr/bin/python3");
        server.arg(&program).args([&world.address.to_string(), "8444"]);
        server.args(["cert.pem", "key.pem"].map(|name| world.directory().join(name))).arg(&script);
        world.also(server.arg(lab.path().join("log")), 8444);
        let mut plain = Command::new("/usr/bin/python3");
        plain.arg(&program).args([&world.address.to_string(), "8445", "-", "-"]).arg(script);
        world.also(plain.arg(lab.path().join("log")), 8445);
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
        self.check_key(run, &said);
        let id = self.lab.ids().pop().unwrap();
        assert!(run.stderr.contains("changes: 1 added, 0 modified, 1 deleted"), "{run:#?}");
        let names = || std::fs::read_dir(&self.work).unwrap().count();
        assert!(names() == 1 && self.work.join("old.txt").exists(), "the folder was written");
        self.lab.brig(["task", "apply", &id]).succeeded();
        assert!(names() == 1 && self.work.join("note.txt").exists(), "the changes were not applied");
    }

    /// Asserts that the search found no key, and that the caller sees what happened.
    #[track_caller]
    fn check_key(&self, run: &Run, said: &str) {
        let found = said.split_once("files: 0 variables: 0 memory: 0 in any of ").unwrap_or_else(|| panic!("{said}")).1;
        assert!(!found.starts_with("0 ") && found.contains(" processes"), "{said}");
        let id = self.lab.ids().pop().unwrap();
        for words in [
            "stays outside of the sandbox",
            &format!("refused refused.test; to allow it: brig task allow {id} refused.test"),
            "for the next run: --allow refused.test",
            &format!("brig task apply {id}"),
        ] {
            assert!(run.stderr.contains(words), "`{words}`: {run:#?}");
        }
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

#[test]
#[ignore = "installs 1.5 GB: tests/run agents"]
fn opencode_works_with_its_key_outside() {
    let Some(lab) = Lab::root() else { return };
    let Some(model) = Model::of_more(&lab) else { return };
    let variables = [("ANTHROPIC_API_KEY", KEY), ("ANTHROPIC_BASE_URL", &*model.url())];
    let run =
        model.agent("opencode", &[], &variables).run(["run", "-m", "anthropic/claude-sonnet-4-5", "write a note"]);
    model.check(&run, KEY);
    let words = ["run", "-m", "anthropic/claude-sonnet-4-5", "--continue", "go on"];
    model.agent("opencode", &[], &variables).run(words).succeeded();
    let requests = model.requests();
    assert_eq!(requests.last().unwrap()["results"], 3, "{requests:#?}");
}

#[test]
#[ignore = "installs 1.5 GB: tests/run agents"]
fn gemini_cli_works_with_its_key_outside() {
    let Some(lab) = Lab::root() else { return };
    let Some(model) = Model::of_more(&lab) else { return };
    // With a model of the caller it does not ask which model fits.
    let variables =
        [("GEMINI_API_KEY", KEY), ("GOOGLE_GEMINI_BASE_URL", &*model.url()), ("GEMINI_MODEL", "gemini-2.5-pro")];
    let run = model.agent("gemini", &[], &variables).run(["-p", "write a note"]);
    model.check(&run, KEY);
}

#[test]
#[ignore = "installs 1.5 GB: tests/run agents"]
fn qwen_code_works_with_its_key_outside() {
    let Some(lab) = Lab::root() else { return };
    let Some(model) = Model::of_more(&lab) else { return };
    let url = format!("{}/v1", model.url());
    let variables = [("OPENAI_API_KEY", KEY), ("OPENAI_BASE_URL", &*url), ("OPENAI_MODEL", "qwen3-coder")];
    let run = model.agent("qwen", &[], &variables).run(["-p", "write a note"]);
    model.check(&run, &format!("Bearer {KEY}"));
}

#[test]
#[ignore = "installs 1.5 GB: tests/run agents"]
fn goose_works_with_its_key_outside_and_goes_on_in_its_home() {
    let Some(lab) = Lab::root() else { return };
    let Some(model) = Model::of_more(&lab) else { return };
    let variables = [
        ("ANTHROPIC_API_KEY", KEY),
        ("ANTHROPIC_HOST", &*model.url()),
        ("GOOSE_PROVIDER", "anthropic"),
        ("GOOSE_MODEL", "claude-sonnet-4-5"),
    ];
    let run = model.agent("goose", &[], &variables).run(["run", "--text", "write a note"]);
    model.check(&run, KEY);
    model.agent("goose", &[], &variables).run(["run", "--resume", "--text", "go on"]).succeeded();
    let requests = model.requests();
    assert_eq!(requests.last().unwrap()["results"], 3, "{requests:#?}");
}

/// It has no tools: it edits files by its answers, and sends the output of a failed test.
#[test]
#[ignore = "installs 1.5 GB: tests/run agents"]
fn aider_works_with_its_key_outside() {
    let Some(lab) = Lab::root() else { return };
    let Some(model) = Model::of_more(&lab) else { return };
    let variables = [
        ("ANTHROPIC_API_KEY", KEY),
        ("ANTHROPIC_API_BASE", &*model.url()),
        ("AIDER_MODEL", "anthropic/claude-sonnet-4-5"),
    ];
    let test = format!("test -e tried || {{ touch tried; {}; false; }}", search());
    let words = ["--no-git", "--edit-format", "diff", "--auto-test", "--test-cmd", &test, "--message", "write a note"];
    let run = model.agent("aider", &[], &variables).run(words);
    run.succeeded();
    let requests = model.requests();
    assert!(requests.iter().all(|each| each["credentials"] == json!([KEY])), "{requests:#?}");
    let said: String = requests.iter().filter_map(|each| each["message"].as_str()).collect();
    model.check_key(&run, &said);
    assert!(!model.work.join("note.txt").exists(), "the folder was written");
    lab.brig(["task", "apply", "@"]).succeeded();
    // Each answer of the model adds the line.
    assert!(std::fs::read_to_string(model.work.join("note.txt")).unwrap().starts_with("hello\n"));
}

/// The image of `rootfs/build` with the libraries of a browser and the layer of an agent.
#[test]
#[ignore = "builds an image of Debian packages: tests/run agents"]
fn the_agent_image_has_an_agent_and_runs_playwright() {
    const PAGE: &str = r#"
        import binary from '@sparticuz/chromium';
        import { chromium } from 'playwright-core';
        const args = ['--no-sandbox', '--no-zygote', '--disable-gpu', '--disable-dev-shm-usage'];
        const browser = await chromium.launch({ executablePath: await binary.executablePath(), args });
        const page = await browser.newPage();
        await page.setContent('<p id=sum></p><script>sum.textContent = 6 * 7</script>');
        console.log(await page.textContent('#sum'), (await page.screenshot()).subarray(1, 4).toString());
        await browser.close();"#;
    let Some(lab) = Lab::root() else { return };
    let Some(model) = Model::of_more(&lab) else { return };
    let layout = lab.path().join("layout");
    let mut build = Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/rootfs/build"));
    let built = build.args(["--browser", "--agents", "goose"]).arg(&layout).output().unwrap();
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    lab.brig(["image", "load", "--name", "agent", layout.to_str().unwrap()]).succeeded();
    let task = lab.command(["task", "run", "--image", "agent", "--dir", playwright().to_str().unwrap()]);
    let run = task.run(["node", "--input-type=module", "-e", PAGE]);
    run.succeeded();
    assert_eq!(run.stdout, "42 PNG\n", "{run:#?}");
    let variables = [
        ("OPENAI_API_KEY", KEY),
        ("OPENAI_HOST", &*model.url()),
        ("GOOSE_PROVIDER", "openai"),
        ("GOOSE_MODEL", "gpt-4.1"),
    ];
    let run = model.agent("goose", &["--image", "agent"], &variables).run(["run", "--text", "write a note"]);
    model.check(&run, &format!("Bearer {KEY}"));
}

#[test]
fn a_model_of_plain_http_needs_no_key() {
    let Some(lab) = Lab::root() else { return };
    let Some(model) = Model::new(&lab) else { return };
    let near = format!("{}:8445", model.world.address);
    let variables = [("OPENAI_BASE_URL", "http://a.test:8445/v1"), ("MSWEA_MODEL_NAME", "openai/gpt-4.1")];
    let agent =
        |more: &[(&str, &str)]| model.agent("mini-swe-agent", &["--allow", &near], &[&variables, more].concat());
    let words = ["-t", "write a note", "--exit-immediately"];
    let run = agent(&[]).run(words);
    run.succeeded();
    assert!(run.stderr.contains("OPENAI_API_KEY is not set; a.test:8445 is allowed"), "{run:#?}");
    assert!(run.stderr.contains("changes: 1 added, 0 modified, 1 deleted"), "{run:#?}");
    agent(&[("OPENAI_API_KEY", KEY)]).run(words).refused(125, &["the broker needs TLS"]);
}
