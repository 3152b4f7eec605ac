//! Generates `docs/seccomp.md` from the table. A test compares it with the file.

use super::table::GROUPS;
use super::{Group, Verdict};
use crate::spec::seccomp::{Condition, Operator};
use std::fmt::Write;

const HEAD: &str = "\
# What an agent may ask of the kernel

This page lets you look up whether an agent may make a system call, and why.

The page is generated from `src/seccomp/profile/table.rs`. The table is an allow-list for processes without
capabilities, with a row for every system call of the supported kernels. A call of a newer kernel returns ENOSYS. The
table allows nothing that Docker's default profile refuses, apart from `uprobe`.

Only the machine's own ABI is allowed. A 32-bit program on x86-64 ends with SIGSYS. The compatibility layer is a second,
less reviewed entry to the kernel, and its `socketcall` hides the arguments that are checked below.

A request for a new namespace (clone, unshare) returns EPERM. The supervisor refuses it through a listener
(seccomp_unotify(2)), counts these requests, and names the program at the end of the task. The kernel allows one
listener for a process, so a program inside cannot have another one (EBUSY).

Containers that are started through the OCI verbs get the profile of their `config.json`, not this one.

In a condition, `a0` is the first argument of the call.
";

pub(crate) fn markdown() -> String {
    let mut page = HEAD.to_string();
    for (title, wanted) in [("Allowed", 0), ("Allowed by their arguments", 1), ("Refused", 2)] {
        let _ = write!(page, "\n## {title}\n\n| what | calls | why |\n| --- | --- | --- |\n");
        for group in GROUPS.iter().filter(|group| section(group) == wanted) {
            let calls: Vec<String> = group.calls.split_whitespace().map(|call| format!("`{call}`")).collect();
            let what = match (&group.verdict, wanted) {
                (Verdict::Missing, _) => format!("{} (ENOSYS)", group.name),
                (Verdict::Ignored, _) => format!("{} (returns 0)", group.name),
                _ => group.name.to_string(),
            };
            let _ = writeln!(page, "| {what} | {}{} | {} |", calls.join(" "), conditions(group), group.reason);
        }
    }
    page
}

fn section(group: &Group) -> u8 {
    match group.verdict {
        Verdict::Allowed => 0,
        Verdict::Checked(_) | Verdict::Unless { .. } => 1,
        Verdict::Refused | Verdict::Missing | Verdict::Ignored => 2,
    }
}

fn conditions(group: &Group) -> String {
    match &group.verdict {
        Verdict::Checked(cases) => {
            let allowed = cases.iter().filter(|case| case.errno.is_none());
            let each = allowed.map(|case| case.when.iter().map(condition).collect::<Vec<_>>().join(" and "));
            format!(" if {}", each.map(|case| format!("`{case}`")).collect::<Vec<_>>().join(" or "))
        }
        Verdict::Unless { index, values } => {
            let values: Vec<String> = values.iter().map(|value| format!("{value:#x}")).collect();
            format!(" unless the low 32 bits of `a{index}` are {}", values.join(", "))
        }
        _ => String::new(),
    }
}

fn condition(condition: &Condition) -> String {
    let Condition { index, value, value_two, op } = condition;
    let how = match op {
        Operator::Equal => format!("= {value}"),
        Operator::NotEqual => format!("≠ {value}"),
        Operator::LessThan => format!("< {value}"),
        Operator::LessEqual => format!("≤ {value}"),
        Operator::GreaterThan => format!("> {value}"),
        Operator::GreaterEqual => format!("≥ {value}"),
        Operator::MaskedEqual => format!("& {value:#x} = {value_two:#x}"),
    };
    format!("a{index} {how}")
}
