"""Install what lock files name into this Python's environment, each package by its hash: `make install`.

    .venv/bin/python requirements/install.py requirements/run.lock requirements/local.lock
    .venv/bin/python requirements/install.py --without-hashes requirements/torch.lock

uv does it, in a third of pip's time. uv reads no settings of pip, so a mirror, a proxy or a certificate that pip
is told of (pip.conf, PIP_INDEX_URL, ...) is passed on here; a variable of uv's own comes before it. Packages come
alone, since the lock files name what each brings along; with --without-hashes, for torch, whose builds differ by
index, they bring along what is lacking. Bytecode is left to the first import, unless UV_COMPILE_BYTECODE is set.
"""

import argparse
import ast
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

# pip's name of a setting: uv's variable, and what stands between several values there.
SAME_IN_UV = {
    "cert": ("SSL_CERT_FILE", None),
    "client-cert": ("SSL_CLIENT_CERT", None),
    "default-timeout": ("UV_HTTP_TIMEOUT", None),
    "extra-index-url": ("UV_INDEX", " "),
    "find-links": ("UV_FIND_LINKS", ","),
    "index-url": ("UV_DEFAULT_INDEX", None),
    "no-index": ("UV_NO_INDEX", None),
    "proxy": ("ALL_PROXY", None),
    "timeout": ("UV_HTTP_TIMEOUT", None),
    "trusted-host": ("UV_INSECURE_HOST", " "),
}
# pip's sections that hold for `pip install`, the weakest first.
SECTIONS = ("global", "install", ":env:")


def pip_settings(listing: str) -> dict[str, str]:
    """The settings in what `pip config list` prints; the strongest section's value of each."""
    settings: dict[tuple[str, str], str] = {}
    for line in listing.splitlines():
        name, separator, value = line.partition("=")
        section, _, key = name.rpartition(".")
        if separator and section in SECTIONS:
            settings[section, key] = str(ast.literal_eval(value))
    return {
        key: settings[section, key] for section in SECTIONS for (owner, key) in settings if owner == section
    }


def uv_variables(settings: dict[str, str]) -> dict[str, str]:
    """What uv has to be told in its environment, so that it asks the servers that pip would ask."""
    variables = {
        "UV_SYSTEM_CERTS": "1",
        # As pip does it: every index is asked. Which of them answers does not matter, since the hash decides.
        "UV_INDEX_STRATEGY": "unsafe-best-match",
    }
    for key, (variable, separator) in SAME_IN_UV.items():
        if key in settings:
            value = settings[key]
            variables[variable] = value if separator is None else separator.join(value.split())
    return variables


def main(arguments: list[str]) -> int:
    """Install the packages of these lock files; returns uv's exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--without-hashes", action="store_true", help="with what the packages bring along, by version alone"
    )
    parser.add_argument("locks", nargs="+", metavar="LOCK")
    choices = parser.parse_args(arguments)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    listing = subprocess.run([*pip, "config", "list"], check=True, capture_output=True, text=True).stdout
    uv = Path(sysconfig.get_path("scripts")) / "uv"
    command = [str(uv), "pip", "install", "--quiet", "--python", sys.executable]
    if not choices.without_hashes:
        command += ["--no-deps", "--require-hashes"]
    for lock in choices.locks:
        command += ["--requirement", lock]
    return subprocess.run(
        command, env={**uv_variables(pip_settings(listing)), **os.environ}, check=False
    ).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
