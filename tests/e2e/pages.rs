//! The commands of the how-to pages, run as they are written, with their output.
//!
//! A block that is marked `python` is a program. The block `text` behind it is its output.
//!
//! A block of a page that is marked `console` has commands after `$ `, and their further lines after `> `. Below each is
//! its output with standard error. `…` matches the rest of a line up to the words behind it, and a line that has `…`
//! alone matches any lines. A last line `[N]` is an exit status that is not 0. The commands of one page share a shell,
//! in a home with a repository at `~/src/app`, its remote at `~/remote/app.git`, and a scripted agent.

use crate::support::{Lab, is_root, program, skip};
use std::path::Path;
use std::process::{Command, Stdio};

const REPOSITORY: &[(&str, &str)] = &[
    ("add.sh", "echo $(($1 - $2))\n"),
    (
        "test.sh",
        "#!/bin/sh\nmkdir -p reports; date > reports/when\n[ \"$(sh add.sh 1 2)\" = 3 ] && echo passed || { echo failed; exit 1; }\n",
    ),
    ("prepare.sh", "#!/bin/sh\necho prepared\n"),
    (
        "agent.sh",
        "#!/bin/sh\nset -e\nsed -i 's/ - / + /' add.sh\n\
         git -c user.name=agent -c user.email=agent@localhost commit -qam 'add: add'\n",
    ),
];

const SETUP: &str =
    "set -e; export HOME=\"$PWD\" GIT_CONFIG_NOSYSTEM=1 GIT_AUTHOR_NAME=me GIT_AUTHOR_EMAIL=me@localhost
    export GIT_COMMITTER_NAME=me GIT_COMMITTER_EMAIL=me@localhost
    chmod +x src/app/*.sh; git init -q -b main src/app; cd src/app; git add .; git commit -qm first; cd
    git clone -q --bare src/app remote/app.git; set +e";

/// What the shell prints before the exit status of each command.
const MARK: &str = "=== status ";

/// A command of a page and what the page shows of it.
struct Step {
    command: String,
    output: Vec<String>,
    status: i32,
}

fn steps(page: &str) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    let mut language = None;
    for line in page.lines() {
        if let Some(word) = line.strip_prefix("```") {
            if language == Some("python") {
                steps.last_mut().unwrap().command += "END-OF-PROGRAM";
            }
            language = language.is_none().then_some(word);
            if language == Some("python") {
                let command = "python3 - << 'END-OF-PROGRAM'\n".to_owned();
                steps.push(Step { command, output: Vec::new(), status: 0 });
            }
        } else if language == Some("python") {
            steps.last_mut().unwrap().command += &format!("{line}\n");
        } else if language == Some("text") {
            steps.last_mut().unwrap().output.push(line.to_owned());
        } else if language != Some("console") {
        } else if let Some(command) = line.strip_prefix("$ ") {
            steps.push(Step { command: command.to_owned(), output: Vec::new(), status: 0 });
        } else if let Some(step) = steps.last_mut() {
            let status = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')?.parse().ok());
            match (line.strip_prefix("> "), status) {
                (Some(more), _) if step.output.is_empty() => step.command += &format!("\n{more}"),
                (_, Some(status)) => step.status = status,
                _ => step.output.push(line.to_owned()),
            }
        }
    }
    steps
}

/// Whether a line is what the page shows; the parts around each `…` must be in it in their order.
fn matches(shown: &str, line: &str) -> bool {
    let Some((first, rest)) = shown.split_once('…') else { return shown == line };
    let Some(mut left) = line.strip_prefix(first) else { return false };
    let parts: Vec<_> = rest.split('…').collect();
    for (number, part) in parts.iter().enumerate() {
        if number + 1 == parts.len() {
            return left.ends_with(part);
        }
        match left.find(part) {
            Some(at) => left = &left[at + part.len()..],
            None => return false,
        }
    }
    true
}

fn all_match(shown: &[String], lines: &[&str]) -> bool {
    match (shown, lines) {
        ([], []) => true,
        ([first, rest @ ..], _) if first == "…" => {
            all_match(rest, lines) || lines.split_first().is_some_and(|(_, later)| all_match(shown, later))
        }
        ([first, rest @ ..], [line, later @ ..]) => matches(first, line) && all_match(rest, later),
        _ => false,
    }
}

/// A server of the machine at port 3000, which has the file `hello`. It ends with the shell.
const SERVER: &str =
    "echo hello > hello; python3 -m http.server 3000 --bind 127.0.0.1 > /dev/null 2>&1 & trap 'kill %1' EXIT
    until curl -so /dev/null http://127.0.0.1:3000/; do sleep 0.1; done";

/// The root file system of a program alone, as the archive `rootfs.tar` and as the image `debian:12`.
const IMAGE: &str =
    "mkdir -p root/bin root/etc; cp /bin/busybox root/bin; for name in sh cat id sleep; do ln -s busybox root/bin/$name; done
    printf 'PRETTY_NAME=\"Debian GNU/Linux 12 (bookworm)\"\nID=debian\n' > root/etc/os-release
    tar -C root -cf rootfs.tar .; brig image import rootfs.tar debian:12 > /dev/null 2>&1";

/// A program in the place of an agent. It mends the repository.
const AGENT: &str = "mkdir -p .local/bin; PATH=$HOME/.local/bin:$PATH
    printf '#!/bin/sh\n[ -n \"$(git status --porcelain)\" ] || sh agent.sh; echo The test passes now.\n' > .local/bin/claude
    chmod 755 .local/bin/claude";

fn run_page(page: &str) {
    run_page_after("", page);
}

/// Runs a page after commands that it does not show.
fn run_page_after(preparation: &str, page: &str) {
    if let Err(difference) = compare(preparation, page) {
        panic!("{difference}");
    }
}

/// Runs the commands of a page. The error names the first command that does something else than the page shows.
fn compare(preparation: &str, page: &str) -> Result<(), String> {
    let lab = Lab::new();
    for (name, content) in REPOSITORY {
        lab.file(&format!("home/src/app/{name}"), content);
    }
    let bin = lab.directory("bin");
    std::os::unix::fs::symlink(program(), bin.join("brig")).unwrap();
    let steps = steps(page);
    assert!(!steps.is_empty(), "the page has no commands");
    let mut script = format!("{SETUP}\n{preparation}\n");
    for step in &steps {
        script += &format!("{}\nprintf '\\n{MARK}%s\\n' \"$?\"\n", step.command);
    }
    let output = run_script(&lab, &bin, &script);
    let mut rest = output.as_str();
    for Step { command, output: shown, status } in &steps {
        let (text, after) =
            rest.split_once(&format!("\n{MARK}")).ok_or_else(|| format!("no end of `{command}`: {rest}"))?;
        let (found, after) = after.split_once('\n').unwrap();
        if found != status.to_string() {
            return Err(format!("`{command}` ends with {found}: {text}"));
        }
        if !all_match(shown, &text.lines().collect::<Vec<_>>()) {
            return Err(format!("`{command}` prints\n{text}\nand the page shows {shown:#?}"));
        }
        rest = after;
    }
    Ok(())
}

/// The output of both streams in their order.
fn run_script(lab: &Lab, bin: &Path, script: &str) -> String {
    let log = lab.path().join("output");
    let file = std::fs::File::create(&log).unwrap();
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
    let mut shell = Command::new("bash");
    shell.args(["-c", script]).current_dir(lab.path().join("home"));
    shell.env("PATH", path).env("BRIG_STORE", lab.store()).stdin(Stdio::null());
    shell.stdout(file.try_clone().unwrap()).stderr(file).status().unwrap();
    std::fs::read_to_string(log).unwrap()
}

#[test]
fn agents() {
    run_page_after(AGENT, include_str!("../../docs/howto/agents.md"));
}

#[test]
fn best_of_n() {
    run_page(include_str!("../../docs/howto/best-of-n.md"));
}

#[test]
fn ci() {
    run_page(include_str!("../../docs/howto/ci.md"));
}

#[test]
fn company_network() {
    run_page(include_str!("../../docs/howto/company-network.md"));
}

#[test]
fn folder() {
    run_page(include_str!("../../docs/howto/folder.md"));
}

#[test]
fn handles() {
    if !is_root() {
        return skip("needs root: --hold");
    }
    run_page(include_str!("../../docs/howto/handles.md"));
}

#[test]
fn images() {
    run_page_after(IMAGE, include_str!("../../docs/howto/images.md"));
}

#[test]
fn limits() {
    run_page(include_str!("../../docs/howto/limits.md"));
}

#[test]
fn mcp() {
    run_page(include_str!("../../docs/howto/mcp.md"));
}

#[test]
fn moving() {
    if !Path::new("/usr/bin/bwrap").exists() {
        return skip("needs bubblewrap");
    }
    run_page(include_str!("../../docs/howto/moving.md"));
}

#[test]
fn python() {
    let library = concat!(
        "cd src/app; export PYTHONPATH=",
        env!("CARGO_MANIFEST_DIR"),
        "/src/python BRIG_BIN=$(command -v brig)"
    );
    run_page_after(library, include_str!("../../docs/howto/python.md"));
}

#[test]
fn repository() {
    run_page(include_str!("../../docs/howto/repository.md"));
}

#[test]
fn secrets_and_network() {
    run_page_after(SERVER, include_str!("../../docs/howto/secrets-and-network.md"));
}

#[test]
fn shared_machine() {
    if !is_root() {
        return skip("needs root: the operator's machine");
    }
    run_page(include_str!("../../docs/howto/shared-machine.md"));
}

#[test]
fn volumes() {
    run_page(include_str!("../../docs/howto/volumes.md"));
}

/// The content of the page's first block of TOML.
fn toml(page: &str) -> &str {
    page.split("```toml\n").nth(1).unwrap().split("```").next().unwrap()
}

/// Changes the machine. The suite `pages` of the virtual machine has Docker, containerd and Podman with the image.
#[test]
#[ignore = "changes the machine: tests/vm/run pages"]
fn engines() {
    let page = include_str!("../../docs/howto/engines.md");
    run_page_after(&format!("{IMAGE}\ncat > agent.toml << 'END'\n{}END", toml(page)), page);
}

/// Changes the machine: a pristine Debian, with the files of a release in the clone.
#[test]
#[ignore = "changes the machine: tests/release"]
fn install() {
    let clone = std::env::var("BRIG_TEST_CLONE").unwrap();
    run_page_after(&format!("PATH=${{PATH#*:}}; cd {clone}"), include_str!("../../docs/howto/install.md"));
}

/// Changes the machine, which has systemd. The suite has the registry of the page, with the image.
#[test]
#[ignore = "changes the machine: tests/vm/run pages"]
fn workers() {
    let page = include_str!("../../docs/howto/workers.md");
    let preparation = format!(
        "unset BRIG_STORE; mkdir -p rootfs /etc/brig/workers /etc/brig/keys; cp -r /mnt/work/systemd rootfs
umask 077; echo a-key-of-the-service > /etc/brig/keys/search; umask 022
printf '#!/bin/sh\\necho /usr/local/bin/brig\\n' > rootfs/binary; chmod 755 rootfs/binary
cat > /etc/brig/workers/search.toml << 'END'\n{}END",
        toml(page),
    );
    run_page_after(&preparation, page);
}

#[test]
fn a_page_with_other_output_fails() {
    let page = "```console\n$ echo one; echo two >&2\none\n…wo\n$ false\n[1]\n```\n\n```python\nprint(3 * 4)\n```\n\n```text\n12\n```\n";
    compare("", page).unwrap();
    for (right, wrong) in [("…wo", "…on"), ("\none", "\ntwo"), ("[1]", "[2]"), ("…wo\n", ""), ("\n12", "\n13")] {
        compare("", &page.replace(right, wrong)).unwrap_err();
    }
}
