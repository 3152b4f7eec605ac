//! Ways around the rules that need special addresses, each successful on the build without its guard. The host is a
//! network namespace of the test, with a private network and a cloud's metadata service behind it.

use super::open::{Ground, HOST, METADATA, PRIVATE, PUBLIC};
use super::refusals;
use super::world::program;
use crate::support::{Lab, Task, eventually, skip};
use std::process::{Child, Stdio};

const NAMES: [(&str, &str); 6] = [
    ("public", PUBLIC),
    ("private", PRIVATE),
    ("metadata", METADATA),
    ("mapped", "::ffff:10.7.7.7"),
    ("loop", "127.0.0.1"),
    ("own", HOST),
];

/// A DNS server on the host of a ground.
struct Names(Child);

impl Names {
    fn new(ground: &Ground) -> Option<Names> {
        let Some(dnsmasq) = program("dnsmasq") else {
            skip("needs dnsmasq");
            return None;
        };
        let more = [("late", "93.184.216.77"), ("ranged", "93.184.217.9")];
        let all: String = NAMES.iter().chain(&more).map(|(name, to)| format!(" --address=/{name}.test/{to}")).collect();
        let script = format!(
            "exec {} --keep-in-foreground --no-resolv --no-hosts --conf-file=/dev/null --pid-file= --bind-interfaces --user= --port=5353 \
             --listen-address={HOST}{all}",
            dnsmasq.display()
        );
        let child = ground.host.command(&script).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        eventually("a DNS server answers", || ground.host.sh("ss -Hlun sport = :5353").contains(":5353"));
        Some(Names(child))
    }
}

impl Drop for Names {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A task on the ground whose rules name these hosts.
fn task<'lab>(ground: &Ground, lab: &'lab Lab, names: &[&str], port: u16) -> Task<'lab> {
    let resolver = format!("{HOST}:5353");
    let rules = names.iter().flat_map(|name| ["--allow".to_owned(), format!("{name}.test:{port}")]);
    let task = lab.task().by(ground.host.enter());
    task.args(["--empty", "--network", "egress", "--resolver", &resolver]).args(rules.collect::<Vec<_>>())
}

fn ask(names: &[&str]) -> String {
    let one = |name: &&str| {
        format!(
            "curl -sS -f -o /dev/null -m 5 http://{name}.test/ 2>/dev/null && echo '{name} reached' || echo '{name} refused'; "
        )
    };
    names.iter().map(one).collect()
}

#[test]
fn a_name_leads_to_no_private_loopback_mapped_metadata_or_own_address() {
    let lab = Lab::new();
    let Some(ground) = Ground::new(&lab) else { return };
    let Some(_names) = Names::new(&ground) else { return };
    let names = NAMES.map(|(name, _)| name);
    let run = task(&ground, &lab, &names, 80).sh(&ask(&names));
    assert_eq!(
        run.stderr, "public reached\nprivate refused\nmetadata refused\nmapped refused\nloop refused\nown refused\n",
        "{run:#?}"
    );
    let weak = task(&ground, &lab, &names, 80).weakened("egress-rebinding").sh(&ask(&names));
    for name in names {
        assert!(weak.stderr.contains(&format!("{name} reached")), "`{name}` proves nothing: {weak:#?}");
    }
}

#[test]
fn the_host_s_own_public_address_is_reached_by_no_name_unless_a_rule_names_it() {
    let lab = Lab::new();
    let Some(ground) = Ground::new(&lab) else { return };
    let Some(_names) = Names::new(&ground) else { return };
    let script = ask(&["own", "public"]);
    let run = task(&ground, &lab, &["own", "public"], 80).sh(&script);
    assert_eq!(run.stderr, "own refused\npublic reached\n", "{run:#?}");
    assert_eq!(
        refusals(&run, "own.test"),
        format!("`own.test` leads to {HOST}: an address of this host; the rule `{HOST}:80` would allow it")
    );
    let learned = task(&ground, &lab, &[], 80).args(["--learn"]).sh(&script);
    assert!(learned.stderr.starts_with("own refused\npublic reached\n"), "{learned:#?}");
    let port = format!("{HOST}:81");
    assert_eq!(task(&ground, &lab, &["own"], 80).args(["--allow", &port]).sh(&ask(&["own"])).stderr, "own refused\n");
    let range = format!("{HOST}:80");
    assert_eq!(task(&ground, &lab, &["own"], 80).args(["--allow", &range]).sh(&ask(&["own"])).stderr, "own reached\n");
    // An address added while the task ran, one of a range that is the host's by a route, and sockets bound to any
    // address.
    ground.host.sh("ip addr add 93.184.216.77/32 dev lo; ip route add local 93.184.217.0/24 dev lo; \
         echo 1 >/proc/sys/net/ipv4/ip_nonlocal_bind");
    let more = ask(&["late", "public"]);
    assert_eq!(task(&ground, &lab, &["late", "public"], 80).sh(&more).stderr, "late refused\npublic reached\n");
    ground.host.sh("echo 0 >/proc/sys/net/ipv4/ip_nonlocal_bind");
    assert_eq!(task(&ground, &lab, &["ranged"], 80).sh(&ask(&["ranged"])).stderr, "ranged refused\n");
}

#[test]
fn bare_addresses_and_other_dns_servers_are_out_of_reach() {
    let lab = Lab::new();
    let Some(ground) = Ground::new(&lab) else { return };
    let Some(_names) = Names::new(&ground) else { return };
    // By TCP to an address and to its mapped form, and a query that carries data to the attacker's server.
    let script = format!(
        "for to in {PUBLIC} '[::ffff:{PUBLIC}]' {METADATA}; do curl -sS -f -o /dev/null -m 2 http://$to/ 2>/dev/null && echo \"$to reached\"; done; \
         dig +short +time=1 +tries=1 @{HOST} -p 5353 public.test | grep {PUBLIC} | sed 's/.*/dns reached/'"
    );
    // Not port 80: the weakened build shares the host's network, which listens there.
    let run = task(&ground, &lab, &["public"], 8080).sh(&script);
    assert!(!run.stderr.contains("reached\n"), "{run:#?}");
    let weak = task(&ground, &lab, &["public"], 8080).weakened("network-namespace").sh(&script);
    for way in [PUBLIC, &format!("[::ffff:{PUBLIC}]"), METADATA, "dns"] {
        assert!(weak.stderr.contains(&format!("{way} reached\n")), "`{way}` proves nothing: {weak:#?}");
    }
}

/// Addresses of IPv6 beside those of the ground: a public and a private one of the world, and the host's own.
const SIX: [&str; 3] = ["[2606:2800:220:1::34]", "[fd12::34]", "[2606:2800:220:1::2]"];

#[test]
fn over_ipv6_the_fence_is_the_same_and_veth_has_none() {
    let lab = Lab::new();
    let Some(ground) = Ground::new(&lab) else { return };
    ground.host.sh("ip addr add 2606:2800:220:1::2/64 dev up0 nodad; \
         ip -6 route add default via 2606:2800:220:1::34 dev up0");
    ground.world.sh("ip addr add 2606:2800:220:1::34/64 dev up1 nodad; ip addr add fd12::34/64 dev up1 nodad");
    let serve = |namespace: &super::open::Namespace| {
        let script = "exec python3 -m http.server 81 --bind ::";
        let child = namespace.command(script).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        eventually("a server listens", || namespace.sh("ss -Hltn sport = :81").contains(":81"));
        Names(child)
    };
    let _servers = [serve(&ground.host), serve(&ground.world)];
    let one = |to: &&str| {
        format!(
            "curl -sS -f -o /dev/null -m 3 'http://{to}:81/' 2>/dev/null && echo '{to} reached' || echo '{to} refused'; "
        )
    };
    // The address inside appears only after duplicate detection.
    let script = format!("sleep 2; {}", SIX.iter().map(one).collect::<String>());
    assert!(ground.host.sh(&one(&SIX[0])).contains("reached"), "the world has no IPv6");
    let run = ground.task(&lab, "veth").sh(&script);
    assert_eq!(run.stderr.matches("refused").count(), 3, "{run:#?}");
    if crate::support::has_program("pasta") {
        let run = ground.task(&lab, "pasta").sh(&script);
        assert!(run.stderr.contains(&format!("{} reached", SIX[0])), "{run:#?}");
        assert_eq!(run.stderr.matches("refused").count(), 2, "{run:#?}");
        let weak = ground.task(&lab, "pasta").weakened("network-fence").sh(&script);
        assert!(weak.stderr.contains(&format!("{} reached", SIX[1])), "the attack proves nothing: {weak:#?}");
    }
}
