//! Networks that reach every public address: what stays unreachable, and that nothing remains on the host. The host and
//! the world around it are network namespaces of the test: this machine's network stays unchanged.

use crate::support::{Lab, Started, Task, eventually, is_root, program_under_test, skip};
use rustix::process::{Pid, Signal};
use std::process::{Child, Command, Stdio};

/// Addresses of the world: a public server, one of a private network, and a cloud's metadata.
pub(super) const PUBLIC: &str = "93.184.216.34";
pub(super) const PRIVATE: &str = "10.7.7.7";
pub(super) const METADATA: &str = "169.254.169.254";
/// Addresses of the host.
pub(super) const HOST: &str = "93.184.216.2";
const HOST_PRIVATE: &str = "10.7.7.1";

/// A host and the world around it, each with a server at port 80. The drop ends both.
pub(super) struct Ground {
    pub(super) host: Namespace,
    pub(super) world: Namespace,
    servers: Vec<Child>,
}

pub(super) struct Namespace(Child);

impl Namespace {
    fn new() -> Namespace {
        let own = std::fs::read_link("/proc/self/ns/net").unwrap();
        let child = Command::new("unshare").args(["--net", "sleep", "300"]).spawn().unwrap();
        let path = format!("/proc/{}/ns/net", child.id());
        eventually("a namespace is there", || std::fs::read_link(&path).is_ok_and(|found| found != own));
        Namespace(child)
    }

    pub(super) fn enter(&self) -> [String; 4] {
        ["nsenter".into(), "--target".into(), self.0.id().to_string(), "--net".into()]
    }

    pub(super) fn command(&self, script: &str) -> Command {
        let words = self.enter();
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).args(["sh", "-ec", script]);
        command
    }

    #[track_caller]
    pub(super) fn sh(&self, script: &str) -> String {
        let output = self.command(script).output().unwrap();
        assert!(output.status.success(), "{script}: {output:?}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Ground {
    /// The same where pasta is installed.
    pub(super) fn with_pasta(lab: &Lab) -> Option<Ground> {
        Ground::new(lab).filter(|_| crate::support::has_program("pasta"))
    }

    pub(super) fn new(lab: &Lab) -> Option<Ground> {
        if !is_root() {
            skip("needs root to make a host");
            return None;
        }
        let (host, world) = (Namespace::new(), Namespace::new());
        let peer = world.0.id();
        host.sh(&format!(
            "ip link set lo up; ip link add up0 type veth peer name up1 netns {peer}; ip link set up0 up; \
             ip addr add {HOST}/24 dev up0; ip addr add {HOST_PRIVATE}/24 dev up0; \
             ip route add default via {PUBLIC}; echo 1 >/proc/sys/net/ipv4/ip_forward"
        ));
        world.sh(&format!(
            "ip link set lo up; ip link set up1 up; ip addr add {PUBLIC}/24 dev up1; \
             ip addr add {PRIVATE}/24 dev up1; ip addr add {METADATA}/32 dev up1"
        ));
        let directory = lab.directory("www");
        std::fs::write(directory.join("index.html"), "served\n").unwrap();
        std::fs::write(directory.join("big"), vec![7; 1 << 20]).unwrap();
        let serve = |namespace: &Namespace| {
            let script = format!("exec python3 -m http.server 80 --directory {}", directory.display());
            let child = namespace.command(&script).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
            eventually("a server listens", || namespace.sh("ss -Hltn sport = :80").contains(":80"));
            child
        };
        let servers = vec![serve(&host), serve(&world)];
        Some(Ground { host, world, servers })
    }

    pub(super) fn task<'lab>(&self, lab: &'lab Lab, mode: &str) -> Task<'lab> {
        lab.task().by(self.host.enter()).args(["--empty", "--network", mode, "--resolver", PUBLIC])
    }

    /// The devices and tables of brig's that are on the host.
    pub(super) fn traces(&self) -> String {
        self.host.sh("ip -o link | grep -o 'brig[0-9]*' || true; nft list tables | grep brig || true")
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        for server in &mut self.servers {
            let _ = server.kill();
            let _ = server.wait();
        }
    }
}

/// Prints for each address whether it is reached, one a line.
pub(super) fn ask(addresses: &[&str]) -> String {
    let one = |address: &&str| {
        format!(
            "curl -sS -o /dev/null -m 10 http://{address}/ 2>/dev/null && echo '{address} reached' || echo '{address} refused'; "
        )
    };
    addresses.iter().map(one).collect()
}

pub(super) const EVERYWHERE: [&str; 7] = [PUBLIC, PRIVATE, METADATA, HOST, HOST_PRIVATE, "127.0.0.1", "[::1]"];

#[track_caller]
pub(super) fn reached(run: &crate::support::Run, expected: &[&str]) {
    run.ended_as("succeeded", 0);
    for address in EVERYWHERE {
        let word = if expected.contains(&address) { "reached" } else { "refused" };
        assert!(run.stderr.contains(&format!("{address} {word}\n")), "{address} is not {word}: {run:#?}");
    }
}

fn only_public_addresses(mode: &str) {
    let lab = Lab::new();
    let Some(ground) = Ground::new(&lab) else { return };
    let run = ground.task(&lab, mode).sh(&ask(&EVERYWHERE));
    reached(&run, &[PUBLIC]);
    let opened = ["--allow", "10.7.7.7:80", "--deny", "93.184.216.34:80"];
    reached(&ground.task(&lab, mode).args(opened).sh(&ask(&EVERYWHERE)), &[PRIVATE]);
    reached(&ground.task(&lab, mode).args(["--allow", "10.0.0.0/8:443"]).sh(&ask(&EVERYWHERE)), &[PUBLIC]);
    // A range that covers more than one special range opens none.
    let wide = ["--allow", "0.0.0.0/2:80", "--allow", "128.0.0.0/2:80"];
    reached(&ground.task(&lab, mode).args(wide).sh(&ask(&EVERYWHERE)), &[PUBLIC]);
    // Without ports, a denial also refuses a port that no server has: 113 is EHOSTUNREACH.
    let other_port = format!(
        "python3 -c \"import socket; s = socket.socket(); s.settimeout(2); print(s.connect_ex(('{PUBLIC}', 81)))\""
    );
    let run =
        ground.task(&lab, mode).args(["--deny", "93.184.216.34"]).sh(&format!("{other_port}; {}", ask(&EVERYWHERE)));
    reached(&run, &[]);
    assert!(run.stderr.starts_with("113\n"), "{run:#?}");
    assert_ne!(ground.task(&lab, mode).sh(&other_port).stderr, "113\n");
    let weaker = ground.task(&lab, mode).weakened("network-fence").sh(&ask(&[PRIVATE, METADATA]));
    assert!(weaker.stderr.contains(&format!("{PRIVATE} reached")), "the weakened build refuses too: {weaker:#?}");
    assert_eq!(ground.traces(), "");
}

#[test]
fn veth_leads_to_public_addresses_and_what_rules_open() {
    only_public_addresses("veth");
}

#[test]
fn pasta_leads_to_public_addresses_and_what_rules_open() {
    if crate::support::has_program("pasta") {
        only_public_addresses("pasta");
    }
}

/// A sandbox with a server at port 80, and its own address.
fn listening(ground: &Ground, lab: &Lab) -> (Started, String) {
    let task = ground
        .task(lab, "veth")
        .start_sh("python3 -m http.server 80 >/dev/null 2>&1 & ip -o -4 addr; echo up; sleep 60");
    task.wait_for("up\n");
    let output = task.output();
    let own = output.split_whitespace().find(|word| word.starts_with("198.19."));
    let own = own.unwrap_or_else(|| panic!("no address of its own: {output}"));
    let own = own.split('/').next().unwrap().to_owned();
    (task, own)
}

#[test]
fn no_packet_comes_in_by_the_device_and_a_forged_source_has_no_effect() {
    let lab = Lab::new();
    let Some(ground) = Ground::new(&lab) else { return };
    let (task, own) = listening(&ground, &lab);
    let from_host = ground.host.sh(&format!("curl -sS -m 1 http://{own}/ 2>&1 || echo refused"));
    assert!(from_host.contains("refused"), "{from_host}");
    let around = ground
        .world
        .sh(&format!("ip route add 198.19.0.0/16 via {HOST}; curl -sS -m 1 http://{own}/ 2>&1 || echo refused"));
    assert!(around.contains("refused"), "{around}");
    // The rules name the sandbox's address and drop every other, and all of IPv6.
    let rules = ground.host.sh("nft list ruleset");
    assert!(rules.contains(&format!("ip saddr != {own} drop")) && rules.contains("meta nfproto ipv6 drop"), "{rules}");
    assert!(rules.contains(&format!("ip saddr {own}")) && rules.contains("masquerade"), "{rules}");
    task.signal(Signal::TERM);
    task.finish();
}

#[test]
fn two_sandboxes_do_not_reach_each_other() {
    let lab = Lab::new();
    let Some(ground) = Ground::new(&lab) else { return };
    let (first, own) = listening(&ground, &lab);
    let run = ground.task(&lab, "veth").sh(&ask(&[&own, PUBLIC]));
    assert!(run.stderr.contains(&format!("{own} refused")), "{run:#?}");
    assert!(run.stderr.contains(&format!("{PUBLIC} reached")), "{run:#?}");
    assert_eq!(ground.traces().lines().count(), 2, "{}", ground.traces());
    first.signal(Signal::TERM);
    first.finish();
    assert_eq!(ground.traces(), "");
}

#[test]
fn a_port_is_published_into_an_open_network_and_bytes_are_counted() {
    let lab = Lab::new();
    let Some(ground) = Ground::new(&lab) else { return };
    let modes = ["veth", "pasta"].into_iter().filter(|mode| *mode != "pasta" || crate::support::has_program("pasta"));
    for (mode, port) in modes.zip(["8081", "8082"]) {
        let publish = format!("127.0.0.1:{port}:8080");
        let script = format!(
            "curl -sS -o /dev/null http://{PUBLIC}/big; echo inside >index.html; python3 -m http.server 8080 >/dev/null 2>&1 & wait"
        );
        let task = ground.task(&lab, mode).args(["--publish", &publish]).start_sh(&script);
        let ask = format!("curl -sS -m 2 http://127.0.0.1:{port}/ 2>/dev/null || true");
        eventually("the port inside answers", || ground.host.sh(&ask).contains("inside"));
        task.signal(Signal::TERM);
        let receipt = task.finish().receipt();
        let received = receipt["usage"]["network_received_bytes"].as_u64().unwrap();
        assert!((1 << 20..3 << 20).contains(&received), "{mode}: {received}");
        assert!(receipt["usage"]["network_sent_bytes"].as_u64().unwrap() > 100);
        let removed = receipt["cleanup"]["removed"].to_string();
        assert!(removed.contains(if mode == "veth" { "network device and its rules" } else { "pasta" }), "{removed}");
    }
}

/// The processes of pasta that serve a namespace of this host.
pub(super) fn pastas(of: &Ground) -> Vec<Pid> {
    let own = std::fs::read_link(format!("/proc/{}/ns/net", of.host.0.id())).unwrap();
    let all = std::fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let is_one = |pid: &i32| {
        std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.starts_with("pas"))
            && std::fs::read_link(format!("/proc/{pid}/ns/net")).is_ok_and(|network| network == own)
    };
    all.filter(is_one).filter_map(Pid::from_raw).collect()
}

#[test]
fn nothing_is_left_on_the_host_after_the_end_an_interrupt_or_a_kill() {
    let lab = Lab::new();
    let Some(ground) = Ground::new(&lab) else { return };
    let modes = ["veth", "pasta"].into_iter().filter(|mode| *mode != "pasta" || crate::support::has_program("pasta"));
    for mode in modes {
        for signal in [Signal::TERM, Signal::INT, Signal::KILL] {
            let task = ground.task(&lab, mode).start_sh("echo begun; sleep 60");
            task.wait_for("begun");
            let is_there = if mode == "veth" { ground.traces().contains("brig") } else { !pastas(&ground).is_empty() };
            assert!(is_there, "{mode} left no trace while it ran");
            task.signal(signal);
            task.finish();
            if signal != Signal::KILL {
                assert_eq!(ground.traces(), "", "{mode} {signal:?}");
            }
            eventually("the kernel has removed everything", || {
                ground.traces().is_empty() && pastas(&ground).is_empty()
            });
        }
    }
    lab.brig(["task", "ls"]).succeeded();
    let leaks = lab.brig(["doctor", "--leaks"]);
    assert_eq!((leaks.status, leaks.stdout.as_str()), (Some(0), ""), "{leaks:#?}");
}

#[test]
fn a_remaining_device_is_reported_and_removed() {
    let lab = Lab::new();
    let Some(ground) = Ground::new(&lab) else { return };
    ground.task(&lab, "veth").sh("true").ended_as("succeeded", 0); // makes the folder of locks
    // The bridge is the operator's.
    ground.host.sh("ip link add brig32001 type veth peer name other; ip link add brig32002 type bridge");
    let brig = |words: &[&str]| {
        let prefix = ground.host.enter();
        let mut command = Command::new(&prefix[0]);
        command.args(&prefix[1..]).arg(program_under_test()).args(words).env("BRIG_STORE", lab.store());
        String::from_utf8_lossy(&command.output().unwrap().stdout).into_owned()
    };
    let leaks = brig(&["doctor", "--leaks"]);
    assert!(leaks.contains("network device  brig32001") && !leaks.contains("brig32002"), "{leaks}");
    // After a task's death the next command looks for remains.
    let task = ground.task(&lab, "veth").start_sh("echo begun; sleep 60");
    task.wait_for("begun");
    task.signal(Signal::KILL);
    task.finish();
    eventually("it is removed", || {
        brig(&["task", "ls"]);
        ground.traces().lines().all(|trace| trace == "brig32002")
    });
    ground.host.sh("ip link del brig32002");
}

#[test]
fn what_cannot_be_had_is_refused_with_what_to_do() {
    let lab = Lab::new();
    let Some(ground) = Ground::new(&lab) else { return };
    let check = |task: Task<'_>, words: &[&str]| {
        let run = task.sh("true");
        for word in words {
            assert!((run.stdout.clone() + &run.stderr).contains(word), "no `{word}`: {run:#?}");
        }
        assert_ne!(run.status, Some(0));
    };
    check(ground.task(&lab, "veth").args(["--allow", "a.example:443"]), &["a.example:443", "--network egress"]);
    check(ground.task(&lab, "veth").args(["--network-rate", "1M"]), &["no limit of bytes"]);
    ground.host.sh("echo 0 >/proc/sys/net/ipv4/ip_forward");
    check(ground.task(&lab, "veth"), &["passes no packets on", "sysctl -w net.ipv4.ip_forward=1"]);
    ground.host.sh("echo 1 >/proc/sys/net/ipv4/ip_forward; ip route add 198.19.0.0/16 dev up0");
    check(ground.task(&lab, "veth"), &["no pair of addresses of 198.19.0.0/16 is free"]);
    assert_eq!(ground.traces(), "");
    if crate::support::has_program("pasta") {
        // Covers the program for this process, as on a host without it.
        let path = Command::new("sh").args(["-c", "command -v pasta"]).output().unwrap().stdout;
        let path = String::from_utf8(path).unwrap().trim().to_owned();
        let hide = ["unshare", "--mount", "sh", "-c", "mount --bind /dev/null \"$0\" && exec \"$@\"", &path];
        check(ground.task(&lab, "pasta").by(hide), &["needs the program `pasta`", "install the package `passt`"]);
    }
}

#[test]
fn what_is_in_force_is_said_beforehand() {
    let lab = Lab::new();
    let Some(ground) = Ground::new(&lab) else { return };
    let run = ground.task(&lab, "veth").plain().args(["--allow", "10.7.7.7:80", "--explain"]).sh("true");
    for words in ["veth: every public address (IPv4)", "but for 10.7.7.7:80", "names from 93.184.216.34"] {
        assert!(run.stdout.contains(words), "{run:#?}");
    }
}

// Opens as many connections as there are ports, without an answer.
const MANY: &str = "import socket\ns = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\nrefused = 0\n\
                    for port in range(1, 20000):\n    try: s.sendto(b'x', ('93.184.216.34', port))\n    except OSError: refused += 1\n\
                    print('refused' if refused else 'all sent')";

#[test]
fn the_connections_that_the_host_tracks_for_a_sandbox_are_bounded() {
    let lab = Lab::new();
    let Some(ground) = Ground::new(&lab) else { return };
    let tracked = || ground.host.sh("cat /proc/sys/net/netfilter/nf_conntrack_count").trim().parse::<u32>().unwrap();
    let script = format!("python3 -c \"{MANY}\"; echo done; sleep 30");
    let most = |task: Task<'_>| {
        let task = task.start_sh(&script);
        task.wait_for("done\n");
        let count = tracked();
        task.signal(Signal::TERM);
        (count, task.finish())
    };
    let (count, run) = most(ground.task(&lab, "veth"));
    assert!((4000..5000).contains(&count), "{count} {run:#?}");
    let (count, run) = most(ground.task(&lab, "veth").weakened("network-connections"));
    assert!(count > 15_000, "the attack proves nothing: {count} {run:#?}");
}
