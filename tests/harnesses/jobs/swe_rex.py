"""SWE-ReX: a DockerDeployment, whose server runs in the container behind a published port; a session, commands, files."""
import asyncio
import os
import pathlib

from job import IMAGE, WORK, attack, attack_line, work
from swerex.deployment.docker import DockerDeployment
from swerex.runtime.abstract import BashAction, Command, CreateBashSessionRequest, ReadFileRequest, UploadRequest, WriteFileRequest


async def main(runtime):
    deployment = DockerDeployment(image=IMAGE, pull="missing", container_runtime=runtime, startup_timeout=60)
    await deployment.start()
    try:
        remote = deployment.runtime
        done = await remote.execute(Command(command=["sh", "-c", WORK], timeout=20))
        work(runtime, done.stdout, done.exit_code)
        await remote.create_session(CreateBashSessionRequest())
        for line in ["cd /tmp; export A=b", "echo $A; pwd", "false; echo $?", "ls /nope"]:
            seen = await remote.run_in_session(BashAction(command=line, check="silent"))
            work("session", seen.output, seen.exit_code)
        await remote.write_file(WriteFileRequest(path="/tmp/made.txt", content="hello"))
        work("file", (await remote.read_file(ReadFileRequest(path="/tmp/made.txt"))).content)
        folder = pathlib.Path("up")
        folder.mkdir(exist_ok=True)
        (folder / "a.txt").write_text("one")
        await remote.upload(UploadRequest(source_path=str(folder), target_path="/tmp/up"))
        work("upload", (await remote.execute(Command(command="cat /tmp/up/a.txt", shell=True))).stdout)
        if runtime == "docker":
            attack((await remote.execute(Command(command=["sh", "-c", attack_line()], timeout=30))).stdout)
    finally:
        await deployment.stop()


for each in ["docker", "podman"] if os.environ["ENGINE"] == "podman" else ["docker"]:
    asyncio.run(main(each))
