"""smolagents: a CodeAgent's executor in a container of a prebuilt image, with the kernel gateway behind a published port."""
import sys

sys.path.append(sys.path.pop(0))  # this file has the name of the package
from job import IMAGE, WORK, attack, attack_line, work
from smolagents.monitoring import AgentLogger, LogLevel
from smolagents.remote_executors import DockerExecutor

# The command comes by `container_run_kwargs`, as the image of the jobs has another one.
command = ["jupyter", "kernelgateway", "--KernelGatewayApp.ip=0.0.0.0", "--KernelGatewayApp.port=8888", "--KernelGatewayApp.auth_token="]
executor = DockerExecutor([], AgentLogger(level=LogLevel.OFF), image_name=IMAGE, build_new_image=False, container_run_kwargs={"command": command})
try:
    executor.send_variables({"a": [1, 2]})
    done = executor.run_code_raise_errors("print('seen', a)\nsum(a)")
    work("code", done.output, done.logs)
    shell = "import subprocess\ndone = subprocess.run(['sh', '-c', {!r}], capture_output=True, text=True)\nprint(done.stdout)\ndone.returncode"
    done = executor.run_code_raise_errors(shell.format(WORK))
    work("work", done.logs, done.output)
    try:
        executor.run_code_raise_errors("1 / 0")
    except Exception as error:
        work("error", "ZeroDivisionError" in str(error))
    attack(executor.run_code_raise_errors(shell.format(attack_line())).logs)
finally:
    executor.cleanup()
