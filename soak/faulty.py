"""What faulty.c is, for machines without a compiler: a tool that misbehaves on request."""

import json
import os
import signal
import sys
import time


def main() -> int:
    mode = sys.argv[1]
    if mode == "ignorer":
        os.close(0)
        return answer("ignored")
    nonce = json.loads(sys.stdin.buffer.read())["nonce"]
    if len(sys.argv) > 3:
        with open(sys.argv[3], "a", encoding="ascii") as file:
            file.write(f"{nonce}\n")
    match mode:
        case "echo":
            return answer(nonce)
        case "three":
            answer(nonce)
            return 3
        case "segv":
            os.kill(os.getpid(), signal.SIGSEGV)
        case "stubborn":
            if os.fork() == 0:
                os.setsid()
            hang()
        case "flood" | "loud":
            signal.signal(signal.SIGPIPE, signal.SIG_IGN)
            where, many = (1 if mode == "flood" else 2), b"x" * (1 << 20)
            try:
                while True:
                    os.write(where, many)
            except OSError:
                hang()
        case "swarm":
            for _ in range(12):
                if os.fork() == 0:
                    hang()
            return answer(nonce)
        case "bomb":
            for _ in range(300):
                try:
                    if os.fork() == 0:
                        hang()
                except OSError:
                    pass
                time.sleep(0.0005)
        case "daemon":
            if os.fork() == 0:
                os.setsid()
                if os.fork() == 0:
                    os.chdir("/")
                    os.closerange(0, 256)
                    hang()
                os._exit(0)
            return answer(nonce)
        case "holder":
            if os.fork() == 0:
                if os.fork() == 0:
                    hang()
                os._exit(0)
            return answer(nonce)
    return hang()


def answer(text: str) -> int:
    os.write(1, json.dumps({"echo": text}).encode("ascii") + b"\n")
    return 0


def hang() -> int:
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    while True:
        signal.pause()


if __name__ == "__main__":
    sys.exit(main())
