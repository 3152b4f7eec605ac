//! Selects the labels that may become annotations. Pure. Annotations control runtimes on the host, but the image's
//! author writes the labels (runtime-spec, features.md, "potentiallyUnsafeConfigAnnotations").

use std::collections::BTreeMap;

/// The runtimes that obey each name, or prefix with a dot or a slash at the end.
const OBEYED: [(&str, &str); 13] = [
    ("bundle", "runc: where the bundle is, as in `state`"),
    ("cdi.k8s.io/", "containerd, CRI-O: devices of the host"),
    ("dev.brig.", "brig: protections, and a directory of the host for receipts"),
    ("dev.gvisor.", "gVisor: flags, and how mounts are shared"),
    ("io.containers.", "hooks that trace system calls: files of the host that they write"),
    ("io.katacontainers.", "Kata: hypervisor, kernel and their paths on the host"),
    ("io.kubernetes.cri-o.", "CRI-O and what it runs: to which pod a container belongs, its devices and mounts"),
    ("io.kubernetes.cri.", "containerd and what it runs: to which pod a container belongs"),
    ("krun.", "crun: the virtual machine of a container"),
    ("module.wasm.image/", "crun: another handler than the kernel"),
    ("org.criu.config", "runc, crun: a configuration of CRIU, which names files of the host"),
    ("org.systemd.property.", "brig, runc, crun: properties of the systemd unit"),
    ("run.oci.", "crun: files of the host for the output of hooks, handlers, sockets, mounts"),
];

pub(super) fn harmless(mut annotations: BTreeMap<String, String>) -> BTreeMap<String, String> {
    annotations.retain(|name, _| !is_obeyed(name));
    annotations
}

fn is_obeyed(name: &str) -> bool {
    OBEYED.iter().any(|(obeyed, _)| match obeyed.ends_with(['.', '/']) {
        true => name.starts_with(obeyed),
        false => name == *obeyed,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// T-25.
    #[test]
    fn labels_that_a_runtime_would_obey_are_left_out() {
        let all = [
            "org.systemd.property.ExecStopPost",
            "org.criu.config",
            "run.oci.hooks.stdout",
            "bundle",
            "dev.brig.landlock",
            "io.katacontainers.config.hypervisor.path",
            "org.opencontainers.image.title",
            "maintainer",
            "bundle.size",
            "running.oci",
        ];
        let annotations = all.iter().map(|name| ((*name).to_owned(), "x".to_owned())).collect();
        let kept: Vec<String> = harmless(annotations).into_keys().collect();
        assert_eq!(kept, ["bundle.size", "maintainer", "org.opencontainers.image.title", "running.oci"]);
    }

    #[test]
    fn the_documentation_names_each() {
        let page = include_str!("../../../docs/images.md");
        for (name, _) in OBEYED {
            assert!(page.contains(&format!("`{name}`")) || page.contains(&format!("`{name}*`")), "{name}");
        }
    }
}
