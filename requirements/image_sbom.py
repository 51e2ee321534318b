"""The parts of an image as CycloneDX 1.6: `make sbom IMAGE=registry/toolformer-ops:0.1.0`, or as a filter.

    docker run --rm --network none --entrypoint sh IMAGE -c "$(python requirements/image_sbom.py)" > list
    python requirements/image_sbom.py IMAGE < list

Without an argument it prints the command that lists an image's parts: Debian's packages with their versions,
an empty line, the distribution, and Python's packages as JSON. With the image's name it reads that list, and
prints the bill of materials. Nothing in it is of the time or the machine, so that the same image gives the
same bytes.
"""

import json
import sys
from collections.abc import Iterator
from urllib.parse import quote

LIST = (
    "dpkg-query --show --showformat='${Package} ${Version} ${Architecture}\\n' && . /etc/os-release && echo && "
    'echo "$ID" && python -m pip list --format json --disable-pip-version-check'
)


def components(listed: str) -> Iterator[dict[str, str]]:
    """The parts in what `LIST` prints, each with its package address (purl)."""
    debian, _, rest = listed.partition("\n\n")
    distribution, _, python = rest.partition("\n")
    for line in sorted(debian.splitlines()):
        name, version, architecture = line.split(" ")
        purl = f"pkg:deb/{distribution}/{name}@{quote(version, safe='')}?arch={architecture}"
        yield {"type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl}
    for package in sorted(json.loads(python), key=lambda package: str(package["name"]).lower()):
        name = package["name"].lower().replace("_", "-")
        purl = f"pkg:pypi/{name}@{quote(package['version'], safe='')}"
        yield {
            "type": "library",
            "bom-ref": purl,
            "name": package["name"],
            "version": package["version"],
            "purl": purl,
        }


def bill(image: str, listed: str) -> str:
    """The bill of materials of an image, as JSON."""
    return json.dumps(
        {
            "bomFormat": "CycloneDX",
            "specVersion": "1.6",
            "version": 1,
            "metadata": {"component": {"type": "container", "bom-ref": image, "name": image}},
            "components": list(components(listed)),
        },
        indent=2,
    )


if __name__ == "__main__":
    sys.stdout.write(f"{bill(sys.argv[1], sys.stdin.read()) if sys.argv[1:] else LIST}\n")
