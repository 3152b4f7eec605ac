"""mini-swe-agent: its agent loop with a scripted model in its DockerEnvironment, by the command `docker`, and by `podman` on Podman."""
import os
import time

from job import IMAGE, WORK, attack, attack_line, work
from minisweagent.agents.default import DefaultAgent
from minisweagent.environments.docker import DockerEnvironment
from minisweagent.models.test_models import DeterministicModel, make_output

COMMANDS = ["echo 'print(6 * 7)' > answer.py", "python3 answer.py", "cd /; pwd", "false", "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT; cat answer.py"]

for executable in ["docker", "podman"] if os.environ["ENGINE"] == "podman" else ["docker"]:
    environment = DockerEnvironment(image=IMAGE, executable=executable, cwd="/tmp", env={"A": "b"}, timeout=60)
    model = DeterministicModel(outputs=[make_output("step", [{"command": each}], 0.1) for each in COMMANDS])
    agent = DefaultAgent(model, environment, system_template="You fix programs.", instance_template="{{task}}")
    work(executable, agent.run("print the answer"), [each["content"] for each in agent.messages])
    done = environment.execute({"command": WORK})
    work("work", done["output"], done["returncode"])
    work("environment", environment.execute({"command": "echo $A; pwd"})["output"])
    work("time-out", environment.execute({"command": "sleep 60"}, timeout=2)["returncode"])
    if executable == "docker":
        attack(environment.execute({"command": attack_line()})["output"])
    identity = environment.container_id
    environment.cleanup()
    for _ in range(200):
        time.sleep(0.1)
        if os.system(f"{executable} inspect {identity} > /dev/null 2>&1") != 0:
            break
    work("cleaned", os.system(f"{executable} inspect {identity} > /dev/null 2>&1") != 0)
    environment.container_id = None
