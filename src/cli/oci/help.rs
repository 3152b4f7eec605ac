//! The help texts, with runc's headings.

use super::arguments::{self, Flag};
use super::{GLOBAL, HELP, VERBS, Verb, about};
use std::process::ExitCode;

/// The text between a verb's usage and its options, with runc's heading.
const TEXTS: [(&str, &str); 15] = [
    (
        "create",
        "DESCRIPTION:\n   Makes a container from a bundle: a directory with a config.json and a root file system.\n   Its program waits for `start`.",
    ),
    ("start", "DESCRIPTION:\n   Has the program of a created container begin."),
    (
        "run",
        "DESCRIPTION:\n   Makes a container from a bundle, a directory with a config.json and a root file system,\n   and starts its program. Without --detach it waits for the end and ends with the same status.",
    ),
    ("exec", "EXAMPLE:\n   To list the processes that a container sees:\n\n       # brig exec web-1 ps"),
    ("state", "DESCRIPTION:\n   Prints the state as JSON: its name, its status, its first process, its bundle."),
    (
        "list",
        "EXAMPLE 1:\n   To list the containers of the default directory of records:\n\n       # brig list\n\nEXAMPLE 2:\n   To list those of another one:\n\n       # brig --root DIRECTORY list",
    ),
    ("kill", "EXAMPLE:\n   To send SIGKILL to the first process of `web-1`:\n\n       # brig kill web-1 KILL"),
    ("delete", "EXAMPLE:\n   To remove `web-1`, which has stopped:\n\n       # brig delete web-1"),
    ("pause", "DESCRIPTION:\n   Freezes the container's cgroup."),
    ("resume", "DESCRIPTION:\n   Thaws the container's cgroup."),
    ("events", "DESCRIPTION:\n   Prints the counters of the container's cgroup as JSON, every 5 seconds or once."),
    (
        "spec",
        "DESCRIPTION:\n   Writes a config.json that runs `sh` in `rootfs`, to be changed.\n\nEXAMPLE:\n   To run `/hello` of an image's root file system:\n\n       # brig spec\n       # sed -i 's;\"sh\";\"/hello\";' config.json\n       # brig run web-1",
    ),
    ("features", "DESCRIPTION:\n   Prints as JSON what the runtime can do (runtime-spec, \"Features\")."),
    ("checkpoint", "DESCRIPTION:\n   Saves the processes of a running container in files, with CRIU."),
    ("restore", "DESCRIPTION:\n   Starts a container again from such files."),
];

/// The text of all verbs.
pub(super) fn print(name: &str) {
    println!("NAME:\n   {name} - Open Container Initiative runtime\n");
    println!("USAGE:\n   {name} [global options] command [command options] [arguments...]\n");
    println!("VERSION:\n   {}\n\nCOMMANDS:", about::version_lines(name).join("\n"));
    for verb in &VERBS {
        println!("   {:<12} {}", verb.name, verb.about);
    }
    println!("\nGLOBAL OPTIONS:");
    flags(&GLOBAL);
}

/// The text of one verb.
pub(super) fn of_verb(name: &str, verb: &Verb) -> ExitCode {
    println!("NAME:\n   {name} {} - {}\n", verb.name, verb.about);
    println!("USAGE:\n   {name} {} [command options] {}\n", verb.name, words_of(verb));
    let text = text_of(verb);
    if !text.is_empty() {
        println!("{text}\n");
    }
    println!("OPTIONS:");
    flags(verb.flags);
    flags(&[HELP]);
    ExitCode::SUCCESS
}

/// The text between a verb's usage and its options; empty for a verb without one.
pub(super) fn text_of(verb: &Verb) -> &'static str {
    TEXTS.iter().find(|(of, _)| *of == verb.name).map_or("", |(_, text)| text)
}

/// The text after the options of a verb.
pub(super) fn words_of(verb: &Verb) -> &'static str {
    match verb.name {
        "exec" => "<container-id> <command> [command options]  || -p process.json <container-id>",
        "kill" => "<container-id> [signal]",
        "ps" => "<container-id> [ps options]",
        "list" | "spec" | "features" => "",
        _ => "<container-id>",
    }
}

fn flags(flags: &[Flag]) {
    for flag in flags {
        let short = flag.short.map(|short| format!(", -{short}")).unwrap_or_default();
        let value = if flag.takes == arguments::Takes::Value { " value" } else { "" };
        println!("   {:<32} {}", format!("--{}{short}{value}", flag.name), flag.help);
    }
}
