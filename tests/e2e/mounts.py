"""A mount name space of the test's own: whatever becomes of the test, nothing
stays mounted."""
import contextlib
import ctypes
import errno
import os
import pathlib

import pytest

NEWNS, DETACH, PRIVATE = 0x20000, 2, (1 << 14) | (1 << 18)

_libc = ctypes.CDLL(None, use_errno=True)


def checked(result):
    if result != 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))


def mount(where, kind, flags=0, options=None):
    checked(_libc.mount(b"none", os.fsencode(where), kind,
                        ctypes.c_ulong(flags), options))


def unmount(where):
    """Also while it is in use."""
    checked(_libc.umount2(os.fsencode(where), DETACH))


def _make_private(folder):
    """In a chroot / may be no mount point: what is mounted in this name space
    cannot be kept from others by one call. A file system of our own can, unless
    others see already that it is mounted."""
    name = os.path.basename(folder)
    mount(folder, b"tmpfs")
    try:
        others = pathlib.Path(f"/proc/{os.getppid()}/mountinfo").read_text()
    except OSError as e:
        others = f"{name}: {e}"
    if name in others:
        unmount(folder)
        pytest.skip("no mounts of our own here: / is no mount point, and what "
                    "is mounted below it others see too")
    mount(folder, None, PRIVATE)


@contextlib.contextmanager
def own_mounts(folder):
    """What is mounted in this folder is mounted for this process only, and for
    those that it starts. Needs root; skips the test where that is not to be."""
    cwd = os.getcwd()
    before = os.open("/proc/self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
    root = os.open("/", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            checked(_libc.unshare(NEWNS))
        except OSError as e:
            pytest.skip(f"no mounts of our own here: {e}")
        try:
            mount("/", None, PRIVATE)
        except OSError as e:
            if e.errno != errno.EINVAL:
                raise
            _make_private(str(folder))
        yield
    finally:
        checked(_libc.setns(before, NEWNS))  # and out of a chroot
        os.fchdir(root)
        os.chroot(".")
        os.chdir(cwd)
        os.close(root)
        os.close(before)
