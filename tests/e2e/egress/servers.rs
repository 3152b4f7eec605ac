//! Names of unusual servers, and a protocol that is neither TLS nor HTTP: PostgreSQL.

use super::world::{World, program};
use super::{refusals, rows};
use crate::support::{Lab, Task, eventually, is_root, skip};
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// A DNS server whose answers are too long for a datagram. `empty` has no room for any record, `some` for one, and then
/// TCP is unanswered. `slow` cuts the answer over TCP into pieces.
const CUT: &str = r#"
import socket, socketserver, struct, sys, threading, time
address, port, how = sys.argv[1], int(sys.argv[2]), sys.argv[3]
def answer(asked, cut):
    name = asked.index(0, 12); kind = asked[name + 2]
    record = b'\xc0\x0c\0\1\0\1\0\0\0\x3c\0\4' + socket.inet_aton(address)
    count = 1 if kind == 1 and (not cut or how == 'some') else 0
    return asked[:2] + struct.pack('>HHHHH', 0x8380 if cut else 0x8180, 1, count, 0, 0) + asked[12:name + 5] + record * count
class Stream(socketserver.StreamRequestHandler):
    def handle(self):
        if how == 'some': return
        while len(head := self.rfile.read(2)) == 2:
            asked = self.rfile.read(head[0] << 8 | head[1]); print('over TCP', flush=True)
            told = answer(asked, False); told = struct.pack('>H', len(told)) + told
            for part in ([told[n:n + 7] for n in range(0, len(told), 7)] if how == 'slow' else [told]):
                self.wfile.write(part); self.wfile.flush(); time.sleep(0.01)
socketserver.ThreadingTCPServer.allow_reuse_address = True
datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); datagrams.bind((address, port))
streams = socketserver.ThreadingTCPServer((address, port), Stream)
threading.Thread(target=streams.serve_forever, daemon=True).start()
while True:
    asked, who = datagrams.recvfrom(4096); datagrams.sendto(answer(asked, True), who)
"#;

#[test]
fn an_answer_that_was_cut_is_asked_for_again_over_tcp() {
    let lab = Lab::new();
    let Some(mut world) = World::new(&lab) else { return };
    let server = lab.file("cut.py", CUT);
    for (port, how) in [("5354", "empty"), ("5355", "slow"), ("5356", "some")] {
        let mut command = Command::new("/usr/bin/python3");
        world.also(command.arg(&server).args([&world.address.to_string(), port, how]), port.parse().unwrap());
        let (resolver, near) = (format!("{}:{port}", world.address), format!("{}:8080", world.address));
        let rules = ["--allow", "a.test:8080", "--allow", &near];
        let task = lab.task().args(["--empty", "--network", "egress", "--resolver", &resolver]).args(rules);
        let run = task.sh("curl -sS -m 20 http://a.test:8080/");
        assert!(run.stderr.contains("served by a.test"), "{how}: {run:#?}");
        let log = std::fs::read_to_string(world.directory().join(format!("{port}.log"))).unwrap();
        assert_eq!(log.contains("over TCP"), how != "some", "{how}: {log}");
    }
}

/// The programs of PostgreSQL's server.
fn postgres() -> Option<PathBuf> {
    let versions = std::fs::read_dir("/usr/lib/postgresql").ok()?;
    versions.flatten().map(|entry| entry.path().join("bin")).find(|path| path.join("initdb").exists())
}

#[test]
fn psql_reaches_a_database_by_name_and_by_range() {
    let lab = Lab::new();
    let Some(mut world) = World::new(&lab) else { return };
    let (Some(programs), Some(setpriv)) = (postgres(), program("setpriv")) else {
        return skip("needs postgresql");
    };
    let data = lab.directory("data");
    // It refuses to run as root.
    let mut prefix = String::new();
    if is_root() {
        for path in [lab.path(), &data] {
            std::os::unix::fs::chown(path, Some(65_534), Some(65_534)).unwrap();
        }
        prefix = format!("{} --reuid 65534 --regid 65534 --clear-groups ", setpriv.display());
    }
    let (address, data) = (world.address, data.display());
    let make = format!(
        "cd / && {prefix}{}/initdb -A trust -U test -N -D {data} && echo 'host all all 127.0.0.0/8 trust' >>{data}/pg_hba.conf",
        programs.display()
    );
    let made = Command::new("sh").args(["-c", &make]).stdout(Stdio::null()).output().unwrap();
    assert!(made.status.success(), "{made:?}");
    let serve =
        format!("cd / && exec {prefix}{}/postgres -D {data} -h {address} -p 5432 -k {data} -F", programs.display());
    world.also(Command::new("sh").args(["-c", &serve]), 5432);
    let ready = format!("{}/pg_isready -q -h {address}", programs.display());
    eventually("the database is ready", || Command::new("sh").args(["-c", &ready]).status().unwrap().success());
    let query = |host: &str| {
        format!("{}/psql -h {host} -U test -d postgres -Atc \"select 'answer ' || 6 * 7\" 2>&1; ", programs.display())
    };
    let check = |task: Task<'_>, host: &str| {
        let run = task.sh(&query(host));
        assert_eq!(run.stderr, "answer 42\n", "{run:#?}");
        assert!(rows(&run, host).iter().any(|row| row["allowed"] == true && row["port"] == 5432), "{run:#?}");
    };
    let (one, range) = (format!("{address}:5432"), format!("{}/24:5432", Ipv4Addr::from(address.to_bits() & !0xff)));
    check(world.bare(&lab).args(["--allow", "a.test:5432", "--allow", &one]), "a.test");
    check(world.bare(&lab).args(["--allow", &range]), &address.to_string());
    // Not at another name, nor at a name without a rule for its target.
    let run = world.bare(&lab).args(["--allow", "a.test:5432"]).sh(&(query("b.test") + &query("a.test")));
    assert!(!run.stderr.contains("answer"), "{run:#?}");
    assert!(refusals(&run, "a.test").contains("loopback"), "{run:#?}");
}
