"""harbor: a task with its oracle agent by the command line, and the network policies."""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

harbor = pytest.importorskip("harbor")

from harbor.models.task.config import EnvironmentConfig, NetworkMode, NetworkPolicy  # noqa: E402
from harbor.models.trial.paths import TrialPaths  # noqa: E402

from brig_sandbox.adapters.harbor import BrigEnvironment, rules  # noqa: E402

CLASS = "brig_sandbox.adapters.harbor:BrigEnvironment"
PACKAGE = Path(__file__).resolve().parent.parent.parent
CLOSED = NetworkPolicy(network_mode=NetworkMode.NO_NETWORK)


def allowing(*hosts):
    return NetworkPolicy(network_mode=NetworkMode.ALLOWLIST, allowed_hosts=list(hosts))


def make(tmp_path, root, policy=CLOSED, **more):
    (tmp_path / "environment").mkdir(exist_ok=True)
    return BrigEnvironment(
        environment_dir=tmp_path / "environment",
        environment_name="test",
        session_id="test__env",
        trial_paths=TrialPaths(trial_dir=tmp_path / "trial"),
        task_env_config=EnvironmentConfig(cpus=1, memory_mb=512),
        network_policy=policy,
        rootfs=str(root),
        **more,
    )


@pytest.fixture(autouse=True)
def needs_root(root):
    """A root file system with root inside and its own owners needs root."""


def test_task_is_solved_by_the_oracle(store, busybox_root, tmp_path):
    task = tmp_path / "task"
    files = {
        "task.toml": 'schema_version = "1.4"\n[metadata]\n[environment]\nnetwork_mode = "no-network"\n'
        'docker_image = "none:1"\nworkdir = "/root"\n[agent]\ntimeout_sec = 60.0\n[verifier]\ntimeout_sec = 60.0\n',
        "instruction.md": "Write words to /root/out.\n",
        "environment/given.txt": "words\n",
        "solution/solve.sh": "#!/bin/sh\ntr a-z A-Z < given.txt > /root/out; adduser -D other; chown other /root/out\n",
        "tests/test.sh": "#!/bin/sh\n[ \"$(cat /root/out)\" = WORDS ] && echo 1 > /logs/verifier/reward.txt\n",
    }
    for name, text in files.items():
        (task / name).parent.mkdir(parents=True, exist_ok=True)
        (task / name).write_text(text)
    words = [Path(sys.executable).parent / "harbor", "run", "--path", task, "--agent", "oracle", "--env", CLASS]
    words += ["--ek", f"rootfs={busybox_root}", "--jobs-dir", tmp_path / "jobs", "--quiet", "--yes"]
    environment = {**os.environ, "PYTHONPATH": str(PACKAGE), "HOME": str(tmp_path)}
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=120)
    results = [json.loads(path.read_text()) for path in (tmp_path / "jobs").glob("*/*/result.json")]
    assert len(results) == 1, done.stdout + done.stderr
    assert results[0]["verifier_result"]["rewards"] == {"reward": 1.0}, json.dumps(results[0], indent=1)


def test_files_users_and_limits(store, busybox_root, tmp_path, folder):
    async def check():
        environment = make(tmp_path, busybox_root)
        await environment.start(False)
        try:
            done = await environment.exec("id -u; echo no >&2; exit 3")
            assert (done.stdout, done.stderr, done.return_code) == ("0\n", "no\n", 3)
            assert (await environment.exec("whoami", user="agent")).stdout == "agent\n"
            with pytest.raises(RuntimeError, match="timed out"):
                await environment.exec("sleep 60", timeout_sec=1)
            await environment.upload_dir(folder, "/data/in")
            await environment.upload_file(folder / "a.txt", "/data/more/one.txt")
            assert (await environment.exec("cat /data/in/sub/b.txt /data/more/one.txt")).stdout == "two\none\n"
            await environment.download_dir("/data/in", tmp_path / "out")
            await environment.download_file("/data/more/one.txt", tmp_path / "out/one.txt")
            assert (tmp_path / "out/sub/b.txt").read_text() == "two\n"
            assert (tmp_path / "out/one.txt").read_text() == "one\n"
            assert await environment.is_dir("/data/in") and not await environment.is_file("/data/in")
            assert (await environment._running().stats())["memory_limit"] == 512 << 20
        finally:
            await environment.stop(True)

    asyncio.run(check())


def test_second_download_replaces_files_and_follows_no_link(store, busybox_root, tmp_path):
    outside, target = tmp_path / "outside", tmp_path / "out"
    outside.mkdir()

    async def check():
        environment = make(tmp_path, busybox_root)
        await environment.start(False)
        try:
            await environment.exec(f"mkdir -p /d/s; echo 1 > /d/s/f; echo 1 > /d/s/old; ln -s {outside} /d/link")
            await environment.exec(f"ln -s {outside}/new /d/file")
            await environment.download_dir("/d", target)
            await environment.download_file("/d/s/f", target / "file")
            await environment.exec("rm /d/link /d/file /d/s/old; echo 2 | tee /d/s/f > /d/link")
            await environment.download_dir("/d", target)
        finally:
            await environment.stop(True)

    asyncio.run(check())
    files = {str(path.relative_to(target)): path.read_text() for path in target.rglob("*") if path.is_file()}
    assert files == {"s/f": "2\n", "s/old": "1\n", "link": "2\n", "file": "1\n"}
    assert not (target / "link").is_symlink() and list(outside.iterdir()) == []


def test_streamed_output_is_kept_up_to_the_bound(store, busybox_root, tmp_path, monkeypatch):
    monkeypatch.setattr("brig_sandbox.adapters.harbor.MAX_OUTPUT", 1 << 20)
    passed = 0

    async def count(text, stream):
        nonlocal passed
        passed += len(text)

    async def check():
        environment = make(tmp_path, busybox_root)
        await environment.start(False)
        try:
            with environment.scoped_output_callback(count):
                return await environment.exec("head -c 52428800 /dev/zero; echo no >&2; exit 3")
        finally:
            await environment.stop(True)

    done = asyncio.run(check())
    assert (len(done.stdout), done.stderr, done.return_code) == (1 << 20, "no\n", 3)
    assert passed == (50 << 20) + len("no\n")


def test_policies_are_rules_and_change_while_it_runs(store, busybox_root, tmp_path):
    assert rules(CLOSED) == []
    assert rules(allowing("a.org", "*.b.org", "10.0.0.0/8")) == ["a.org:80,443", "*.b.org:80,443", "10.0.0.0/8:80,443"]
    with pytest.raises(ValueError, match="open network"):
        make(tmp_path, busybox_root, NetworkPolicy(), phase_network_policies=[CLOSED])

    async def check():
        environment = make(tmp_path, busybox_root, phase_network_policies=[allowing("a.invalid")])
        await environment.start(False)
        try:
            for policy in (allowing("a.invalid", "*.b.invalid"), CLOSED, allowing("a.invalid")):
                await environment.set_network_policy(policy)
                assert environment.network_policy == policy
            with pytest.raises(ValueError):
                await environment.set_network_policy(NetworkPolicy())
            with pytest.raises(ValueError, match="refused before"):
                await environment.set_network_policy(allowing("api.b.invalid"))
        finally:
            await environment.stop(True)

    asyncio.run(check())


def test_task_without_an_image_is_refused(store, tmp_path):
    (tmp_path / "environment").mkdir()
    with pytest.raises(FileNotFoundError, match="builds no images"):
        BrigEnvironment(
            environment_dir=tmp_path / "environment",
            environment_name="test",
            session_id="test__env",
            trial_paths=TrialPaths(trial_dir=tmp_path / "trial"),
            task_env_config=EnvironmentConfig(),
        )
