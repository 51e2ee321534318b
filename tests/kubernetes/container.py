"""The first process of a container: it builds the container's file system, gives up its rights and becomes the command.

The kubelet starts it as root, with a specification as JSON on its stdin, and reads from `started_fd`: the end
of the file once the command runs, or why it cannot. The command is PID 1 of new mount, PID, IPC and UTS
namespaces; the process that waits for it ends with its status, or with 128 + the signal that killed it. The
network is the machine's. Only the standard library is imported, so that a container starts in some 50 ms.
"""

import ctypes
import json
import os
import signal
import socket
import sys
from pathlib import Path
from typing import Any

# linux/mount.h, linux/sched.h, linux/prctl.h
READ_ONLY, NO_SUID, NO_DEVICES, REMOUNT, BIND, RECURSIVE, PRIVATE = 1, 2, 4, 32, 4096, 16384, 1 << 18
NEW_MOUNTS, NEW_HOST_NAME, NEW_IPC, NEW_PROCESS_IDS = 0x20000, 0x4000000, 0x8000000, 0x20000000
SET_PARENT_DEATH_SIGNAL, SET_NO_NEW_PRIVILEGES = 1, 38

DEVICES = ("null", "zero", "full", "random", "urandom", "tty")

libc = ctypes.CDLL(None, use_errno=True)


def mount(source: str, target: Path, kind: str = "", flags: int = 0, data: str = "") -> None:
    """mount(2); raises OSError."""
    arguments = (
        source.encode(),
        os.fsencode(target),
        kind.encode() or None,
        ctypes.c_ulong(flags),
        data.encode(),
    )
    if libc.mount(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"mount {source}: {os.strerror(number)}", str(target))


def bind(source: Path, target: Path, *, read_only: bool) -> None:
    """Show `source`, a file or a folder, at `target`, which is made."""
    if source.is_dir():
        target.mkdir(parents=True, exist_ok=True)
    else:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.touch()
    mount(str(source), target, flags=BIND | RECURSIVE)
    if read_only:
        mount("none", target, flags=BIND | REMOUNT | READ_ONLY | NO_SUID)


def build_root(root: Path, spec: dict[str, Any]) -> None:
    """Mount the image, the devices and the volumes below `root`."""
    # 1. The image: each of its paths is the machine's, read-only. A tmpfs holds the folders between them.
    mount("tmpfs", root, "tmpfs", NO_SUID, "mode=755,size=64m")
    for name in sorted(spec["image_paths"]):
        path = Path(name)
        if path.is_symlink():  # /bin is usr/bin
            (root / name[1:]).symlink_to(path.readlink())
        else:
            bind(path, root / name[1:], read_only=True)

    # 2. What every container has.
    (root / "proc").mkdir()
    mount("proc", root / "proc", "proc", NO_SUID | NO_DEVICES)
    bind(Path("/sys"), root / "sys", read_only=True)
    for device in DEVICES:
        bind(Path("/dev", device), root / "dev" / device, read_only=False)
    for name, target in (("fd", "fd"), ("stdin", "fd/0"), ("stdout", "fd/1"), ("stderr", "fd/2")):
        (root / "dev" / name).symlink_to(f"/proc/self/{target}")
    (root / "dev/shm").mkdir()
    mount("tmpfs", root / "dev/shm", "tmpfs", NO_SUID | NO_DEVICES, "mode=1777,size=64m")

    # 3. The volumes, outer ones before those inside of them.
    for volume in sorted(spec["mounts"], key=lambda volume: str(volume["target"])):
        target = root / volume["target"].lstrip("/")
        bind(Path(volume["source"]), target, read_only=volume["read_only"])
    if spec["read_only_root"]:
        mount("none", root, flags=BIND | REMOUNT | READ_ONLY | NO_SUID)


def give_up_rights(user: int, group: int, groups: list[int], *, no_new_privileges: bool) -> None:
    """Become `user`; who is not root loses all capabilities by that."""
    os.setgroups(groups)
    os.setgid(group)
    os.setuid(user)
    if no_new_privileges:
        libc.prctl(SET_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    libc.prctl(SET_PARENT_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)  # setuid has taken it back


def become(spec: dict[str, Any], started_fd: int) -> None:
    """Become the command; returns only by the process's end."""
    try:
        libc.prctl(SET_PARENT_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
        socket.sethostname(spec["hostname"])
        mount("none", Path("/"), flags=RECURSIVE | PRIVATE)
        build_root(Path(spec["root"]), spec)
        os.chroot(spec["root"])
        os.chdir("/")
        give_up_rights(
            spec["user"], spec["group"], spec["groups"], no_new_privileges=spec["no_new_privileges"]
        )
        os.execvpe(spec["command"][0], spec["command"], spec["environment"])  # noqa: S606  (no shell: argv is a list)
    except OSError as error:
        os.write(started_fd, f'exec: "{spec["command"][0]}": {error}'.encode())
    finally:
        os._exit(128)


def main(started_fd: int) -> None:
    """Start the command, wait for its end, and end with its status."""
    libc.prctl(
        SET_PARENT_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0
    )  # so that the tests' process leaves no container
    spec = json.load(sys.stdin)
    os.dup2(os.open("/dev/null", os.O_RDONLY), 0)
    os.set_inheritable(
        started_fd, False
    )  # exec closes it: that is how the kubelet learns that the command runs
    if libc.unshare(NEW_MOUNTS | NEW_HOST_NAME | NEW_IPC | NEW_PROCESS_IDS) != 0:
        os.write(started_fd, f"unshare: {os.strerror(ctypes.get_errno())}".encode())
        os._exit(128)
    process_id = os.fork()
    if process_id == 0:
        become(spec, started_fd)
    os.close(started_fd)
    status = os.waitstatus_to_exitcode(os.waitpid(process_id, 0)[1])
    os._exit(128 - status if status < 0 else status)


if __name__ == "__main__":
    main(int(sys.argv[1]))
