//! The layers of an image as one copy-on-write tree, mounted in this namespace only.
//!
//! One read-only mount of their directory, with the container's ids, serves all layers. overlayfs keeps its ids for
//! each (lower layers with idmapped mounts: kernel 5.19).

use super::plan::Plan;
use crate::error::{Context, Error, Kind, Result, Step as _};
use crate::mounts::mount::{attach, clone_tree, restrict_mapped, tmpfs};
use crate::mounts::resolve;
use crate::spec::root::{Attributes, Layers};
use crate::sys::weaken;
use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountFlags, UnmountFlags, fsconfig_create, fsconfig_set_flag,
    fsconfig_set_string, fsmount, fsopen, mount as mount_by_path, unmount,
};
use std::ffi::CString;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

/// Below the stage.
const BELOW: &str = "layers";
/// One page with its NUL (mount(2)).
const LONGEST_OPTIONS: usize = 4095;

/// The changes are `<changes>/upper` of the scratch file system, at `scratch` of the stage.
pub(super) fn mount(stage: BorrowedFd<'_>, layers: &Layers, changes: &str, plan: &Plan) -> Result<OwnedFd> {
    let tree = clone_tree(CWD, &layers.directory)?;
    restrict_mapped(&tree, Attributes::READ_ONLY, plan.mapping(layers.shown)).doing(|| "show the image's layers")?;
    let place = resolve::directory(stage, &Path::new("/").join(BELOW), 0o700)?.0;
    attach(&tree, place.as_fd()).doing(|| "stage the image's layers")?;
    // The kernel resolves the layers' paths from the working directory.
    rustix::process::fchdir(stage).failing(Kind::Mount, || "enter the stage")?;
    let step = || format!("mount the {} layers of the image", layers.names.len());
    let made = match by_context(layers, changes, plan.user_xattr) {
        // `lowerdir+` needs 6.7, and a value above 255 bytes needs 6.5.
        Err(Refused { errno: Errno::INVAL, at_layer: true }) => by_options(stage, layers, changes, plan.user_xattr),
        other => other.map_err(|refused| Error::os(Kind::Mount, refused.errno)),
    };
    made.doing(step).hint(|| {
        "overlayfs must be there (`modprobe overlay`; for an ordinary user kernel 5.11 or newer, for root 5.19) and must take the store's file system as a lower layer"
    })
}

/// Without a limit: the size is known, no process inside writes, and the container's cgroups count it.
pub(super) fn gather(layers: &Layers, plan: &Plan) -> Result<OwnedFd> {
    let made = tmpfs(0, 0, layers.mode, plan.administrator, Attributes::WRITABLE)?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = openat(&made, ".", flags, Mode::empty()).failing(Kind::Mount, || "open the tree in memory")?;
    (plan.gather)(&layers.directory, &layers.names, root.as_fd()).doing(|| "copy the image's files into memory")?;
    Ok(made)
}

struct Refused {
    errno: Errno,
    at_layer: bool,
}

impl From<Errno> for Refused {
    fn from(errno: Errno) -> Refused {
        Refused { errno, at_layer: false }
    }
}

fn by_context(layers: &Layers, changes: &str, user_xattr: bool) -> Result<OwnedFd, Refused> {
    let context = fsopen("overlay", FsOpenFlags::FSOPEN_CLOEXEC)?;
    for name in &layers.names {
        if weaken::is_off("lowerdir-by-layer") {
            return Err(Refused { errno: Errno::INVAL, at_layer: true });
        }
        fsconfig_set_string(&context, "lowerdir+", format!("{BELOW}/{name}"))
            .map_err(|errno| Refused { errno, at_layer: true })?;
    }
    fsconfig_set_string(&context, "upperdir", format!("scratch/{changes}/upper"))?;
    fsconfig_set_string(&context, "workdir", format!("scratch/{changes}/work"))?;
    fsconfig_set_string(&context, "xino", "off")?;
    // Not read after a crash.
    fsconfig_set_flag(&context, "volatile")?;
    if user_xattr {
        fsconfig_set_flag(&context, "userxattr")?;
    }
    fsconfig_create(&context)?;
    Ok(fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())?)
}

/// For older kernels: all names in one page.
fn by_options(stage: BorrowedFd<'_>, layers: &Layers, changes: &str, user_xattr: bool) -> Result<OwnedFd> {
    let options = options(layers, changes, user_xattr);
    if options.len() > LONGEST_OPTIONS {
        return Err(Error::new(Kind::Mount, "the names of so many layers need `lowerdir+`, kernel 6.7 or newer")
            .hint("use an image of fewer layers, or a newer kernel"));
    }
    let data = CString::new(options).map_err(|_| Error::new(Kind::Internal, "overlay options with a NUL"))?;
    let view = format!("view-{changes}");
    resolve::directory(stage, &Path::new("/").join(&view), 0o700)?;
    mount_by_path("overlay", view.as_str(), "overlay", MountFlags::empty(), data.as_c_str())
        .failing(Kind::Mount, || "mount them by their names")?;
    let made = clone_tree(stage, Path::new(&view))?;
    unmount(view.as_str(), UnmountFlags::DETACH).failing(Kind::Mount, || "detach the view from the stage")?;
    Ok(made)
}

fn options(layers: &Layers, changes: &str, user_xattr: bool) -> String {
    let lower: Vec<_> = layers.names.iter().map(|name| format!("{BELOW}/{name}")).collect();
    format!(
        "{}volatile,xino=off,lowerdir={},upperdir=scratch/{changes}/upper,workdir=scratch/{changes}/work",
        if user_xattr { "userxattr," } else { "" },
        lower.join(":")
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::root::Shown;

    #[test]
    fn the_options_name_the_topmost_layer_first() {
        let names = ["b/fs", "a/fs"].map(str::to_owned).to_vec();
        let layers = Layers { directory: "/l".into(), names, shown: Shown::Inside, mode: 0o755 };
        let text = options(&layers, "root", true);
        assert!(
            text.starts_with("userxattr,volatile,") && text.contains("lowerdir=layers/b/fs:layers/a/fs,"),
            "{text}"
        );
    }
}
