//! The events of a task: in its record, followed while it runs, and forwarded.

use crate::support::{Lab, eventually};
use serde_json::Value;
use std::io::{Read, Write};
use std::os::unix::net::UnixListener;
use std::sync::{Arc, Mutex};

fn events(lab: &Lab, id: &str) -> Vec<Value> {
    parse(&lab.brig(["task", "events", id]).succeeded().stdout)
}

fn parse(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|cause| panic!("{cause}: {line}"))).collect()
}

/// The text of one stream, put together again.
fn text(events: &[Value], stream: &str) -> String {
    let of = events.iter().filter(|event| event["event"] == "output" && event["stream"] == stream);
    of.map(|event| event["text"].as_str().unwrap()).collect()
}

#[track_caller]
fn assert_numbered(events: &[Value], id: &str) {
    for (index, event) in events.iter().enumerate() {
        assert_eq!((&event["seq"], &event["v"], &event["task"]), (&index.into(), &1.into(), &id.into()), "{event}");
    }
}

#[test]
fn a_task_tells_of_its_states_output_limits_and_end() {
    let lab = Lab::new();
    let script = "echo one; echo two >&2; seq 2000; echo '{\"step\":1}' >&$BRIG_EVENTS_FD; echo garbage >&$BRIG_EVENTS_FD; \
                  echo '{\"step\":{\"b\":2}}' >&$BRIG_EVENTS_FD; while :; do :; done";
    let run = lab.task().args(["--cpu-time", "300ms"]).sh(script);
    run.ended_as("cpu_time", 152);
    let id = lab.ids().remove(0);
    let events = events(&lab, &id);
    assert_numbered(&events, &id);
    let numbers: String = (1..=2000).map(|number| format!("{number}\n")).collect();
    assert_eq!(text(&events, "stdout"), format!("one\n{numbers}"));
    assert_eq!(text(&events, "stderr"), "two\n");
    let of = |kind: &str| events.iter().filter(|event| event["event"] == kind).cloned().collect::<Vec<_>>();
    let states: Vec<_> = of("state").iter().map(|event| event["state"].as_str().unwrap().to_owned()).collect();
    assert_eq!(states, ["preparing", "running", "stopping"]);
    let progress: Vec<_> = of("progress").iter().map(|event| event["data"].clone()).collect();
    assert_eq!(progress, [serde_json::json!({"step": 1}), serde_json::json!({"step": {"b": 2}})]);
    assert_eq!(of("limit")[0]["limit"], "cpu_time");
    let ended = events.last().unwrap();
    assert_eq!(
        (&ended["event"], &ended["outcome"], &ended["exit_status"]),
        (&"ended".into(), &"cpu_time".into(), &152.into())
    );
    assert_eq!(parse(&lab.brig(["task", "events", "--since", "2", &id]).succeeded().stdout), events[2..]);
}

#[test]
fn output_that_is_stream_json_is_progress_and_only_when_asked_for() {
    let lab = Lab::new();
    let script = "echo '{\"type\":\"assistant\"}'; echo words; echo '{\"type\":\"result\"}'";
    lab.task().args(["--stream-json"]).sh(script).succeeded();
    let first = lab.ids().remove(0);
    lab.task().sh(script).succeeded();
    let second = lab.ids().into_iter().find(|id| *id != first).unwrap(); // two of one moment have no order
    let progress = |id: &str| events(&lab, id).into_iter().filter(|event| event["event"] == "progress").count();
    assert_eq!((progress(&first), progress(&second)), (2, 0));
}

#[test]
fn a_follower_sees_events_as_they_come_and_ends_with_the_task() {
    let lab = Lab::new();
    let task = lab.task().start_sh("echo ready; while [ ! -e /tmp/go ]; do sleep 0.02; done; sleep 1.2; echo over");
    task.wait_for("ready");
    let id = lab.ids().remove(0);
    let follower = lab.start(["task", "events", "-f", &id]);
    follower.wait_for("\"text\":\"ready\\n\"");
    lab.brig(["task", "exec", &id, "--", "touch", "/tmp/go"]).succeeded();
    let run = follower.finish();
    let events = parse(&run.succeeded().stdout);
    assert_numbered(&events, &id);
    assert_eq!(text(&events, "stdout"), "ready\nover\n");
    assert!(events.iter().any(|event| event["event"] == "exec" && event["command"][0] == "touch"), "{events:#?}");
    let usage = events.iter().find(|event| event["event"] == "usage").expect("a sample after a second");
    assert!(usage["wall_seconds"].as_f64().unwrap() >= 1.0, "{usage}");
    assert_eq!(events.last().unwrap()["outcome"], "succeeded");
    task.finish().succeeded();
}

#[test]
fn events_arrive_at_a_file_a_socket_and_a_server_that_is_first_out_of_order() {
    let lab = Lab::new();
    let (file, socket) = (lab.path().join("copy.ndjson"), lab.path().join("events.sock"));
    let listener = UnixListener::bind(&socket).unwrap();
    let heard = Arc::new(Mutex::new(String::new()));
    let kept = Arc::clone(&heard);
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut buffer = [0; 4096];
        while let Ok(count @ 1..) = stream.read(&mut buffer) {
            kept.lock().unwrap().push_str(std::str::from_utf8(&buffer[..count]).unwrap());
        }
    });
    let server = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://user:hunter2@{}/events?key=hunter2", server.local_addr().unwrap());
    let posted = Arc::new(Mutex::new(String::new()));
    let kept = Arc::clone(&posted);
    std::thread::spawn(move || {
        // It fails twice: those events must come again.
        for (count, stream) in server.incoming().enumerate() {
            let mut stream = stream.unwrap();
            let body = request_body(&mut stream);
            let answer = if count < 2 { "503 Busy" } else { "200 OK" };
            stream
                .write_all(format!("HTTP/1.1 {answer}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n").as_bytes())
                .unwrap();
            if count >= 2 {
                kept.lock().unwrap().push_str(&body);
            }
        }
    });
    let places = [file.to_str().unwrap().to_owned(), format!("unix:{}", socket.display()), url];
    let arguments = places.iter().flat_map(|place| ["--events", place.as_str()]);
    lab.task().args(arguments).sh("echo hello; seq 3000").succeeded();
    let id = lab.ids().remove(0);
    let expected = events(&lab, &id);
    let is_whole = |text: &str| text.contains("\"ended\"");
    eventually("the file has all", || std::fs::read_to_string(&file).is_ok_and(|text| is_whole(&text)));
    eventually("the socket has all", || is_whole(&heard.lock().unwrap()));
    eventually("the server has all", || is_whole(&posted.lock().unwrap()));
    assert_eq!(parse(&std::fs::read_to_string(&file).unwrap()), expected);
    assert_eq!(parse(&heard.lock().unwrap()), expected);
    assert_eq!(parse(&posted.lock().unwrap()), expected);
    // A URL's password is not in the record.
    for entry in std::fs::read_dir(lab.store().join("tasks").join(&id)).unwrap() {
        let path = entry.unwrap().path();
        let content = std::fs::read(&path).unwrap_or_default();
        assert!(!String::from_utf8_lossy(&content).contains("hunter2"), "{}", path.display());
    }
}

fn request_body(stream: &mut std::net::TcpStream) -> String {
    let mut bytes = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        let text = String::from_utf8_lossy(&bytes).into_owned();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length = head.lines().find_map(|line| {
                line.to_ascii_lowercase().strip_prefix("content-length:")?.trim().parse::<usize>().ok()
            });
            let is_chunked = head.to_ascii_lowercase().contains("transfer-encoding: chunked");
            assert!(!is_chunked, "{head}");
            if body.len() >= length.unwrap_or(0) {
                return body.to_owned();
            }
        }
        match stream.read(&mut buffer).unwrap() {
            0 => return String::new(),
            count => bytes.extend_from_slice(&buffer[..count]),
        }
    }
}

#[test]
fn a_receiver_that_makes_no_sense_is_refused_before_anything_starts() {
    let lab = Lab::new();
    lab.task().args(["--events", "ftp://host/x"]).sh("true").refused(125, &["ftp"]);
    assert!(lab.ids().is_empty());
}

#[test]
fn a_file_for_events_that_cannot_be_written_is_told_before_the_command_begins() {
    let lab = Lab::new();
    let run = lab.task().plain().args(["--events", "/no/such/folder/events"]).sh("echo started");
    assert!(run.stderr.contains("/no/such/folder/events") && !run.stderr.contains("started"), "{run:#?}");
    assert_eq!(run.status, Some(125), "{run:#?}");
}
