//! The broker for containers of engines (`dev.brig.secret.NAME`): requests get the secret, and the container never has
//! it.

use crate::docker::Docker;
use crate::podman::Podman;
use crate::support::{Done, Lab, eventually, finish};
use serde_json::json;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

const VALUE: &str = "sk-test-0123456789abcdef";

/// Answers each request with `served`, and writes its `Authorization` into the file `heard`.
const SERVER: &str = r#"
import http.server, ssl, sys
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        with open("heard", "a") as heard: heard.write(f"{self.path} {self.headers.get('Authorization')}\n")
        self.send_response(200)
        self.send_header("Content-Length", "6")
        self.end_headers()
        self.wfile.write(b"served")
    def log_message(self, *words): pass
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain("cert.pem", "key.pem")
server.socket = context.wrap_socket(server.socket, server_side=True)
with open("port.new", "w") as port: port.write(str(server.server_port))
import os; os.rename("port.new", "port")
server.serve_forever()
"#;

/// A bundle with the host's programs, and a server of `a.test` that only the broker's host trusts.
struct Brokered {
    lab: Lab,
    server: Child,
    port: String,
}

impl Drop for Brokered {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

impl Brokered {
    fn new() -> Option<Brokered> {
        let mut lab = Lab::new()?;
        let mut made = Command::new("sh");
        made.current_dir(lab.path()).stderr(Stdio::null()).args([
            "-euc",
            "key='-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes'; echo '127.0.0.1 a.test' > hosts
             openssl req -x509 $key -days 2 -subj /CN=authority.test -keyout ca.key -out ca.pem
             openssl req $key -subj /CN=a.test -keyout key.pem -out request.pem
             printf 'subjectAltName=DNS:a.test\\nbasicConstraints=CA:FALSE\\n' > names
             openssl x509 -req -in request.pem -CA ca.pem -CAkey ca.key -set_serial 2 -days 2 -extfile names -out cert.pem",
        ]);
        assert!(made.status().unwrap().success(), "openssl made no certificate");
        std::fs::write(lab.path().join("token"), format!("{VALUE}\n")).unwrap();
        let server = Command::new("/usr/bin/python3").args(["-c", SERVER]).current_dir(lab.path()).spawn().unwrap();
        eventually("the server listens", || lab.path().join("port").exists());
        let port = std::fs::read_to_string(lab.path().join("port")).unwrap();
        for name in ["lib", "lib64"] {
            if !lab.root(name).exists() {
                std::os::unix::fs::symlink(format!("usr/{name}"), lab.root(name)).unwrap();
            }
        }
        lab.mount("/usr", "bind", "/usr", &["rbind", "ro"]);
        lab.config["annotations"] = json!({
            "dev.brig.egress.allow": format!("127.0.0.1:{port}"),
            "dev.brig.secret.API_KEY": format!(
                "source = 'file:{0}/token', host = 'a.test:{port}', ca = '{0}/ca.pem'",
                lab.path().display()
            ),
        });
        Some(Brokered { lab, server, port })
    }

    /// The words of brig in a mount namespace where `a.test` is this machine.
    fn command(&self, arguments: &[&str]) -> Command {
        let brig = self.lab.command(arguments);
        let mut command = Command::new("unshare");
        command.args(["-m", "--propagation", "private", "sh", "-c", "mount --bind \"$0\" /etc/hosts && exec \"$@\""]);
        command.arg(self.lab.path().join("hosts")).arg(brig.get_program()).args(brig.get_args());
        command.current_dir(self.lab.path()).stdin(Stdio::null());
        command
    }

    fn on(&self, arguments: &[&str]) -> Done {
        finish(&mut self.command(arguments))
    }

    /// A runtime for an engine: brig in a mount namespace where `a.test` is this machine.
    fn runtime(&self) -> String {
        let path = self.lab.path().join("of-engine/brig");
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        let [hosts, brig] =
            [self.lab.path().join("hosts").display().to_string(), env!("CARGO_BIN_EXE_brig").to_owned()];
        let line = format!("mount --bind {hosts} /etc/hosts && exec {brig} \"$@\"");
        let text = format!("#!/bin/sh\nexec unshare -m --propagation private sh -c '{line}' brig \"$@\"\n");
        // By another process: a file that a child of another test has open for writing cannot be run.
        let make = "printf %s \"$1\" > \"$0\" && chmod 755 \"$0\"";
        finish(Command::new("sh").args(["-euc", make]).arg(&path).arg(text)).succeeded();
        path.display().to_string()
    }

    /// Both annotations as `KEY=VALUE`.
    fn annotations(&self) -> [String; 2] {
        let of_lab = &self.lab.config["annotations"];
        let value = |key: &str| format!("{key}={}", of_lab[key].as_str().unwrap().replace('\'', "\""));
        ["dev.brig.egress.allow", "dev.brig.secret.API_KEY"].map(value)
    }

    /// A line of shell that asks the server from a container of an engine, and searches the container for the value.
    fn line(&self) -> String {
        let (start, end) = VALUE.split_at(VALUE.len() - 1);
        format!(
            "/usr/bin/curl -sS https://a.test:{}/engine; echo; echo $API_KEY; env | grep -c {start}[{end}]; \
             cat /proc/*/environ /proc/*/cmdline 2> /dev/null | grep -ac {start}[{end}]; \
             find / -path /proc -prune -o -path /sys -prune -o -path /usr -prune -o -path /lib -prune -o -path /lib64 -prune -o -type f -exec grep -al {start}[{end}] {{}} + | wc -l; \
             cat $SSL_CERT_FILE /etc/resolv.conf /etc/hosts | grep -c {start}[{end}]",
            self.port
        )
    }

    /// Checks the output of the line, and what the server received.
    fn check(&self, done: &Done) {
        assert_eq!(done.out, "served\nheld-by-the-broker\n0\n0\n0\n0\n", "{done:?}");
        assert_eq!(self.heard(), format!("/engine Bearer {VALUE}\n"));
        assert!(!done.err.contains(VALUE), "{done:?}");
    }

    fn heard(&self) -> String {
        std::fs::read_to_string(self.lab.path().join("heard")).unwrap_or_default()
    }
}

#[test]
fn broker_adds_a_secret_that_the_container_never_has() {
    let Some(mut it) = Brokered::new() else { return };
    // The root's own certificates stay trusted beside the broker's authority.
    let own: PathBuf = it.lab.root("/etc/ssl/certs/ca-certificates.crt");
    std::fs::create_dir_all(own.parent().unwrap()).unwrap();
    std::fs::copy(it.lab.path().join("ca.pem"), &own).unwrap();
    // A root may have anything at the places of other distributions.
    std::fs::create_dir_all(it.lab.root("/etc/pki/tls/certs")).unwrap();
    let pipe = it.lab.root("/etc/pki/tls/certs/ca-bundle.crt");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    std::os::unix::fs::symlink("/etc/shadow", it.lab.root("/etc/ssl/ca-bundle.pem")).unwrap();
    let ask = format!("/usr/bin/curl -sS https://a.test:{}/", it.port);
    it.lab.sh(&format!(
        "{ask}run; echo; echo $API_KEY $SSL_CERT_FILE; grep -c BEGIN /etc/ssl/certs/ca-certificates.crt; \
         cat /proc/*/environ /proc/*/cmdline | grep -ac {0}[{1}]",
        &VALUE[..VALUE.len() - 1],
        &VALUE[VALUE.len() - 1..]
    ));
    let done = it.on(&["run", &it.lab.id.clone()]);
    assert_eq!(
        (done.out.as_str(), done.err.as_str()),
        ("served\nheld-by-the-broker /etc/ssl/certs/ca-certificates.crt\n2\n0\n", "")
    );
    assert_eq!(it.heard(), format!("/run Bearer {VALUE}\n"));
    assert!(!std::fs::read_to_string(&own).unwrap().contains(VALUE));

    // The same for a process that enters, and a placeholder of one's own stays.
    it.lab.args(&["sleep", "100"]);
    it.lab.config["process"]["env"].as_array_mut().unwrap().push(json!("API_KEY=sk-own"));
    it.lab.id.push('b');
    let id = it.lab.id.clone();
    // Without our streams, which the container keeps open.
    let mut started = it.command(&["run", "--detach", &id]);
    assert!(started.stdout(Stdio::null()).stderr(Stdio::null()).status().unwrap().success());
    let entered =
        it.on(&["exec", "--env", "API_KEY=sk-own", &id, "sh", "-c", &format!("{ask}exec; echo; echo $API_KEY")]);
    assert_eq!(entered.out, "served\nsk-own\n", "{entered:?}");
    assert!(it.heard().ends_with(&format!("/exec Bearer {VALUE}\n")));
    let records = it.lab.path().join("records");
    let kept = Command::new("grep").args(["-rc", VALUE]).arg(&records).output().unwrap();
    let kept = String::from_utf8_lossy(&kept.stdout).into_owned();
    assert!(kept.lines().all(|line| line.ends_with(":0")), "a record has the value: {kept}");
    it.on(&["delete", "--force", &id]);
}

#[test]
fn secret_that_cannot_be_brokered_starts_nothing() {
    let Some(mut it) = Brokered::new() else { return };
    let good = it.lab.config["annotations"].clone();
    let key = "dev.brig.secret.API_KEY";
    it.lab.sh("echo started");
    for (name, value, words) in [
        (key, json!("source = 'file:/nowhere/token', host = 'a.test'"), "/nowhere/token"),
        (key, json!(VALUE), "not keys and values"),
        (key, json!("source = 'cmd:echo x', host = 'a.test'"), "no such source"),
        (key, json!("source = 'file:/etc/hostname'"), "only the broker"),
        ("dev.brig.egress.allow", serde_json::Value::Null, "without `dev.brig.egress.allow`"),
        ("dev.brig.secret.A-B", json!("source = 'file:/k', host = 'a.test'"), "not a secret name"),
    ] {
        it.lab.config["annotations"] = good.clone();
        it.lab.config["annotations"][name] = value.clone();
        if value.is_null() {
            it.lab.config["annotations"].as_object_mut().unwrap().remove(name);
        }
        let done = it.on(&["run", &it.lab.id.clone()]);
        assert!(done.status != 0 && done.out.is_empty(), "{name}: {done:?}");
        assert!(done.err.contains(words) && !done.err.contains(VALUE), "{name}: {done:?}");
        assert!(!it.lab.path().join("records").join(&it.lab.id).exists(), "{name}: a record is left");
    }
    assert_eq!(it.heard(), "");
}

/// The host's programs in a container of an engine, whose image has the authority of another server.
const PROGRAMS: &str = "-v /usr:/usr:ro -v /lib:/lib:ro -v /lib64:/lib64:ro";
const IMPORT: &str =
    "mkdir -p rootfs/etc/ssl/certs && cp $CA rootfs/etc/ssl/certs/ca-certificates.crt && tar -C rootfs -c .";

#[test]
fn secret_of_a_container_of_docker_reaches_the_server_alone() {
    let Some(it) = Brokered::new() else { return };
    // Docker before 23 runs the runtime by an unquoted line of shell.
    let arguments: Vec<_> =
        it.annotations().into_iter().flat_map(|each| ["--annotation".to_owned(), format!("'{each}'")]).collect();
    let runtime = json!({"path": it.runtime(), "runtimeArgs": arguments});
    let Some(docker) = Docker::with_runtime("agent", &runtime) else { return };
    let import = format!("CA={}/ca.pem; {IMPORT} | docker import - bb", it.lab.path().display());
    docker.run(&import, "").succeeded();
    let line = it.line();
    let run = format!("docker run --name asks --runtime agent --network none {PROGRAMS} bb sh -c '{line}'");
    it.check(&docker.run(&run, ""));
    let told = docker.run("docker inspect asks; docker logs asks 2>&1; cat dockerd.log", "");
    assert!(told.status == 0 && !told.out.contains(VALUE), "the engine has the value: {told:?}");
    docker.run("docker rm -f asks", "").succeeded();
}

#[test]
fn secret_of_a_container_of_podman_reaches_the_server_alone() {
    let Some(it) = Brokered::new() else { return };
    let runtime = it.runtime();
    let Some(podman) = Podman::new("podman") else { return };
    let import =
        format!("CA={}/ca.pem; {IMPORT} | podman import -q -c 'ENV PATH=/bin' - with-ca", it.lab.path().display());
    podman.run(&import, "brig").succeeded();
    let annotations = podman.annotations(&it.annotations());
    let line = it.line();
    let run = format!("podman run --name c --network none{annotations} {PROGRAMS} with-ca sh -c '{line}'");
    it.check(&podman.run(&run, &runtime));
    let told = podman.run("podman inspect c; podman logs c 2>&1", &runtime);
    assert!(told.status == 0 && !told.out.contains(VALUE), "the engine has the value: {told:?}");
    podman.run("podman rm -f -t 0 c", &runtime).succeeded();
}
