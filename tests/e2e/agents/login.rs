//! Login files: the broker has their access token, and the sandbox has neither the file nor the token.

use super::{NOTHING, SHELL, agent, folder, lab};
use crate::egress::world::World;
use crate::support::memory::{files_with, inside, memory_with};
use crate::support::{Lab, Task, eventually};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

const TOKEN: &str = "access-token-of-the-login-0001";
const NEXT: &str = "access-token-of-the-login-0002";
const REFRESH: &str = "refresh-token-of-the-login-0001";

/// Writes a login of Claude Code that is valid for so many seconds, as its program does.
fn write(folder: &Path, token: &str, seconds: i64) -> PathBuf {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs() as i64;
    let text = serde_json::json!({"claudeAiOauth": {
        "accessToken": token, "refreshToken": REFRESH, "expiresAt": (now + seconds) * 1000, "scopes": ["user:inference"],
    }});
    std::fs::create_dir_all(folder).unwrap();
    let (new, path) = (folder.join("new"), folder.join(".credentials.json"));
    std::fs::write(&new, text.to_string()).unwrap();
    std::fs::rename(new, &path).unwrap();
    path
}

/// `brig agent claude` without a variable that has a key, and with the home of the lab.
fn task<'lab>(lab: &'lab Lab, flags: &[&str]) -> Task<'lab> {
    agent(lab, &[], flags).env("ANTHROPIC_API_KEY", "").env("HOME", lab.path().join("home"))
}

fn directory(lab: &Lab) -> PathBuf {
    lab.path().join("home/.claude")
}

#[test]
fn the_server_gets_the_token_of_a_login_and_no_memory_or_file_of_the_sandbox_has_it() {
    let Some(lab) = Lab::root().map(|_| lab(SHELL)) else { return };
    let Some(world) = World::new(&lab) else { return };
    write(&directory(&lab), TOKEN, 3600);
    let (resolver, near) = (format!("{}:5353", world.address), format!("{}:8443", world.address));
    let task = task(&lab, &["--resolver", &resolver, "--allow", &near])
        .env("ANTHROPIC_BASE_URL", "https://a.test:8443")
        .env("SSL_CERT_FILE", lab.directory("work").join("ca.pem"));
    let script = "mark=this-is-a-mark-; mark=${mark}in-memory; echo $mark > /tmp/mark; ls -a ~/.claude; \
        echo with ${#CLAUDE_CODE_OAUTH_TOKEN}; while :; do curl -sS -o /dev/null https://a.test:8443/$((n += 1)); sleep 0.2; done";
    let task = task.start_sh(script);
    task.wait_for("with 31\n");
    let output = task.output();
    assert!(output.contains("; its token is valid for ") && !output.contains(".credentials.json\n"), "{output}");
    let was_sent = |token: &str| world.heard().contains(&format!("<Bearer {token}>"));
    eventually("the token arrives", || was_sent(TOKEN));
    let words = [TOKEN, REFRESH, "this-is-a-mark-in-memory", NEXT].map(str::as_bytes);
    let search = || {
        let pids = inside(&task);
        let memory: BTreeSet<_> = pids.iter().flat_map(|&pid| memory_with(pid, &words)).collect();
        memory.into_iter().chain(files_with(pids[1], &words)).collect::<Vec<_>>()
    };
    let check = || {
        let found = search();
        assert!(found.iter().any(|(index, _)| *index == 2), "the search finds nothing at all: {found:?}");
        assert!(found.iter().all(|(index, _)| *index == 2), "{found:#?}");
    };
    check();
    // The program renews its login outside.
    write(&directory(&lab), NEXT, 3600);
    eventually("the renewed token arrives", || was_sent(NEXT));
    check();
    task.signal(rustix::process::Signal::TERM);
    task.finish();
    let receipt = lab.brig(["task", "show", "@", "--json"]).succeeded().stdout.clone();
    assert!(receipt.contains("\"login\"") && !receipt.contains(TOKEN) && !receipt.contains(NEXT), "{receipt}");
}

#[test]
fn a_login_is_a_placeholder_inside() {
    let lab = lab(SHELL);
    write(&directory(&lab), TOKEN, 3600);
    let script = "echo ${#CLAUDE_CODE_OAUTH_TOKEN}";
    let run = task(&lab, &[]).sh(script);
    assert!(run.succeeded().stdout == "31\n" && run.stderr.contains("the login of "), "{run:#?}");
    assert_eq!(task(&lab, &[]).weakened("agent-key").sh(script).stdout, format!("{}\n", TOKEN.len()));
    // A variable comes before the login.
    let given = task(&lab, &[]).env("ANTHROPIC_API_KEY", super::KEY).sh("echo ${#ANTHROPIC_API_KEY}");
    assert!(given.stdout == "32\n" && !given.stderr.contains("the login of "), "{given:#?}");
}

#[test]
fn an_expired_or_broken_login_is_refused_with_the_command_that_renews_it() {
    let lab = lab(SHELL);
    let path = write(&directory(&lab), TOKEN, -7200);
    let expired = task(&lab, &[]).run(NOTHING);
    expired.refused(125, &["use the key `CLAUDE_CODE_OAUTH_TOKEN`", "expired 2h"]);
    assert!(expired.stderr.contains("run `claude` once outside of brig"), "{expired:#?}");
    std::fs::write(&path, TOKEN).unwrap();
    let broken = task(&lab, &[]).run(NOTHING);
    broken.refused(125, &["read the login"]);
    assert!(!broken.stderr.contains(TOKEN), "{broken:#?}");
    std::fs::remove_file(&path).unwrap();
    task(&lab, &[]).run(NOTHING).refused(125, &["`~/.claude/.credentials.json` has no login"]);
    assert!(lab.ids().is_empty());
}

#[test]
fn no_folder_or_mount_shows_the_login_file() {
    let lab = lab(SHELL);
    let inside = folder(&lab).join(".claude");
    write(&inside, TOKEN, 3600);
    let script = "cat .claude/.credentials.json; true";
    let own = || task(&lab, &[]).env("CLAUDE_CONFIG_DIR", &inside);
    // A key in a variable makes no difference: the login stays a person's account.
    let keys = ["", "sk-ant-0123456789"];
    for key in keys {
        let hidden = own().env("ANTHROPIC_API_KEY", key).sh(script);
        assert!(!hidden.succeeded().stdout.contains("accessToken"), "{hidden:#?}");
    }
    let shown = own().weakened("agent-login").sh(script).stdout;
    assert!(shown.contains("accessToken"), "{shown}");
    write(&directory(&lab), TOKEN, 3600);
    let mount = format!("{}:/data", directory(&lab).display());
    for key in keys {
        let task = task(&lab, &["--mount", &mount]).env("ANTHROPIC_API_KEY", key);
        task.run(NOTHING).refused(125, &["would show the login"]);
    }
    let weak = task(&lab, &["--mount", &mount]).weakened("agent-login").sh("cat /data/.credentials.json");
    assert!(weak.stdout.contains("accessToken"), "{weak:#?}");
}
