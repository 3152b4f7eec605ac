"""AutoGen's docker executor: code blocks of Python and shell in a bound folder, a time-out, a restart."""
import asyncio
import pathlib

from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock
from autogen_ext.code_executors.docker import DockerCommandLineCodeExecutor
from job import IMAGE, WORK, attack, attack_line, work


async def main():
    folder = pathlib.Path("coding")
    # Podman removes a container with `--rm` while it restarts, with runc too.
    executor = DockerCommandLineCodeExecutor(image=IMAGE, work_dir=folder, timeout=20, auto_remove=False)

    async def run(code, language="sh"):
        return await executor.execute_code_blocks([CodeBlock(code=code, language=language)], CancellationToken())

    await executor.start()
    try:
        done = await run("# filename: answer.py\nprint(6 * 7)\nopen('made.txt', 'w').write('hello')", "python")
        work("python", done.output, done.exit_code)
        work("folder", (folder / "made.txt").read_text())
        done = await run(WORK)
        work("shell", done.output, done.exit_code)
        attack((await run(attack_line())).output)
        done = await run("sleep 60")
        work("time-out", done.exit_code)
        await executor.restart()
        work("restart", (await run("cat /workspace/made.txt")).output)
    finally:
        await executor.stop()


asyncio.run(main())
