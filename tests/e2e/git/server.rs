//! A host of repositories at a separate loopback address: git-http-backend behind nginx with TLS and a password, and
//! sshd.

use super::host;
use crate::egress::world::{World, program};
use crate::support::{Lab, Task, is_root, skip};
use std::fs;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The server's password. It does not look like a known token.
pub const PASSWORD: &str = "correct.horse/battery+staple";
/// The ports of the TLS server, of the plain one, and of sshd.
pub const TLS: u16 = 9443;
pub const PLAIN: u16 = 9080;
pub const SSH: u16 = 2222;
/// The port of the server of large files, behind the TLS server, where a test has one.
pub const LFS: u16 = 9091;

/// The servers. Dropping it ends them.
pub struct Host {
    pub world: World,
    /// Where its repositories are.
    pub root: PathBuf,
    /// The file with the credential.
    pub credential: PathBuf,
    /// The certificate of its authority.
    pub ca: PathBuf,
    /// nginx's log of requests.
    log: PathBuf,
}

impl Host {
    /// Starts nginx and git-http-backend; prints `SKIP` where they are not installed.
    pub fn new(lab: &Lab) -> Option<Host> {
        let Some(wrapper) = program("fcgiwrap") else {
            skip("needs fcgiwrap");
            return None;
        };
        let directory = lab.directory("host");
        let root = lab.directory("host/repositories");
        let log = directory.join("access.log");
        let hash = Command::new("openssl").args(["passwd", "-apr1", PASSWORD]).output().unwrap().stdout;
        fs::write(directory.join("users"), format!("me:{}", String::from_utf8(hash).unwrap())).unwrap();
        let socket = directory.join("fcgi.sock");
        let backend = host(&directory, "echo $(git --exec-path)/git-http-backend");
        let repositories = format!(
            "auth_basic git; auth_basic_user_file {0}/users;\n\
             fastcgi_pass unix:{1}; fastcgi_param SCRIPT_FILENAME {backend}; fastcgi_param GIT_PROJECT_ROOT {0}/repositories;\n\
             fastcgi_param GIT_HTTP_EXPORT_ALL 1; fastcgi_param PATH_INFO $uri; fastcgi_param QUERY_STRING $query_string;\n\
             fastcgi_param REQUEST_METHOD $request_method; fastcgi_param CONTENT_TYPE $content_type;\n\
             fastcgi_param CONTENT_LENGTH $content_length; fastcgi_param REMOTE_USER $remote_user;\n\
             fastcgi_param GIT_CONFIG_COUNT 1; fastcgi_param GIT_CONFIG_KEY_0 safe.directory; fastcgi_param GIT_CONFIG_VALUE_0 *;\n\
             fastcgi_param HTTP_GIT_PROTOCOL $http_git_protocol; fastcgi_param PATH {2};\n",
            directory.display(),
            socket.display(),
            std::env::var("PATH").unwrap(),
        );
        let sites = |address: Ipv4Addr, folder: &Path| {
            format!(
                "log_format who '$host $status $remote_user $request'; access_log {0} who;\n\
                 server {{ listen {address}:{TLS} ssl; server_name a.test {address}; access_log {0} who;\n\
                 ssl_certificate {1}/cert.pem; ssl_certificate_key {1}/key.pem;\n\
                 location /away/ {{ rewrite ^/away(.*)$ https://b.test:{TLS}$1 redirect; }}\n\
                 location /renamed/ {{ rewrite ^/renamed(.*)$ https://a.test:{TLS}$1 redirect; }}\n\
                 location /port/ {{ rewrite ^/port(.*)$ https://a.test:8443$1 redirect; }}
                 location /address/ {{ rewrite ^/address(.*)$ https://192.0.2.7:{TLS}$1 redirect; }}
                 location /metadata/ {{ rewrite ^/metadata(.*)$ https://169.254.169.254:{TLS}$1 redirect; }}
                 location /plain/ {{ rewrite ^/plain(.*)$ http://a.test:{PLAIN}$1 redirect; }}\n\
                 location ~ /info/lfs/ {{ auth_basic git; auth_basic_user_file {2}/users; client_max_body_size 0; proxy_pass http://{address}:{LFS}; }}\n\
                 location / {{ {repositories} }} }}\n\
                 server {{ listen {address}:{TLS} ssl; server_name b.test; access_log {0} who;\n\
                 ssl_certificate {1}/cert.pem; ssl_certificate_key {1}/key.pem;\n\
                 location ~ /info/lfs/ {{ proxy_pass http://{address}:{LFS}; }}\n\
                 location / {{ {repositories} }} }}\n\
                 server {{ listen {address}:{PLAIN}; access_log {0} who; location / {{ {repositories} }} }}\n",
                log.display(),
                folder.display(),
                directory.display(),
            )
        };
        let mut world = World::with_sites(lab, sites)?;
        // One process: those that it forks ahead outlive it.
        let mut wrapper = Command::new(wrapper);
        wrapper.args(["-f", "-s"]).arg(format!("unix:{}", socket.display()));
        world.also_at(&mut wrapper, &socket);
        let ca = lab.path().join("work/ca.pem");
        let credential = lab.file("credential", format!("me:{PASSWORD}\n"));
        Some(Host { world, root, credential, ca, log })
    }

    /// Starts sshd too; prints `SKIP` where it is not installed.
    pub fn with_ssh(lab: &Lab) -> Option<Host> {
        let Some(server) = program("sshd").filter(|_| program("ssh").is_some()) else {
            skip("needs sshd and ssh");
            return None;
        };
        let mut host = Host::new(lab)?;
        let keys = lab.directory("keys");
        for (name, passphrase) in
            [("host", ""), ("other-host", ""), ("id", ""), ("stranger", ""), ("locked", "a passphrase")]
        {
            let mut make = Command::new("ssh-keygen");
            make.args(["-q", "-t", "ed25519", "-N", passphrase, "-f"]).arg(keys.join(name));
            assert!(make.status().unwrap().success());
        }
        let shell = super::host(&keys, "command -v git-shell");
        let public = fs::read_to_string(keys.join("id.pub")).unwrap();
        let command = format!("command=\"{shell} -c \\\"$SSH_ORIGINAL_COMMAND\\\"\"");
        fs::write(keys.join("authorized"), format!("restrict,{command} {public}")).unwrap();
        // Port 22 is root's to give.
        let short = if is_root() { format!("ListenAddress {}:22\n", host.world.address) } else { String::new() };
        let settings = format!(
            "{short}ListenAddress {}:{SSH}\nHostKey {1}/host\nAuthorizedKeysFile {1}/authorized\nStrictModes no\nUsePAM no\nPidFile none\n\
             PermitRootLogin yes\nPasswordAuthentication no\nAcceptEnv GIT_PROTOCOL\nLogLevel ERROR\n",
            host.world.address,
            keys.display()
        );
        let settings = lab.file("keys/sshd_config", settings);
        if is_root() {
            let _ = fs::create_dir("/run/sshd"); // what the package's service does
        }
        host.world.also(Command::new(server).args(["-D", "-e", "-f"]).arg(settings), SSH);
        let key = |name: &str| fs::read_to_string(keys.join(name)).unwrap();
        lab.file("known_hosts", format!("[a.test]:{SSH},a.test {}", key("host.pub")));
        lab.file("known_hosts.other", format!("[a.test]:{SSH} {}", key("other-host.pub")));
        lab.file("known_hosts.none", "# nobody\n");
        Some(host)
    }

    /// A bare repository with two commits on `main`, and one on `other`.
    pub fn repository(&self, lab: &Lab, name: &str) -> PathBuf {
        let path = super::bare(lab);
        let here = self.root.join(name);
        fs::rename(&path, &here).unwrap();
        here
    }

    /// The URL of a repository, by name.
    pub fn url(&self, name: &str) -> String {
        format!("https://a.test:{TLS}/{name}")
    }

    /// A task on a URL of this host, with the resolver for its name. Its loopback address is allowed by name.
    pub fn task<'lab>(&self, lab: &'lab Lab, url: &str) -> Task<'lab> {
        self.strict_task(lab, url).args(["--git-address", &self.world.address.to_string()])
    }

    /// The same without that name for the address.
    pub fn strict_task<'lab>(&self, lab: &'lab Lab, url: &str) -> Task<'lab> {
        let resolver = format!("{}:5353", self.world.address);
        let ca = self.ca.to_str().unwrap();
        lab.task().args(["--network", "egress", "--resolver", &resolver, "--repo", url, "--git-ca", ca])
    }

    /// The same with the credential.
    pub fn known_task<'lab>(&self, lab: &'lab Lab, url: &str) -> Task<'lab> {
        self.task(lab, url).args(["--git-credential", &format!("file:{}", self.credential.display())])
    }

    /// The requests that nginx served: `host status user request` a line.
    pub fn served(&self) -> String {
        fs::read_to_string(&self.log).unwrap()
    }
}
