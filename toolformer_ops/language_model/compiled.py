"""Compiles what a network's layers compute element by element.

That is norms, rotary positions, activations and merged attention. Between matrix products a layer launches
some thirty small kernels, each of which reads and writes all activations: a third of the time of scoring with
7B parameters on an H200. `torch.compile` makes one or two of each part (measured there: 1.23 times as fast).
What is compiled is a table by the names of transformers' classes and functions (`MODULES`, `ROTARY`); a part
that is not in it stays as it is.

Only passes in 16 bits on a GPU are compiled: float32 decides, and a CPU's bits are the plain ones. The
comparison at load (`comparison.py`) guards the result, in a training that of `finetuning/compiled_layers.py`. A part
that cannot be compiled is computed plainly from then on, and the log says so once. Kernels are kept in the folder
`compiled` of the cache, so that the next process of a node compiles nothing.
"""

import functools
import logging
import os
import shutil
import types
from collections.abc import Callable
from typing import Any

import torch

from toolformer_ops.config import Settings

logger = logging.getLogger(__name__)

MODULES = ("RMSNorm", "MLP")
"""Ends of the names of classes whose `forward` is compiled, such as LlamaRMSNorm and GPT2MLP. torch's
LayerNorm is one kernel as it is."""
ROTARY = ("apply_rotary_pos_emb", "apply_rotary_emb")
"""Functions that give queries and keys their positions, by their names in the module of a layer's
attention."""
COMPILERS = ("gcc", "clang")
"""The programs that Triton looks for, unless the variable CC names one."""
RECOMPILATIONS = 64
"""A function is compiled again for sizes of 1, another number of dimensions or another number format; torch's
own limit, 8, is that of a loop that compiles without end."""


class CompiledFunction:
    """A function that torch compiles when it is called first.

    If that fails, it is computed plainly from then on.
    """

    def __init__(self, function: Callable[..., Any], backend: str) -> None:
        self._plain = function
        self._compiled = torch.compile(function, dynamic=True, backend=backend)
        self.refusal = ""
        """Why it is computed plainly; empty where it is not."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """As the function."""
        if self.refusal:
            return self._plain(*args, **kwargs)
        from torch._dynamo.exc import TorchDynamoException

        try:
            return self._compiled(*args, **kwargs)
        except TorchDynamoException as error:
            self.refusal = (str(error).strip() or type(error).__name__).splitlines()[0]
            logger.warning("%s is not compiled, and slower: %s", self._plain.__qualname__, self.refusal)
        return self._plain(*args, **kwargs)


@functools.cache
def compiled(function: Callable[..., Any], backend: str = "inductor") -> CompiledFunction:
    """The function, compiled once in a process for all layers and networks."""
    from torch._dynamo import config

    config.recompile_limit = max(config.recompile_limit, RECOMPILATIONS)
    return CompiledFunction(function, backend)


class CompiledParts:
    """The parts of one network that are compiled."""

    def __init__(self, network: Any, backend: str = "inductor") -> None:
        """Take their place in all layers.

        Modules whose `forward` another package has replaced stay as they are.
        """
        self._modules: list[Any] = []
        self.names: set[str] = set()
        """Names of the classes and functions that are compiled."""
        for module in network.modules():
            if "forward" in vars(module):  # accelerate's, which moves what a layer reads
                continue
            forward = type(module).forward
            if type(module).__name__.endswith(MODULES):
                self._replace(module, compiled(forward, backend), type(module).__name__)
            elif rotary := rotary_of(forward):
                replaced = with_globals(forward, rotary, compiled(forward.__globals__[rotary], backend))
                self._replace(module, replaced, rotary)

    def _replace(self, module: Any, forward: Callable[..., Any], name: str) -> None:
        module.forward = functools.partial(forward, module)
        self._modules.append(module)
        self.names.add(name)

    def undo(self) -> None:
        """Give the layers their own parts again."""
        for module in self._modules:
            del module.forward
        self._modules.clear()
        self.names.clear()


def rotary_of(forward: Callable[..., Any]) -> str | None:
    """The name by which an attention's `forward` calls the function of its rotary positions.

    None without one.
    """
    if not isinstance(forward, types.FunctionType) or hasattr(forward, "__wrapped__"):
        return None
    return next(
        (name for name in ROTARY if name in forward.__code__.co_names and name in forward.__globals__), None
    )


@functools.cache
def with_globals(forward: types.FunctionType, name: str, function: CompiledFunction) -> types.FunctionType:
    """Return the function with another one by this name: other networks of the process keep theirs."""
    replaced = types.FunctionType(
        forward.__code__,
        {**forward.__globals__, name: function},
        forward.__name__,
        forward.__defaults__,
        forward.__closure__,
    )
    replaced.__kwdefaults__ = forward.__kwdefaults__
    return replaced


def why_not() -> str:
    """Why nothing can be compiled on this machine; empty if it can."""
    from torch.utils._triton import has_triton

    if not has_triton():
        return "expected Triton for this GPU, found none that torch can use"
    wanted = (os.environ["CC"],) if os.environ.get("CC") else COMPILERS
    if not any(map(shutil.which, wanted)):
        return (
            f"expected a C compiler, which Triton needs at run time, found none of {', '.join(wanted)}. "
            "Install gcc and libc6-dev (in the image: RUNTIME_PACKAGES), or set TOOLFORMER_COMPILE=off"
        )
    return ""


def compile_parts(network: Any, settings: Settings) -> CompiledParts | None:
    """Compile the parts of a network in 16 bits on a GPU, unless the settings say off.

    None where nothing is compiled; the log says so if it cannot be.
    """
    if network.dtype not in (torch.bfloat16, torch.float16):
        return None
    return parts_compiled_on_gpu(network, settings)


def parts_compiled_on_gpu(network: Any, settings: Settings) -> CompiledParts | None:
    """Compile the parts of a network on a GPU whose passes compute in 16 bits, unless the settings say off.

    None where nothing is compiled; the log says so if it cannot be. Kernels are kept in the cache of the settings, unless
    TORCHINDUCTOR_CACHE_DIR names another folder.
    """
    device = network.get_input_embeddings().weight.device
    if settings.compile == "off" or device.type != "cuda":
        return None
    if reason := why_not():
        logger.warning("the layers' parts are not compiled, which takes about a fifth longer: %s", reason)
        return None
    folder = settings.cache_folder.expanduser().resolve() / "compiled"
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(folder))
    parts = CompiledParts(network)
    logger.info(
        "compiled when they are used first: %s", ", ".join(sorted(parts.names)) or "nothing that is known"
    )
    return parts
