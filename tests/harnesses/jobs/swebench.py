"""SWE-bench: its evaluation of one instance that exists here alone, in an image that this job makes by `docker build`."""
import json
import os
import pathlib
import subprocess
import sys

sys.path.append(sys.path.pop(0))  # this file has the name of the package
from job import IMAGE, attack, attack_line, work

PATCH = "--- a/number.py\n+++ b/number.py\n@@ -1 +1 @@\n-ANSWER = 41\n+ANSWER = 42\n"
TEST = "from number import ANSWER\n\n\ndef test_answer():\n    assert ANSWER == 42\n"
BUILD = (f"FROM {IMAGE}\nRUN mkdir /testbed && cd /testbed && echo 'ANSWER = 41' > number.py && git init -q && git add . && "
         "git -c user.name=a -c user.email=a@example.org commit -qm first\nWORKDIR /testbed\n")
EVALUATE = f"""cd /testbed
{attack_line()}
: '>>>>> Start Test Output'
python3 -c 'from number import ANSWER; print("PASSED" if ANSWER == 42 else "FAILED", "test_number.py::test_answer")'
: '>>>>> End Test Output'
git status --short
"""
INSTANCE = {
    "instance_id": "local__number-1", "image": "local-number", "repo": "local/number", "version": "1", "base_commit": "HEAD", "patch": PATCH,
    "test_patch": "", "problem_statement": "The answer is wrong.", "FAIL_TO_PASS": ["test_number.py::test_answer"], "PASS_TO_PASS": [],
    "log_parser": "parse_log_pytest", "eval_type": "pass_and_fail", "eval_script": EVALUATE, "split": "test",
}
subprocess.run(["docker", "build", "-q", "-t", "local-number", "-"], input=BUILD, text=True, check=True, stdout=sys.stderr,
               env={**os.environ, "DOCKER_BUILDKIT": "0"})
pathlib.Path("dataset.json").write_text(json.dumps([INSTANCE]))
words = ["-m", "swebench.harness.run_evaluation", "--dataset_name", "dataset.json", "--predictions_path", "gold", "--run_id", "here", "--max_workers", "1",
         "--timeout", "60"]
done = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False)
print(done.stdout, done.stderr, file=sys.stderr)
for path in pathlib.Path("logs").rglob("run_instance.log"):
    print(path.read_text(), file=sys.stderr)
reports = [json.loads(path.read_text()) for path in pathlib.Path("logs").rglob("report.json")]
work("report", done.returncode, reports)
for path in pathlib.Path("logs").rglob("test_output.txt"):
    attack("\n".join(line for line in path.read_text().splitlines() if not line.startswith("+")))
