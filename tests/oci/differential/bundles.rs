//! Random bundles and command lines: each choice has words, so that a difference is readable.

use super::{Random, source};
use crate::support::{Lab, finish};
use serde_json::json;
use std::process::Command;

/// The way to run the container.
pub enum Flow {
    Run,
    Start,
    /// With these options of `exec`.
    Exec(Vec<String>),
    /// With these command lines while it runs.
    Verbs(Vec<Vec<String>>),
}

/// The container's name in a command line.
pub const ID: &str = "ID";

/// The choices.
pub struct Plan {
    pub flow: Flow,
    pub words: Vec<String>,
    /// Whether the container has a terminal.
    pub terminal: bool,
    /// Options before the first verb.
    global: Vec<String>,
    /// Options of the first verb.
    options: Vec<String>,
}

impl Plan {
    /// Nothing special.
    pub fn empty() -> Plan {
        Plan { flow: Flow::Run, words: Vec::new(), terminal: false, global: Vec::new(), options: Vec::new() }
    }

    /// Whether the runtime serves a terminal itself.
    pub fn in_foreground(&self) -> bool {
        match &self.flow {
            Flow::Run => self.terminal,
            Flow::Exec(options) => !self.terminal && options.iter().any(|option| option == "--tty"),
            _ => false,
        }
    }

    pub fn global(&self) -> Vec<&str> {
        self.global.iter().map(String::as_str).collect()
    }

    pub fn options(&self) -> Vec<&str> {
        self.options.iter().map(String::as_str).collect()
    }
}

/// A container's view of itself, each section after a line that begins with `==`.
pub const PROBE: &str = r#"
echo == mountinfo; cat /proc/self/mountinfo
echo == status; grep -E '^(Uid|Gid|Groups|NoNewPrivs|Seccomp|Cap...|Cpus_allowed_list|Mems_allowed_list|Umask|SigBlk):' /proc/self/status
echo == limits; cat /proc/self/limits
echo == score; cat /proc/self/oom_score_adj
echo == environment; env | grep -v ^SHLVL= | sort
echo == names; pwd; hostname; cat /proc/self/uid_map /proc/self/gid_map /proc/self/setgroups
echo == umask; umask
echo == devices; stat -c '%n %F %a %u:%g %t:%T %N' /dev/* /dev/pts/ptmx
echo == directories; stat -c '%n %F %a %u:%g' / /tmp /etc /proc /sys /dev /dev/shm /mnt /opt /none /none/deep
echo == namespaces; for each in /proc/self/ns/*; do echo $each $(readlink $each); done
echo == descriptors; ls /proc/self/fd | wc -l
echo == groups; cat /proc/self/cgroup
echo == kernel; cat /proc/sys/net/ipv4/ip_forward /proc/sys/kernel/msgmax; ip link show lo | head -n 1
echo == reading; cat /proc/keys /proc/kcore /proc/timer_list 2> /dev/null | head -c 9 | wc -c; ls /sys/firmware /proc/acpi /proc/scsi 2> /dev/null
echo == writing; for each in / /tmp /mnt /opt /dev /sys /proc/sys/kernel/core_pattern /proc/sysrq-trigger /sys/fs/cgroup; do test -w $each && echo $each; done; touch /made /mnt/made /opt/made; mkdir /directory
echo == end
"#;

const CAPABILITIES: [&str; 12] = [
    "CAP_CHOWN",
    "CAP_DAC_OVERRIDE",
    "CAP_KILL",
    "CAP_SETUID",
    "CAP_SETGID",
    "CAP_NET_RAW",
    "CAP_SYS_ADMIN",
    "CAP_SYS_CHROOT",
    "CAP_AUDIT_WRITE",
    "CAP_MKNOD",
    "CAP_SYS_PTRACE",
    "CAP_NOPE",
];

type Choice = (&'static str, fn(&mut Lab, &mut Random));

/// Each is chosen once in five times.
const CHOICES: [Choice; 36] = [
    ("user", |lab, random| {
        let user = json!({"uid": random.one_of(&[0, 1000, 4242]), "gid": random.one_of(&[0, 1000, 7]), "additionalGids": [7, 1000]});
        lab.config["process"]["user"] = user;
    }),
    ("umask", |lab, random| lab.config["process"]["user"]["umask"] = json!(random.one_of(&[0, 0o22, 0o77]))),
    ("cwd", |lab, random| {
        lab.config["process"]["cwd"] = json!(random.one_of(&["/tmp", "/none/deep", "/etc", "/etc/passwd", "/dev/.."]))
    }),
    ("variables", |lab, random| {
        let all = ["A=b", "A=c", "EMPTY=", "HOME=", "HOME=/tmp", "TERM=x", "PATH=/bin", "LINES=a\nb"];
        let chosen = random.some_of(&all);
        lab.config["process"]["env"].as_array_mut().unwrap().extend(chosen.into_iter().map(|each| json!(each)));
    }),
    ("no variable", |lab, _| lab.config["process"]["env"] = json!([])),
    ("new privileges", |lab, random| lab.config["process"]["noNewPrivileges"] = json!(random.once_in(2))),
    ("capabilities", |lab, random| {
        let mut sets = json!({});
        for set in ["bounding", "permitted", "effective", "inheritable", "ambient"] {
            sets[set] = json!(random.some_of(&CAPABILITIES));
        }
        let bounding = sets["bounding"].clone();
        // Otherwise the kernel refuses the sets in one order and not in the other.
        sets["permitted"] = bounding.clone();
        sets["effective"] = bounding;
        lab.config["process"]["capabilities"] = sets;
    }),
    ("no capability", |lab, _| _ = lab.config["process"].as_object_mut().unwrap().remove("capabilities")),
    ("limits", |lab, random| {
        let kinds =
            random.some_of(&["RLIMIT_NOFILE", "RLIMIT_CORE", "RLIMIT_NPROC", "RLIMIT_SIGPENDING", "RLIMIT_MEMLOCK"]);
        let limit = |kind: &&str| json!({"type": kind, "soft": 512, "hard": 1024});
        lab.config["process"]["rlimits"] = kinds.iter().map(limit).collect();
    }),
    ("score", |lab, random| lab.config["process"]["oomScoreAdj"] = json!(random.one_of(&[0, 100, 1000]))),
    ("read-only root", |lab, _| lab.config["root"]["readonly"] = json!(true)),
    ("propagation", |lab, random| {
        let words = ["", "private", "rprivate", "slave", "rslave", "unbindable", "nonsense"];
        lab.config["linux"]["rootfsPropagation"] = json!(random.one_of(&words));
    }),
    ("hostname", |lab, _| lab.config["hostname"] = json!("other")),
    ("no hostname", |lab, _| lab.config["hostname"] = json!("")),
    ("domain name", |lab, _| lab.config["domainname"] = json!("domain")),
    ("tmpfs", |lab, random| {
        let mut options =
            random.some_of(&["ro", "nosuid", "noexec", "nodev", "noatime", "mode=1777", "size=64k", "rprivate"]);
        options.push("relatime");
        let place = *random.one_of(&["/mnt", "/opt", "/none/of/it"]);
        lab.mount(place, "tmpfs", "tmpfs", &options);
    }),
    ("bind", |lab, random| {
        let path = source(lab);
        let mut options = random.some_of(&["ro", "nosuid", "noexec", "nodev", "rprivate", "rslave"]);
        options.push(*random.one_of(&["bind", "rbind"]));
        let place = *random.one_of(&["/mnt", "/opt", "/made/new"]);
        lab.mount(place, "bind", path.to_str().unwrap(), &options);
    }),
    ("file", |lab, random| {
        let path = source(lab).join("file");
        let place = random.one_of(&["/etc/passwd", "/file", "/proc/meminfo", "/proc/version", "/etc"]);
        lab.mount(place, "bind", path.to_str().unwrap(), &["bind", "ro"]);
    }),
    ("sysfs", |lab, _| _ = lab.unmount("/sys/fs/cgroup").unmount("/sys").mount("/sys", "sysfs", "sysfs", &["nosuid"])),
    ("procfs", |lab, _| _ = lab.mount("/procfs", "proc", "proc", &["ro", "nodev"])),
    ("no source", |lab, _| _ = lab.mount("/mnt", "bind", "/nope", &["bind"])),
    ("groups", |lab, random| {
        let word = random.one_of(&["ro", "rw"]);
        lab.unmount("/sys/fs/cgroup").mount("/sys/fs/cgroup", "cgroup", "cgroup", &["nosuid", "noexec", "nodev", word]);
    }),
    ("masks", |lab, random| {
        lab.config["linux"]["maskedPaths"] =
            json!(random.some_of(&["/proc/keys", "/proc/kcore", "/sys/firmware", "/etc/passwd", "/nope"]));
    }),
    ("read-only paths", |lab, random| {
        lab.config["linux"]["readonlyPaths"] =
            json!(random.some_of(&["/proc/sys", "/proc/bus", "/tmp", "/bin", "/nope"]));
    }),
    ("sysctls", |lab, random| {
        let all = [("net.ipv4.ip_forward", "1"), ("kernel.msgmax", "4096"), ("kernel.nope", "1"), ("net.nope", "1")];
        let (name, value) = random.one_of(&all);
        lab.config["linux"]["sysctl"] = json!({*name: value});
    }),
    ("devices", |lab, random| {
        let all = [
            json!({"path": "/dev/one", "type": "c", "major": 1, "minor": 5, "fileMode": 0o640, "uid": 7, "gid": 7}),
            json!({"path": "/dev/deep/er", "type": "p", "fileMode": 0o600}),
            json!({"path": "/dev/null", "type": "c", "major": 1, "minor": 3, "fileMode": 0o666}),
            json!({"path": "/dev/ptmx", "type": "c", "major": 5, "minor": 2}),
        ];
        lab.config["linux"]["devices"] = json!([random.one_of(&all)]);
    }),
    ("memory", |lab, random| {
        lab.config["linux"]["resources"]["memory"] =
            json!({"limit": random.one_of(&[33_554_432, 67_108_864, -1]), "reservation": 16_777_216});
    }),
    ("processor", |lab, random| {
        let cpu = [
            json!({"shares": 512}),
            json!({"quota": 50_000, "period": 100_000}),
            json!({"cpus": "0"}),
            json!({"shares": 1}),
        ];
        lab.config["linux"]["resources"]["cpu"] = random.one_of(&cpu).clone();
    }),
    ("pids", |lab, random| lab.config["linux"]["resources"]["pids"] = json!({"limit": random.one_of(&[-1, 64, 1000])})),
    ("device rules", |lab, random| {
        let all = [
            json!([]),
            json!([{"allow": true, "access": "rwm"}]),
            json!([{"allow": false, "access": "rwm"}, {"allow": true, "type": "c", "major": 10, "minor": 229, "access": "rw"}]),
        ];
        lab.config["linux"]["resources"]["devices"] = random.one_of(&all).clone();
    }),
    ("fewer namespaces", |lab, random| {
        for kind in random.some_of(&["ipc", "uts", "network", "pid"]) {
            lab.without(kind);
        }
    }),
    ("cgroup namespace", |lab, _| _ = lab.namespace("cgroup")),
    ("user namespace", |lab, _| {
        lab.user_namespace();
        finish(Command::new("chown").args(["-hR", "700000:700000"]).arg(lab.root(""))).succeeded();
    }),
    ("filter", |lab, random| {
        let action = random.one_of(&["SCMP_ACT_ERRNO", "SCMP_ACT_KILL_PROCESS", "SCMP_ACT_LOG"]);
        lab.config["linux"]["seccomp"] = json!({
            "defaultAction": "SCMP_ACT_ALLOW",
            "architectures": ["SCMP_ARCH_X86_64"],
            "syscalls": [{"names": ["mkdir", "mkdirat", "unknown_call"], "action": action}],
        });
    }),
    ("hooks", |lab, random| {
        let moment =
            random.one_of(&["prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop"]);
        let line = if random.once_in(4) { "exit 3" } else { "true" };
        lab.config["hooks"] = json!({*moment: [{"path": "/bin/sh", "args": ["sh", "-c", line]}]});
    }),
    ("annotations", |lab, _| lab.config["annotations"] = json!({"a.b": "c", "org.x": "with \"quotes\""})),
];

/// Faults of a configuration; one is chosen once in twelve times.
const FAULTS: [Choice; 9] = [
    ("hostname of the host", |lab, _| _ = lab.without("uts")),
    ("a namespace twice", |lab, _| _ = lab.namespace("ipc")),
    ("no arguments", |lab, _| _ = lab.args(&[])),
    ("a relative cwd", |lab, _| lab.config["process"]["cwd"] = json!("tmp")),
    ("a variable without a value", |lab, _| lab.config["process"]["env"] = json!(["A"])),
    ("no root", |lab, _| lab.config["root"]["path"] = json!("nope")),
    ("no such program", |lab, _| _ = lab.args(&["/nope"])),
    ("not in PATH", |lab, _| _ = lab.args(&["nope"])),
    ("a directory as program", |lab, _| _ = lab.args(&["/etc"])),
];

/// Changes the bundle by the numbers, and chooses how to run it.
pub fn plan(lab: &mut Lab, random: &mut Random) -> Plan {
    let mut words = Vec::new();
    finish(Command::new("chmod").arg("755").arg(lab.path())).succeeded();
    let flow = match random.below(7) {
        0 => Flow::Run,
        1 | 2 => Flow::Start,
        3 | 4 => Flow::Exec(exec_options(random)),
        _ => Flow::Verbs(verbs(random)),
    };
    let global = options(random, &GLOBAL, 10);
    let mut options = options(random, &OPTIONS, 8);
    if matches!(flow, Flow::Run) && random.once_in(4) {
        options.push("--keep".into());
    }
    let terminal = random.once_in(5);
    lab.config["process"]["terminal"] = json!(terminal);
    words.push(match &flow {
        Flow::Run => "run".to_owned(),
        Flow::Start => "create and start".to_owned(),
        Flow::Exec(options) => format!("exec {}", options.join(" ")),
        Flow::Verbs(all) => all.iter().map(|words| words.join(" ")).collect::<Vec<_>>().join("; "),
    });
    words.extend(global.iter().chain(&options).cloned());
    if terminal {
        words.push("terminal".into());
    }
    let ending = *random.one_of(&["", "exit 7", "kill -9 $$", "kill -TERM $$; sleep 0.1"]);
    match flow {
        Flow::Exec(_) | Flow::Verbs(_) => _ = lab.args(&["/bin/sleep", "100"]),
        _ => _ = lab.sh(&format!("{PROBE}{ending}")),
    }
    for (name, change) in CHOICES {
        if random.once_in(6) {
            words.push(name.to_owned());
            change(lab, random);
        }
    }
    if random.once_in(12) {
        let (name, change) = random.one_of(&FAULTS);
        words.push((*name).to_owned());
        change(lab, random);
    }
    repair(lab);
    Plan { flow, words, terminal, global, options }
}

/// Removes accidental contradictions, which would only be refused.
fn repair(lab: &mut Lab) {
    let has = |lab: &Lab, kind: &str| {
        lab.config["linux"]["namespaces"].as_array().unwrap().iter().any(|each| each["type"] == kind)
    };
    if !has(lab, "uts") && lab.config["hostname"] == json!("brig") {
        lab.config["hostname"] = json!("");
    }
    if has(lab, "user") {
        // The host's sysfs and mqueue belong to another user namespace then.
        for kind in ["network", "ipc", "pid"] {
            if !has(lab, kind) {
                lab.namespace(kind);
            }
        }
    }
}

/// Options before a verb.
const GLOBAL: [&str; 8] = [
    "--debug",
    "--log=log",
    "--log-format=json",
    "--log-format=text",
    "--log-format=nope",
    "--rootless=auto",
    "--systemd-cgroup=false",
    "--nope",
];

/// Options of `create` and `run`.
const OPTIONS: [&str; 6] =
    ["--no-pivot", "--no-new-keyring", "--preserve-fds=0", "--preserve-fds=7", "--bundle=.", "--nope"];

/// One of these once in so many times.
fn options(random: &mut Random, all: &[&str], count: u64) -> Vec<String> {
    if random.once_in(count) { vec![(*random.one_of(all)).to_owned()] } else { Vec::new() }
}

/// Command lines for a container that runs.
fn verbs(random: &mut Random) -> Vec<Vec<String>> {
    const ALL: [&[&str]; 26] = [
        &["pause", ID],
        &["pause", ID],
        &["resume", ID],
        &["ps", ID],
        &["ps", "--format=json", ID],
        &["ps", "--format=nope", ID],
        &["ps", ID, "-o", "comm,args"],
        &["kill", ID],
        &["kill", ID, "0"],
        &["kill", ID, "SIGUSR1"],
        &["kill", ID, "NOPE"],
        &["kill", "--all", ID, "WINCH"],
        &["events", "--stats", ID],
        &["events", "--stats", ID],
        &["list", "--quiet"],
        &["list"],
        &["list", "--format=json"],
        &["list", "--format=nope"],
        &["start", ID],
        &["create", ID],
        &["delete", ID],
        &["exec", ID, "/bin/true"],
        &["exec", "--detach", ID, "/bin/sleep", "50"],
        &["state", "none"],
        &["resume", "none"],
        &["update", ID],
    ];
    const UPDATES: [&str; 13] = [
        "--memory=67108864",
        "--memory=-1",
        "--memory-swap=134217728",
        "--memory-reservation=33554432",
        "--cpu-share=200",
        "--cpu-quota=20000",
        "--cpu-period=50000",
        "--cpuset-cpus=0",
        "--cpuset-cpus=99",
        "--pids-limit=33",
        "--pids-limit=-1",
        "--cpu-share=nope",
        "--resources=nope",
    ];
    let count = 2 + random.below(5);
    let line = |random: &mut Random| -> Vec<String> {
        let words: Vec<&str> = if random.once_in(3) {
            let first = *random.one_of(&UPDATES);
            let second = if random.once_in(2) { Some(*random.one_of(&UPDATES)) } else { None };
            ["update", first].into_iter().chain(second).chain([ID]).collect()
        } else {
            random.one_of(&ALL).to_vec()
        };
        words.into_iter().map(str::to_owned).collect()
    };
    (0..count).map(|_| line(random)).collect()
}

fn exec_options(random: &mut Random) -> Vec<String> {
    let all = [
        "--user=1000:7",
        "--user=4242",
        "--cwd=/tmp",
        "--cwd=/nope",
        "--env=A=z",
        "--env=HOME=/x",
        "--additional-gids=9",
        "--cap=CAP_KILL",
        "--no-new-privs",
        "--tty",
    ];
    all.iter().filter(|_| random.once_in(4)).map(|&each| each.to_owned()).collect()
}
