//! Real clients against a scripted model: Claude Code and Codex call a tool of brig.

use super::*;
use crate::agents::install::programs;
use crate::egress::world::World;
use crate::support::program_under_test;
use std::path::PathBuf;
use std::process::{Command, Stdio};

const SERVER: &str = include_str!("../../support/model_server.py");

/// A model server whose model calls `run` of brig, and the programs.
struct Model<'lab> {
    lab: &'lab Lab,
    world: World,
    folders: Vec<PathBuf>,
}

impl Model<'_> {
    fn new(lab: &Lab) -> Option<Model<'_>> {
        let folders = programs()?;
        let mut world = World::new(lab)?;
        let command = "echo devices: $(grep -c : /proc/net/dev) end; cat old.txt; rm old.txt";
        let script = json!({ "commands": [command], "text": "All is done.", "tool": "run" });
        let (program, script) = (lab.file("server.py", SERVER), lab.file("script.json", script.to_string()));
        let mut server = Command::new("/usr/bin/python3");
        server.arg(program).args([&world.address.to_string(), "8444"]);
        server.args(["cert.pem", "key.pem"].map(|name| world.directory().join(name))).arg(script);
        world.also(server.arg(lab.path().join("log")), 8444);
        lab.file("project/old.txt", "of the caller\n");
        Some(Model { lab, world, folders })
    }

    fn url(&self) -> String {
        format!("https://{}:8444", self.world.address)
    }

    /// The words after `brig` that start the server.
    fn words(&self) -> Vec<String> {
        let folder = self.lab.path().join("project");
        ["mcp".to_owned(), format!("--store={}", self.lab.store().display()), format!("--dir={}", folder.display())]
            .to_vec()
    }

    /// A client in the project's folder, with an empty home.
    fn client(&self, name: &str) -> Command {
        let path =
            std::env::join_paths(self.folders.iter().cloned().chain(["/usr/bin".into(), "/bin".into()])).unwrap();
        let mut command = Command::new(name);
        let ca = self.lab.directory("work").join("ca.pem");
        command.env_clear().env("PATH", path).env("HOME", self.lab.directory("home")).env("NODE_EXTRA_CA_CERTS", &ca);
        command.env("SSL_CERT_FILE", ca).current_dir(self.lab.path().join("project")).stdin(Stdio::null());
        command
    }

    /// Asserts that the tool ran in a sandbox, and that the model got its result.
    #[track_caller]
    fn check(&self, mut command: Command) {
        let run = command.output().unwrap();
        let log = std::fs::read_to_string(self.lab.path().join("log")).unwrap_or_default();
        let results: Vec<Value> = log.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let said: String = results.iter().filter_map(|each| each["result"].as_str()).collect();
        assert!(run.status.success(), "{run:#?}\n{log}");
        assert!(
            said.contains("devices: 1 end") && said.contains("of the caller") && said.contains("succeeded"),
            "{said}\n{run:#?}\n{log}"
        );
        assert!(self.lab.path().join("project/old.txt").exists(), "the folder was written");
        assert_eq!(self.lab.ids().len(), 1);
    }
}

#[test]
fn claude_code_calls_a_tool() {
    let Some(lab) = Lab::root() else { return };
    let Some(model) = Model::new(&lab) else { return };
    let server = json!({ "type": "stdio", "command": program_under_test(), "args": model.words() });
    let config = lab.file("mcp.json", json!({ "mcpServers": { "brig": server } }).to_string());
    let mut claude = model.client("claude");
    claude.args(["-p", "run the command", "--strict-mcp-config", "--mcp-config"]).arg(config);
    claude.args(["--allowedTools", "mcp__brig__run"]);
    claude.env("ANTHROPIC_API_KEY", "a-key-of-the-test").env("ANTHROPIC_BASE_URL", model.url());
    claude.env("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1").env("ENABLE_TOOL_SEARCH", "false");
    model.check(claude);
}

#[test]
fn codex_calls_a_tool() {
    let Some(lab) = Lab::root() else { return };
    let Some(model) = Model::new(&lab) else { return };
    let url = format!("{}/v1", model.url());
    let provider =
        format!("{{ name = \"test\", base_url = \"{url}\", env_key = \"OPENAI_API_KEY\", wire_api = \"responses\" }}");
    let words = model.words().iter().map(|word| format!("{word:?}")).collect::<Vec<_>>().join(", ");
    let config = format!(
        "model = \"gpt-5\"\nmodel_provider = \"test\"\napproval_policy = \"never\"\nmodel_providers.test = {provider}\n\
         [mcp_servers.brig]\ncommand = {:?}\nargs = [{words}]\n",
        program_under_test()
    );
    lab.file("home/.codex/config.toml", config);
    let mut codex = model.client("codex");
    codex.args(["exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", "run the command"]);
    codex.env("OPENAI_API_KEY", "a-key-of-the-test");
    model.check(codex);
}
