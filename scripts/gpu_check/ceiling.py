"""The greatest rates of this machine's GPU: of copies from page-locked host memory, with which streaming is compared, and of its
own memory, with which decoding is. They call the driver's own library directly."""

import ctypes
from contextlib import contextmanager


class Driver:
    """The functions of libcuda that are needed. Each raises an error with the function's name if the driver refuses."""

    def __init__(self, library=None):
        self.library = library or ctypes.CDLL("libcuda.so.1")

    def call(self, name: str, *arguments) -> None:
        code = getattr(self.library, name)(*arguments)
        if code != 0:
            raise RuntimeError(f"{name} answers {code}")

    def made(self, kind, name: str, *arguments):
        """The value that a function writes to the place of its first argument."""
        value = kind()
        self.call(name, ctypes.byref(value), *arguments)
        return value


def device_of(driver: Driver, uuid: str) -> ctypes.c_int:
    """The GPU with this UUID. The driver may number GPUs in another order than nvidia-smi."""
    wanted = bytes.fromhex(uuid.removeprefix("GPU-").replace("-", ""))
    for number in range(driver.made(ctypes.c_int, "cuDeviceGetCount").value):
        device = driver.made(ctypes.c_int, "cuDeviceGet", number)
        if bytes(driver.made(ctypes.c_ubyte * 16, "cuDeviceGetUuid_v2", device)) == wanted:
            return device
    raise RuntimeError(f"the driver shows no {uuid}")


@contextmanager
def context_of(driver: Driver, uuid: str):
    driver.call("cuInit", 0)
    device = device_of(driver, uuid)
    context = driver.made(ctypes.c_void_p, "cuDevicePrimaryCtxRetain", device)
    try:
        driver.call("cuCtxSetCurrent", context)
        yield
    finally:
        driver.call("cuDevicePrimaryCtxRelease_v2", device)


def timed(driver: Driver, rounds: int, name: str, *arguments) -> list[float]:
    """Seconds of each of `rounds` calls on the default stream, by the GPU's own clock."""
    begin, end = (driver.made(ctypes.c_void_p, "cuEventCreate", 0) for _ in range(2))
    seconds = []
    for _ in range(rounds):
        driver.call("cuEventRecord", begin, None)
        driver.call(name, *arguments)
        driver.call("cuEventRecord", end, None)
        driver.call("cuEventSynchronize", end)
        seconds.append(max(driver.made(ctypes.c_float, "cuEventElapsedTime", begin, end).value, 1e-6) / 1e3)
    return seconds


def pinned_copy(driver: Driver, uuid: str, size: int, rounds: int) -> list[float]:
    """Bytes per second of each of `rounds` copies of `size` bytes to that GPU."""
    with context_of(driver, uuid):
        host = driver.made(ctypes.c_void_p, "cuMemHostAlloc", ctypes.c_size_t(size), 0)
        memory = driver.made(ctypes.c_uint64, "cuMemAlloc_v2", ctypes.c_size_t(size))
        if host.value:
            ctypes.memset(host.value, 1, size)  # A page that was never written may not be there at all.
        seconds = timed(driver, rounds, "cuMemcpyHtoDAsync_v2", memory, host, ctypes.c_size_t(size), None)
        driver.call("cuMemFree_v2", memory)
        driver.call("cuMemFreeHost", host)
    return [size / one for one in seconds]


def own_memory(driver: Driver, uuid: str, size: int, rounds: int) -> list[float]:
    """Bytes per second, read and written, of each of `rounds` copies of `size` bytes within that GPU's memory."""
    with context_of(driver, uuid):
        one, other = (driver.made(ctypes.c_uint64, "cuMemAlloc_v2", ctypes.c_size_t(size)) for _ in range(2))
        seconds = timed(driver, rounds, "cuMemcpyDtoDAsync_v2", other, one, ctypes.c_size_t(size), None)
        driver.call("cuMemFree_v2", one)
        driver.call("cuMemFree_v2", other)
    return [2 * size / one for one in seconds]
