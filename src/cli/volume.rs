//! `brig volume …`: file systems of the store that outlive tasks.

use super::output;
use super::task::run;
use brig::error::{Context, Error, Kind, Result};
use brig::task::{Store, VolumeRow, VolumeSize, open_store, refuse_host_path};
use clap::{Args, Subcommand};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

/// Keep files for several tasks: data, homes and caches
#[derive(Args)]
#[command(after_help = "\
Examples:
  brig task run --volume data:/data -- ./work.sh       one task at a time writes it
  brig task run --volume data:/data:ro -- ./read.sh    many tasks read it
  brig task run --home me -- ./agent.sh                logins and sessions stay
  brig volume fill npm --image node:22 --allow @npm --dir . -- npm ci --cache /volume
  brig task run --cache npm:/home/agent/.npm -- npm ci")]
pub(super) struct Arguments {
    /// Where volumes are kept [env: BRIG_STORE] [default: /var/lib/brig as root, else ~/.local/share/brig]
    #[arg(long, global = true, value_name = "DIR")]
    store: Option<PathBuf>,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
#[command(defer = true)]
enum Verb {
    #[command(visible_alias = "list")]
    Ls(LsArguments),
    Create(CreateArguments),
    Show(ShowArguments),
    Rm(RmArguments),
    Fill(Box<run::FillArguments>),
    Export(ExportArguments),
    Import(ImportArguments),
    Prune(PruneArguments),
}

pub(super) fn main(arguments: Arguments) -> Result<ExitCode> {
    let store = &open_store(arguments.store)?;
    match arguments.verb {
        Verb::Ls(arguments) => return list(store, &arguments),
        Verb::Create(arguments) => create(store, &arguments),
        Verb::Show(arguments) => show(store, &arguments),
        Verb::Rm(arguments) => remove(store, &arguments),
        Verb::Fill(arguments) => return run::fill(store, *arguments),
        Verb::Export(arguments) => export(store, &arguments),
        Verb::Import(arguments) => import(store, &arguments),
        Verb::Prune(arguments) => prune(store, &arguments),
    }?;
    Ok(ExitCode::SUCCESS)
}

/// List volumes by name
#[derive(Args)]
#[command(after_help = "\
Examples:
  brig volume ls
  brig volume ls --json | jq '.[] | select(.used_by == []) | .name'")]
struct LsArguments {
    /// Print the rows as JSON
    #[arg(long)]
    json: bool,
    /// Print names only
    #[arg(short, long, conflicts_with = "json")]
    quiet: bool,
}

fn list(store: &Store, arguments: &LsArguments) -> Result<ExitCode> {
    let (rows, unread) = store.volumes()?;
    if arguments.json {
        output::json(&rows);
    } else if arguments.quiet {
        output::lines(rows.into_iter().map(|row| row.record.name));
    } else {
        let cells = rows.iter().map(|row| {
            let size = output::approximate(row.record.size.bytes);
            let purpose = row.record.purpose.clone().unwrap_or_default();
            [row.record.name.clone(), output::approximate(row.disk_bytes), size, changed(row), purpose, users(row)]
        });
        output::table(["NAME", "ON DISK", "SIZE", "CHANGED", "FOR", "USED BY"], cells);
    }
    Ok(output::failures(&unread))
}

fn changed(row: &VolumeRow) -> String {
    row.changed.as_deref().map_or_else(|| "not used yet".to_owned(), output::moment)
}

fn users(row: &VolumeRow) -> String {
    row.used_by.iter().map(|user| format!("{} ({})", user.task, user.access)).collect::<Vec<_>>().join(" ")
}

/// Make an empty volume; its first use fills it with the image's files at the target
#[derive(Args)]
#[command(after_help = "\
Examples:
  brig volume create data --size 40G --inodes 4000000
  brig volume create small --size 64M --inodes 1000

A task that names a missing volume makes it with the default size.")]
struct CreateArguments {
    /// Its name
    name: String,
    #[command(flatten)]
    caps: Caps,
    /// Print the record as JSON
    #[arg(long)]
    json: bool,
}

/// The caps of a new volume.
#[derive(Args)]
struct Caps {
    /// The most bytes of its files
    #[arg(long, value_name = "SIZE", value_parser = brig::sandbox::parse_size, default_value = "10G")]
    size: u64,
    /// The most files, directories and links
    #[arg(long, value_name = "NUMBER", default_value = "1000000")]
    inodes: u64,
}

impl Caps {
    fn size(&self) -> VolumeSize {
        VolumeSize { bytes: self.size, inodes: self.inodes }
    }
}

fn create(store: &Store, arguments: &CreateArguments) -> Result<()> {
    let record = store.create_volume(&arguments.name, arguments.caps.size())?;
    if arguments.json {
        output::json(&record)
    } else {
        output::lines([record.name])
    }
    Ok(())
}

/// Show a volume
#[derive(Args)]
#[command(after_help = "\
Examples:
  brig volume show data
  brig volume show data --json | jq .used_by")]
struct ShowArguments {
    /// Its name
    name: String,
    /// Print it as JSON
    #[arg(long)]
    json: bool,
}

fn show(store: &Store, arguments: &ShowArguments) -> Result<()> {
    let row = store.volume(&arguments.name)?;
    if arguments.json {
        output::json(&row);
        return Ok(());
    }
    let rows = [
        ("name", row.record.name.clone()),
        ("created", row.record.created.clone()),
        ("changed", changed(&row)),
        ("for", row.record.purpose.clone().unwrap_or_default()),
        ("size", format!("{} bytes, {} inodes", row.record.size.bytes, row.record.size.inodes)),
        ("on disk", format!("{} bytes", row.disk_bytes)),
        ("used by", users(&row)),
    ];
    output::pairs(&rows.map(|(name, value)| (name.to_owned(), value)), false);
    Ok(())
}

/// Remove volumes that no task uses, with their files
#[derive(Args)]
#[command(after_help = "\
Examples:
  brig volume rm data
  brig volume rm $(brig volume ls -q)")]
struct RmArguments {
    /// Their names
    #[arg(required = true, value_name = "NAME")]
    names: Vec<String>,
}

fn remove(store: &Store, arguments: &RmArguments) -> Result<()> {
    // A wrong name removes nothing.
    arguments.names.iter().try_for_each(|name| store.volume(name).map(drop))?;
    arguments.names.iter().try_for_each(|name| store.remove_volume(name))
}

/// Write the files of a volume as a tar archive
#[derive(Args)]
#[command(after_help = "\
Examples:
  brig volume export data -o data.tar
  brig volume export data | zstd > data.tar.zst

The archive has owners, as ids inside a sandbox. Set-id bits, FIFOs, sockets and devices are left out.")]
struct ExportArguments {
    /// Its name
    name: String,
    /// The archive: a new file, or - for standard output
    #[arg(short, long, value_name = "FILE", default_value = "-")]
    output: PathBuf,
}

fn export(store: &Store, arguments: &ExportArguments) -> Result<()> {
    let left_out = if arguments.output == Path::new("-") {
        if rustix::termios::isatty(rustix::stdio::stdout()) {
            return Err(Error::new(Kind::Usage, "an archive is not for a terminal").hint("name a file: --output FILE"));
        }
        store.export_volume(&arguments.name, std::io::stdout().lock())?
    } else {
        refuse_host_path("`export` would write a path of the host", "leave --output out, and redirect the output")?;
        let step = || format!("write `{}`", arguments.output.display());
        let file = std::fs::File::create_new(&arguments.output).failing(Kind::Exists, step)?;
        store.export_volume(&arguments.name, std::io::BufWriter::new(file)).inspect_err(|_| {
            // A part of an archive is of no use.
            let _ = std::fs::remove_file(&arguments.output);
        })?
    };
    match left_out {
        0 => {}
        1 => tell!("brig: 1 file was left out: a FIFO, socket or device"),
        count => tell!("brig: {count} files were left out: FIFOs, sockets or devices"),
    }
    Ok(())
}

/// Make a volume of a tar archive
#[derive(Args)]
#[command(after_help = "\
Examples:
  brig volume import data data.tar
  zstdcat data.tar.zst | brig volume import data -
  tar -C folder --owner=1000 --group=1000 -c . | brig volume import data - --size 40G")]
struct ImportArguments {
    /// Its name, which must be free
    name: String,
    /// The archive, not compressed; - for standard input
    archive: PathBuf,
    #[command(flatten)]
    caps: Caps,
}

fn import(store: &Store, arguments: &ImportArguments) -> Result<()> {
    let (name, size) = (&arguments.name, arguments.caps.size());
    if arguments.archive == Path::new("-") {
        return store.import_volume(name, size, std::io::stdin().lock());
    }
    refuse_host_path("`import` would read a path of the host", "give the archive on standard input: -")?;
    let step = || format!("read `{}`", arguments.archive.display());
    let file = std::fs::File::open(&arguments.archive).failing(Kind::NotFound, step)?;
    store.import_volume(name, size, std::io::BufReader::new(file))
}

/// Remove volumes that were not changed for a time, unless a task uses them or a kept one goes on with them
#[derive(Args)]
#[command(after_help = "\
Examples:
  brig volume prune --older-than 90d --dry-run
  brig volume prune --older-than 90d")]
struct PruneArguments {
    /// Those that were changed, or made, longer ago
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    older_than: Duration,
    /// Only print what would be removed
    #[arg(long)]
    dry_run: bool,
    /// Print the rows as JSON
    #[arg(long)]
    json: bool,
}

fn prune(store: &Store, arguments: &PruneArguments) -> Result<()> {
    let gone = store.prune_volumes(arguments.older_than, arguments.dry_run)?;
    if arguments.json {
        let rows: Vec<_> =
            gone.iter().map(|(name, bytes)| serde_json::json!({ "name": name, "bytes": bytes })).collect();
        output::json(&rows);
    } else {
        output::table(["NAME", "SIZE"], gone.iter().map(|(name, bytes)| [name.clone(), output::approximate(*bytes)]));
    }
    Ok(())
}
