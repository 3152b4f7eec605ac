//! `pull` and `push`: images from and to registries.

use super::{Common, Unpacking, show};
use crate::cli::output;
use brig::error::Result;
use brig::image::{Event, Pulled, Reference, RegistryOptions, pull, push};
use clap::Args;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

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

/// Fetch an image from a registry
#[derive(Args)]
#[command(after_help = "Examples:
  brig image pull debian:12
  brig image pull registry.example/agent:1 --platform linux/arm64
  brig image pull debian:12 --mirror docker.io=mirror.example/hub")]
pub(super) struct PullArguments {
    /// A name, with a tag or a digest
    #[arg(value_name = "REF")]
    reference: Reference,
    #[command(flatten)]
    registry: Registry,
    #[command(flatten)]
    unpacking: Unpacking,
}

pub(super) fn run_pull(arguments: &PullArguments, common: &Common) -> Result<()> {
    let store = common.store()?;
    let progress = show::Progress::new(common);
    let (registry, options) = (arguments.registry.options(), arguments.unpacking.options());
    let reused = AtomicU64::new(0);
    let report = |event: Event<'_>| {
        if let Event::Done { reused: bytes, .. } = event {
            reused.fetch_add(bytes, Ordering::Relaxed);
        }
        progress.event(event);
    };
    let (record, pulled) = pull(&store, &arguments.reference, &registry, &options, &report)?;
    let current = pulled == Pulled::Current;
    if common.json {
        output::json(&serde_json::json!({
            "name": arguments.reference.to_string(), "digest": record.digest, "current": current,
            "layers": record.chain.len(), "packed_size": record.packed_size, "size": record.size,
            "reused": reused.into_inner(),
        }));
        return Ok(());
    }
    if current && !common.quiet {
        tell!("{} is up to date", arguments.reference.familiar());
    }
    output::line(&record.digest.to_string());
    Ok(())
}

/// Send an image to a registry
#[derive(Args)]
#[command(after_help = "Examples:
  brig image push registry.example/agent:1
  brig image push agent:1 registry.example/agent:1")]
pub(super) struct PushArguments {
    /// An image of the store
    image: String,
    /// Where to [default: the image's own name]
    #[arg(value_name = "REF")]
    target: Option<Reference>,
    #[command(flatten)]
    registry: Registry,
}

pub(super) fn run_push(arguments: &PushArguments, common: &Common) -> Result<()> {
    let store = common.store()?;
    let target = match &arguments.target {
        Some(target) => target.clone(),
        None => arguments.image.parse()?,
    };
    let progress = show::Progress::new(common);
    let options = arguments.registry.options();
    let digest = push(&store, &arguments.image, &target, &options, &|event| progress.event(event))?;
    if common.json {
        output::json(&serde_json::json!({ "name": target.to_string(), "digest": digest }));
    } else {
        output::line(&digest);
    }
    Ok(())
}
