//! Memory of the kernel that no group counts, or not on every version.

use crate::escape::has_root_inside;
use crate::root_inside::{debian, inside};
use crate::support::{Lab, is_root, skip};

/// Runs a script that takes uncounted kernel memory, and prints how much it got. The control is a build without the
/// guard.
fn is_uncounted(lab: &Lab, arguments: &[&str], script: &str) {
    let task = || lab.task().args(["--memory", "64M", "--wall", "60s"]).args(arguments);
    let run = task().run(["python3", "-c", script]);
    run.ended_as("memory", 137);
    assert!(run.evidence("memory").unwrap().contains("which no group counts"), "{run:#?}");
    let control = task().weakened("uncounted-memory").run(["python3", "-c", script]);
    assert!(control.stderr.contains("got it all"), "{control:#?}");
}

/// An error repeats the whole request, and a socket takes what comes while it is below its limit.
const ANSWERS: &str = "import socket, struct, sys, time
message = struct.pack('=IHHII', 100000, 4000, 5, 0, 0) + bytes(99984)
kept = []
for _ in range(10):
    kept.append(socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0))
    kept[-1].setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 30)
    for _ in range(60):
        try: kept[-1].send(message, socket.MSG_DONTWAIT)
        except OSError: break
time.sleep(1)
print('got it all', file=sys.stderr)";

#[test]
fn answers_that_wait_in_netlink_sockets_are_memory() {
    is_uncounted(&Lab::new(), &[], ANSWERS);
}

#[test]
fn answers_that_wait_in_netlink_sockets_of_the_hosts_network_are_memory() {
    is_uncounted(&Lab::new(), &["--network", "host"], ANSWERS);
}

#[test]
fn record_locks_are_memory() {
    let Some(lab) = Lab::root() else { return };
    if !std::path::Path::new("/sys/kernel/slab/file_lock_cache/total_objects").exists() {
        return skip("this kernel does not show its slabs");
    }
    // In many files: the kernel compares a lock with all others of its file.
    is_uncounted(
        &lab,
        &[],
        "import fcntl, sys, time
files = [open(f'locked-{number}', 'w') for number in range(200)]
for file in files:
    for at in range(3000, 0, -2): fcntl.lockf(file, fcntl.LOCK_EX, 1, at)
time.sleep(4)
print('got it all', file=sys.stderr)",
    );
}

#[test]
fn what_waits_in_tcp_and_udp_sockets_is_limited() {
    let lab = Lab::new();
    let script = "import socket, sys
kept, sent = [], 0
server = socket.create_server(('127.0.0.1', 0))
for _ in range(20):
    client = socket.create_connection(server.getsockname())
    kept += [client, server.accept()[0]]
    client.setblocking(False)
    try:
        while True: sent += client.send(bytes(1 << 20))
    except BlockingIOError: pass
for _ in range(300):
    reader, writer = socket.socket(socket.AF_INET, socket.SOCK_DGRAM), socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    reader.bind(('127.0.0.1', 0))
    reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
    kept += [reader, writer]
    for _ in range(20): writer.sendto(bytes(20000), reader.getsockname())
read = 0
for socket in kept[40:]:
    socket.setblocking(False)
    try:
        while True: read += len(socket.recv(1 << 16))
    except OSError: pass
print('TCP', sent >> 20, 'UDP', read >> 20, file=sys.stderr)";
    let waiting = |weak: &str| {
        let task = if weak.is_empty() { lab.task() } else { lab.task().weakened(weak) };
        let run = task.args(["--memory", "64M", "--wall", "60s"]).run(["python3", "-c", script]);
        let words: Vec<_> = run.stderr.split_whitespace().map(str::to_owned).collect();
        let number = |name: &str| {
            let at = words.iter().position(|word| word == name);
            at.and_then(|at| words.get(at + 1)?.parse::<u64>().ok())
        };
        // On v2 too much of it is memory: then the sandbox has ended before it could say anything.
        if run.outcome() == "memory" { (0, 0) } else { (number("TCP").unwrap(), number("UDP").unwrap()) }
    };
    let (tcp, udp) = waiting("");
    assert!(tcp <= 32 && udp <= 32, "{tcp} MiB of TCP, {udp} MiB of UDP");
    if std::path::Path::new("/sys/fs/cgroup/memory/memory.kmem.tcp.limit_in_bytes").exists() && is_root() {
        let (tcp, udp) = waiting("uncounted-memory");
        assert!(tcp > 32 && udp > 32, "{tcp} MiB of TCP, {udp} MiB of UDP");
    }
}

#[test]
fn locks_of_open_files_have_a_bound_for_root_inside_and_are_refused_to_others() {
    let lab = Lab::new();
    // F_OFD_SETLK with a struct flock.
    let script = "import errno, fcntl, struct
file, count = open('/tmp/file', 'w'), 0
try:
    while count < 5000:
        fcntl.fcntl(file, 37, struct.pack('hhqqi4x', fcntl.F_WRLCK, 0, 2 * count, 1, 0))
        count += 1
except OSError as error:
    print(count, errno.errorcode[error.errno])";
    let run = lab.task().run(["/usr/bin/python3", "-c", script]);
    assert_eq!(run.ended_as("succeeded", 0).stderr, "0 EINVAL\n");
    if !has_root_inside() {
        return;
    }
    debian(&lab, &["python3"]).load();
    let run = inside(lab.task(), "debian").run(["/usr/bin/python3", "-c", script]);
    assert_eq!(run.ended_as("succeeded", 0).stderr, "4096 ENOSYS\n");
}
