"""A model to start from, read from a file instead of pre-trained."""

from __future__ import annotations

from collections.abc import Mapping

from safetensors import SafetensorError
from torch import Tensor, nn

from ..config.tables import UserFile
from ..core import FedUnlearnError, State, vectors
from ..runs import read_state, read_tensors
from ..runs.files import read_unverified
from .code import sha256


def read_model(file: UserFile, module: nn.Module) -> State:
    """The state in a safetensors file, checked against the module's names and shapes.

    The file holds a module's ``state_dict``, or a state of our own, such as ``omega0.safetensors``.
    """
    path = file.path
    if file.sha256 and sha256(path) != file.sha256:
        raise FedUnlearnError(
            f"{path} has changed since the run began: restore it, or start a new run", code="changed"
        )
    try:
        tensors, metadata = read_unverified(path)
    except (SafetensorError, OSError) as error:
        raise FedUnlearnError(
            f"{path} is not a safetensors file ({error}): save a model's state_dict with "
            "safetensors.torch.save_file",
            code="damaged",
        ) from error
    ours = "state" in metadata
    if "sha256" in metadata:
        tensors = read_tensors(path)[0]
    wanted = State(vectors.flatten(module), buffers=vectors.buffers(module))
    if ours:
        state, _ = read_state(path)
        found = {"params": state.params, **state.buffers}
        _require_same(str(path), {"params": wanted.params, **wanted.buffers}, found)
        state = State(state.params, buffers=state.buffers, memory=state.memory)
    else:
        _require_same(str(path), module.state_dict(), tensors)
        module.load_state_dict(tensors)
        state = State(vectors.flatten(module), buffers=vectors.buffers(module))
    if not all(bool(tensor.isfinite().all()) for tensor in (state.params, *state.buffers.values())):
        raise FedUnlearnError(
            f"{path} holds values that are not finite: choose an earlier checkpoint", code="other-model"
        )
    return state


def _require_same(path: str, wanted: Mapping[str, Tensor], found: Mapping[str, Tensor]) -> None:
    """Refuse other names, shapes, or numbers that are no floats where the model has floats."""
    for name in found:
        if name not in wanted:
            raise FedUnlearnError(
                f"{path} holds a tensor {name!r}, and the model has none of this name", code="other-model"
            )
    for name, tensor in wanted.items():
        if name not in found:
            raise FedUnlearnError(
                f"{path} holds no tensor {name!r}, and the model needs one", code="other-model"
            )
        if found[name].shape != tensor.shape:
            raise FedUnlearnError(
                f"{path}, tensor {name!r}: its shape is {tuple(found[name].shape)}, "
                f"and the model's is {tuple(tensor.shape)}",
                code="other-model",
            )
        if found[name].is_floating_point() != tensor.is_floating_point():
            raise FedUnlearnError(
                f"{path}, tensor {name!r}: its type is {found[name].dtype}, "
                f"and the model's is {tensor.dtype}",
                code="other-model",
            )
