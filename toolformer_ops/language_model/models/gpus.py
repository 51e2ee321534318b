"""GPUs as a process sees them: why torch can use none, which they are, and what fills them.

Asks the CUDA driver itself (`libcuda.so.1`) for what torch does not say: which CUDA it knows, and why it
shows no device.
"""

import ctypes
from dataclasses import dataclass

import torch

from toolformer_ops.errors import ConfigurationError, InfrastructureError

GIB = 2**30
DRIVER_BRANCHES = {"12": 525, "13": 580}
"""Oldest branch of NVIDIA's driver by major version of CUDA: programs of one major version run with each of
its drivers (NVIDIA, CUDA Compatibility, minor version compatibility)."""
CUDA_12 = "--build-arg TORCH_INDEX=https://download.pytorch.org/whl/cu126 --build-arg DEEPSPEED=yes"
"""Arguments of the Dockerfile."""
LARGEST_CONTEXT = 2 * GIB
"""More than CUDA keeps on a GPU for a process in addition to its tensors."""
MAKE_ROOM = (
    "End the other processes (`nvidia-smi` on the node lists them), or keep them away: no process outside of "
    "Kubernetes, and no time slicing."
)
SHARE_OF_OTHERS = 0.1
"""The share of a GPU's memory that other processes may hold before they are named; those of one training have
contexts on each GPU."""


@dataclass(frozen=True)
class Gpu:
    """One GPU, or one MIG slice of a GPU, at a moment."""

    number: int
    name: str
    """The name that the driver gives: "NVIDIA A100-SXM4-80GB", with "MIG 3g.40gb" for a slice."""
    total_bytes: int
    free_bytes: int
    own_bytes: int
    """What torch holds there for this process, used or not."""

    @property
    def held_by_others(self) -> int:
        """Bytes that other processes hold; 0 if so little is missing that it may be CUDA's own."""
        missing = self.total_bytes - self.free_bytes - self.own_bytes
        return missing if missing > max(LARGEST_CONTEXT, SHARE_OF_OTHERS * self.total_bytes) else 0

    def __str__(self) -> str:
        kind = "a MIG slice, " if " MIG " in self.name else ""
        others = (
            f", {self.held_by_others / GIB:.1f} GiB held by other processes" if self.held_by_others else ""
        )
        return f"{self.number}: {self.name} ({kind}{self.free_bytes / GIB:.1f} of {self.total_bytes / GIB:.1f} GiB free{others})"


def require_gpu(device: str) -> None:
    """Raise unless torch can use GPUs.

    The message says which part is lacking: torch's CUDA, a driver, a newer one, or the GPU.

    Raises:
        ConfigurationError: torch was built without CUDA, or for a newer CUDA than the driver knows: no retry
        mends that.
        InfrastructureError: no driver, or no GPU that it shows.
    """
    if torch.cuda.is_available():
        return
    built_for = torch.version.cuda
    if built_for is None:
        raise ConfigurationError(
            f"expected torch with CUDA for device {device!r}, found torch {torch.__version__}. Use an image "
            "with CUDA (--build-arg TORCH_INDEX= --build-arg DEEPSPEED=yes), or set TOOLFORMER_DEVICE=cpu."
        )
    library = _driver_library()
    if library is None:
        raise InfrastructureError(
            f"expected a GPU for device {device!r}, found no NVIDIA driver (libcuda.so.1). In a pod: does "
            "its template ask for a GPU, and does the cluster need a runtimeClassName for it? On a machine: "
            "install the driver, or set TOOLFORMER_DEVICE=cpu."
        )
    driver = _driver_cuda(library)
    major = built_for.partition(".")[0]
    if driver and driver[0] < int(major):
        branch = f" (branch {DRIVER_BRANCHES[major]})" if major in DRIVER_BRANCHES else ""
        raise ConfigurationError(
            f"expected a driver for CUDA {major}{branch} or newer, since torch {torch.__version__} is built "
            f"for CUDA {built_for}, found one for CUDA {driver[0]}.{driver[1]}: the driver is too old. "
            "Install a newer one on the node, or use an image with torch for CUDA 12 (branch "
            f"{DRIVER_BRANCHES['12']} or newer), built with {CUDA_12}."
        )
    version = f" for CUDA {driver[0]}.{driver[1]}" if driver else ""
    code, name = library.cuInit(0), ctypes.c_char_p()
    said = f"error {code}"
    if library.cuGetErrorName(code, ctypes.byref(name)) == 0 and name.value:
        said = name.value.decode("ascii")  # such as CUDA_ERROR_NO_DEVICE
    raise InfrastructureError(
        f"expected a GPU for device {device!r}, found none: the driver{version} says {said}. Does the pod's "
        "template ask for a GPU, and does `nvidia-smi` on the node show a healthy one? Else set "
        "TOOLFORMER_DEVICE=cpu."
    )


def cuda_versions() -> str:
    """Which CUDA torch was built for, and which the driver knows, in words."""
    library = _driver_library()
    driver = library and _driver_cuda(library)
    return f"torch for CUDA {torch.version.cuda}, driver for CUDA {'{}.{}'.format(*driver) if driver else 'not said'}"


def gpus() -> list[Gpu]:
    """All that this process sees; a process sees one MIG slice at most.

    Raises:
        InfrastructureError: a GPU cannot be used, such as a GPU that another process has for itself alone.
    """
    return [_gpu(number) for number in range(torch.cuda.device_count())]


def free_bytes(number: int) -> int:
    """What this process may take of a GPU's memory, with what torch holds there unused.

    No more than the share that the process was limited to, if it was (`torch.cuda.set_per_process_memory_fraction`).
    """
    free, total = torch.cuda.mem_get_info(number)
    allocated = torch.cuda.memory_allocated(number)
    share = int(total * torch.cuda.get_per_process_memory_fraction(number))
    return int(min(free + torch.cuda.memory_reserved(number), share) - allocated)


def require_own_memory(what: str) -> None:
    """Raise where memory was short for `what`, and other processes hold much of the GPUs that this one uses.

    Then this process is not to blame.

    Raises:
        InfrastructureError: the message has the free and all bytes of such a GPU, and what others hold.
    """
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return
    for number in range(torch.cuda.device_count()):
        if number != torch.cuda.current_device() and not torch.cuda.memory_reserved(number):
            continue  # another process's of the same training
        if (gpu := _gpu(number)).held_by_others:
            raise InfrastructureError(f"expected memory for {what}, found GPU {gpu}. {MAKE_ROOM}")


def _gpu(number: int) -> Gpu:
    try:
        name = torch.cuda.get_device_name(number)
        free, total = torch.cuda.mem_get_info(number)
        return Gpu(number, name, total, free, torch.cuda.memory_reserved(number))
    except RuntimeError as error:
        raise InfrastructureError(
            f"expected GPU {number}, found that it cannot be used: {str(error).splitlines()[0]}. Does "
            "another process have it for itself, or does `nvidia-smi` on the node show an error?"
        ) from error


def _driver_library() -> ctypes.CDLL | None:
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None


def _driver_cuda(library: ctypes.CDLL) -> tuple[int, int] | None:
    """The newest CUDA that the driver knows, such as (12, 4); needs no device. None if it does not say."""
    number = ctypes.c_int()
    if library.cuDriverGetVersion(ctypes.byref(number)) != 0:
        return None
    return number.value // 1000, number.value % 1000 // 10
