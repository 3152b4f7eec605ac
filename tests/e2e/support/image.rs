//! Images that a test makes itself: layers from files of its own, put into the lab's store as a docker-archive.

use super::Lab;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

/// An image in the making.
pub struct Image<'lab> {
    lab: &'lab Lab,
    name: String,
    config: serde_json::Value,
    layers: Vec<(PathBuf, &'static str)>,
}

/// The programs of busybox that the first layer has.
const PROGRAMS: [&str; 22] = [
    "sh", "cat", "chmod", "chown", "cp", "dd", "echo", "env", "grep", "head", "id", "ls", "mkdir", "mount", "mv",
    "pwd", "rm", "sleep", "stat", "touch", "true", "find",
];

impl<'lab> Image<'lab> {
    /// An image with a shell, `root` and the user `me` (1001, group 1002, also in `extra`, 55).
    pub fn new(lab: &'lab Lab, name: &str) -> Image<'lab> {
        let mut image = Image { lab, name: name.to_owned(), config: serde_json::json!({}), layers: Vec::new() };
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

    /// What the config says.
    #[must_use]
    pub fn config(mut self, config: serde_json::Value) -> Image<'lab> {
        self.config = config;
        self
    }

    /// Begins another layer on top and returns its folder. `owner` are options of tar for whose its files are.
    pub fn layer(&mut self, owner: &'static str) -> PathBuf {
        let path = self.lab.directory(&format!("made/{}/{}", self.name, self.layers.len()));
        self.layers.push((path.clone(), owner));
        path
    }

    /// Adds a layer with the files of Debian packages that are installed here, and of all that they depend on.
    #[must_use]
    pub fn packages(mut self, names: &[&str]) -> Image<'lab> {
        let folder = self.layer("--owner=0 --group=0");
        super::packages::copy(names, &folder);
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
        let work = self.lab.directory(&format!("made/{}/archive", self.name));
        let mut names = Vec::new();
        let mut diff_ids = Vec::new();
        for (index, (folder, owner)) in self.layers.iter().enumerate() {
            let name = format!("{index}.tar");
            let path = work.join(&name);
            let mut tar = Command::new("tar");
            tar.args(["--numeric-owner", "--xattrs", "--xattrs-include=*"])
                .args(owner.split(' '))
                .arg("-cf")
                .arg(&path);
            run(tar.arg("-C").arg(folder).arg("."));
            let sum = Command::new("sha256sum").arg(&path).output().unwrap();
            diff_ids.push(format!("sha256:{}", String::from_utf8_lossy(&sum.stdout).split(' ').next().unwrap()));
            names.push(name);
        }
        let config = serde_json::json!({ "architecture": architecture(), "os": "linux", "config": self.config,
            "rootfs": { "type": "layers", "diff_ids": diff_ids } });
        std::fs::write(work.join("config.json"), config.to_string()).unwrap();
        let manifest =
            serde_json::json!([{ "Config": "config.json", "RepoTags": [format!("{}:1", self.name)], "Layers": names }]);
        std::fs::write(work.join("manifest.json"), manifest.to_string()).unwrap();
        let archive = self.lab.path().join(format!("made/{}.tar", self.name));
        run(Command::new("tar").arg("-cf").arg(&archive).arg("-C").arg(&work).arg("."));
        let store = self.lab.store();
        self.lab
            .brig(["image", "--store", &store.display().to_string(), "load", &archive.display().to_string()])
            .succeeded();
    }
}

fn architecture() -> &'static str {
    if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" }
}

#[track_caller]
fn run(command: &mut Command) {
    let done = command.output().unwrap();
    assert!(done.status.success(), "{command:?}: {}", String::from_utf8_lossy(&done.stderr));
}
