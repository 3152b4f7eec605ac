//! Kernel objects of a lab's tasks.

use super::Lab;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Everything of a lab's tasks that must be gone when they are over.
#[derive(Debug, Default)]
pub struct Remains {
    /// Processes of brig with this lab's store; a sandbox lives only as long as its pid 1, which is one of them.
    pub processes: Vec<(i32, String)>,
    /// Control groups named after a task.
    pub cgroups: Vec<PathBuf>,
    /// Mounts that this mount namespace has.
    pub mounts: Vec<String>,
    /// Loop devices backed by a file of the lab.
    pub loops: Vec<PathBuf>,
    /// Files of the store that only a running task has.
    pub files: Vec<PathBuf>,
}

impl Remains {
    pub(super) fn of(lab: &Lab) -> Remains {
        let path = lab.path().to_string_lossy().into_owned();
        Remains {
            processes: processes_of(lab),
            cgroups: lab.ids().iter().flat_map(|id| cgroups_of(id)).collect(),
            mounts: fs::read_to_string("/proc/self/mountinfo")
                .unwrap()
                .lines()
                .filter(|line| line.contains(&path))
                .map(str::to_owned)
                .collect(),
            loops: loops(&path),
            files: stray_files(&lab.store()),
        }
    }

    /// The same when the kernel has had time: it frees a loop device shortly after its last user.
    pub(super) fn settled(lab: &Lab) -> Remains {
        let end = Instant::now() + Duration::from_secs(5);
        loop {
            let left = Remains::of(lab);
            if left.is_empty() || Instant::now() > end {
                return left;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Whether nothing is left.
    pub fn is_empty(&self) -> bool {
        self.processes.is_empty()
            && self.cgroups.is_empty()
            && self.mounts.is_empty()
            && self.loops.is_empty()
            && self.files.is_empty()
    }

    /// Ends and removes what a failed test left, as far as it can be.
    pub(super) fn remove(&self) {
        for (pid, _) in &self.processes {
            if let Some(pid) = rustix::process::Pid::from_raw(*pid) {
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
            }
        }
        // A group that stays makes every later test wait for it. One with ending processes is busy.
        for _ in 0..50 {
            let mut is_gone = true;
            for group in &self.cgroups {
                let mut groups = vec![group.clone()];
                walk(group, &mut |below| groups.push(below.to_path_buf()));
                groups.iter().rev().for_each(|each| drop(fs::remove_dir(each)));
                is_gone &= !group.exists();
            }
            if is_gone {
                break;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

/// The processes of brig whose command line names this lab: supervisors and the first processes of their sandboxes.
pub fn processes_of(lab: &Lab) -> Vec<(i32, String)> {
    let marker = lab.store().to_string_lossy().into_owned();
    let own = std::process::id() as i32;
    let pids = fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok());
    pids.filter(|&pid| pid != own)
        .filter_map(|pid| {
            let line = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
            let line = String::from_utf8_lossy(&line).replace('\0', " ");
            line.contains(&marker).then_some((pid, line))
        })
        .collect()
}

/// The groups of a task and of its couriers, in every hierarchy that is mounted here.
pub fn cgroups_of(id: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for root in cgroup_mounts() {
        walk(&root, &mut |directory| {
            let name = directory.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
            let name = name.strip_prefix("brig-").unwrap_or(&name);
            if name == id || name.strip_prefix(id).is_some_and(|rest| rest.starts_with('-')) {
                found.push(directory.to_path_buf());
            }
        });
    }
    found
}

fn cgroup_mounts() -> Vec<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let is_cgroup = |line: &&str| line.contains(" - cgroup ") || line.contains(" - cgroup2 ");
    mounts.lines().filter(is_cgroup).filter_map(|line| line.split(' ').nth(4).map(PathBuf::from)).collect()
}

fn walk(directory: &Path, visit: &mut dyn FnMut(&Path)) {
    let Ok(entries) = fs::read_dir(directory) else { return };
    for entry in entries.flatten().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())) {
        visit(&entry.path());
        walk(&entry.path(), visit);
    }
}

fn loops(path: &str) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir("/sys/block") else { return Vec::new() };
    // A file of a mount that has no place has the way to it in its name.
    let unplaced = format!("/{}", path.replace('/', ":"));
    let ours = |entry: &fs::DirEntry| {
        fs::read_to_string(entry.path().join("loop/backing_file"))
            .is_ok_and(|file| file.starts_with(path) || file.starts_with(&unplaced))
    };
    entries.flatten().filter(ours).map(|entry| entry.path()).collect()
}

fn stray_files(store: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    if let Ok(live) = fs::read_dir(store.join("live")) {
        found.extend(live.flatten().map(|entry| entry.path()));
    }
    for directory in ["tasks", "bases", "templates"] {
        let entries = fs::read_dir(store.join(directory)).into_iter().flatten().flatten();
        for entry in entries {
            let name = entry.file_name().to_string_lossy().into_owned();
            if name.starts_with(".new") || name.starts_with(".removed") || name.starts_with("new-") {
                found.push(entry.path());
            }
            let inside = fs::read_dir(entry.path()).into_iter().flatten().flatten();
            let temporary = |name: &str| name == "disk.img" || name.starts_with('.') || name.ends_with(".tmp");
            if directory == "tasks" {
                found.extend(
                    inside
                        .map(|file| file.path())
                        .filter(|file| file.file_name().is_some_and(|name| temporary(&name.to_string_lossy()))),
                );
            }
        }
    }
    found
}
