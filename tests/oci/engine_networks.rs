//! Egress rules (`dev.brig.egress.allow`) in networks that an engine made: published ports stay, and no packet leaves
//! but to the gateway. Each way around is open on the weakened build.

use crate::docker::{BRIDGED, Docker};
use crate::support::{Done, busybox, eventually};
use serde_json::{Value, json};
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Command, Stdio};

/// The port of the host that the rule allows, and another one.
const ALLOWED: &str = "7001";
const CLOSED: &str = "7002";
/// At every IPv6 address of the host.
const SIX: &str = "7003";
/// The host's address in the network, as Docker gives it.
const HOST: &str = "172.28.0.1";

/// A daemon with networks, a page of the host at two ports, and one of a neighbour.
struct Networks {
    docker: Docker,
    servers: Vec<Child>,
    _programs: tempfile::TempDir,
}

impl Networks {
    /// The runtimes are `brig`, `closed` (an egress rule), `peers` (the same with peers), and `closed` without one
    /// protection for each switch of the weakened build.
    fn new() -> Option<Networks> {
        let programs = tempfile::tempdir().unwrap();
        let brig = env!("CARGO_BIN_EXE_brig");
        let rule = format!("'dev.brig.egress.allow=127.0.0.1:{ALLOWED}'");
        let mut runtimes = serde_json::Map::new();
        let mut add = |name: &str, path: &str, annotations: &[&str]| {
            let arguments: Vec<_> = annotations.iter().flat_map(|each| ["--annotation", each]).collect();
            runtimes.insert(name.to_owned(), json!({"path": path, "runtimeArgs": arguments}));
        };
        add("brig", brig, &[]);
        add("closed", brig, &[&rule]);
        add("peers", brig, &[&rule, "dev.brig.egress.peers=true"]);
        add("own", brig, &["dev.brig.egress.allow=172.28.0.0/24:80"]);
        for switch in ["egress-devices", "egress-peers-host", "egress-peers", "egress-raw", "egress-resolver"] {
            let path = programs.path().join(switch);
            std::fs::write(&path, format!("#!/bin/sh\nBRIG_WEAKEN={switch} exec {brig} \"$@\"\n")).unwrap();
            std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
            let peers = (switch == "egress-peers-host").then_some("dev.brig.egress.peers=true");
            add(switch, path.to_str().unwrap(), &[&[rule.as_str()], peers.as_slice()].concat());
        }
        let config = json!({"runtimes": Value::Object(runtimes)}).to_string();
        let docker = Docker::make(BRIDGED, &config)?;
        let mut networks = Networks { docker, servers: Vec::new(), _programs: programs };
        let page = networks.docker.lab.path().join("host");
        std::fs::create_dir(&page).unwrap();
        std::fs::write(page.join("index.html"), "host").unwrap();
        for at in [format!("127.0.0.1:{ALLOWED}"), format!("{HOST}:{CLOSED}"), format!("[::]:{SIX}")] {
            let server = Command::new("nsenter")
                .args(["-t", &networks.docker.pid(), "-n"])
                .arg(busybox().unwrap())
                .args(["httpd", "-f", "-p", &at, "-h"])
                .arg(&page)
                .stdin(Stdio::null())
                .spawn();
            networks.servers.push(server.unwrap());
        }
        networks.run("", &format!("docker run -d --name neighbour --runtime brig {}", serve("neighbour"))).succeeded();
        eventually("the neighbour serves", || networks.outside(&networks.address("neighbour"), 80) == "neighbour");
        Some(networks)
    }

    fn run(&self, runtime: &str, line: &str) -> Done {
        self.docker.run(line, runtime)
    }

    /// The output of a line of shell in a new container of a runtime.
    fn inside(&self, runtime: &str, options: &str, line: &str) -> String {
        let quoted = line.replace('\'', "'\\''");
        let done = self.run(runtime, &format!("docker run --rm --runtime $RT {options} bb sh -c '{quoted}'"));
        format!("{}{}", done.out, done.err).trim().to_owned()
    }

    /// The page that the host gets at an address, or nothing.
    fn outside(&self, address: &str, port: u16) -> String {
        let line = format!("nsenter -t {} -n curl -s -m 2 http://{address}:{port}/", self.docker.pid());
        self.run("", &line).out.trim().to_owned()
    }

    fn address(&self, name: &str) -> String {
        let format = "{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}";
        self.run("", &format!("docker inspect -f '{format}' {name}")).out.trim().to_owned()
    }
}

impl Drop for Networks {
    fn drop(&mut self) {
        self.run("", "docker rm -f $(docker ps -aq)");
        for server in &mut self.servers {
            let _ = server.kill();
            let _ = server.wait();
        }
    }
}

/// The arguments of a container that serves a page with this word at port 80.
fn serve(word: &str) -> String {
    format!("bb sh -c 'mkdir -p /www; echo {word} > /www/index.html; exec httpd -f -p 80 -h /www'")
}

/// Prints the page of a URL, or `refused`.
fn get(at: &str) -> String {
    format!("timeout 3 wget -q -O - http://{at}/ 2> /dev/null || echo refused")
}

#[test]
fn bridged_container_reaches_the_gateway_alone() {
    let Some(networks) = Networks::new() else { return };
    let neighbour = networks.address("neighbour");
    let line = [
        get(&format!("127.0.0.1:{ALLOWED}")),
        get(&format!("{HOST}:{CLOSED}")),
        get(&neighbour),
        "nslookup a.example 2>&1 | grep -o NXDOMAIN | head -n 1".to_owned(),
        format!("echo secret | nc -u -w 1 {neighbour} 53 2>&1 | grep -c permitted"),
        "ping -c 1 -W 1 172.28.0.1 > /dev/null 2>&1 || echo no echo".to_owned(),
    ]
    .join("; echo; ");
    let out = networks.inside("closed", "", &line);
    let words: Vec<_> = out.split_whitespace().collect();
    assert_eq!(words[..4], ["host", "refused", "refused", "NXDOMAIN"], "{out}");
    assert!(out.ends_with("no echo"), "{out}");
    let weak = networks.inside(
        "egress-devices",
        "",
        &format!("{}; echo; {}", get(&format!("{HOST}:{CLOSED}")), get(&neighbour)),
    );
    assert_eq!(weak.split_whitespace().collect::<Vec<_>>(), ["host", "neighbour"], "the control");
}

#[test]
fn published_port_of_a_closed_container_is_reached_and_a_neighbour_is_not_served() {
    let Some(networks) = Networks::new() else { return };
    let serve = serve("page");
    for (runtime, neighbour_gets) in [("closed", "refused"), ("peers", "page"), ("egress-peers", "page")] {
        let run = format!("docker run -d --name {runtime} --runtime {runtime} -p 127.0.0.1:7080:80 {serve}");
        networks.run("", &run).succeeded();
        eventually("the port is published", || networks.outside("127.0.0.1", 7080) == "page");
        let at = networks.address(runtime);
        let found = networks.run("", &format!("docker exec neighbour sh -c '{}'", get(&at))).out;
        assert_eq!(found.trim(), neighbour_gets, "{runtime}");
        networks.run("", &format!("docker rm -f {runtime}")).succeeded();
    }
    let line = format!("{}; {}", get(&networks.address("neighbour")), get(&format!("{HOST}:{CLOSED}")));
    let out = networks.inside("peers", "", &line);
    assert_eq!(
        out.split_whitespace().collect::<Vec<_>>(),
        ["neighbour", "refused"],
        "a peer is reached, the host is not"
    );
}

#[test]
fn peers_do_not_reach_the_host_by_ipv6() {
    let Some(networks) = Networks::new() else { return };
    networks.run("", "docker network create --ipv6 --subnet fd00:28::/64 --gateway fd00:28::1 six").succeeded();
    networks.run("", "docker network connect --ip6 fd00:28::99 six neighbour").succeeded();
    networks.run("", &format!("docker exec -d neighbour httpd -f -p [::]:{SIX} -h /www")).succeeded();
    // Docker gives every bridge with IPv6 the address fe80::1.
    let line =
        ["[fe80::1%eth0]", "[fd00:28::1]", "[fd00:28::99]"].map(|at| get(&format!("{at}:{SIX}"))).join("; echo; ");
    // The addresses are in use after the detection of duplicates.
    let line = format!("while ip -6 addr show dev eth0 | grep -q tentative; do sleep 0.1; done; {line}");
    for (runtime, host) in [("peers", "refused"), ("egress-peers-host", "host")] {
        let out = networks.inside(runtime, "--network six", &line);
        assert_eq!(out.split_whitespace().collect::<Vec<_>>(), [host, host, "neighbour"], "{runtime}");
    }
}

#[test]
fn packet_socket_and_dockers_resolver_lead_out_of_no_closed_container() {
    let Some(networks) = Networks::new() else { return };
    networks.run("", "docker network create other").succeeded();
    let raw = format!("arping -c 1 -w 2 -I eth0 {HOST} > /dev/null 2>&1 && echo raw || echo none");
    assert_eq!(networks.inside("closed", "", &raw), "none");
    assert_eq!(networks.inside("egress-raw", "", &raw), "raw", "the control");
    // Docker's resolver answers with the neighbours' names, and asks the servers of the host for all others.
    networks.run("", "docker network connect other neighbour").succeeded();
    let names = "nslookup neighbour 127.0.0.11 2>&1 | grep -q 'Name:.*neighbour' && echo asked || echo none";
    assert_eq!(networks.inside("closed", "--network other", names), "none");
    assert_eq!(networks.inside("egress-resolver", "--network other", names), "asked", "the control");
}

#[test]
fn container_or_exec_that_may_change_its_network_is_refused() {
    let Some(networks) = Networks::new() else { return };
    let refused = |done: Done, words: &str| assert!(done.status != 0 && done.err.contains(words), "{}", done.err);
    let run = |runtime: &str, options: &str| {
        networks.run("", &format!("docker run --rm --runtime {runtime} {options} bb true"))
    };
    refused(run("closed", "--cap-add NET_ADMIN"), "NET_ADMIN");
    refused(run("closed", "--network host"), "the network is the host's");
    refused(run("own", ""), "the container's own address");
    networks.run("", "docker run -d --name held --runtime closed bb sleep 100").succeeded();
    let done = networks.run("", "docker exec --privileged held true");
    assert!(
        done.status != 0 && format!("{}{}", done.out, done.err).contains("--privileged"),
        "{}{}",
        done.out,
        done.err
    );
    networks.run("", "docker exec held true").succeeded();
    let raw = format!("docker exec held arping -c 1 -w 2 -I eth0 {HOST}");
    assert_ne!(networks.run("", &raw).status, 0, "exec has no packet socket either");
}

#[test]
fn network_that_is_attached_later_carries_nothing() {
    let Some(networks) = Networks::new() else { return };
    networks.run("", "docker network create late").succeeded();
    networks.run("", "docker network connect late neighbour").succeeded();
    let format = "{{(index .NetworkSettings.Networks \"late\").IPAddress}}";
    let neighbour = networks.run("", &format!("docker inspect -f '{format}' neighbour")).out.trim().to_owned();
    for (runtime, expected) in [("closed", "refused"), ("egress-devices", "neighbour")] {
        networks.run("", &format!("docker run -d --name {runtime} --runtime {runtime} bb sleep 100")).succeeded();
        networks.run("", &format!("docker network connect late {runtime}")).succeeded();
        let found = networks.run("", &format!("docker exec {runtime} sh -c '{}'", get(&neighbour))).out;
        assert_eq!(found.trim(), expected, "{runtime}");
    }
}

/// A line of shell by which a container gets an allowed page, one of the host's address, and nothing from the resolver.
fn podman_line(host: &str) -> String {
    [get(&format!("127.0.0.1:{ALLOWED}")), get(&format!("{host}:{ALLOWED}"))].join("; echo; ")
}

#[test]
fn podmans_bridge_is_closed() {
    let Some(podman) = crate::podman::Podman::new("podman") else { return };
    std::fs::write(podman.path().join("index.html"), "host").unwrap();
    let run = |annotations: &str| {
        // The line has a separate network namespace, which ends with it.
        let line = format!(
            "ip link set lo up; busybox httpd -f -p 0.0.0.0:{ALLOWED} -h $D & \
             command podman --root $D/store --runroot $D/run --tmpdir $D/tmp --storage-driver vfs --cgroup-manager cgroupfs \
             --events-backend none --runtime brig run --rm --network podman {annotations} bb sh -c \"{}\"; kill $!",
            podman_line("10.88.0.1").replace('"', "\\\"")
        );
        let done = podman.run(&format!("unshare -n sh -c '{line}'"), "brig");
        (done.out.split_whitespace().map(str::to_owned).collect::<Vec<_>>(), done.err)
    };
    let (out, err) = run(&format!("--annotation dev.brig.egress.allow=127.0.0.1:{ALLOWED}"));
    assert_eq!(out, ["host", "refused"], "{err}");
    let (out, err) = run("");
    assert_eq!(out, ["refused", "host"], "without the annotation: {err}");
}
