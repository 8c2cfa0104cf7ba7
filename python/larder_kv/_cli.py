"""The command `larder` of the wheel: becomes the packaged program."""
from __future__ import annotations

import os
import signal
import sys
from typing import NoReturn

from larder_kv._find import program_path


def main() -> NoReturn:
    try:
        program = program_path()
        if os.path.exists(sys.argv[0]) and os.path.samefile(program,
                                                            sys.argv[0]):
            raise FileNotFoundError(
                f"LARDER_PROGRAM={program} is this script: set it to the "
                f"program, or unset it")
        # What is ignored stays ignored through exec, and Python ignores these.
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        os.execv(program, sys.argv)
    except OSError as error:
        sys.exit(f"larder: {error}")
