//! Images that a test makes: layers from its files, loaded into the lab's store as an OCI layout. Intermediate data is
//! on the disk only once. A layer is packed as tar writes it, then its folder goes; the layout goes after the load.

use super::{Lab, packages};
use flate2::{Compression, write::GzEncoder};
use serde_json::{Value, json};
use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// An image in the making.
pub struct Image<'lab> {
    lab: &'lab Lab,
    name: String,
    config: Value,
    annotations: Value,
    layers: Vec<Layer>,
}

/// Where a layer's files come from.
enum Layer {
    /// A folder that the test fills, and options of tar for whose its files are.
    Folder(PathBuf, &'static str),
    /// This machine, as it is: files below `/`, one a line.
    Machine(String),
    /// A tar archive.
    Archive(PathBuf),
}

/// The programs of busybox that the first layer has.
const PROGRAMS: [&str; 22] = [
    "sh", "cat", "chmod", "chown", "cp", "dd", "echo", "env", "grep", "head", "id", "ls", "mkdir", "mount", "mv",
    "pwd", "rm", "sleep", "stat", "touch", "true", "find",
];

impl<'lab> Image<'lab> {
    /// An image with a shell, `root` and the user `me` (1001, group 1002, also in `extra`, 55).
    pub fn new(lab: &'lab Lab, name: &str) -> Image<'lab> {
        let mut image =
            Image { lab, name: name.to_owned(), config: json!({}), annotations: json!({}), layers: Vec::new() };
        let base = image.layer("--owner=0 --group=0");
        for folder in ["bin", "etc", "root", "tmp", "home/me"] {
            std::fs::create_dir_all(base.join(folder)).unwrap();
        }
        let busybox = ["/bin/busybox", "/usr/bin/busybox"].into_iter().find(|path| Path::new(path).exists()).unwrap();
        std::fs::copy(busybox, base.join("bin/busybox")).unwrap();
        for program in PROGRAMS {
            symlink("busybox", base.join("bin").join(program)).unwrap();
        }
        // As in every distribution: a folder that the image's other users may not even read.
        std::fs::set_permissions(base.join("root"), PermissionsExt::from_mode(0o700)).unwrap();
        let passwd = "root:x:0:0::/root:/bin/sh\nme:x:1001:1002::/home/me:/bin/sh\n";
        std::fs::write(base.join("etc/passwd"), passwd).unwrap();
        std::fs::write(base.join("etc/group"), "root:x:0:\nme:x:1002:\nextra:x:55:me\n").unwrap();
        image
    }

    /// Sets the configuration.
    #[must_use]
    pub fn config(mut self, config: Value) -> Image<'lab> {
        self.config = config;
        self
    }

    /// Sets annotations of the manifest.
    #[must_use]
    pub fn annotations(mut self, annotations: Value) -> Image<'lab> {
        self.annotations = annotations;
        self
    }

    /// An image whose first layer is this tar archive.
    pub fn of(lab: &'lab Lab, name: &str, archive: PathBuf) -> Image<'lab> {
        let layers = vec![Layer::Archive(archive)];
        Image { lab, name: name.to_owned(), config: json!({}), annotations: json!({}), layers }
    }

    /// Begins another layer on top and returns its folder. `owner` are options of tar for whose its files are.
    pub fn layer(&mut self, owner: &'static str) -> PathBuf {
        let path = self.lab.directory(&format!("made/{}/{}", self.name, self.layers.len()));
        self.layers.push(Layer::Folder(path.clone(), owner));
        path
    }

    /// Adds a layer with the files of Debian packages that are installed here, and of all that they depend on.
    #[must_use]
    pub fn packages(mut self, names: &[&str]) -> Image<'lab> {
        self.layers.push(Layer::Machine(packages::files(names)));
        self
    }

    /// Adds a layer with one file.
    #[must_use]
    pub fn file(mut self, name: &str, content: &str, mode: u32) -> Image<'lab> {
        let path = self.layer("--owner=0 --group=0").join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, content).unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
        self
    }

    /// Puts it into the store of the lab.
    pub fn load(self) {
        let layout = self.lab.directory(&format!("made/{}/layout", self.name));
        let blobs = self.lab.directory(&format!("made/{}/layout/blobs/sha256", self.name));
        let (layers, diff_ids): (Vec<_>, Vec<_>) = self.layers.iter().map(|layer| layer.pack(&blobs)).unzip();
        let config = json!({ "architecture": architecture(), "os": "linux", "config": self.config,
            "rootfs": { "type": "layers", "diff_ids": diff_ids } });
        let config = document(&blobs, "application/vnd.oci.image.config.v1+json", &config);
        let kind = "application/vnd.oci.image.manifest.v1+json";
        let manifest = json!({ "schemaVersion": 2, "mediaType": kind, "config": config, "layers": layers,
            "annotations": self.annotations });
        let mut manifest = document(&blobs, kind, &manifest);
        manifest["annotations"] = json!({ "org.opencontainers.image.ref.name": format!("{}:1", self.name) });
        let index = json!({ "schemaVersion": 2, "manifests": [manifest] });
        std::fs::write(layout.join("index.json"), index.to_string()).unwrap();
        std::fs::write(layout.join("oci-layout"), r#"{ "imageLayoutVersion": "1.0.0" }"#).unwrap();
        let store = self.lab.store();
        self.lab
            .brig(["image", "--store", &store.display().to_string(), "load", &layout.display().to_string()])
            .succeeded();
        std::fs::remove_dir_all(layout.parent().unwrap()).unwrap();
    }
}

impl Layer {
    /// Packs it among the blobs and removes its folder; its descriptor, and the digest of the tar.
    fn pack(&self, blobs: &Path) -> (Value, String) {
        let packed = blobs.join("packed");
        let kind = "application/vnd.oci.image.layer.v1.tar+gzip";
        let mut tar = Command::new("tar");
        tar.args(["--numeric-owner", "--xattrs", "--xattrs-include=*"]);
        match self {
            Layer::Archive(archive) => {
                let sum = pack(File::open(archive).unwrap(), &packed);
                return (blob(&packed, kind), sum);
            }
            Layer::Folder(folder, owner) => tar.args(owner.split(' ')).args(["-cf", "-", "-C"]).arg(folder).arg("."),
            Layer::Machine(files) => {
                let list = blobs.join("list");
                std::fs::write(&list, files).unwrap();
                tar.args("--owner=0 --group=0 -C / -cf - --no-recursion -T".split(' ')).arg(list)
            }
        };
        let mut tar = tar.stdout(Stdio::piped()).spawn().unwrap();
        let sum = pack(tar.stdout.take().unwrap(), &packed);
        assert!(tar.wait().unwrap().success(), "pack a layer");
        if let Layer::Folder(folder, _) = self {
            std::fs::remove_dir_all(folder).unwrap();
        }
        (blob(&packed, kind), sum)
    }
}

/// Packs a stream into a file, fast; returns the digest of what came.
fn pack(mut from: impl Read, to: &Path) -> String {
    let mut sum = Command::new("sha256sum").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut hashed = sum.stdin.take().unwrap();
    let mut packed = GzEncoder::new(File::create(to).unwrap(), Compression::fast());
    let mut buffer = vec![0; 1 << 20];
    loop {
        let count = from.read(&mut buffer).unwrap();
        if count == 0 {
            break;
        }
        hashed.write_all(&buffer[..count]).unwrap();
        packed.write_all(&buffer[..count]).unwrap();
    }
    packed.finish().unwrap();
    drop(hashed);
    digest(&sum.wait_with_output().unwrap().stdout)
}

/// Gives a file among the blobs its name; returns its descriptor.
fn blob(file: &Path, kind: &str) -> Value {
    let sum = digest(&Command::new("sha256sum").arg(file).output().unwrap().stdout);
    let size = file.metadata().unwrap().len();
    std::fs::rename(file, file.with_file_name(&sum["sha256:".len()..])).unwrap();
    json!({ "mediaType": kind, "digest": sum, "size": size })
}

fn document(blobs: &Path, kind: &str, value: &Value) -> Value {
    let file = blobs.join("document");
    std::fs::write(&file, value.to_string()).unwrap();
    blob(&file, kind)
}

/// Parses the output of sha256sum(1).
fn digest(said: &[u8]) -> String {
    format!("sha256:{}", String::from_utf8_lossy(said).split(' ').next().unwrap())
}

fn architecture() -> &'static str {
    if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" }
}
