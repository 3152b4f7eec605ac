//! Rules of hosted mode. Those of settings are in the table of settings; here are the flags of other verbs. A test
//! fails for a flag or key without a rule.

use crate::task::definition::settings::HostedRule::{self, AtMost, Folder, Free, Key, Never};
use crate::task::definition::settings::settings;

/// Flags that are not settings. `<verb name>` is a positional parameter.
const ROWS: &[(&[&str], HostedRule)] = &[
    (&["--store"], Key("store")),
    (&["--into", "--push-to"], Folder),
    (&["--output", "<cp from>", "<cp to>"], Never),
    (&["<allow rule>"], Key("networks")),
    (&["--number"], AtMost("number", "1")),
    (
        &[
            "<deny rule>",
            "--job",
            "--drain",
            "--raw",
            "--follow",
            "--tail",
            "--since",
            "--replay",
            "--no-input",
            "--stdout",
            "--stderr",
        ],
        Free,
    ),
    (
        &["--quiet", "--older-than", "--max-size", "--workspaces", "--dry-run", "--every", "--timeout", "--no-wait"],
        Free,
    ),
    (&["--stat", "--binary", "--include-git", "--force", "--patch", "--bundle", "--with-secrets", "--exclude"], Free),
    (
        &[
            "--merge",
            "<apply paths>",
            "<diff paths>",
            "<export paths>",
            "<kill signal>",
            "<revoke name>",
            "<checkpoint name>",
            "<rollback name>",
            "--from",
        ],
        Free,
    ),
];

/// For a flag such as `--dir`, or a parameter such as `<cp from>`.
pub fn hosted_rule_of_flag(flag: &str) -> Option<HostedRule> {
    let of_setting = settings().iter().find(|setting| setting.flag == flag).map(|setting| setting.hosted);
    of_setting.or_else(|| ROWS.iter().find(|(flags, _)| flags.contains(&flag)).map(|row| row.1))
}

/// Rows of the table in docs/host.md, one a rule.
#[cfg(test)]
pub(super) fn page() -> Vec<String> {
    let mut rows: Vec<(HostedRule, Vec<&str>, Vec<&str>)> = Vec::new();
    let of_settings = settings().iter().map(|setting| (setting.hosted, vec![setting.flag], vec![setting.key]));
    for (rule, flags, keys) in of_settings.chain(ROWS.iter().map(|(flags, rule)| (*rule, flags.to_vec(), Vec::new()))) {
        let at = rows.iter().position(|row| row.0 == rule).unwrap_or_else(|| {
            rows.push((rule, Vec::new(), Vec::new()));
            rows.len() - 1
        });
        rows[at].1.extend(flags.into_iter().filter(|flag| !flag.is_empty()));
        rows[at].2.extend(keys.into_iter().filter(|key| !key.is_empty()));
    }
    let words = |all: &[&str]| all.iter().map(|each| format!("`{each}`")).collect::<Vec<_>>().join(", ");
    let rule = |rule| match rule {
        Free => "free".to_owned(),
        Folder => "in `folders`".to_owned(),
        Key(key) => format!("needs `{key}`"),
        AtMost(key, default) => format!("at most `max.{key}` [default: {default}]"),
        Never => "refused".to_owned(),
    };
    rows.iter().map(|(each, flags, keys)| format!("| {} | {} | {} |", words(flags), words(keys), rule(*each))).collect()
}
