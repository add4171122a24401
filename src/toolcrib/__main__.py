"""``toolcrib`` and ``python -m toolcrib``: the same program.

The version is answered before anything else is imported, because scripts ask for it and start-up is paid on
every call.
"""

import gc
import os
import sys

_UNCOLLECTED_MAX = 100_000


def main() -> None:
    try:
        _main()
    except KeyboardInterrupt:  # while something is imported, or on the way out
        sys.exit(130)


def _main() -> None:
    if sys.argv[1:] == ["--version"]:
        from toolcrib import __version__

        try:
            if sys.stdout is not None:
                os.write(sys.stdout.fileno(), f"toolcrib {__version__}\n".encode())
            return
        except OSError:
            pass  # the long way round says what is wrong with the output
    if "serve" not in sys.argv:
        # Others are over before there is anything to collect; looking for it while they load would be a
        # fortieth of their time.
        gc.set_threshold(_UNCOLLECTED_MAX)
    from toolcrib.doors import cli

    status = cli.run(sys.argv[1:])
    # All that holds something outside the process is closed. Looking through the rest for cycles, which the
    # interpreter does twice before it ends, would be an eighth of a short command's time.
    gc.freeze()
    sys.exit(status)


if __name__ == "__main__":
    if not sys.flags.safe_path:
        # `python -m` looks for modules in the current folder first. Attack: a clone's click.py, run as ours.
        del sys.path[0]
    main()
