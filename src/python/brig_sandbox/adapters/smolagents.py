"""smolagents: an executor that runs the agent's Python code in a sandbox.

    executor = BrigExecutor(additional_imports=[], logger=AgentLogger(), dir=".")
    CodeAgent(tools=[...], model=..., executor=executor)

One Python process in the sandbox keeps the variables between the steps. The sandbox needs `python3` with numpy and pillow,
which smolagents' own tools import, or a way to PyPI. It needs no port.
"""

from __future__ import annotations

import ast
import json
from typing import Any, Optional

from smolagents.local_python_executor import CodeOutput
from smolagents.remote_executors import RemotePythonExecutor
from smolagents.utils import AgentError

from ..sandbox import Sandbox

# Runs in the sandbox: reads a program in a line of JSON, and writes its end in a line of JSON.
KERNEL = """
import ast, contextlib, io, json, os, subprocess, sys, traceback
replies = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
names = {"__name__": "__main__"}
for line in sys.stdin:
    logs, reply = io.StringIO(), {}
    try:
        with contextlib.redirect_stdout(logs), contextlib.redirect_stderr(logs):
            code = json.loads(line)
            if code.startswith("!"):
                done = subprocess.run(code[1:], shell=True, capture_output=True, text=True)
                print(done.stdout, done.stderr)
                if done.returncode:
                    raise RuntimeError(f"exit status {done.returncode}")
            else:
                tree = ast.parse(code)
                last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
                exec(compile(tree, "<step>", "exec"), names)
                if last is not None:
                    value = eval(compile(ast.Expression(last.value), "<step>", "eval"), names)
                    reply["output"] = None if value is None else repr(value)
    except BaseException as error:
        reply = {"name": type(error).__name__, "value": str(getattr(error, "value", error)),
                 "trace": traceback.format_exc()}
    reply["logs"] = logs.getvalue()
    print(json.dumps(reply), file=replies, flush=True)
"""
# Modules that have another name than their package.
MODULES = {"pillow": "PIL", "scikit-learn": "sklearn", "beautifulsoup4": "bs4"}
# The longest reply that is read.
MAX_REPLY = 64 << 20


class BrigExecutor(RemotePythonExecutor):  # type: ignore[misc]
    """Runs the code of a `CodeAgent` in a sandbox of brig."""

    def __init__(
        self,
        additional_imports: list[str],
        logger: Any,
        allow_pickle: bool = False,
        python: str = "python3",
        **options: Any,
    ) -> None:
        """`options` are those of `Sandbox.start`."""
        super().__init__(additional_imports, logger, allow_pickle)
        if options.get("image") or options.get("rootfs"):
            options.setdefault("root_inside", True)
        self.sandbox: Optional[Sandbox] = Sandbox.start(**options)
        try:
            # pip of Debian installs nothing beside the system's packages without it. Here that is the sandbox's own home.
            settings = {"PIP_BREAK_SYSTEM_PACKAGES": "1"}
            self._kernel = self.sandbox.exec_stream([python, "-u", "-c", KERNEL], env=settings)
            self._pieces = iter(self._kernel)
            self._rest = b""
            self.installed_packages = self.install_packages(additional_imports)
        except BaseException:
            self.cleanup()
            raise

    def install_packages(self, additional_imports: list[str]) -> list[str]:
        """Installs what the sandbox does not have. It needs a way to PyPI: `allow=["@pypi"]`.

        smolagents asks for packages that its own code can do without, so a package that is missing is an error of the
        code that imports it.
        """
        names = [MODULES.get(name, name) for name in additional_imports]
        code = f"import importlib.util\n[importlib.util.find_spec(name) is not None for name in {names!r}]"
        present = ast.literal_eval(self.run_code_raise_errors(code).output) if names else []
        missing = [name for name, is_there in zip(additional_imports, present) if not is_there]
        try:
            super().install_packages(missing)
        except AgentError as error:
            self.logger.log(f"not installed in the sandbox: {', '.join(missing)}: {str(error)[-300:]}")
        return additional_imports

    def run_code_raise_errors(self, code: str) -> CodeOutput:
        self._kernel.write(json.dumps(code.strip()).encode() + b"\n")
        line = self._read_line()
        try:
            reply = json.loads(line)
            logs = str(reply["logs"])
            if "name" not in reply:
                return CodeOutput(output=reply.get("output"), logs=logs, is_final_answer=False)
            if reply["name"] == self.FINAL_ANSWER_EXCEPTION:
                answer = self._deserialize_final_answer(reply["value"], self.allow_pickle)
                return CodeOutput(output=answer, logs=logs, is_final_answer=True)
            trace = str(reply["trace"])
        except (ValueError, KeyError, TypeError, AttributeError) as cause:
            raise AgentError(f"the sandbox replies with what is not understood: {cause}", self.logger) from cause
        raise AgentError(f"{logs}\n{trace}", self.logger)

    def _read_line(self) -> bytes:
        """The kernel's next line."""
        while b"\n" not in self._rest:
            piece = next(self._pieces, None)
            if piece is None:
                raise AgentError("the Python process in the sandbox has ended", self.logger)
            if piece.stream == "stdout":
                self._rest += piece.data
            if len(self._rest) > MAX_REPLY:
                self._kernel.close()
                raise AgentError(f"the reply has more than {MAX_REPLY} bytes", self.logger)
        line, self._rest = self._rest.split(b"\n", 1)
        return line

    def cleanup(self) -> None:
        """Ends the sandbox."""
        sandbox, self.sandbox = getattr(self, "sandbox", None), None
        if sandbox is not None:
            sandbox.stop()
