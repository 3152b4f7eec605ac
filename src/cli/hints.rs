//! Hints for commands that docker or an engine has and brig has not. Tables only; a test checks the commands in them.

/// Unknown verbs at the top level or of `brig task`.
const VERBS: [(&str, &str); 27] = [
    ("attach", "`brig task attach ID`"),
    ("build", "brig builds no images: `brig image import`, or `brig image load` of an archive from another tool"),
    ("cp", "`brig task cp ID:PATH PATH`"),
    ("commit", "`brig task diff ID`, `brig task apply ID` or `brig task export ID` take the work out"),
    ("diff", "`brig task diff ID`"),
    ("history", "`brig image inspect NAME` lists the layers of an image"),
    ("images", "`brig image ls`"),
    ("import", "`brig image import FILE NAME`"),
    ("info", "`brig doctor`"),
    ("inspect", "`brig task show ID`, or `brig image inspect NAME`"),
    ("load", "`brig image load FILE`"),
    ("login", "log in with `skopeo login` or `docker login`: `brig image pull` reads what they keep"),
    ("logs", "`brig task logs ID`"),
    ("ls", "`brig task ls`, or `brig image ls`"),
    ("ps", "`brig task ls` lists tasks, `brig task top ID` the processes of one"),
    ("pull", "`brig image pull NAME`"),
    ("push", "`brig image push NAME`"),
    (
        "restart",
        "`brig task resume ID` runs the command of a kept workspace again; `brig task run COMMAND` starts a new task",
    ),
    ("rm", "`brig task rm ID`"),
    ("rmi", "`brig image rm NAME`"),
    ("save", "`brig image save NAME`"),
    ("show", "`brig task show ID`"),
    ("stats", "`brig task stats`"),
    ("stop", "`brig task stop ID`"),
    ("tag", "`brig image tag NAME NEW`"),
    ("top", "`brig task top ID`"),
    ("wait", "`brig task wait ID`"),
];

/// Flags of `docker run` that `brig task run` does not have.
const FLAGS: [(&str, &str); 11] = [
    (
        "-v",
        "`--mount SOURCE:TARGET` shows a file or folder of the host read-only, `--mount SOURCE:TARGET:rw` writes to it; `--volume NAME:TARGET` is a volume",
    ),
    ("--rm", "leave it out: of a task stays its record alone, until `brig task rm ID`"),
    ("--timeout", "`--wall TIME` ends a task, `--idle TIME` one without output"),
    ("-p", "`--publish ADDRESS:PORT:PORT`"),
    ("-m", "`--memory SIZE`"),
    ("--net", "`--network MODE`, or `--allow HOST:PORT` for one host"),
    ("--env-file", "`-e NAME=VALUE`, or `[env]` of a profile"),
    ("--pids-limit", "`--pids NUMBER`"),
    ("--privileged", "brig has no such switch; `--root-inside` makes the command root in a user namespace"),
    ("--cap-add", "`--root-inside` gives the command Docker's default capabilities in a user namespace"),
    ("--ulimit", "`--open-files NUMBER`, `--pids NUMBER`"),
];

/// Flags that docker's verb of the same name has.
const VERB_FLAGS: [(&str, &str, &str); 13] = [
    ("image ls", "-a", "leave it out: all images are listed"),
    ("image rm", "-f", "remove each name of the image; `brig task rm ID` what uses it"),
    ("task cp", "-a", "leave it out: modes and times are kept"),
    ("task kill", "-s", "the signal comes after the task: `brig task kill ID USR1`"),
    ("task kill", "--signal", "the signal comes after the task: `brig task kill ID USR1`"),
    ("task logs", "-t", "`brig task events ID` has the time of each output"),
    ("task logs", "--timestamps", "`brig task events ID` has the time of each output"),
    ("task logs", "--since", "`brig task events ID` has the time of each output"),
    ("task ls", "-a", "leave it out: ended tasks are listed, too"),
    ("task rm", "-f", "end it first: `brig task kill ID`"),
    ("task rm", "--force", "end it first: `brig task kill ID`"),
    ("task stop", "-t", "`--grace TIME`"),
    ("task stop", "--timeout", "`--grace TIME`"),
];

/// Hints for verbs of the OCI runtime that a user types.
const OCI: [(&str, &str); 17] = [
    ("checkpoint", "of a task: `brig task checkpoint ID`"),
    ("create", "for a task: `brig task run --dir . COMMAND`"),
    ("delete", "for a task: `brig task rm ID`"),
    ("events", "of a task: `brig task events ID`"),
    ("exec", "in a task: `brig task exec ID COMMAND`"),
    ("features", "`brig doctor` lists what this machine can enforce"),
    ("kill", "for a task: `brig task kill ID`"),
    ("list", "of tasks: `brig task ls`"),
    ("pause", "for a task: `brig task pause ID`"),
    ("ps", "`brig task ls` lists tasks, `brig task top ID` the processes of one"),
    ("restore", "for a task: `brig task rollback ID`"),
    ("resume", "for a task: `brig task unpause ID` after a pause, `brig task resume ID` for a kept workspace"),
    ("run", "for a task: `brig task run --dir . COMMAND`, or `brig run --image NAME COMMAND`"),
    ("spec", "a task has flags or a profile instead: `brig task run --dir . COMMAND`"),
    ("start", "for a task: `brig task run --dir . COMMAND`"),
    ("state", "of a task: `brig task show ID`"),
    ("update", "the limits of a task are flags of `brig task run --dir . COMMAND`"),
];

fn find(table: &[(&str, &'static str)], word: &str) -> Option<&'static str> {
    table.iter().find(|(known, _)| *known == word).map(|(_, hint)| *hint)
}

/// The hint for an unknown verb.
pub(super) fn of_verb(word: &str) -> Option<&'static str> {
    find(&VERBS, word)
}

/// The hint for an unknown flag of a verb: `task logs`.
pub(super) fn of_flag(verb: &str, word: &str) -> Option<&'static str> {
    let flag = word.split('=').next().unwrap_or(word);
    match verb {
        "task run" | "volume fill" => find(&FLAGS, flag),
        _ => VERB_FLAGS.iter().find(|(its, known, _)| *its == verb && *known == flag).map(|(.., hint)| *hint),
    }
}

/// The hint for a verb of the OCI runtime that a user types.
pub(super) fn of_oci_verb(word: &str) -> Option<String> {
    find(&OCI, word).map(|hint| format!("this is the verb of an OCI runtime; {hint}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    /// The commands and flags between backticks, as their words.
    fn quoted(hint: &str) -> impl Iterator<Item = Vec<&str>> {
        hint.split('`').skip(1).step_by(2).map(|text| text.split(' ').collect())
    }

    #[test]
    fn every_command_and_flag_of_a_hint_exists() {
        let mut root = crate::cli::Arguments::command();
        root.build();
        let has_flag = |verb: &str, flag: &str| {
            let verb = verb.split(' ').fold(&root, |at, each| at.find_subcommand(each).unwrap());
            verb.get_arguments().any(|one| {
                flag.strip_prefix("--").map_or_else(
                    || one.get_short().is_some_and(|short| flag == format!("-{short}")),
                    |long| one.get_long() == Some(long),
                )
            })
        };
        let of_run = VERBS.iter().chain(&FLAGS).chain(&OCI).map(|(word, hint)| ("task run", *word, *hint));
        for (verb, word, hint) in of_run.chain(VERB_FLAGS) {
            for words in quoted(hint) {
                match words.as_slice() {
                    ["brig", "run", ..] | ["skopeo" | "docker", ..] | ["@"] | ["[env]"] => {}
                    ["brig", path @ ..] => {
                        let path = path.iter().take_while(|each| each.chars().all(char::is_lowercase)).take(2);
                        let found = path.into_iter().try_fold(&root, |at, each| at.find_subcommand(each));
                        assert!(found.is_some_and(|at| at.get_name() != "brig"), "{word}: {words:?}");
                    }
                    [flag, ..] => assert!(has_flag(verb, flag), "{word}: {flag}"),
                    [] => panic!("{word}: an empty command"),
                }
            }
        }
        let hinted: Vec<_> = OCI.iter().map(|(verb, _)| *verb).collect();
        assert!(hinted.is_sorted() && crate::cli::oci::verbs().all(|(verb, _)| hinted.contains(&verb)));
        let of_run = FLAGS.iter().map(|(flag, _)| ("task run", *flag));
        let mut hinted = of_run.chain(VERB_FLAGS.iter().map(|(verb, flag, _)| (*verb, *flag)));
        assert_eq!(hinted.find(|(verb, flag)| has_flag(verb, flag)), None, "a hint for a flag that exists");
    }
}
