//! The rules of hosted mode as tables, without root.

use super::*;
use crate::sandbox::{Ech, LimitName, NetworkMode};
use crate::task::definition::receiver::Receiver;
use crate::task::{HostedRule, WorkspaceSource};

fn rules(text: &str) -> Rules {
    Rules::parse(text).unwrap()
}

fn definition(change: impl Fn(&mut Definition)) -> Definition {
    let mut definition = Definition::new(vec!["true".into()]);
    change(&mut definition);
    definition
}

#[test]
fn hosted_refuses_what_weakens_until_it_is_switched_on_by_name() {
    let check = |switch: &str, change: &dyn Fn(&mut Definition), guarantee, words: &[&str]| {
        let definition = definition(change);
        let error = rules("mode = \"hosted\"").check(&definition, guarantee).unwrap_err();
        assert!(words.iter().all(|word| error.to_string().contains(word)), "{error}");
        assert!(error.kind() == Kind::Policy && error.advice().is_some_and(|hint| hint.contains(PATH)), "{error}");
        let allowed = rules(&format!("mode = \"hosted\"\n{switch}\n"));
        assert!(allowed.check(&definition, guarantee).is_ok(), "{switch}");
    };
    let nothing = |_: &mut Definition| {};
    check("guarantee = \"rootless\"", &nothing, Guarantee::Rootless, &["`rootless`", "`full` is the least"]);
    check("guarantee = \"none\"", &nothing, Guarantee::Nested, &["`nested`"]);
    let host = |definition: &mut Definition| definition.sandbox.network.mode = NetworkMode::Host;
    let learn = |definition: &mut Definition| {
        definition.sandbox.network.mode = NetworkMode::Egress;
        definition.sandbox.network.policy.learn = true;
    };
    check("allow_network_open = true", &learn, Guarantee::Full, &["--learn"]);
    check("allow_network_host = true", &host, Guarantee::Full, &["network", "host"]);
    let ech = |definition: &mut Definition| {
        definition.sandbox.network.mode = NetworkMode::Egress;
        definition.sandbox.network.policy.ech = Some(Ech::Pass);
    };
    check("ech = \"pass\"", &ech, Guarantee::Full, &["ech"]);
    let open = |definition: &mut Definition| definition.sandbox.network.mode = NetworkMode::Pasta;
    check("allow_network_open = true", &open, Guarantee::Full, &["network", "pasta"]);
    let inside = |definition: &mut Definition| definition.sandbox.root_inside = true;
    check("allow_root_inside = true", &inside, Guarantee::Full, &["root inside"]);
    let swap = |definition: &mut Definition| definition.sandbox.may_degrade.push("swap".to_owned());
    check("allow_degraded = [\"swap\"]", &swap, Guarantee::Full, &["--allow-degraded swap"]);
    let folder = |definition: &mut Definition| definition.workspace = WorkspaceSource::Directory("/usr/share".into());
    check("folders = [\"/usr\"]", &folder, Guarantee::Full, &["`/usr/share`"]);
    let root = |definition: &mut Definition| definition.sandbox.rootfs = Some("/usr".into());
    check("folders = [\"/usr\"]", &root, Guarantee::Full, &["root file system"]);
    let out = |definition: &mut Definition| definition.artifacts.directory = Some("/usr/none/yet".into());
    check("folders = [\"/usr\"]", &out, Guarantee::Full, &["artifacts"]);
    let backend =
        |word: &'static str| move |definition: &mut Definition| definition.sandbox.backend = word.parse().unwrap();
    let level = "guarantee = \"none\"\n[backends]\nlocal = \"none\"";
    check(level, &backend("local"), Guarantee::Full, &["backend `local`"]);
    let runsc = "[backends]\n\"oci:/usr/bin/runsc\" = \"full\"";
    check(runsc, &backend("oci:/usr/bin/runsc"), Guarantee::Full, &["backend `oci:/usr/bin/runsc`"]);
    let low = rules("mode = \"hosted\"\n[backends]\n\"oci:/usr/bin/runsc\" = \"nested\"");
    let refused = low.check(&definition(backend("oci:/usr/bin/runsc")), Guarantee::Full).unwrap_err();
    assert!(refused.to_string().contains("`nested`, and `full` is the least"), "{refused}");
    let secret = |word: &'static str| {
        move |definition: &mut Definition| {
            definition.secrets.push(crate::task::Secret::parse(&format!("K={word}")).unwrap());
        }
    };
    check("allow_secret_commands = true", &secret("cmd:id"), Guarantee::Full, &["`K`", "command"]);
    let oauth = |definition: &mut Definition| {
        let source = Source::parse("oauth:/usr/bin/env").unwrap();
        definition.secrets.push(crate::task::Secret::new("K", source, crate::task::Exposure::Broker).unwrap());
    };
    check("allow_oauth = true\nfolders = [\"/usr\"]", &oauth, Guarantee::Full, &["`K`", "token"]);
    check("folders = [\"/usr\"]", &secret("file:/usr/bin/env"), Guarantee::Full, &["file of a secret"]);
    let events =
        |word: &'static str| move |definition: &mut Definition| definition.events.push(Receiver::parse(word).unwrap());
    check("allow_event_endpoints = true", &events("http://127.0.0.1/"), Guarantee::Full, &["endpoint"]);
    check("folders = [\"/usr\"]", &events("/usr/none/events"), Guarantee::Full, &["file for events"]);
    check("folders = [\"/usr\"]", &events("unix:/usr/bin/env"), Guarantee::Full, &["socket for events"]);
    let ca = |definition: &mut Definition| definition.git.ca = Some("/usr/bin/env".into());
    check("folders = [\"/usr\"]", &ca, Guarantee::Full, &["about a remote"]);
    assert!(rules("mode = \"hosted\"").check(&definition(nothing), Guarantee::Full).is_ok());
}

#[test]
fn only_listed_variables_of_the_caller_are_passed_if_there_is_a_list() {
    let secret = |it: &mut Definition| it.secrets.push(crate::task::Secret::parse("K=env:OPERATOR_KEY").unwrap());
    let of_caller =
        |it: &mut Definition| it.secrets.push(crate::task::Secret::of_caller(&"OPERATOR_KEY".into()).unwrap());
    let git = |it: &mut Definition| it.git.credential = Some(Source::parse("env:OPERATOR_KEY").unwrap());
    for definition in [definition(secret), definition(of_caller), definition(git)] {
        for (list, expected) in [
            ("", true),
            ("variables = []", false),
            ("variables = [\"OTHER\"]", false),
            ("variables = [\"OTHER\", \"OPERATOR_KEY\"]", true),
        ] {
            let found = rules(&format!("mode = \"hosted\"\n{list}")).check(&definition, Guarantee::Full);
            assert_eq!(found.is_ok(), expected, "{list}");
            if let Err(error) = found {
                assert!(error.kind() == Kind::Policy && error.to_string().contains("`OPERATOR_KEY`"), "{error}");
                assert!(error.advice().is_some_and(|hint| hint.contains("variables = [\"OPERATOR_KEY\"]")), "{error}");
            }
        }
    }
}

#[test]
fn a_folder_is_allowed_by_where_it_really_is() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    std::fs::create_dir_all(at("allowed/below")).unwrap();
    std::fs::create_dir_all(at("allowed-not")).unwrap();
    std::os::unix::fs::symlink(at("allowed-not"), at("allowed/link")).unwrap();
    std::os::unix::fs::symlink(at("allowed/below"), at("into")).unwrap();
    let rules = rules(&format!("mode = \"hosted\"\nfolders = [\"{}\"]", at("allowed").display()));
    for (path, expected) in [
        ("allowed", true),
        ("allowed/below", true),
        ("allowed/new/deeper", true),
        ("into", true),
        ("allowed-not", false),
        ("allowed/link", false),
        ("allowed/../allowed-not", false),
        ("allowed/none/../../allowed-not", false),
        ("", false),
    ] {
        let found = paths::real(&at(path)).and_then(|(real, _)| rules.folder_of(&real));
        assert_eq!(found.is_some(), expected, "{path}");
    }
}

#[test]
fn hint_about_a_file_names_its_folder() {
    let secret = definition(|definition| {
        definition.secrets.push(crate::task::Secret::parse("K=file:/usr/bin/env").unwrap());
    });
    let folder = definition(|definition| definition.workspace = WorkspaceSource::Directory("/usr/share".into()));
    for (definition, folder) in [(secret, "\"/usr/bin\""), (folder, "\"/usr/share\"")] {
        let error = rules("mode = \"hosted\"").check(&definition, Guarantee::Full).unwrap_err();
        let words = format!("add {folder} to `folders` in {PATH}, which every task may read");
        assert!(error.advice().is_some_and(|hint| hint.contains(&words)), "{error:?}");
    }
}

#[test]
fn default_of_a_worker_is_lowered_and_its_request_is_refused() {
    let none = crate::sandbox::Limits::NO_TIME_LIMIT;
    let of_worker = |default| {
        definition(|definition| (definition.sandbox.limits.wall, definition.default_limits.wall) = (none, default))
    };
    let rules = rules("mode = \"hosted\"\n[max]\nwall = \"1h\"");
    let (admitted, _) = rules.check(&of_worker(none), Guarantee::Full).unwrap();
    assert_eq!(admitted.sandbox.limits.wall.as_secs(), 3600);
    let error = rules.check(&of_worker(std::time::Duration::from_secs(7200)), Guarantee::Full).unwrap_err();
    assert!(error.to_string().contains("`wall` is none"), "{error}");
}

#[test]
fn a_file_that_is_not_understood_or_not_roots_refuses_everything() {
    let check = |text: &str, words: &str| {
        let error = Rules::parse(text).unwrap_err();
        assert!(error.to_string().contains(words), "{text}: {error}");
    };
    check("", "mode");
    check("mode = \"safe\"", "line 1");
    check("mode = \"hosted\"\nallow_everything = true", "allow_everything");
    check("mode = \"hosted\"\nallow_degraded = [\"seccomp\"]", "seccomp");
    check("mode = \"hosted\"\nfolders = [\"work\"]", "absolute");
    check("mode = \"hosted\"\n[backends]\ndocker = \"full\"", "docker");
    check("mode = \"hosted\"\n[backends]\nnative = \"full\"", "native");
    for (owner, mode, expected) in
        [(0, 0o644, true), (0, 0o664, false), (0, 0o646, false), (1000, 0o644, false), (OVERFLOW_ID, 0o644, true)]
    {
        assert_eq!(is_writable_by_root_alone(owner, mode, false), expected, "{owner} {mode:o}");
    }
    assert!(is_writable_by_root_alone(0, 0o644, true) && !is_writable_by_root_alone(OVERFLOW_ID, 0o644, true));
}

#[test]
fn addresses_are_reached_only_where_the_operator_lists_them() {
    let check = |key: &str, words: &str, change: &dyn Fn(&mut Definition)| {
        let definition = definition(change);
        let error = rules("mode = \"hosted\"").check(&definition, Guarantee::Full).unwrap_err();
        assert!(error.kind() == Kind::Policy && error.to_string().contains(words), "{error}");
        let name = key.split(' ').next().unwrap();
        assert!(error.advice().is_some_and(|hint| hint.contains(name) && hint.contains(PATH)), "{error:?}");
        rules(&format!("mode = \"hosted\"\n{key}\n")).check(&definition, Guarantee::Full).unwrap();
    };
    let egress = |rule: &'static str| {
        move |definition: &mut Definition| {
            definition.sandbox.network.mode = NetworkMode::Egress;
            definition.sandbox.network.policy.allowed.push(Rule::parse(rule).unwrap());
        }
    };
    check("networks = [\"127.0.0.1:8080\"]", "127.0.0.1:8080", &egress("127.0.0.1:8080"));
    check("networks = [\"127.0.0.0/8:8000-8100\"]", "127.0.0.1:8080", &egress("127.0.0.1:8080"));
    check("networks = [\"10.0.0.0/8:5432\"]", "10.1.0.0/16:5432", &egress("10.1.0.0/16:5432"));
    check("networks = [\"169.254.169.254\"]", "169.254.169.254", &egress("169.254.169.254:80"));
    check("networks = [\"[::1]:80\"]", "[::1]:80", &egress("[::1]:80"));
    // A public address may be one of the host's.
    check("networks = [\"93.184.216.34:443\"]", "93.184.216.34", &egress("93.184.216.34:443"));
    let repository = |url: &'static str| {
        move |definition: &mut Definition| {
            definition.workspace = WorkspaceSource::Repository { url: url.to_owned(), reference: None };
        }
    };
    check("networks = [\"127.0.0.1:81\"]", "127.0.0.1:81", &repository("http://127.0.0.1:81/a"));
    check("networks = [\"127.0.0.1:81\", \"[::1]:81\"]", "127.0.0.1:81", &repository("http://localhost:81/a"));
    check("networks = [\"10.1.2.3:22\"]\nfolders = [\"/etc\"]", "10.1.2.3:22", &|definition: &mut Definition| {
        repository("ssh://git@10.1.2.3/a")(definition);
        definition.git.known_hosts = Some("/etc/passwd".into());
    });
    check("networks = [\"10.1.2.3:443\"]", "10.1.2.3:443", &|definition: &mut Definition| {
        repository("https://git.example.com/a")(definition);
        definition.git.addresses.push("10.1.2.3".parse().unwrap());
    });
    check("networks = [\"10.1.2.3:443\"]", "10.1.2.3:443", &|definition: &mut Definition| {
        definition.git.elsewhere.push(crate::task::Elsewhere::parse("10.1.2.3").unwrap());
    });
    check("networks = [\"9.9.9.9:53\"]", "9.9.9.9:53", &|definition: &mut Definition| {
        definition.sandbox.network.policy.resolver = Some("9.9.9.9:53".parse().unwrap());
    });
    let publish = |word: &'static str| {
        move |definition: &mut Definition| definition.sandbox.network.publish.push(word.parse().unwrap())
    };
    check("publish = [\"127.0.0.1:8000-8100\"]", "127.0.0.1:8080", &publish("127.0.0.1:8080:80"));
    check("publish = [\"0.0.0.0:8080\"]", "0.0.0.0:8080", &publish("0.0.0.0:8080:80"));
    // Names lead to public addresses, or nowhere.
    let names = rules("mode = \"hosted\"");
    assert!(names.check(&definition(egress("*.debian.org:80,443")), Guarantee::Full).is_ok());
    assert!(names.check(&definition(repository("https://github.com/a/b")), Guarantee::Full).is_ok());
    let listed = rules("mode = \"hosted\"\nnetworks = [\"10.0.0.0/8:5432\"]\npublish = [\"127.0.0.1:80-90\"]");
    for refused in ["10.1.2.3:22", "11.0.0.1:5432", "0.0.0.0/1:5432"] {
        assert!(listed.check_rule(&Rule::parse(refused).unwrap()).is_err(), "{refused}");
    }
    for refused in ["127.0.0.1:79:80", "127.0.0.1:91:80", "127.0.0.2:80:80", "0.0.0.0:80:80", "127.0.0.1:0:80"] {
        assert!(
            listed
                .check(&definition(|it| it.sandbox.network.publish.push(refused.parse().unwrap())), Guarantee::Full)
                .is_err(),
            "{refused}"
        );
    }
}

#[test]
fn an_amount_above_its_ceiling_is_refused_and_a_default_is_lowered() {
    let check = |set: &str, change: &dyn Fn(&mut Definition)| {
        let definition = definition(change);
        let error = rules("mode = \"hosted\"").check(&definition, Guarantee::Full).unwrap_err();
        let name = set.split(' ').next().unwrap();
        assert!(error.advice().is_some_and(|hint| hint.contains(&format!("`max.{name}`"))), "{set}: {error:?}");
        rules(&format!("mode = \"hosted\"\n[max]\n{set}")).check(&definition, Guarantee::Full).unwrap();
    };
    let limit = |name, text: &'static str| {
        move |definition: &mut Definition| definition.sandbox.limits.set(name, text).unwrap()
    };
    check("memory = \"500G\"", &limit(LimitName::Memory, "500G"));
    check("wall = \"3650d\"", &limit(LimitName::Wall, "3650d"));
    check("cpus = 64", &limit(LimitName::Cpus, "64"));
    check("cpus = 2.5", &limit(LimitName::Cpus, "2.5"));
    check("pids = 4000000", &limit(LimitName::Pids, "4000000"));
    check("swap = \"1G\"", &limit(LimitName::Swap, "1G"));
    check("disk = \"11G\"", &limit(LimitName::Disk, "11G"));
    check("grace = \"1h\"", &|definition| definition.sandbox.grace = std::time::Duration::from_secs(3600));
    check("artifact_bytes = \"1G\"", &|definition| definition.artifacts.bytes = 1 << 30);
    let low = rules(
        "mode = \"hosted\"\n[max]\nmemory = \"1G\"\ndisk = \"1G\"\nio_iops = 100\ngrace = \"2s\"\nnetwork_bytes = \"1M\"",
    );
    let (admitted, _) = low.check(&definition(|_| {}), Guarantee::Full).unwrap();
    assert_eq!(
        (admitted.sandbox.limits.memory, admitted.sandbox.limits.disk, admitted.sandbox.limits.io_iops),
        (1 << 30, Some(1 << 30), Some(100))
    );
    assert_eq!((admitted.sandbox.grace.as_secs(), admitted.sandbox.network.total), (2, None));
    let (admitted, _) =
        low.check(&definition(|it| it.sandbox.network.mode = NetworkMode::Egress), Guarantee::Full).unwrap();
    assert_eq!(admitted.sandbox.network.total, Some(1 << 20));
    assert!(low.check(&definition(limit(LimitName::Memory, "2G")), Guarantee::Full).is_err());
    let many = rules("mode = \"hosted\"\n[max]\nnumber = 4");
    for (rules, most) in [(&rules("mode = \"hosted\""), 1), (&many, 4)] {
        assert!(rules.check_number(most).is_ok());
        let error = rules.check_number(most + 1).unwrap_err();
        assert!(
            error.kind() == Kind::Policy && error.advice().is_some_and(|hint| hint.contains("`max.number`")),
            "{error}"
        );
    }
    assert!(Rules::parse("mode = \"hosted\"\n[max]\nnumber = \"few\"").unwrap_err().to_string().contains("`few`"));
    assert!(Rules::parse("mode = \"hosted\"\n[max]\nmemry = 1").unwrap_err().to_string().contains("memry"));
}

#[test]
fn every_rule_is_a_row_of_the_page_and_every_key_of_it_is_known() {
    const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/host.md");
    const HEAD: &str = "| flag | key of a profile | rule in hosted mode |\n| --- | --- | --- |\n";
    let page = std::fs::read_to_string(PAGE).unwrap();
    let (before, rest) = page.split_once(HEAD).unwrap();
    let (rows, after) = rest.split_once("\n\n").unwrap();
    let made = table::page().join("\n");
    if std::env::var_os("BRIG_DOCS").is_some_and(|value| value == "write") {
        std::fs::write(PAGE, format!("{before}{HEAD}{made}\n\n{after}")).unwrap();
    } else {
        assert_eq!(rows, made, "run `BRIG_DOCS=write cargo test --lib hosted`");
    }
    let example = page.split("```toml\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
    let rules = Rules::parse(example).unwrap();
    assert_eq!(rules.ceilings, Ceilings::default(), "the example shows the defaults");
    for &name in LimitName::ALL {
        let setting = crate::task::definition::settings::setting_of_key(&format!("limits.{}", name.word()));
        let rule = setting.map(|setting| setting.hosted);
        let default = Ceilings::default();
        let expected = if name == LimitName::Disk { "10G".to_owned() } else { default.value(name) };
        assert!(
            matches!(rule, Some(HostedRule::AtMost(key, most)) if key == name.word() && most == expected),
            "{name:?} {expected}"
        );
    }
}
