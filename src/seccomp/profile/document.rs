//! `docs/seccomp.md`, made from the table. A test compares it with the file.

use super::table::GROUPS;
use super::{Group, Verdict};
use crate::spec::seccomp::{Condition, Operator};
use std::fmt::Write;

const HEAD: &str = "\
# What an agent may ask of the kernel

Made from the table in `src/seccomp/profile/table.rs`; a test keeps the two alike. It is an allow-list for processes without
capabilities: every system call of the kernels we run on has a row here, and a call that a newer kernel brings is refused with
ENOSYS until someone decides. It allows nothing that Docker's default profile refuses, apart from `uprobe`.

Only the machine's own ABI is let through. A 32-bit program on x86-64 ends with SIGSYS: the compatibility layer is a second
entry to the kernel that few watch, and its `socketcall` hides the arguments that are checked below.

A refused request for a new namespace (clone, unshare) returns EPERM, but it is the supervisor that refuses it, through a listener
(seccomp_unotify(2)): it counts these requests and names the program at the end of the task. The kernel allows one listener for a
process, so a program inside cannot have one of its own (EBUSY).

Containers that are started through the OCI verbs get the profile of their own `config.json`, not this one.
";

/// The page.
pub(crate) fn markdown() -> String {
    let mut page = HEAD.to_string();
    for (title, wanted) in [("Allowed", 0), ("Allowed by their arguments", 1), ("Refused", 2)] {
        let _ = write!(page, "\n## {title}\n\n| what | calls | why |\n| --- | --- | --- |\n");
        for group in GROUPS.iter().filter(|group| place(group) == wanted) {
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

fn place(group: &Group) -> u8 {
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
            format!(" if {}", each.collect::<Vec<_>>().join(", or "))
        }
        Verdict::Unless { index, values } => {
            let values: Vec<String> = values.iter().map(|value| format!("{value:#x}")).collect();
            format!(" unless the low 32 bits of argument {index} are {}", values.join(", "))
        }
        _ => String::new(),
    }
}

fn condition(condition: &Condition) -> String {
    let Condition { index, value, value_two, op } = condition;
    let how = match op {
        Operator::Equal => format!("is {value}"),
        Operator::NotEqual => format!("is not {value}"),
        Operator::LessThan => format!("is below {value}"),
        Operator::LessEqual => format!("is at most {value}"),
        Operator::GreaterThan => format!("is above {value}"),
        Operator::GreaterEqual => format!("is at least {value}"),
        Operator::MaskedEqual => format!("& {value:#x} is {value_two:#x}"),
    };
    format!("argument {index} {how}")
}
