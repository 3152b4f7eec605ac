"""harbor: the environment class of Terminal-Bench 2.

    harbor run --environment-import-path brig_sandbox.adapters.harbor:BrigEnvironment …

Its network policies are brig's rules: `no-network` and `allowlist` are enforced by the gateway and can change while the
task runs; `public` is an open network, which cannot become a closed one. Options (`--ek NAME=VALUE`) are those of
`Sandbox.start`. brig builds no images: a task needs `docker_image`, or the option `image` or `rootfs`.
"""

from __future__ import annotations

import asyncio
import inspect
import ipaddress
import os
from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from typing import Any, Optional, Union

from harbor.environments.base import BaseEnvironment, ExecResult
from harbor.environments.capabilities import EnvironmentCapabilities, EnvironmentResourceCapabilities
from harbor.models.task.config import NetworkMode, NetworkPolicy

from ..aio import AsyncSandbox
from ..errors import BrigError, ExecTimeout
from ..requests import MAX_OUTPUT
from ..session import Collector

# Ports that an allowed host has: harbor names none.
PORTS = "80,443"


class BrigEnvironment(BaseEnvironment):
    """A sandbox of brig with root inside."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        # Arguments that harbor does not have are options.
        known = inspect.signature(BaseEnvironment.__init__).parameters
        self._options = {name: kwargs[name] for name in kwargs if name not in known}
        self._box: Optional[AsyncSandbox] = None
        self._shell = "bash"
        # The rules that were taken back.
        self._denied: set[str] = set()
        super().__init__(*args, **kwargs)

    @staticmethod
    def type() -> str:
        return "brig"

    @property
    def capabilities(self) -> EnvironmentCapabilities:
        return EnvironmentCapabilities(
            disable_internet=True,
            network_allowlist=True,
            network_allowlist_hostnames=True,
            network_allowlist_wildcard_hostnames=True,
            network_allowlist_ipv4_addresses=True,
            network_allowlist_ipv6_addresses=True,
            network_allowlist_ipv4_cidrs=True,
            network_allowlist_ipv6_cidrs=True,
            dynamic_network_policy=True,
        )

    @classmethod
    def resource_capabilities(cls) -> EnvironmentResourceCapabilities:
        return EnvironmentResourceCapabilities(cpu_limit=True, memory_limit=True, fractional_cpus=True)

    def _validate_definition(self) -> None:
        if not (self.task_env_config.docker_image or self._options.get("image") or self._options.get("rootfs")):
            raise FileNotFoundError(
                "brig builds no images: set docker_image in the task's [environment], or give --ek image=NAME"
            )
        if (self.environment_dir / "docker-compose.yaml").exists():
            raise ValueError("brig runs one container for a task, and this task has a docker-compose.yaml")

    def _validate_network_policy_support(self) -> None:
        super()._validate_network_policy_support()
        modes = {policy.network_mode for policy in (self._network_policy, *self._phase_network_policies)}
        if len(modes) > 1 and NetworkMode.PUBLIC in modes:
            raise ValueError("brig cannot close an open network while the task runs: use an allowlist in each phase")

    def _network_options(self) -> dict[str, Any]:
        """The options for the policy that the environment starts with."""
        if self._network_is_public:
            return {"network": "veth" if os.geteuid() == 0 else "pasta"}
        return {"network": "egress", "allow": rules(self._network_policy)}

    async def start(self, force_build: bool) -> None:
        config = self.task_env_config
        options: dict[str, Any] = {"root_inside": True, "wall": "12h", "cpu_time": "24h", **self._network_options()}
        if config.docker_image:
            options["image"] = config.docker_image
        if config.workdir:
            options["workdir"] = config.workdir
        if self._effective_cpus:
            options["cpus"] = self._effective_cpus
        if self._effective_memory_mb:
            options["memory"] = f"{self._effective_memory_mb}M"
        if self._effective_storage_mb:
            options["disk"] = f"{self._effective_storage_mb}M"
        options["env"] = self._startup_env()
        options.update(self._options)
        if "rootfs" in options:
            options.pop("image", None)
        self._box = await AsyncSandbox.start(**options)
        found = await self._box.exec(["sh", "-c", "command -v bash"])
        self._shell = "bash" if found.status == 0 else "sh"
        await self.ensure_dirs(self._mount_targets(writable_only=True))
        await self._upload_environment_dir_after_start()

    async def stop(self, delete: bool) -> None:
        box, self._box = self._box, None
        if box is not None:
            await box.stop()

    def _running(self) -> AsyncSandbox:
        if self._box is None:
            raise RuntimeError("the environment has not been started")
        return self._box

    async def exec(
        self,
        command: str,
        cwd: Optional[str] = None,
        env: Optional[dict[str, str]] = None,
        timeout_sec: Optional[int] = None,
        user: Union[str, int, None] = None,
    ) -> ExecResult:
        box, output, who = self._running(), self._output_callback(), self._resolve_user(user)
        options: dict[str, Any] = {
            "cwd": cwd or self.task_env_config.workdir,
            "env": self._merge_env(env),
            "user": None if who is None else str(who),
            "timeout": timeout_sec,
        }
        words = [self._shell, "-c", command]
        try:
            if output is None:
                done = await box.exec(words, background=True, **options)
                stdout, stderr, status = done.stdout, done.stderr, done.status
            else:
                kept = Collector(MAX_OUTPUT)
                async with await box.exec_stream(words, background=True, **options) as process:
                    async for chunk in process:
                        kept.add(chunk.stream, chunk.data)
                        await output(chunk.data.decode(errors="replace"), chunk.stream)  # type: ignore[arg-type]
                    status = await process.wait()
                stdout, stderr = kept.get("stdout"), kept.get("stderr")
        except ExecTimeout as error:
            raise RuntimeError(f"Command timed out after {timeout_sec} seconds") from error
        except BrigError as error:
            if error.code not in ("E-COMMAND-NOT-FOUND", "E-COMMAND-NOT-EXECUTABLE", "E-IDENTITY"):
                raise
            return ExecResult(stdout="", stderr=error.message, return_code=126)
        return ExecResult(
            stdout=stdout.decode(errors="replace"), stderr=stderr.decode(errors="replace"), return_code=status
        )

    async def _make_parent(self, target: str) -> None:
        await self._running().exec(["mkdir", "-p", "--", str(PurePosixPath(target).parent)])

    async def upload_file(self, source_path: Union[Path, str], target_path: str) -> None:
        await self._make_parent(target_path)
        await self._running().upload(source_path, target_path)

    async def upload_dir(self, source_dir: Union[Path, str], target_dir: str) -> None:
        if not Path(source_dir).is_dir():
            raise FileNotFoundError(f"Source directory {source_dir} does not exist")
        await self._running().exec(["mkdir", "-p", "--", target_dir])
        # Into the folder, which may have files and keeps its own mode.
        for entry in sorted(Path(source_dir).iterdir()):
            await self._running().upload(entry, str(PurePosixPath(target_dir) / entry.name))

    async def download_file(self, source_path: str, target_path: Union[Path, str]) -> None:
        target = Path(target_path)
        target.parent.mkdir(parents=True, exist_ok=True)
        content = await self._running().read_file(source_path)
        if target.is_symlink():
            target.unlink()  # an earlier download may have copied it: a link of the sandbox leads anywhere
        await asyncio.to_thread(target.write_bytes, content)

    async def download_dir(self, source_dir: str, target_dir: Union[Path, str]) -> None:
        target = Path(target_dir)
        await asyncio.to_thread(target.mkdir, parents=True, exist_ok=True)
        # Into the folder: an existing `target / entry.name` would get the entry below itself.
        for entry in await self._running().list_files(source_dir):
            if entry.kind != "other":
                await self._running().download(f"{source_dir}/{entry.name}", target)

    async def _apply_network_policy(self, network_policy: NetworkPolicy) -> None:
        if NetworkMode.PUBLIC in (network_policy.network_mode, self._network_policy.network_mode):
            raise ValueError("brig cannot open or close a public network while the task runs")
        before, after = set(rules(self._network_policy)), set(rules(network_policy))
        # A refusal stays, and precedes what is allowed later: a narrower rule would have no effect.
        denied = self._denied | (before - after)
        for rule in after:
            wider = [other for other in denied - {rule} if _covers(other, rule)]
            if wider:
                raise ValueError(f"`{rule}` cannot be allowed: the wider rule `{wider[0]}` was refused before")
        self._denied = denied - after
        for rule in sorted(before - after):
            await self._running().deny(rule)
        for rule in sorted(after - before):
            await self._running().allow(rule)


def rules(policy: NetworkPolicy) -> list[str]:
    """The rules of brig for a policy."""
    return list(_rules(policy.allowed_hosts)) if policy.network_mode == NetworkMode.ALLOWLIST else []


def _covers(wide: str, narrow: str) -> bool:
    """Whether a rule covers what another one allows."""
    wide, narrow = wide.rsplit(":", 1)[0].strip("[]"), narrow.rsplit(":", 1)[0].strip("[]")
    if wide.startswith("*."):
        return narrow.endswith(wide[1:])
    try:
        outer, inner = ipaddress.ip_network(wide), ipaddress.ip_network(narrow)
    except ValueError:
        return False
    return outer.version == inner.version and inner.subnet_of(outer)  # type: ignore[arg-type]


def _rules(hosts: Iterable[str]) -> Iterable[str]:
    for host in hosts:
        # An IPv6 address is in brackets before its ports.
        name = f"[{host}]" if ":" in host else host
        yield f"{name}:{PORTS}"
