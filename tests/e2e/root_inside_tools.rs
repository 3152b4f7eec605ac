//! `--root-inside`: tools of languages that install into the system, and accounts that use what they have installed.

use crate::escape::has_root_inside;
use crate::root_inside::{debian, inside};
use crate::support::{Lab, has_program, skip};
use std::path::Path;

/// A wheel with a program, made where it is installed.
const WHEEL: &str = "mkdir -p /tmp/w/tool-1.0.dist-info; cd /tmp/w
    echo 'def main(): print(\"tool of pip\")' > tool.py
    printf 'Metadata-Version: 2.1\\nName: tool\\nVersion: 1.0\\n' > tool-1.0.dist-info/METADATA
    printf 'Wheel-Version: 1.0\\nGenerator: test\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n' > tool-1.0.dist-info/WHEEL
    printf '[console_scripts]\\npip-tool = tool:main\\n' > tool-1.0.dist-info/entry_points.txt
    printf 'tool.py,,\\n' > tool-1.0.dist-info/RECORD
    python3 -m zipfile -c /tmp/tool-1.0-py3-none-any.whl tool.py tool-1.0.dist-info";
/// A package of npm with a program.
const PACKAGE: &str = "mkdir -p /tmp/n/package; cd /tmp/n
    echo '{\"name\": \"tool\", \"version\": \"1.0.0\", \"bin\": {\"npm-tool\": \"cli.js\"}}' > package/package.json
    printf '#!/usr/bin/env node\\nconsole.log(\"tool of npm\")\\n' > package/cli.js
    python3 -m tarfile -c /tmp/tool-1.0.0.tgz package";

#[test]
fn pip_installs_into_the_system_and_a_new_account_uses_it() {
    let lab = Lab::new();
    if !Path::new("/usr/share/doc/python3-pip").exists() {
        return skip("needs python3-pip");
    }
    if !has_root_inside() {
        return;
    }
    debian(&lab, &["python3", "python3-pip"]).load();
    let script = format!(
        "exec 2>&1; set -e; {WHEEL}
         cd /; pip='python3 -m pip --disable-pip-version-check install --no-index'
         $pip /tmp/tool-1.0-py3-none-any.whl || echo refused by Debian
         $pip --break-system-packages /tmp/tool-1.0-py3-none-any.whl
         useradd --create-home --shell /bin/sh worker; id -un worker; stat -c '%U %a' /home/worker
         su - worker -c 'pip-tool; id -un; echo x > ~/own; stat -c %U ~/own; test ! -w /usr/local/bin && echo closed'"
    );
    let run = inside(lab.task(), "debian").sh(&script);
    let out = &run.ended_as("succeeded", 0).stderr;
    let expected = "tool of pip\nworker\nworker\nclosed\n";
    assert!(out.contains("externally-managed-environment") && out.contains("refused by Debian"), "{run:#?}");
    assert!(out.contains("\nworker\nworker 7") && out.contains(expected), "{run:#?}");
}

#[test]
fn npm_installs_a_program_for_all_accounts() {
    let lab = Lab::new();
    let npm = "/usr/lib/node_modules/npm";
    if !has_program("node") || !Path::new(npm).exists() {
        return skip("needs npm");
    }
    if !has_root_inside() {
        return;
    }
    debian(&lab, &["nodejs", "python3"]).load();
    let script = format!(
        "exec 2>&1; set -e; {PACKAGE}
         cd /; node /opt/npm/bin/npm-cli.js install --global --offline --no-audit --no-fund /tmp/tool-1.0.0.tgz
         stat -c %U /usr/lib/node_modules/tool/cli.js; useradd worker; su worker -c npm-tool"
    );
    let run = inside(lab.task(), "debian").args(["--mount", &format!("{npm}:/opt/npm")]).sh(&script);
    assert!(run.ended_as("succeeded", 0).stderr.ends_with("root\ntool of npm\n"), "{run:#?}");
}
