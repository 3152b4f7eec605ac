"""inspect_ai: an evaluation with its Docker provider and a Compose file; in the sandbox, the job's work and inspect_ai's own `self_check`."""
import pathlib
import sys

sys.path.append(sys.path.pop(0))  # this file has the name of the package
from inspect_ai import Task, eval
from inspect_ai.dataset import Sample
from inspect_ai.scorer import Score, accuracy, scorer
from inspect_ai.solver import solver
from inspect_ai.util import sandbox
from inspect_ai.util._sandbox import self_check
from job import IMAGE, WORK, attack, attack_line, work

PROJECT = f"""
services:
  default:
    image: {IMAGE}
    init: true
    command: tail -f /dev/null
    working_dir: /workspace
    x-default: true
    networks: [inner]
  neighbour:
    image: {IMAGE}
    command: sh -c "mkdir /www; echo secret > /www/secret; exec busybox httpd -f -p 80 -h /www"
    networks: {{inner: {{ipv4_address: 172.31.9.10}}}}
networks: {{inner: {{ipam: {{config: [{{subnet: 172.31.9.0/24}}]}}}}}}
"""
pathlib.Path("compose.yaml").write_text(PROJECT)


@solver
def agent():
    async def solve(state, generate):
        box = sandbox()
        done = await box.exec(["sh", "-c", "tr a-z A-Z < given.txt > out.txt; echo $A; pwd"], env={"A": "b"})
        work("exec", done.stdout, done.returncode)
        done = await box.exec(["sh", "-c", WORK], user="root", cwd="/")
        work("work", done.stdout, done.returncode)
        work("other", (await sandbox("neighbour").exec(["cat", "/www/secret"])).stdout)
        for name, check in sorted(vars(self_check).items()):
            if name.startswith("test_"):
                try:
                    await check(box)
                    work(name, "passed")
                except Exception as error:
                    work(name, type(error).__name__)
        attack((await box.exec(["sh", "-c", attack_line("172.31.9.10")])).stdout)
        return state

    return solve


@scorer(metrics=[accuracy()])
def written():
    async def score(state, target):
        return Score(value=await sandbox().read_file("out.txt") == target.text)

    return score


task = Task(dataset=[Sample(input="", target="WORDS", files={"given.txt": "words"})], solver=agent(), scorer=written(), sandbox=("docker", "compose.yaml"))
(log,) = eval(task, model="mockllm/model", log_dir="logs", display="none")
print(log.error, file=sys.stderr)
work("evaluation", log.status, log.results and log.results.scores[0].metrics["accuracy"].value)
