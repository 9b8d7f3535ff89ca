# SPDX-License-Identifier: Apache-2.0
"""CUDA source -> cubin by NVRTC (without a GPU) -> a kernel launched through the driver API.

It is always a cubin for one architecture, because an older driver refuses PTX from a newer NVRTC.
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache, partial
from typing import Any
from weakref import WeakValueDictionary, finalize

import torch
from cuda.bindings import driver, nvrtc
from cuda.pathfinder import DynamicLibNotFoundError, load_nvidia_dynamic_lib

from thunder_fuser.base.threads import ForkGate, SingleFlight, make_lock
from thunder_fuser.codegen.source import KernelSource, Param
from thunder_fuser.errors import CompileError, LaunchError, ToolchainError
from thunder_fuser.options import option
from thunder_fuser.runtime.binaries import binary
from thunder_fuser.runtime.captured import CapturePoint, may_start_early, note_launch, unwritten
from thunder_fuser.runtime.rejected import rejected
from thunder_fuser.store.entry import Binary, Recipe

FLAGS = ("--std=c++17", "--minimal")
SMEM_ATTRIBUTE = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
CLUSTER_ATTRIBUTE = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED
# Bytes of dynamic shared memory, and blocks of a cluster: a kernel with more sets the attribute.
ALLOWED = {SMEM_ATTRIBUTE: 48 * 1024, CLUSTER_ATTRIBUTE: 8}
# The struct format of each argument, padded to 8 bytes.
PACK_FORMATS = {
    "double": "d", "float": "f4x", "i64": "q", "i32": "i4x", "i16": "h6x", "i8": "b7x",
    "u8": "B7x", "bool": "?7x",
}  # fmt: skip
DEPENDENT = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
DIMENSIONS = (
    "gridDimX", "gridDimY", "gridDimZ", "blockDimX", "blockDimY", "blockDimZ", "sharedMemBytes",
)  # fmt: skip
# The errors of a launch if the thread's current context is another one, or there is none.
WRONG_CONTEXT = frozenset({
    driver.CUresult.CUDA_ERROR_INVALID_CONTEXT,
    driver.CUresult.CUDA_ERROR_INVALID_HANDLE,
    driver.CUresult.CUDA_ERROR_INVALID_RESOURCE_TYPE,
})  # fmt: skip
_AT_LEAST = int(driver.CUstreamWaitValue_flags.CU_STREAM_WAIT_VALUE_GEQ)


def compile_cubin(text: str, name: str, arch: str) -> Binary:
    """The cubin of CUDA source for `arch`, such as "sm_90a". Equal sources are compiled once."""
    return cubin(cubin_recipe(text, name, arch))


def cubin(recipe: Recipe) -> Binary:
    """The cubin of a recipe, found or compiled."""
    return binary(recipe, lambda: _compile(recipe))


def cubin_recipe(text: str, name: str, arch: str) -> Recipe:
    """The recipe of a cubin."""
    return Recipe("cubin", name, text, arch, FLAGS, _nvrtc_fingerprint())


def nvrtc_version() -> tuple[int, int]:
    """NVRTC's version, as (major, minor)."""
    major, minor = _nvrtc(nvrtc.nvrtcVersion)
    return major, minor


@cache
def driver_version() -> int:
    """The version of the CUDA driver, such as 13000."""
    (version,) = call_driver("the driver", driver.cuDriverGetVersion)
    return int(version)


@cache
def _nvrtc_fingerprint() -> str:
    """The version and the library's size, which differs between patch releases."""
    major, minor = nvrtc_version()
    path = load_nvidia_dynamic_lib("nvrtc").abs_path
    size = os.stat(path).st_size if path else 0
    return f"NVRTC {major}.{minor} ({size} bytes)"


def _compile(recipe: Recipe) -> bytes:
    name, arch, text = recipe.name, recipe.arch, recipe.text
    _check_arch(name, arch)
    file = f"{name}.cu"
    (program,) = _nvrtc(nvrtc.nvrtcCreateProgram, text.encode(), file.encode(), 0, [], [])
    try:
        options = [f"--gpu-architecture={arch}".encode(), *(flag.encode() for flag in recipe.flags)]
        with _NVRTC.passed():
            (status,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
        if status:
            log = _read(program, nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog)
            words = log.decode(errors="replace").rstrip("\0\n")
            raise rejected(f"NVRTC ({name}, {arch})", words, text, file)
        return _read(program, nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN)
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def _read(program: Any, size_of: Callable[..., Any], read: Callable[..., Any]) -> bytes:
    (size,) = _nvrtc(size_of, program)
    content = bytearray(size)
    _nvrtc(read, program, content)
    return bytes(content)


def _check_arch(name: str, arch: str) -> None:
    (count,) = _nvrtc(nvrtc.nvrtcGetNumSupportedArchs)
    (archs,) = _nvrtc(nvrtc.nvrtcGetSupportedArchs)
    numbers = sorted(archs[:count])
    if arch.removeprefix("sm_").rstrip("af") not in map(str, numbers):
        major, minor = nvrtc_version()
        raise CompileError(
            f"Kernel {name}: architecture {arch}",
            expected=f"one that NVRTC {major}.{minor} knows (sm_{numbers[0]} to sm_{numbers[-1]})",
            got=arch, do="install a newer nvidia-cuda-nvrtc",
        )  # fmt: skip


def _nvrtc(function: Callable[..., Any], *args: Any) -> tuple[Any, ...]:
    try:
        status, *results = function(*args)
    except DynamicLibNotFoundError as error:
        raise ToolchainError("NVRTC was not found; install nvidia-cuda-nvrtc.") from error
    if status:
        raise CompileError(f"{function.__name__} failed: {nvrtc.nvrtcResult(status).name}")
    return tuple(results)


class CudaKernel:
    """A kernel loaded on one device; `launch` costs a pack and a driver call."""

    __slots__ = (
        "_addresses", "_args", "_block", "_lock", "_module", "_pack", "device_index", "dims",
        "function", "source",
    )  # fmt: skip

    def __init__(self, source: KernelSource, module: Module, device_index: int) -> None:
        self.source = source
        self._module = module
        self.function = module.function
        self.device_index = device_index
        self.dims = (*source.grid, *source.block, source.smem_bytes)
        self._pack = argument_packer(source.params).pack_into
        self._block, self._addresses = argument_block(len(source.params))
        self._args = ctypes.addressof(self._addresses)
        self._lock = make_lock()

    def launch(self, stream: int, values: tuple[Any, ...]) -> None:
        """Enqueues the kernel on a stream; values are addresses and scalars in parameter order."""
        if stream and torch._C._cuda_isCurrentStreamCapturing():
            self._launch_in_graph(stream, values)
        else:
            self._launch(partial(self._in_turn, stream), values)

    def _launch_in_graph(self, stream: int, values: tuple[Any, ...]) -> None:
        """An early kernel depends on the one before it in the programmatic way: it may start while
        that one runs, and waits by itself."""
        place = _place(stream)
        behind = unwritten(stream, place)
        is_early = option("dependent_launches") and may_start_early(self.source, values, behind)
        self._launch(partial(self._dependent if is_early else self._in_turn, stream), values)
        _CAPTURED.add(self._module)
        note_launch(stream, _place(stream), self.source, values, behind if is_early else ())

    def _launch(self, launch: Callable[[], tuple[Any]], values: tuple[Any, ...]) -> None:
        # The driver copies the block during the call. Until then no other thread may write to it.
        with self._lock:
            try:
                self._pack(self._block, 0, *values)
            except struct.error as error:
                raise self._error(f"arguments {values!r} do not fit: {error}") from error
            (status,) = launch()
            if status in WRONG_CONTEXT:
                with current_context(self.device_index):
                    (status,) = launch()
        if status:
            raise self._error(_error_name(status))

    def _in_turn(self, stream: int) -> Any:
        return driver.cuLaunchKernel(self.function, *self.dims, stream, self._args, 0)

    def _dependent(self, stream: int) -> Any:
        attribute, config = driver.CUlaunchAttribute(), driver.CUlaunchConfig()
        attribute.id = DEPENDENT
        attribute.value.programmaticStreamSerializationAllowed = 1
        for field, number in zip(DIMENSIONS, self.dims, strict=True):
            setattr(config, field, number)
        config.hStream, config.attrs, config.numAttrs = stream, [attribute], 1
        return driver.cuLaunchKernelEx(config, self.function, self._args, 0)

    def _error(self, reason: str) -> LaunchError:
        source = self.source
        return LaunchError(
            f"Kernel {source.name} (grid {source.grid}, block {source.block}, "
            f"{source.smem_bytes} bytes of shared memory, device {self.device_index}): {reason}"
        )


@cache
def launch_address() -> int:
    """The address of the driver's cuLaunchKernel."""
    driver_library = ctypes.CDLL(load_nvidia_dynamic_lib("cuda").abs_path)
    return ctypes.cast(driver_library.cuLaunchKernel, ctypes.c_void_p).value or 0


def argument_packer(params: tuple[Param, ...]) -> struct.Struct:
    """The struct that packs a call's values into 8 bytes each.

    >>> argument_packer((Param("T0", "float", "input"), Param("s", "i32", "scalar"))).format
    '=Qi4x'
    """
    letters = ("Q" if param.is_pointer else PACK_FORMATS[param.ctype] for param in params)
    return struct.Struct("=" + "".join(letters))


def argument_block(count: int) -> tuple[Any, Any]:
    """A block for `count` values, and the array of their addresses, which the driver takes."""
    block = (ctypes.c_uint64 * max(count, 1))()
    start = ctypes.addressof(block)
    addresses = (ctypes.c_void_p * max(count, 1))(*(start + 8 * i for i in range(count)))
    return block, addresses


class Module:
    """A binary loaded on a device. All kernels with its source share it, and it is unloaded after
    the last of them."""

    def __init__(self, source: KernelSource, cubin: Binary, device_index: int) -> None:
        name = f"Kernel {source.name}"
        self.name, self._device_index = name, device_index
        self._allowed = dict(ALLOWED)
        self._lock = make_lock()
        with current_context(device_index):
            _unload_retired(device_index)
            (handle,) = call_driver(name, driver.cuModuleLoadData, cubin.code)
            # Only marked: a finalizer may run at any point, and a launch may not have ended.
            finalize(self, _RETIRED.append, (device_index, handle)).atexit = False
            entry = cubin.name.encode()
            (self.function,) = call_driver(name, driver.cuModuleGetFunction, handle, entry)

    def allow(self, source: KernelSource) -> None:
        """Raises the function's limits of shared memory and cluster size, as a kernel needs."""
        smem, cluster = source.smem_bytes, source.cluster
        wanted = (
            (SMEM_ATTRIBUTE, smem, smem, f"{smem} bytes of shared memory"),
            (CLUSTER_ATTRIBUTE, cluster, 1, f"clusters of {cluster} blocks"),
        )
        with self._lock, current_context(self._device_index):
            for attribute, amount, value, words in wanted:
                if amount > self._allowed[attribute]:
                    thing = f"{self.name}, {words}"
                    call_driver(thing, driver.cuFuncSetAttribute, self.function, attribute, value)
                    self._allowed[attribute] = amount


def load_kernel(source: KernelSource, arch: str, device_index: int) -> CudaKernel:
    """Finds or compiles a kernel's binary, and loads it once on a device."""
    key = (cubin_recipe(source.text, source.name, arch).key, device_index)
    module = _MODULES.get(
        key, lambda: Module(source, compile_cubin(source.text, source.name, arch), device_index)
    )
    module.allow(source)
    return CudaKernel(source, module, device_index)


def _unload_retired(device_index: int) -> None:
    """Unloads unreferenced modules after all launches on the device have ended.

    It runs when a module is loaded, which is slow in any case, but not while a graph is captured.
    """
    if not _RETIRED or torch._C._cuda_isCurrentStreamCapturing():
        return
    taken = []
    with suppress(IndexError):  # another thread may take them too
        while True:
            taken.append(_RETIRED.popleft())
    _RETIRED.extend(retired for retired in taken if retired[0] != device_index)
    ours = [handle for index, handle in taken if index == device_index]
    if ours:
        call_driver("kernels that are not used any more", driver.cuCtxSynchronize)
    for handle in ours:
        call_driver("a kernel that is not used any more", driver.cuModuleUnload, handle)


@contextmanager
def current_context(device_index: int) -> Iterator[None]:
    """Makes the device's primary context current until the block ends. torch uses it too."""
    thing = f"device {device_index}"
    call_driver(thing, driver.cuCtxPushCurrent, _primary_context(device_index))
    try:
        yield
    finally:
        call_driver(thing, driver.cuCtxPopCurrent)


@cache
def _primary_context(device_index: int) -> Any:
    thing = f"device {device_index}"
    call_driver(thing, driver.cuInit, 0)
    (device,) = call_driver(thing, driver.cuDeviceGet, device_index)
    (context,) = call_driver(thing, driver.cuDevicePrimaryCtxRetain, device)
    return context


def call_driver(thing: str, function: Callable[..., Any], *args: Any) -> tuple[Any, ...]:
    try:
        status, *results = function(*args)
    except DynamicLibNotFoundError as error:
        raise ToolchainError("No NVIDIA driver was found on this machine.") from error
    if status:
        raise LaunchError(f"{thing}: {function.__name__} failed: {_error_name(status)}")
    return tuple(results)


def _error_name(status: Any) -> str:
    _, name = driver.cuGetErrorName(status)
    _, words = driver.cuGetErrorString(status)
    return f"{(name or b'unknown error').decode()} ({(words or b'').decode()})"


_NVRTC = ForkGate()
# Weak values: a module is retired with its last kernel.
_MODULES: SingleFlight[Module] = SingleFlight(WeakValueDictionary())
_RETIRED: deque[tuple[int, Any]] = deque()
_CAPTURED: set[Module] = set()  # kept for ever: a captured graph may launch them at any time


# ---------------------------------------------------------- operations of a stream without a kernel
# A stream that waits occupies no multiprocessor, and another process may write the number.


def write_value(stream: int, address: int, value: int) -> None:
    """The stream writes a 32-bit number once its work so far is done and visible to others."""
    _check("cuStreamWriteValue32", driver.cuStreamWriteValue32(stream, address, value, 0))


def wait_value(stream: int, address: int, value: int) -> None:
    """The stream waits until the 32-bit number at the address has reached a value.

    The comparison is of the signed difference, so it stays right when the numbers wrap around.
    """
    _check("cuStreamWaitValue32", driver.cuStreamWaitValue32(stream, address, value, _AT_LEAST))


def copy(stream: int, target: int, source: int, size: int) -> None:
    """The stream copies `size` bytes by a copy engine, between addresses that its device maps."""
    _check("cuMemcpyDtoDAsync", driver.cuMemcpyDtoDAsync(target, source, size, stream))


def allow_capture_elsewhere() -> None:
    """Allows this thread driver calls while another thread captures a CUDA graph. By default they
    would break the capture."""
    relaxed = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
    _check("cuThreadExchangeStreamCaptureMode", driver.cuThreadExchangeStreamCaptureMode(relaxed))


def _place(stream: int) -> CapturePoint:
    """Where a capture on a stream stands; nothing if the stream is not captured."""
    query = driver.cuStreamGetCaptureInfo
    state, number, _, nodes, *_ = call_driver("a stream", query, stream)
    is_active = state == driver.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_ACTIVE
    return (int(number), *map(int, nodes)) if is_active else ()


def _check(name: str, result: tuple[Any, ...]) -> None:
    if result[0]:
        raise LaunchError(f"{name} failed: {result[0].name}")
