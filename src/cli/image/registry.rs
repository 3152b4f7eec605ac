//! What `pull` and `push` have in common: how to talk to registries.

use brig::image::RegistryOptions;
use clap::Args;
use std::path::PathBuf;

#[derive(Args)]
pub(super) struct Registry {
    /// No TLS: for registries in a trusted network
    #[arg(long)]
    plain_http: bool,
    /// Read credentials from this file
    #[arg(long, value_name = "FILE")]
    auth_file: Option<PathBuf>,
    /// Believe the authorities in this directory (*.crt) too, and show our own certificate (NAME.cert, NAME.key)
    #[arg(long, value_name = "DIR", conflicts_with = "plain_http")]
    cert_dir: Option<PathBuf>,
    /// Take mirrors from HOST/hosts.toml in this directory [default: /etc/containerd/certs.d]
    #[arg(long, value_name = "DIR")]
    hosts_dir: Option<PathBuf>,
    /// Let the registry send us to this host for a token
    #[arg(long, value_name = "HOST")]
    allow_realm: Vec<String>,
    /// Try a mirror first
    #[arg(long, value_name = "HOST=MIRROR", value_parser = mirror)]
    mirror: Vec<(String, String)>,
}

impl Registry {
    pub(super) fn options(&self) -> RegistryOptions {
        RegistryOptions {
            plain_http: self.plain_http,
            mirrors: self.mirror.clone(),
            allowed_realms: self.allow_realm.clone(),
            auth_file: self.auth_file.clone(),
            cert_dir: self.cert_dir.clone(),
            hosts_dir: self.hosts_dir.clone(),
        }
    }
}

fn mirror(text: &str) -> Result<(String, String), String> {
    let (host, mirror) = text.split_once('=').ok_or("write it as HOST=MIRROR")?;
    Ok((host.to_owned(), mirror.trim_end_matches('/').to_owned()))
}
