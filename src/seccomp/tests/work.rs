//! What agents run all day, as a user without rights.

use super::attacks::under_the_profile;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

/// The overflow uid.
const USER: u32 = 65534;

/// In an empty directory. Missing tools are skipped, loudly.
fn works(tool: &str, script: &str, expected: &str) {
    let found = ["/usr/bin", "/bin", "/usr/local/bin"].iter().any(|directory| Path::new(directory).join(tool).exists());
    if !found {
        crate::sys::skip(&format!("{tool} under the agent's profile: not installed"));
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let mut command = Command::new("/bin/sh");
    command.args(["-euc", script]).current_dir(directory.path()).env_clear();
    command.env("PATH", "/usr/local/bin:/usr/bin:/bin").env("HOME", directory.path());
    if rustix::process::geteuid().is_root() {
        std::os::unix::fs::chown(directory.path(), Some(USER), Some(USER)).unwrap();
        command.uid(USER).gid(USER);
    }
    let output = under_the_profile(|| command.output().unwrap());
    let (printed, said) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && printed.trim_end() == expected, "{:?} {printed} {said}", output.status);
}

#[test]
fn a_shell_works() {
    let script = "mkfifo pipe; (echo through > pipe) & cat pipe; wait; ln -s pipe link; stat -c %F link; \
        cp -a link other; test -L other; seq 3 | tail -n 1; kill -0 $$; nice -n 5 true; timeout 5 sleep 0.01";
    works("sh", script, "through\nsymbolic link\n3");
}

#[test]
fn git_works() {
    let script = "git init -q repository; cd repository; git config user.name a; git config user.email a@b.c; echo 1 > file; \
        git add file; git commit -qm one; git worktree add -q ../other; cd ..; git clone -q repository clone; \
        git -C clone log --format=%s; git -C clone fsck --no-progress; git -C clone gc -q";
    works("git", script, "one");
}

#[test]
fn a_compiler_and_its_threads_work() {
    let script = r#"cat > main.c <<'END'
#include <pthread.h>
#include <stdio.h>
static void *work(void *number) { *(int *)number += 1; return 0; }
int main(void) {
    pthread_t threads[8];
    int numbers[8] = {0}, sum = 0;
    for (int i = 0; i < 8; i++) pthread_create(threads + i, 0, work, numbers + i);
    for (int i = 0; i < 8; i++) { pthread_join(threads[i], 0); sum += numbers[i]; }
    printf("%d\n", sum);
}
END
gcc -O1 -pthread main.c -o main; ./main"#;
    works("gcc", script, "8");
}

#[test]
fn python_works() {
    let script = r#"cat > main.py <<'END'
import asyncio, ctypes, mmap, multiprocessing, os, socket, sqlite3, subprocess, sys, tempfile, threading, time
def square(n): return n * n
async def child():
    process = await asyncio.create_subprocess_exec("echo", "child", stdout=-1)
    return (await process.communicate())[0]
if __name__ == "__main__":
    with multiprocessing.Pool(2) as pool: assert pool.map(square, range(4)) == [0, 1, 4, 9]
    assert asyncio.run(child()) == b"child\n"
    server = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=lambda: server.accept()[0].sendall(b"hello")).start()
    assert socket.create_connection(server.getsockname()).recv(5) == b"hello"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams: datagrams.bind(("127.0.0.1", 0))
    socket.if_nameindex(); socket.getaddrinfo("localhost", 80)
    database = sqlite3.connect("base"); database.execute("create table t(n)"); database.commit()
    mmap.mmap(-1, 4096); os.memfd_create("m"); os.getrandom(8); time.sleep(0.001); os.sched_yield()
    import pty; pty.spawn(["true"])
    for family, kind, protocol in [(38, 5, 0), (40, 1, 0), (16, 3, 12)]:
        try: socket.socket(family, kind, protocol)
        except OSError: continue
        sys.exit(f"family {family} was let through")
    print("done")
END
/usr/bin/python3 main.py"#;
    works("python3", script, "done");
}

#[test]
fn node_works() {
    let script = r#"cat > main.js <<'END'
const { Worker, isMainThread, parentPort } = require('worker_threads');
if (!isMainThread) { parentPort.postMessage(require('fs').readFileSync(__filename).length); } else {
  const { execFileSync } = require('child_process'); require('os').networkInterfaces();
  const server = require('http').createServer((_, answer) => answer.end('served'));
  server.listen(0, '127.0.0.1', async () => {
    const served = await (await fetch(`http://127.0.0.1:${server.address().port}/`)).text();
    const length = await new Promise(done => new Worker(__filename).on('message', done));
    require('fs').watch('.').close();
    console.log(served, length > 0, execFileSync('echo', ['child']).toString().trim());
    server.close(); server.closeAllConnections();
  });
}
END
node main.js"#;
    works("node", script, "served true child");
}

#[test]
fn debuggers_work() {
    works("strace", "strace -f -o trace sh -c 'echo traced; true'; grep -q execve trace", "traced");
    works(
        "gdb",
        "gdb -q -batch -ex starti -ex 'info registers' -ex continue --args sleep 0 2>&1 | grep -c 'exited normally'",
        "1",
    );
}

#[test]
fn programs_of_another_abi_are_ended() {
    // The 32-bit entry of x86-64: getpid there. SIGSYS is 31.
    if cfg!(not(target_arch = "x86_64")) {
        crate::sys::skip("programs_of_another_abi_are_ended: x86-64 only");
        return;
    }
    let script = r#"cat > main.c <<'END'
int main(void) { int number = 20; __asm__ volatile("int $0x80" : "+a"(number)); return number < 0; }
END
gcc main.c -o main; ./main && exit 1 || echo $?"#;
    works("gcc", script, "159");
}
