"""A second device without a GPU: torch takes it for an accelerator, but its numbers lie in main memory.

It is torch's "privateuse1" with a backend in Python, so autograd, vmap, nn.Module.to and Lightning treat its tensors as
any accelerator's. Tensors of the CPU and of the device mix only where CUDA lets them, and whenever the host waits for
numbers of the device, the place is noted. Importing this registers the device for the whole process.
"""

import sys
from pathlib import Path
from typing import Any

import torch
from conftest import ROOT
from lightning.pytorch.accelerators import Accelerator
from torch import Tensor
from torch.utils._python_dispatch import return_and_correct_aliasing
from torch.utils.backend_registration import _DummyBackendModule, _setup_privateuseone_for_python_backend

aten, SOURCES = torch.ops.aten, str(ROOT / "src" / "fedshvr")
WAITS = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}  # .item(), nonzero(), bincount() ...
INDEXED = {aten.index, aten.index_put, aten.index_put_, aten._index_put_impl_}  # take an index of the host
NUMBER = {aten.fill_, aten.masked_fill, aten.masked_fill_, *INDEXED}  # take one number of the host, as arithmetic does
reads: list[str] = []  # where the host has waited for the device, as "module.function: operation"
uploads: list[str] = []  # where numbers went the other way


class Module(_DummyBackendModule):
    """What torch.cuda is to CUDA."""

    def synchronize(self, device: object = None) -> None:
        pass


_setup_privateuseone_for_python_backend("simulated", backend_module=Module())
DEVICE = torch.device("simulated", 0)


class DeviceTensor(Tensor):
    """A tensor of the device; `numbers` holds them in main memory."""

    numbers: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, numbers: Tensor) -> "DeviceTensor":
        layout = {"strides": numbers.stride(), "storage_offset": numbers.storage_offset(), "dtype": numbers.dtype}
        self = Tensor._make_wrapper_subclass(cls, numbers.shape, device=DEVICE, **layout)
        self.numbers = numbers
        return self

    @property
    def data(self) -> Tensor:
        return self.detach()

    @data.setter
    def data(self, value: "DeviceTensor") -> None:
        Tensor.data.__set__(self, value)
        self.numbers = value.numbers

    def data_ptr(self) -> int:
        return self.numbers.data_ptr()

    def tolist(self) -> Any:
        return self.cpu().tolist()

    def __repr__(self) -> str:  # type: ignore[override]
        return f"{self.numbers} on {DEVICE}"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        op, kwargs = func.overloadpacket, kwargs or {}
        tensors = [
            t for arg in (*args, *kwargs.values()) for t in (arg if _many(arg) else [arg]) if isinstance(t, Tensor)
        ]
        to_host = _to_host(op, args, kwargs)
        if to_host or (_by_mask(args) if op in INDEXED else WAITS & set(func.tags)):
            reads.append(_place(op))
        if op is aten.copy_ and not isinstance(args[1], DeviceTensor):
            uploads.append(_place(op))
        elif not to_host:
            _refuse_mixed(func, op, args, tensors)
        options = {name: _numbers(arg) for name, arg in kwargs.items()}
        if options.get("device") is not None:
            options["device"] = torch.device("cpu")
        result = func(*map(_numbers, args), **options)
        if to_host:
            return args[0] if op is aten.copy_ else result.clone()
        return return_and_correct_aliasing(func, args, kwargs, _on_device(result))


def _many(value: Any) -> bool:
    return isinstance(value, (list, tuple))


def _numbers(value: Any) -> Any:
    if _many(value):
        return type(value)(map(_numbers, value))
    return value.numbers if isinstance(value, DeviceTensor) else value


def _on_device(value: Any) -> Any:
    if _many(value):
        return type(value)(map(_on_device, value))
    return DeviceTensor(value) if isinstance(value, Tensor) else value


def _to_host(op: Any, args: tuple, kwargs: dict) -> bool:
    if op is aten.copy_:
        return not isinstance(args[0], DeviceTensor)
    return op is aten._to_copy and kwargs.get("device") is not None and torch.device(kwargs["device"]).type == "cpu"


def _by_mask(args: tuple) -> bool:
    """x[mask] asks first how many are true."""
    return any(t is not None and t.dtype in (torch.bool, torch.uint8) for t in args[1])


def _refuse_mixed(func: Any, op: Any, args: tuple, tensors: list[Tensor]) -> None:
    """Raise where CUDA would: at a tensor of the CPU, unless it is an index or one number in arithmetic."""
    host = [t for t in tensors if not isinstance(t, DeviceTensor)]
    if op in INDEXED and isinstance(args[0], DeviceTensor):
        indices = {id(t) for t in args[1] if t is not None and not isinstance(t, DeviceTensor)}
        uploads.extend([_place(op)] * len(indices))
        host = [t for t in host if id(t) not in indices]
    takes_number = op in NUMBER or torch.Tag.pointwise in func.tags
    if any(t.dim() or not takes_number for t in host):
        raise RuntimeError(f"{_place(op)}: expected all tensors to be on one device, found {DEVICE} and cpu")


def _place(op: Any) -> str:
    """The innermost function of the package that is at work."""
    frame = sys._getframe(1)
    while frame is not None and not frame.f_code.co_filename.startswith(SOURCES):
        frame = frame.f_back  # type: ignore[assignment]
    where = f"{Path(frame.f_code.co_filename).stem}.{frame.f_code.co_name}" if frame else "torch"
    return f"{where}: {op.__name__}"


LIBRARY = torch.library.Library("aten", "IMPL")


@torch.library.impl(LIBRARY, "empty.memory_format", "PrivateUse1")
def _empty(size: list[int], *, dtype: Any = None, memory_format: Any = None, **_: Any) -> Tensor:
    return DeviceTensor(torch.empty(size, dtype=dtype, memory_format=memory_format or torch.contiguous_format))


@torch.library.impl(LIBRARY, "empty_strided", "PrivateUse1")
def _empty_strided(size: list[int], stride: list[int], *, dtype: Any = None, **_: Any) -> Tensor:
    return DeviceTensor(torch.empty_strided(size, stride, dtype=dtype))


@torch.library.impl(LIBRARY, "_efficientzerotensor", "PrivateUse1")
def _zero(size: list[int], *, dtype: Any = None, **_: Any) -> Tensor:
    return DeviceTensor(torch.zeros(size, dtype=dtype))


@torch.library.impl(LIBRARY, "_copy_from", "PrivateUse1")
def _copy_from(source: Tensor, target: Tensor, non_blocking: bool = False) -> Tensor:
    """torch.tensor(numbers, device=...) comes here."""
    assert isinstance(target, DeviceTensor)
    uploads.append(_place(aten.copy_))
    target.numbers.copy_(source)
    return target


class OnDevice(Accelerator):
    """The device as Lightning's accelerator."""

    def setup_device(self, device: torch.device) -> None:
        pass

    def teardown(self) -> None:
        pass

    @staticmethod
    def parse_devices(devices: object) -> int:
        return 1

    @staticmethod
    def get_parallel_devices(devices: object) -> list[torch.device]:
        return [DEVICE]

    @staticmethod
    def auto_device_count() -> int:
        return 1

    @staticmethod
    def is_available() -> bool:
        return True

    @staticmethod
    def name() -> str:
        return "simulated"
