//! Real servers for one test, at a separate loopback address: a DNS server, nginx with and without TLS for two names,
//! and logs.

use crate::support::{Lab, Task, eventually, skip};
use std::net::{Ipv4Addr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU8, Ordering};

/// The servers. Dropping it ends them.
pub struct World {
    pub address: Ipv4Addr,
    directory: PathBuf,
    children: Vec<Child>,
}

/// Where programs are that an ordinary user's PATH may lack.
pub fn program(name: &str) -> Option<PathBuf> {
    let path = std::env::var("PATH").unwrap_or_default() + ":/usr/sbin:/sbin";
    path.split(':').map(|directory| Path::new(directory).join(name)).find(|each| each.exists())
}

impl World {
    /// Starts them; prints `SKIP` where they are not installed.
    pub fn new(lab: &Lab) -> Option<World> {
        World::with_sites(lab, |_, _| String::new())
    }

    /// The same with more nginx servers: the function gets the address and the folder with `key.pem`, and returns their
    /// configuration. The certificate is `work/ca.pem` of the lab.
    pub fn with_sites(lab: &Lab, sites: impl Fn(Ipv4Addr, &Path) -> String) -> Option<World> {
        let (Some(nginx), Some(dnsmasq)) = (program("nginx"), program("dnsmasq")) else {
            skip("needs nginx and dnsmasq");
            return None;
        };
        static NEXT: AtomicU8 = AtomicU8::new(1);
        let address =
            Ipv4Addr::new(127, 64 + (std::process::id() % 128) as u8, NEXT.fetch_add(1, Ordering::Relaxed), 1);
        let directory = lab.directory("world");
        let mut world = World { address, directory, children: Vec::new() };
        world.start_dns(&dnsmasq);
        let sites = sites(address, &world.directory);
        world.start_nginx(&nginx, lab, &sites);
        Some(world)
    }

    fn start(&mut self, command: &mut Command, port: u16) {
        let log = std::fs::File::create(self.directory.join(format!("{port}.log"))).unwrap();
        let child = command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log).spawn().unwrap();
        self.children.push(child);
        let address = self.address;
        eventually("a server answers", || TcpStream::connect((address, port)).is_ok());
    }

    fn start_dns(&mut self, program: &Path) {
        let mut command = Command::new(program);
        let all = [("a.test", self.address.to_string()), ("b.test", self.address.to_string())];
        let special =
            [("metadata.test", "169.254.169.254"), ("mapped.test", "::ffff:127.0.0.1"), ("closed.test", "192.0.2.1")];
        let names = all.iter().map(|(name, to)| (*name, to.as_str())).chain(special);
        command.args(["--keep-in-foreground", "--no-resolv", "--no-hosts", "--conf-file=/dev/null", "--pid-file="]);
        command.args(["--bind-interfaces", "--port=5353", "--log-queries", "--log-facility=-", "--user="]);
        command.arg(format!("--listen-address={}", self.address));
        command.args(names.map(|(name, to)| format!("--address=/{name}/{to}")));
        self.start(&mut command, 5353);
    }

    fn start_nginx(&mut self, program: &Path, lab: &Lab, sites: &str) {
        let directory = self.directory.display().to_string();
        self.make_certificates(lab);
        let server = |name: &str| {
            format!(
                "server {{ listen {0}:8080; listen {0}:8443 ssl http2; server_name {name};\n\
                 ssl_certificate {directory}/cert.pem; ssl_certificate_key {directory}/key.pem;\n\
                 location / {{ root {directory}/www; try_files $uri @echo; }}\n\
                 location /repeat {{ return 200 \"you said $http_authorization$http_x_api_key\\n\"; }}\n\
                 location /away {{ return 302 https://b.test:8443/; }}\n\
                 location @echo {{ return 200 \"served by {name} $server_protocol\\n\"; }} }}\n",
                self.address
            )
        };
        let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
            .iter()
            .map(|name| format!("{name}_temp_path {directory}/{name};\n"))
            .collect();
        let user = if crate::support::is_root() { "user root;\n" } else { "" };
        let text = format!(
            "daemon off; {user}worker_processes 1; pid {directory}/nginx.pid; error_log stderr;\nevents {{ worker_connections 8192; }}\n\
             http {{ log_format heard '$host $request_method $request_uri <$http_authorization> <$http_x_api_key>';\n\
             access_log {directory}/access.log heard; client_max_body_size 0; {temporary}{}{}{sites} }}\n",
            server("a.test"),
            server("b.test")
        );
        std::fs::create_dir_all(self.directory.join("www")).unwrap();
        std::fs::write(self.directory.join("nginx.conf"), text).unwrap();
        let mut command = Command::new(program);
        command.arg("-c").arg(self.directory.join("nginx.conf")).arg("-p").arg(&self.directory);
        self.start(&mut command, 8443);
    }

    /// An authority, whose certificate is `work/ca.pem`, and the servers' own, signed by it.
    fn make_certificates(&self, lab: &Lab) {
        let (directory, ca) = (self.directory.display(), lab.directory("work").join("ca.pem"));
        let names = format!("subjectAltName=DNS:a.test,DNS:b.test,IP:{}\nbasicConstraints=CA:FALSE\n", self.address);
        std::fs::write(self.directory.join("names"), names).unwrap();
        let key = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes";
        let script = format!(
            "cd {directory} && openssl req -x509 {key} -days 2 -subj /CN=authority.test -keyout ca.key -out {0} && \
             openssl req {key} -subj /CN=a.test -keyout key.pem -out request.pem && \
             openssl x509 -req -in request.pem -CA {0} -CAkey ca.key -set_serial 2 -days 2 -extfile names -out cert.pem",
            ca.display()
        );
        let made = Command::new("sh").args(["-c", &script]).stdout(Stdio::null()).stderr(Stdio::null()).status();
        assert!(made.unwrap().success(), "openssl made no certificates");
    }

    /// The directory of the servers' files, with their certificate and key: `cert.pem`, `key.pem`.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// nginx's requests: host, method, path, and two headers in angle brackets.
    pub fn heard(&self) -> String {
        std::fs::read_to_string(self.directory.join("access.log")).unwrap_or_default()
    }

    /// A task with a secret for `a.test:8443` at the broker; `rules` are further lines of the profile's table.
    pub fn brokered<'lab>(&self, lab: &'lab Lab, value: &str, rules: &str) -> Task<'lab> {
        self.brokered_at(lab, value, "\"a.test:8443\"", rules)
    }

    /// The same for these hosts, as TOML has them.
    pub fn brokered_at<'lab>(&self, lab: &'lab Lab, value: &str, hosts: &str, rules: &str) -> Task<'lab> {
        let token = lab.file("token", value);
        let ca = lab.directory("work").join("ca.pem");
        let profile = format!(
            "[secrets.API_KEY]\nsource = \"file:{}\"\nexpose = \"broker\"\nhost = {hosts}\nca = \"{}\"\n{rules}",
            token.display(),
            ca.display()
        );
        let profile = lab.file("broker.toml", profile).display().to_string();
        let near = format!("{}:8080,8443,8444", self.address);
        self.bare(lab).args(["--profile", &profile, "--allow", &near])
    }

    /// A file that nginx shows below `/`.
    pub fn publish(&self, name: &str, content: &[u8]) {
        let path = self.directory.join("www").join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
    }

    /// Where nginx's files are.
    pub fn files(&self) -> PathBuf {
        self.directory.join("www")
    }

    /// Starts one more server.
    pub fn also(&mut self, command: &mut Command, port: u16) {
        self.start(command, port);
    }

    /// Starts one more server, which makes this socket.
    pub fn also_at(&mut self, command: &mut Command, socket: &Path) {
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        self.children.push(child);
        eventually("a server's socket is there", || std::os::unix::net::UnixStream::connect(socket).is_ok());
    }

    /// What the DNS server was asked.
    pub fn asked(&self) -> String {
        std::fs::read_to_string(self.directory.join("5353.log")).unwrap()
    }

    /// A task that may reach `a.test` by name, and that its servers are at this loopback address.
    pub fn task<'lab>(&self, lab: &'lab Lab) -> Task<'lab> {
        let near = format!("{}:8080,8443", self.address);
        self.bare(lab).args(["--allow", "a.test:8080,8443", "--allow", &near])
    }

    /// A task with this resolver and no rule; `/workspace/ca.pem` has the servers' certificate.
    pub fn bare<'lab>(&self, lab: &'lab Lab) -> Task<'lab> {
        let resolver = format!("{}:5353", self.address);
        let work = lab.directory("work").display().to_string();
        lab.task().args(["--network", "egress", "--resolver", &resolver, "--dir", &work])
    }
}

impl Drop for World {
    fn drop(&mut self) {
        for child in &mut self.children {
            // SIGTERM, so that a master takes its workers with it.
            if let Some(pid) = rustix::process::Pid::from_raw(child.id() as i32) {
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
            }
            let _ = child.wait();
        }
    }
}
