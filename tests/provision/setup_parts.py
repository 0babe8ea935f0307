"""What a host needs to be set up without an index and without torch: wheels that hold nothing but their names.

pip resolves and installs them honestly; one of them brings a .pth file that leads to the packages of this Python.
"""

from __future__ import annotations

import configparser
import io
import sysconfig
import zipfile
from importlib.metadata import version
from pathlib import Path

from packaging.requirements import Requirement

from zmqrl.provision.install import InstallBundle
from zmqrl.provision.wheel import make_wheel

ROOT = Path(__file__).parents[2]


def requirements() -> list[str]:
    parser = configparser.ConfigParser()
    parser.read(ROOT / "setup.cfg")
    lines = parser["options"]["install_requires"].split("\n")
    return [Requirement(line).name for line in lines if line.strip()]


def wheel_folder(folder: Path) -> tuple[Path, ...]:
    folder.mkdir(parents=True)
    for name in requirements():
        stem, release = name.replace("-", "_"), version(name)
        info = f"{stem}-{release}.dist-info"
        files = {
            f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {release}\n",
            f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
            f"{info}/RECORD": "",
        }
        if name == requirements()[0]:
            files["packages_of_the_tests.pth"] = sysconfig.get_path("purelib") + "\n"
        content = io.BytesIO()
        with zipfile.ZipFile(content, "w") as archive:
            for path, text in files.items():
                archive.writestr(path, text)
        (folder / f"{stem}-{release}-py3-none-any.whl").write_bytes(content.getvalue())
    return tuple(sorted(folder.iterdir()))


def bundle(folder: Path) -> InstallBundle:
    """What installs at once; its pins are the versions that this Python has."""
    pins = "".join(f"{name}=={version(name)}\n" for name in requirements())
    return InstallBundle(make_wheel(ROOT / "zmqrl"), pins.encode(), wheel_folder(folder))
