"""The web page in a source tree: build it, serve it with hot reload, check it, draw its pictures.

python -m scripts.web build    into src/tunefleet/api/ui, where a server of this tree finds it
python -m scripts.web dev      with hot reload; API requests go to TUNEFLEET_URL (default http://127.0.0.1:8000)
python -m scripts.web check    types against web/openapi.json, lint and format, unit tests
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

import hatch_build

ROOT = Path(__file__).resolve().parent.parent
WEB = ROOT / "web"
BUILT = ROOT / "src" / hatch_build.INTO
VITE = "node_modules/vite/bin/vite.js"
TYPES = ["openapi.json", "--output", "src/api/schema.d.ts", "--root-types", "--root-types-no-schema-prefix"]


def install() -> None:
    """Install the packages of the lock file, unless they are installed already.

    npm removes the installed packages first. They are installed into a folder of their own, so that a failed
    installation leaves the packages that were there.
    """
    key = hashlib.sha256((WEB / "package-lock.json").read_bytes()).hexdigest()
    stamp = WEB / "node_modules/.tunefleet"
    if stamp.is_file() and stamp.read_text(encoding="utf-8") == key:
        return
    fresh = WEB / ".packages"
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir()
    try:
        for name in ("package.json", "package-lock.json", ".npmrc"):
            shutil.copy(WEB / name, fresh)
        hatch_build.install(fresh)
        (fresh / "node_modules" / stamp.name).write_text(key, encoding="utf-8")
        if stamp.parent.is_symlink():
            stamp.parent.unlink()
        shutil.rmtree(stamp.parent, ignore_errors=True)
        (fresh / "node_modules").rename(stamp.parent)
    finally:
        shutil.rmtree(fresh)


def check() -> None:
    """Hold the page to the API's types, to the house's style, and to its unit tests."""
    hatch_build.node(["node_modules/openapi-typescript/bin/cli.js", *TYPES, "--alphabetize"], WEB)
    hatch_build.node(["node_modules/typescript/bin/tsc", "--noEmit"], WEB)
    hatch_build.node(["node_modules/@biomejs/biome/bin/biome", "ci", "."], WEB)
    hatch_build.node(["node_modules/vitest/vitest.mjs", "run", "--silent"], WEB)


def main(arguments: list[str]) -> int:
    """Do one of the verbs; return the exit code."""
    verbs = {
        "build": lambda: hatch_build.build(WEB, BUILT),
        "dev": lambda: hatch_build.node([VITE, "--open", "/ui/"], WEB),
        "check": check,
    }
    if len(arguments) != 1 or arguments[0] not in verbs:
        sys.stderr.write(__doc__ or "")
        return 2
    try:
        install()
        verbs[arguments[0]]()
    except subprocess.CalledProcessError as error:
        return error.returncode
    except KeyboardInterrupt:
        return 0
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
