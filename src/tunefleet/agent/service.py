"""The agent as a user service: a systemd user unit on Linux, a launchd agent on macOS.

Jobs survive a stop of the service: they are separate processes, and the next agent adopts them.
"""

from __future__ import annotations

import plistlib
import secrets
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tunefleet.errors import MachineError
from tunefleet.fsutil import write_private
from tunefleet.settings import AgentSettings

UNIT: Final = "tunefleet-agent.service"
LABEL: Final = "dev.tunefleet.agent"


@dataclass(frozen=True, slots=True)
class Service:
    """Paths of the service, and its installation."""

    home: Path
    folder: Path
    platform: str = sys.platform
    python: str = sys.executable
    user_home: Path = Path("~")

    @property
    def env_file(self) -> Path:
        """File with the agent's settings."""
        return self.home / "agent.env"

    @property
    def definition(self) -> Path:
        """The file that the system's service manager reads."""
        user = self.user_home.expanduser()
        if self.platform == "darwin":
            return user / "Library" / "LaunchAgents" / f"{LABEL}.plist"
        return user / ".config" / "systemd" / "user" / UNIT

    def working_folder(self) -> Path:
        """Return the working directory of the installed service; `folder` if none is installed."""
        if not self.definition.exists():
            return self.folder
        text = self.definition.read_bytes()
        if self.platform == "darwin":
            return Path(plistlib.loads(text)["WorkingDirectory"])
        lines = dict(line.split("=", 1) for line in text.decode().splitlines() if "=" in line)
        return Path(lines["WorkingDirectory"].replace("%%", "%"))

    def install(self, settings: Sequence[str] = ()) -> list[Path]:
        """Write settings, folder and definition; existing settings stay unless they are given again.

        Raises:
            MachineError: If this system has neither systemd nor launchd.
        """
        if self.platform not in ("linux", "darwin"):
            raise MachineError(
                f"Services are not supported on {self.platform}.", hint="Run `tunefleet agent`, or scripts/install.ps1."
            )
        self.folder.mkdir(parents=True, exist_ok=True)
        self._write_settings(settings)
        self.definition.parent.mkdir(parents=True, exist_ok=True)
        text = self.plist() if self.platform == "darwin" else self.unit()
        self.definition.write_text(text, encoding="utf-8")
        return [self.env_file, self.definition]

    def uninstall(self) -> list[Path]:
        """Remove the definition; settings, jobs and their files stay."""
        gone = [self.definition] if self.definition.exists() else []
        self.definition.unlink(missing_ok=True)
        return gone

    def unit(self) -> str:
        """Return the systemd unit."""
        # No EnvironmentFile: it would treat a comment after a value as part of the value, and would override what
        # `update-config` writes. The agent reads `agent.env` itself.
        return f"""[Unit]
Description=Tunefleet training agent
After=network-online.target

[Service]
Type=simple
WorkingDirectory={_escaped(str(self.folder))}
Environment={_quoted(f"TUNEFLEET_HOME={self.home}")}
ExecStart={_quoted(self.python)} -m tunefleet.agent
Restart=always
RestartSec=5
# Jobs are separate processes and outlive the agent.
KillMode=process
TimeoutStopSec=30

[Install]
WantedBy=default.target
"""

    def plist(self) -> str:
        """Return the launchd property list."""
        job = {
            "Label": LABEL,
            "ProgramArguments": [self.python, "-m", "tunefleet.agent"],
            "WorkingDirectory": str(self.folder),
            "EnvironmentVariables": {"TUNEFLEET_HOME": str(self.home)},
            "RunAtLoad": True,
            "KeepAlive": True,
            # Jobs are separate processes and outlive the agent.
            "AbandonProcessGroup": True,
            "StandardOutPath": str(self.folder / "agent.out"),
            "StandardErrorPath": str(self.folder / "agent.out"),
        }
        return plistlib.dumps(job).decode()

    def commands(self, verb: str) -> list[list[str]]:
        """Return the commands of the service manager for an operation: start, stop, status or uninstall."""
        if self.platform == "darwin":
            path = str(self.definition)
            return {
                "start": [["launchctl", "load", "-w", path]],
                "stop": [["launchctl", "unload", path]],
                "status": [["launchctl", "list", LABEL]],
                "uninstall": [["launchctl", "unload", "-w", path]],
            }[verb]
        systemctl = ["systemctl", "--user"]
        return {
            "start": [[*systemctl, "daemon-reload"], [*systemctl, "enable", "--now", UNIT]],
            "stop": [[*systemctl, "stop", UNIT]],
            "status": [[*systemctl, "status", "--no-pager", UNIT]],
            "uninstall": [[*systemctl, "disable", "--now", UNIT]],
        }[verb]

    def call(self, verb: str) -> int:
        """Run the commands of an operation; returns the last exit code.

        Raises:
            MachineError: If the service manager is missing, or a command other than `status` fails.
        """
        code = 0
        for command in self.commands(verb):
            if shutil.which(command[0]) is None:
                raise MachineError(f"{command[0]} not found.", hint="Run `tunefleet agent` in a terminal instead.")
            done = subprocess.run(command, capture_output=verb != "status", text=True, check=False)
            code = done.returncode
            if code and verb != "status":
                output = (done.stderr or done.stdout or "").strip()
                raise MachineError(
                    f"`{' '.join(command)}` failed: {output or code}.",
                    hint="Fix that, or run `tunefleet agent` in a terminal instead.",
                )
        return code

    def _write_settings(self, settings: Sequence[str]) -> None:
        given = dict(setting.split("=", 1) for setting in settings)
        before = self.env_file.read_text(encoding="utf-8").splitlines() if self.env_file.exists() else []
        replaced = {each for name in given for each in AgentSettings.names_of(name)}
        kept = [line for line in before if line.partition("=")[0].strip() not in replaced]
        known = {line.partition("=")[0].strip() for line in kept} | given.keys()
        if not known & {*AgentSettings.names_of("TUNEFLEET_AGENT_KEY")}:
            # On systems that do not report the user of a peer process, access requires a key.
            given["TUNEFLEET_AGENT_KEY"] = secrets.token_urlsafe(32)
        write_private(self.env_file, "\n".join([*kept, *(f"{name}={value}" for name, value in given.items())]) + "\n")


def _escaped(text: str) -> str:
    """Escape systemd specifiers."""
    return text.replace("%", "%%")


def _quoted(text: str) -> str:
    escaped = _escaped(text).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"' if " " in text or escaped != text else text
