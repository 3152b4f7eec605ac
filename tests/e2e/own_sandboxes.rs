//! Programs with a built-in sandbox request namespaces, are refused, and are named at the end.

use crate::support::{Lab, Run, eventually, skip};
use rustix::process::Signal;
use serde_json::Value;

const CHROMIUM: &str = "/usr/lib/chromium/chromium";

/// Arguments: unshare(2) calls for each thread, and threads. Prints the count of each answer and the longest wait.
const ASK: &str = r#"
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
static long times, answers[4096];
static double longest;
static double now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec + t.tv_nsec / 1e9; }
static void *ask(void *nothing) {
    for (long i = 0; i < times; i++) {
        double began = now();
        int error = unshare(CLONE_NEWUSER) ? errno : 0;
        if (now() - began > longest) longest = now() - began;
        __sync_fetch_and_add(&answers[error], 1);
    }
    return 0;
}
int main(int count, char **words) {
    times = atol(words[1]);
    long threads = atol(words[2]);
    pthread_t all[64];
    for (long i = 1; i < threads; i++) pthread_create(&all[i], 0, ask, 0);
    ask(0);
    for (long i = 1; i < threads; i++) pthread_join(all[i], 0);
    for (int i = 0; i < 4096; i++) if (answers[i]) printf("%s: %ld\n", i ? strerror(i) : "granted", answers[i]);
    printf("waited %.0f s\n", longest);
    return 0;
}
"#;

#[track_caller]
fn refused(run: &Run) -> Vec<(String, u64, String)> {
    let receipt = run.receipt();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let rows = receipt["refused_namespaces"].as_array().unwrap().iter();
    rows.map(|row| (text(&row["program"]), row["count"].as_u64().unwrap(), text(&row["hint"]))).collect()
}

#[test]
fn a_program_that_wants_a_sandbox_of_its_own_is_named_at_the_end() {
    let lab = Lab::new();
    let script = "unshare -U true; unshare --mount true; unshare -n true; true";
    let run = lab.task().sh(script);
    run.ended_as("succeeded", 0);
    assert_eq!(run.stderr.matches("Operation not permitted").count(), 3, "{run:#?}");
    let rows = refused(&run);
    assert_eq!((rows.len(), rows[0].0.as_str(), rows[0].1), (1, "unshare", 3), "{run:#?}");
    let run = lab.task().plain().sh(script);
    run.succeeded();
    let line = "brig: unshare tried 3 times to make another sandbox (namespaces) and was refused: brig is the sandbox";
    assert!(run.stderr.contains(line), "{run:#?}");
    let shown = lab.brig(["task", "show", "@"]);
    assert!(shown.stdout.contains("unshare tried 3 times"), "{shown:#?}");
    assert!(refused(&lab.task().sh("unshare --help >/dev/null; (true); true")).is_empty());
}

#[test]
fn the_hint_is_for_the_program_that_uses_a_helper() {
    let lab = Lab::new();
    let run = lab.task().sh("cp $(command -v unshare) codex; cp codex bwrap; cp /bin/sh claude
         ./codex -U true; ./bwrap -U true; ./claude -c './bwrap -U true; true'");
    let rows = refused(&run);
    let hint = |program: &str, words: &str| {
        let found = rows.iter().any(|row| row.0 == program && row.1 == 1 && row.2.contains(words));
        assert!(found, "{program}: {rows:#?}");
    };
    hint("codex", "`--sandbox danger-full-access`");
    hint("bwrap", "the program that runs bwrap");
    hint("claude", "\"enabled\": false");
}

#[test]
fn chromium_with_its_own_sandbox_is_named_with_the_flag_that_switches_it_off() {
    if !std::path::Path::new(CHROMIUM).exists() {
        return skip("needs chromium");
    }
    let lab = Lab::new();
    let page = |flags: &str| {
        lab.task().sh(&format!(
            "timeout 60 {CHROMIUM} --headless {flags} --disable-gpu --disable-dev-shm-usage --user-data-dir=/tmp/chromium \
             --dump-dom 'data:text/html,<p>it runs</p>' 2>/dev/null; true"
        ))
    };
    let run = page("");
    assert!(!run.stderr.contains("it runs"), "{run:#?}");
    let rows = refused(&run);
    assert!(rows.iter().any(|row| row.0 == "chromium" && row.2.contains("`--no-sandbox`")), "{rows:#?} {run:#?}");
    let run = page("--no-sandbox --no-zygote");
    assert!(run.stderr.contains("it runs"), "{run:#?}");
    assert_eq!(refused(&run), []);
}

#[test]
fn what_a_process_that_entered_asks_for_is_refused_and_counted_too() {
    let lab = Lab::new();
    let task = lab.task().start_sh("echo ready; while [ ! -e /tmp/end ]; do sleep 0.05; done");
    task.wait_for("ready");
    let id = lab.ids().pop().unwrap();
    let entered = lab.brig(["task", "exec", &id, "--", "sh", "-c", "unshare -U true; unshare -U true; touch /tmp/end"]);
    assert_eq!(entered.stderr.matches("Operation not permitted").count(), 2, "{entered:#?}");
    let rows = refused(&task.finish());
    assert_eq!((rows.len(), rows[0].0.as_str(), rows[0].1), (1, "unshare", 2), "{rows:#?}");
}

#[test]
fn a_flood_of_requests_is_refused_and_costs_the_supervisor_a_bounded_time() {
    let lab = Lab::new();
    let folder = lab.directory("work");
    lab.compile("work/ask", ASK);
    let run = lab.task().args(["--dir", folder.to_str().unwrap()]).sh("./ask 20000 16");
    run.ended_as("succeeded", 0);
    assert!(!run.stderr.contains("granted"), "{run:#?}");
    let answered = |words: &str| {
        let line = run.stderr.lines().find_map(|line| line.strip_prefix(words)).unwrap_or_else(|| panic!("{run:#?}"));
        line.trim_start_matches(": ").parse::<u64>().unwrap()
    };
    // The supervisor answers 1,024, the kernel the rest.
    let (by_supervisor, by_kernel) = (answered("Operation not permitted"), answered("Function not implemented"));
    assert_eq!((by_supervisor, by_supervisor + by_kernel), (1024, 320_000), "{run:#?}");
    let rows = refused(&run);
    assert_eq!((rows.len(), rows[0].0.as_str(), rows[0].1), (1, "ask", 1024), "{rows:#?}");
}

#[test]
fn a_request_is_not_granted_while_the_supervisor_stands_still() {
    let lab = Lab::new();
    let folder = lab.directory("work");
    lab.compile("work/ask", ASK);
    let task =
        lab.task().args(["--dir", folder.to_str().unwrap()]).start_sh("echo ready; sleep 1; ./ask 1 1; ./ask 1 1");
    task.wait_for("ready");
    task.signal(Signal::STOP);
    std::thread::sleep(std::time::Duration::from_secs(4));
    task.signal(Signal::CONT);
    eventually("it is answered", || task.output().matches("waited").count() == 2);
    let run = task.finish();
    assert_eq!(run.stderr.matches("Operation not permitted: 1").count(), 2, "{run:#?}");
    let waited: Vec<u64> =
        run.stderr.lines().filter_map(|line| line.strip_prefix("waited ")?.strip_suffix(" s")?.parse().ok()).collect();
    assert!(waited[0] >= 2 && waited[1] < 2, "{run:#?}");
}
