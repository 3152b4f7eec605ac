"""aiodocker: create, start, exec with a stream, archives both ways, logs, events, kill, delete."""
import asyncio
import io
import sys
import tarfile

sys.path.append(sys.path.pop(0))  # this file has the name of the package
import aiodocker
from job import IMAGE, LIMITS, WORK, attack, attack_line, work


async def execute(container, words, **options):
    """The output and the exit status of a command."""
    made = await container.exec(words, **options)
    out = b""
    async with made.start(detach=False) as stream:
        while (message := await stream.read_out()) is not None:
            out += message.data
    return out, (await made.inspect())["ExitCode"]


async def main():
    async with aiodocker.Docker() as docker:
        work("ping", (await docker.version())["Os"])
        config = {"Image": IMAGE, "Cmd": ["sh", "-c", "echo started; exec sleep 600"], "Env": ["A=b"], "WorkingDir": "/tmp",
                  "HostConfig": {"Memory": 256 << 20, "PidsLimit": 100} if LIMITS else {}}
        container = await docker.containers.create(config=config, name="of-aiodocker")
        try:
            await container.start()
            work("exec", *await execute(container, ["sh", "-c", WORK], user="root"))
            work("user", *await execute(container, ["sh", "-c", "id -u; echo $A$C"], user="33", environment={"C": "d"}))
            work("logs", await container.log(stdout=True))
            data = io.BytesIO()
            with tarfile.open(fileobj=data, mode="w") as tar:
                entry = tarfile.TarInfo("up.txt")
                entry.size = 5
                tar.addfile(entry, io.BytesIO(b"hello"))
            await container.put_archive("/etc", data.getvalue())
            work("put", *await execute(container, ["cat", "/etc/up.txt"]))
            await execute(container, ["sh", "-c", "echo made inside > /etc/down.txt"])
            try:
                tar = await container.get_archive("/etc/down.txt")
                work("get", tar.extractfile("down.txt").read())
            except aiodocker.DockerError as error:
                work("get", error.status)
            attack((await execute(container, ["sh", "-c", attack_line()]))[0])
            await container.kill(signal="KILL")
            work("end", (await container.wait())["StatusCode"])
        finally:
            await container.delete(force=True)


asyncio.run(main())
