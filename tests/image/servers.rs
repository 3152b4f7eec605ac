//! Servers for the tests of registries: Debian's own registry, a proxy with bad days, certificates.

use crate::support::{Scratch, has, script, skipped};
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// A process of the test, ended with it.
pub struct Server {
    child: Child,
    pub port: u16,
    log: std::sync::Arc<std::sync::Mutex<Vec<String>>>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.child.kill().and_then(|()| self.child.wait()).unwrap();
    }
}

/// An unused port.
pub fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// The registry's configuration for user `me` with the password `secret`.
pub fn password(scratch: &Scratch) -> String {
    let file = scratch.path("htpasswd");
    let made = Command::new("htpasswd").args(["-Bbn", "me", "secret"]).output().unwrap();
    std::fs::write(&file, made.stdout).unwrap();
    format!("auth:\n  htpasswd:\n    realm: test\n    path: {file}\n")
}

/// Debian's registry on a free port, with more lines of configuration: first those of `http`, indented, if any.
pub fn registry(scratch: &Scratch, more: &str) -> Server {
    let port = free_port();
    let config = scratch.path(&format!("registry-{port}.yml"));
    let root = scratch.path(&format!("registry-{port}"));
    let text = format!(
        "version: 0.1\nstorage:\n  filesystem:\n    rootdirectory: {root}\nhttp:\n  addr: 127.0.0.1:{port}\n{more}"
    );
    std::fs::write(&config, text).unwrap();
    let log = std::fs::File::create(scratch.path(&format!("registry-{port}.log"))).unwrap();
    let mut command = Command::new("docker-registry");
    command.args(["serve", &config]).stdout(log.try_clone().unwrap()).stderr(log);
    serving(&mut command, port)
}

/// Starts a server and waits until it answers on its port.
pub fn serving(command: &mut Command, port: u16) -> Server {
    let server = Server { child: command.stdin(Stdio::null()).spawn().unwrap(), port, log: Default::default() };
    for _ in 0..200 {
        if std::net::TcpStream::connect(("127.0.0.1", port)).is_ok() {
            return server;
        }
        std::thread::sleep(Duration::from_millis(25));
    }
    panic!("{command:?} does not start");
}

/// The proxy with bad days before it.
pub fn faulty(upstream: &Server, faults: &[&str]) -> Server {
    let mut command = Command::new("python3");
    talking(command.arg(script("registry.py")).arg(upstream.port.to_string()).args(faults))
}

/// A test server that prints its port and then its requests, one a line.
pub fn talking(command: &mut Command) -> Server {
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let port = lines.next().unwrap().unwrap().parse().unwrap();
    let log = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let seen = log.clone();
    std::thread::spawn(move || lines.map_while(Result::ok).for_each(|line| seen.lock().unwrap().push(line)));
    Server { child, port, log }
}

impl Server {
    /// As credentials and directories of certificates know it.
    pub fn host(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    pub fn requests(&self) -> Vec<String> {
        std::thread::sleep(Duration::from_millis(50));
        self.log.lock().unwrap().clone()
    }

    /// Gives the registry an index of one image for linux/amd64, which `push` does not send; returns its digest.
    pub fn put_index(&self, scratch: &Scratch, repository: &str, tag: &str, manifest: &serde_json::Value) -> String {
        let file = scratch.path("an-index");
        let index = serde_json::json!({
            "schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json",
            "manifests": [{
                "mediaType": manifest["media_type"], "digest": manifest["digest"], "size": manifest["size"],
                "platform": { "os": "linux", "architecture": "amd64" },
            }],
        });
        std::fs::write(&file, index.to_string()).unwrap();
        let put = "import sys, urllib.request as u; data = open(sys.argv[2], 'rb').read(); \
                   kind = {'Content-Type': 'application/vnd.oci.image.index.v1+json'}; \
                   print(u.urlopen(u.Request(sys.argv[1], data, kind, method='PUT')).headers['Docker-Content-Digest'])";
        let address = format!("http://{}/v2/{repository}/manifests/{tag}", self.host());
        let put = Command::new("python3").args(["-c", put, &address, &file]).output().unwrap();
        assert!(put.status.success(), "{}", String::from_utf8_lossy(&put.stderr));
        String::from_utf8(put.stdout).unwrap().trim().to_owned()
    }

    pub fn reference(&self) -> String {
        format!("127.0.0.1:{}/team/tool:1", self.port)
    }
}

pub fn auth_file(scratch: &Scratch, server: &Server, password: &str) -> String {
    let path = scratch.path("auth.json");
    let text = format!(r#"{{"auths":{{"127.0.0.1:{}":{{"username":"me","password":"{password}"}}}}}}"#, server.port);
    std::fs::write(&path, text).unwrap();
    path
}

pub fn ready() -> bool {
    !skipped("docker-registry and htpasswd", has("docker-registry") && has("htpasswd"))
}

/// An authority (`ca.pem`) and certificates in `certificates` of the scratch, each with a key `NAME.key`. `good`,
/// `other` (another name), `late` (expired), `alone` (self-signed), `client`.
pub fn certificates(scratch: &Scratch) -> String {
    let directory = scratch.path("certificates");
    std::fs::create_dir_all(&directory).unwrap();
    let script = r#"
        key="-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes"
        openssl req -x509 $key -days 2 -subj /CN=authority.test -keyout ca.key -out ca.pem
        sign() { # NAME EXTENSIONS DATES
            printf '%s
basicConstraints=CA:FALSE
' "$2" > $1.ext
            openssl req $key -subj /CN=$1.test -keyout $1.key -out $1.request
            : > index; echo 0$RANDOM$RANDOM > serial
            openssl ca -batch -notext -config ca.conf -in $1.request -out $1.pem -extfile $1.ext $3
        }
        printf '%s
' '[ca]' 'default_ca=d' '[d]' 'new_certs_dir=.' 'database=index' 'rand_serial=yes' 'certificate=ca.pem' 'private_key=ca.key'             'default_md=sha256' 'policy=p' 'unique_subject=no' 'default_days=2' '[p]' 'commonName=supplied' > ca.conf
        sign good 'subjectAltName=IP:127.0.0.1' ''
        sign other 'subjectAltName=DNS:other.test,IP:192.0.2.7' ''
        sign late 'subjectAltName=IP:127.0.0.1' '-startdate 20200101000000Z -enddate 20200201000000Z'
        sign client 'extendedKeyUsage=clientAuth' ''
        openssl req -x509 $key -days 2 -subj /CN=alone.test -addext subjectAltName=IP:127.0.0.1 -keyout alone.key -out alone.pem
        "#;
    let made = Command::new("bash").args(["-ec", script]).current_dir(&directory).output().unwrap();
    assert!(made.status.success(), "openssl: {}", String::from_utf8_lossy(&made.stderr));
    directory
}

/// The registry's configuration for TLS with one of them.
pub fn tls(directory: &str, name: &str) -> String {
    format!("  tls:\n    certificate: {directory}/{name}.pem\n    key: {directory}/{name}.key\n")
}

/// A directory of certificates with the authority alone.
pub fn trusting(scratch: &Scratch, certificates: &str) -> String {
    let directory = scratch.path("trusting");
    std::fs::create_dir_all(&directory).unwrap();
    std::fs::copy(format!("{certificates}/ca.pem"), format!("{directory}/ca.crt")).unwrap();
    directory
}
