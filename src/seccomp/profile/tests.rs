//! The table is complete and at most as permissive as Docker's default.

use super::table::GROUPS;
use super::{Group, MACHINES, Verdict, agent_spec, all_but, document, reporting_spec};
use crate::seccomp::abi::abi;
use crate::seccomp::compile_for;
use crate::seccomp::table::{Call, names};
use crate::seccomp::tests::emulator::{Data, run};
use crate::seccomp::tests::samples::docker;
use crate::spec::seccomp::{Arch, Seccomp};
use crate::sys::seccomp::Instruction;

/// At and next to every limit of the table or Docker's profile.
const EDGES: &[u64] = &[
    0,
    1,
    2,
    3,
    8,
    9,
    10,
    11,
    12,
    15,
    16,
    17,
    18,
    26,
    31,
    37,
    38,
    39,
    40,
    50,
    51,
    52,
    58,
    59,
    132,
    262,
    0x2000,
    0x5411,
    0x5412,
    0x5413,
    0x541c,
    0x5423,
    0x8000,
    0xc000,
    0x1_0000,
    0x2_0000,
    0x1000_0000,
    0x4000_0000,
    0xffff_ffff,
    1 << 32,
    0x1_0000_0001,
    0x1_0000_5412,
    u64::MAX,
];

const ALLOW: u32 = 0x7fff_0000;

/// A filter for a machine, which this one need not be.
struct Filter {
    arch: Arch,
    program: Vec<Instruction>,
}

impl Filter {
    fn new(spec: &Seccomp, arch: Arch) -> Filter {
        Filter { arch, program: compile_for(spec, arch).unwrap().instructions }
    }

    fn number(&self, name: &str) -> Option<u32> {
        Call::named(name)?.number(abi(self.arch).unwrap().column)
    }

    fn ask(&self, number: u32, arguments: [u64; 6]) -> u32 {
        let abi = abi(self.arch).unwrap();
        run(&self.program, &Data { big_endian: abi.big_endian, number, arch: abi.audit, pointer: 0, arguments })
    }
}

/// In the first three arguments, the only ones that the profiles test.
fn edges() -> impl Iterator<Item = [u64; 6]> {
    let pairs = EDGES.iter().flat_map(|a| EDGES.iter().map(|b| (*a, *b)));
    pairs.flat_map(|(a, b)| [[a, b, b, 0, 0, 0], [a, 0, b, 0, 0, 0], [0, a, b, 0, 0, 0]])
}

fn is_conditional(name: &str) -> bool {
    let conditional = |group: &&Group| matches!(group.verdict, Verdict::Checked(_) | Verdict::Unless { .. });
    GROUPS.iter().filter(conditional).flat_map(calls).any(|call| call == name)
}

fn calls(group: &Group) -> impl Iterator<Item = &'static str> {
    group.calls.split_whitespace()
}

#[test]
fn every_call_has_one_verdict_and_every_verdict_a_reason() {
    let mut listed: Vec<&str> = GROUPS.iter().flat_map(calls).collect();
    let columns = MACHINES.map(|arch| abi(arch).unwrap().column);
    let wanted =
        |name: &&str| Call::named(name).is_some_and(|call| columns.iter().any(|column| call.number(*column).is_some()));
    let missing: Vec<&str> = names().filter(wanted).filter(|name| !listed.contains(name)).collect();
    assert_eq!(missing, [""; 0], "decide about these");
    let unknown: Vec<&str> = listed.iter().copied().filter(|name| Call::named(name).is_none()).collect();
    assert_eq!(unknown, [""; 0], "no such calls");
    let all = listed.len();
    listed.sort_unstable();
    listed.dedup();
    assert_eq!(listed.len(), all, "listed twice");
    for group in GROUPS {
        assert!(group.reason.ends_with('.') && !group.name.is_empty() && !group.calls.is_empty(), "{}", group.name);
    }
}

#[test]
fn a_call_that_is_refused_is_nowhere_allowed() {
    for filter in MACHINES.map(|arch| Filter::new(&reporting_spec(), arch)) {
        for group in GROUPS
            .iter()
            .filter(|group| matches!(group.verdict, Verdict::Refused | Verdict::Missing | Verdict::Ignored))
        {
            for name in calls(group) {
                let Some(number) = filter.number(name) else { continue };
                assert!(EDGES.iter().all(|edge| filter.ask(number, [*edge; 6]) != ALLOW), "{:?} {name}", filter.arch);
            }
        }
    }
}

#[test]
fn the_order_of_its_rules_does_not_matter() {
    let spec = reporting_spec();
    let reversed = Seccomp { syscalls: spec.syscalls.iter().rev().cloned().collect(), ..spec.clone() };
    let [one, other] = [&spec, &reversed].map(|spec| Filter::new(spec, Arch::X86_64));
    for name in names().filter(|name| is_conditional(name)) {
        let Some(number) = one.number(name) else { continue };
        let differing = edges().find(|at| one.ask(number, *at) != other.ask(number, *at));
        assert_eq!(differing, None, "{name}");
    }
}

#[test]
fn the_supervisor_refuses_what_another_runtime_refuses_itself() {
    const NOTIFY: u32 = 0x7fc0_0000;
    const PERMISSION: u32 = 0x0005_0001;
    let [ours, others] = [reporting_spec(), agent_spec()].map(|spec| Filter::new(&spec, Arch::X86_64));
    let (mut reported, mut same) = (0, 0);
    for name in names() {
        let Some(number) = ours.number(name) else { continue };
        let all = edges().take(if is_conditional(name) || name == "unshare" { usize::MAX } else { 1 });
        for at in all {
            match (ours.ask(number, at), others.ask(number, at)) {
                (NOTIFY, PERMISSION) if ["clone", "unshare"].contains(&name) => reported += 1,
                (ours, theirs) => {
                    assert_eq!(ours, theirs, "{name} {at:x?}");
                    same += 1;
                }
            }
        }
    }
    assert!(reported > 100 && same > 1000, "{reported} {same}");
}

/// Calls that Docker's profile refuses.
const LOOSER: &[(&str, &str)] = &[(
    "uprobe",
    "newer than Docker's list, which has its sister uretprobe; the kernel refuses it from outside its trampoline",
)];

#[test]
fn nothing_is_allowed_that_docker_refuses() {
    for arch in MACHINES {
        let [ours, dockers] = [reporting_spec(), docker()].map(|spec| Filter::new(&spec, arch));
        for name in names().filter(|name| LOOSER.iter().all(|looser| looser.0 != *name)) {
            let Some(number) = ours.number(name) else { continue };
            let same = EDGES.iter().map(|edge| [*edge; 6]);
            let looser = same
                .chain(edges().take(if is_conditional(name) { usize::MAX } else { 0 }))
                .find(|at| ours.ask(number, *at) == ALLOW && dockers.ask(number, *at) != ALLOW);
            assert_eq!(looser, None, "{arch:?} {name}");
        }
    }
    // By name, too.
    let named: Vec<String> = docker().syscalls.into_iter().flat_map(|rule| rule.names).collect();
    let allowed = GROUPS
        .iter()
        .filter(|group| !matches!(group.verdict, Verdict::Refused | Verdict::Missing | Verdict::Ignored))
        .flat_map(calls);
    let looser: Vec<&str> = allowed.filter(|name| !named.iter().any(|known| known == name)).collect();
    assert_eq!(looser, LOOSER.iter().map(|looser| looser.0).collect::<Vec<_>>());
}

#[test]
fn all_but_a_value_is_every_other_value() {
    let values = [0x5412, 0x541c, 0, u32::MAX, 7];
    let covered = all_but(&values);
    let matches = |value: u32| covered.iter().filter(|(mask, wanted)| value & mask == *wanted).count();
    for value in values {
        assert_eq!(matches(value), 0, "{value:#x}");
        let beside = [value.wrapping_add(1), value.wrapping_sub(1), value ^ 1 << 31, value ^ 1 << 16];
        for beside in beside.into_iter().filter(|beside| !values.contains(beside)) {
            assert_eq!(matches(beside), 1, "{beside:#x}");
        }
    }
}

fn is_up_to_date(path: &str, expected: &str) {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    if std::env::var_os("BRIG_WRITE_FILES").is_some() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, expected).unwrap();
    }
    let same = std::fs::read_to_string(&path).unwrap_or_default() == expected;
    assert!(same, "write it anew: BRIG_WRITE_FILES=1 cargo test seccomp::profile");
}

#[test]
fn the_page_is_the_tables() {
    is_up_to_date("docs/seccomp.md", &document::markdown());
}
